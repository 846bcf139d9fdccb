"""Free memory at the end of an epoch: Python garbage, the CUDA cache, free pages of the C heap."""

import gc
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from eigen2.memory.process import trim_malloc


class GarbageCollector(Callback):
    """Collects garbage and returns free memory to the system: at the end of an epoch, after phases, every n steps.

    Callbacks run in the order in which the Trainer lists them: put this one before `MemoryProfiler`, or the profiler
    measures before the cleaning. See docs/memory.md for the settings.
    """

    def __init__(
        self,
        collect: bool = True,
        freeze: bool = True,
        cuda_cache: bool = True,
        trim: bool = True,
        every_n_epochs: int = 1,
        every_n_train_steps: int | None = None,
        every_n_environment_steps: int | None = None,
        phases: Sequence[str] = (),
    ) -> None:
        """Choose what is cleaned and when.

        Args:
            collect: Run a full `gc.collect()`, which frees reference cycles. It costs about 0.5 s per million live
                objects that are not frozen. Default true.
            freeze: Exclude what lives when training starts from garbage collection until the end of the fit
                (`gc.freeze`): some 400,000 objects from imports, which every collection would walk through again.
                Those of them that become reference cycles stay until the end of the fit. Default true.
            cuda_cache: Return unused blocks of PyTorch's CUDA allocator to the driver, if CUDA is in use.
                Default true.
            trim: Return free pages of the C heap to the system with glibc's `malloc_trim`; does nothing with
                another C library (musl, macOS, Windows). Default true.
            every_n_epochs: Clean in every n-th epoch only, >= 1: epochs n-1, 2n-1, and so on. Default 1.
            every_n_train_steps: Clean after every n-th training step (batch) of the run too, >= 1. Default none.
            every_n_environment_steps: Clean after every n-th environment step of the run too, >= 1; the module
                announces them by calling `on_environment_step`. Default none.
            phases: Names of phases after which to clean too, such as `evaluate`, in the same epochs as at their
                end. The module announces phases by calling `on_phase_end`. Default none.

        Raises:
            ValueError: A number is below 1, or `phases` is a string.
        """
        super().__init__()
        for name, number in (
            ("every_n_epochs", every_n_epochs),
            ("every_n_train_steps", every_n_train_steps),
            ("every_n_environment_steps", every_n_environment_steps),
        ):
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}: give 1 or more")
        if isinstance(phases, str):
            raise ValueError(f"phases is the string {phases!r}: give a list of phase names")
        self.collect, self.freeze, self.cuda_cache, self.trim = collect, freeze, cuda_cache, trim
        self.every_n_epochs = every_n_epochs
        self.every_n_train_steps = every_n_train_steps
        self.every_n_environment_steps = every_n_environment_steps
        self.phases = tuple(phases)
        self._train_steps = self._environment_steps = 0
        self._froze = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Freeze what lives now, unless other code froze objects before."""
        self._train_steps = self._environment_steps = 0
        if self.freeze and not self._froze and gc.get_freeze_count() == 0:
            gc.collect()
            gc.freeze()
            self._froze = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Unfreeze what `on_train_start` froze."""
        self._unfreeze()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Unfreeze what `on_train_start` froze."""
        self._unfreeze()

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Clean after the phases asked for."""
        if phase in self.phases and not trainer.sanity_checking and self._is_due(trainer):
            self.clean()

    def on_environment_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count a step of the environment and clean after every n-th."""
        self._environment_steps += 1
        if self.every_n_environment_steps and self._environment_steps % self.every_n_environment_steps == 0:
            self.clean()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a training step and clean after every n-th."""
        self._train_steps += 1
        if self.every_n_train_steps and self._train_steps % self.every_n_train_steps == 0:
            self.clean()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clean after every n-th epoch."""
        if self._is_due(trainer):
            self.clean()

    def clean(self) -> None:
        """Clean now."""
        # in this order: collecting frees the blocks that the other two return
        if self.collect:
            gc.collect()
        if self.cuda_cache and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        if self.trim:
            trim_malloc()

    def _is_due(self, trainer: Trainer) -> bool:
        return (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _unfreeze(self) -> None:
        if self._froze:
            gc.unfreeze()
            self._froze = False
