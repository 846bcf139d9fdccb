"""A tiny module that works in phases, and a Trainer to run it on the CPU."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger
from torch import Tensor
from torch.utils.data import DataLoader


class PhasedModule(LightningModule):
    """Calls `work(phase, epoch)` in each phase of an epoch, and announces the phase's end if asked to."""

    def __init__(self, work: Callable[[str, int], None] | None, announce: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.work, self.announce = work, announce

    def phase(self, name: str) -> None:
        if self.work is not None and not self.trainer.sanity_checking:
            self.work(name, self.current_epoch)
        for callback in self.trainer.callbacks if self.announce else ():
            if hasattr(callback, "on_phase_end"):
                callback.on_phase_end(self.trainer, self, name)

    def on_train_epoch_start(self) -> None:
        self.phase("evaluate")

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return (self.weight - 1).square().sum()

    def on_train_batch_end(self, *arguments: Any) -> None:
        if self.trainer.is_last_batch:
            self.phase("train")

    def validation_step(self, batch: Tensor, index: int) -> None:
        epoch = float(self.current_epoch)
        self.log_dict(
            {f"fitness/{name}": 10.0 * epoch + off for name, off in (("low", -5.0), ("mean", 0.0), ("high", 5.0))}
        )
        self.log("fitness/odd", epoch if self.current_epoch % 2 else float("nan"))

    def on_validation_epoch_end(self) -> None:
        self.phase("validate")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader() -> DataLoader[Tensor]:
    """Return a loader of two batches; Lightning takes a plain list for two loaders."""
    return DataLoader(torch.zeros(2, 1), batch_size=1)


def run_fit(
    root: Path,
    *callbacks: Callback,
    epochs: int = 3,
    work: Callable[[str, int], None] | None = None,
    announce: bool = False,
    logger: Logger | bool = False,
    ckpt_path: str | Path | None = None,
    module: LightningModule | None = None,
    **options: Any,
) -> Trainer:
    """Run a fit with its callbacks in a folder and return the Trainer."""
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=logger,
        default_root_dir=root,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    if "datamodule" not in options:
        options |= {"train_dataloaders": loader(), "val_dataloaders": loader()}
    trainer.fit(module or PhasedModule(work, announce), ckpt_path=ckpt_path, **options)
    return trainer


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., Trainer]:
    """Return `run_fit` in `tmp_path`."""
    return partial(run_fit, tmp_path)
