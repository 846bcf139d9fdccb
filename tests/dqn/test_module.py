"""The module of deep Q-learning: fitting again, and what a fit leaves behind."""

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from eigen2.dqn.module import DQNModule
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.hygiene import MemoryHygiene

SMALL: dict[str, Any] = {"grid_size": 8, "ignitions": 6, "num_landscapes": 2, "eval_landscapes": 1}
SMALL |= {"num_parallel_envs": 2, "buffer_size": 30, "warmup": 8, "batch_size": 4}


def fitted(root: Path, epochs: int, module: DQNModule, data: FuelBreakDataModule, *callbacks: Any) -> Trainer:
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=root, num_sanity_val_steps=0, callbacks=[*callbacks],
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return trainer


def weights(module: DQNModule) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in module.state_dict().values()]


def test_a_module_that_was_reset_learns_what_a_fresh_one_learns(tmp_path: Path) -> None:
    module, data = DQNModule(width=3, validate_every=1, baselines=("random",)), FuelBreakDataModule(**SMALL)
    fitted(tmp_path, 3, module, data)
    first, buffer = weights(module), data.buffer
    storage = {name: stored.data_ptr() for name, stored in buffer._storage.items()}
    module.online(torch.zeros(1, 8, 8, 8, dtype=torch.uint8)).sum().backward()
    assert module.cleanup_memory() == sum(parameter.nbytes for parameter in module.online.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())
    module.reset_memory()
    assert len(buffer) == module.environment_steps == 0
    assert int(module.champion_generation) == -1
    fitted(tmp_path, 3, module, data)
    assert data.buffer is buffer
    assert {name: stored.data_ptr() for name, stored in buffer._storage.items()} == storage
    assert all(torch.equal(one, other) for one, other in zip(first, weights(module), strict=True))
    fitted(tmp_path, 3, module, data)  # without a reset it goes on
    assert not all(torch.equal(one, other) for one, other in zip(first, weights(module), strict=True))


def test_a_run_draws_no_figure_that_stays(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    from callbacks import MetricsPlot

    plt.close("all")
    plot = MetricsPlot(metrics=["fitness/mean"], tag="fitness", every_n_epochs=1)
    module, data = DQNModule(width=2, validate_every=1, baselines=("random",)), FuelBreakDataModule(**SMALL)
    fitted(tmp_path, 2, module, data, MemoryHygiene(), plot)
    assert "matplotlib.pyplot" in sys.modules
    assert plt.get_fignums() == []
