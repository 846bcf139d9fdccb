"""Free memory at the end of an epoch: Python garbage, the CUDA cache, free pages of the C heap."""

import gc

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from eigen2.memory.process import trim_malloc, uses_cuda


class GarbageCollector(Callback):
    """Collects garbage, empties the cache of CUDA, and returns free memory to the system at the end of an epoch.

    Callbacks run in the order in which the Trainer lists them: put this one before `MemoryProfiler`, or the profiler
    measures before the cleaning. See docs/memory.md for the settings.
    """

    def __init__(self, freeze: bool = True, trim: bool = True) -> None:
        """Choose what is cleaned.

        Args:
            freeze: Exclude what lives when training starts from garbage collection until the end of the fit
                (`gc.freeze`): some 400,000 objects from imports, which every collection, at 0.5 s per million, would
                walk through again. Default true.
            trim: Return free pages of the C heap to the system by glibc's `malloc_trim`, if it is there. Default true.
        """
        super().__init__()
        self.freeze, self.trim = freeze, trim
        self._froze = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Freeze all live objects, unless other code has frozen some."""
        if self.freeze and not self._froze and gc.get_freeze_count() == 0:
            gc.collect()
            gc.freeze()
            self._froze = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Unfreeze what `on_train_start` froze."""
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Unfreeze what `on_train_start` froze."""
        if self._froze:
            gc.unfreeze()
            self._froze = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clean after every epoch."""
        self.clean()

    def clean(self) -> None:
        """Collect garbage, and return free memory to CUDA and the system, now."""
        gc.collect()  # first, as it frees what the other steps return
        if uses_cuda():
            torch.cuda.empty_cache()
        if self.trim:
            trim_malloc()
