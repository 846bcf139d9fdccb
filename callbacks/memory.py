"""Measure the memory of the process after every phase of every generation, list who holds it, and find leaks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.budget import MemoryBudgetExceeded
from eigen2.files import Folder
from eigen2.memory.csvfile import ResumableCsv
from eigen2.memory.leaks import AFTER, Leak, LeakWatch
from eigen2.memory.owners import MappedFiles, owners_of
from eigen2.memory.process import GB, MB
from eigen2.memory.snapshot import MemorySnapshot, format_generations, format_owners, format_summary, take_snapshot

log = logging.getLogger(__name__)
_latest_profiler: MemoryProfiler | None = None


class MemoryProfiler(Callback):
    """Takes a snapshot of the process's memory after every phase and reports who holds it, what grew, and what leaks.

    Snapshots are taken when training starts (`baseline`), after each phase that the module announces by calling
    `on_phase_end(trainer, module, phase)` on the Trainer's callbacks, and at the end of the epoch (`generation`). If it
    announces none, they are taken after training and after validation (`train`, `validate`). See also `MemoryOwner`.

    Each snapshot is a row of memory.csv in the Trainer's folder if that is local, of memory-N.csv in process N of
    several. Every logger gets the metrics `memory/` of docs/curves.md once an epoch. Growth is judged anew every epoch:
    a leak is reported once there is evidence, with the lines that allocate what is kept after some epochs more, and
    taken back if it ends. At the end it is reported again with tables of generations and of who holds the memory, and
    in memory/verdict.json; without one, the end is a summary of five lines. See docs/memory.md.
    """

    def __init__(self, watch: Any = None, least_leak_kb: float = 50.0) -> None:
        """Choose what is reported.

        Args:
            watch: Accepted from older configurations, and without effect.
            least_leak_kb: Growth in kB (1,000 bytes) an epoch below which nothing is reported, above 0. Default 50.

        Raises:
            ValueError: `least_leak_kb` is not above 0.
        """
        super().__init__()
        if not least_leak_kb > 0:
            raise ValueError(f"least_leak_kb is {least_leak_kb}: give a number above 0")
        self.least_leak_kb = least_leak_kb
        self.leak: Leak | None = None  # of the current or last fit
        self.latest: MemorySnapshot | None = None  # of the current or last fit
        self._by_hand: deque[MemorySnapshot] = deque(maxlen=100)
        self._baseline: MemorySnapshot | None = None
        self._files = MappedFiles()
        self._csv: ResumableCsv | None = None
        self._verdict = ["verdict: healthy"]
        self._watch: LeakWatch | None = None
        self._running: tuple[Trainer, LightningModule] | None = None
        self._announced = False

    @property
    def verdict(self) -> list[str]:
        """Return the lines that describe the leak, or say `healthy`."""
        return self._verdict

    def memory_owners(self) -> dict[str, object]:
        """Return the profiler's own history."""
        return {"profiler": 0 if self._watch is None else self._watch.trend.nbytes}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the file at the current epoch and take the baseline; raises ValueError if two owners use one name."""
        global _latest_profiler
        self._stop()
        self._by_hand.clear()
        self._announced, self.leak, self.latest = False, None, None
        self._verdict, folder = ["verdict: healthy"], None
        # a fast_dev_run does not touch the files of real runs, as with Lightning's own loggers
        if not trainer.fast_dev_run and "://" not in trainer.default_root_dir:  # type: ignore[attr-defined]
            name = "memory.csv" if trainer.is_global_zero else f"memory-{trainer.global_rank}.csv"
            self._csv = ResumableCsv(Path(trainer.default_root_dir) / name)
            self._csv.start(trainer.current_epoch)
            folder = Folder(trainer.default_root_dir) / "memory" if trainer.is_global_zero else None
        self._running = trainer, pl_module
        _latest_profiler = self
        self._watch = LeakWatch(1e3 * self.least_leak_kb, folder)
        self._baseline = self._take(trainer, "baseline")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure what the callbacks did that the Trainer lists after this one."""
        if self._watch is not None and self.latest is not None and self.latest.phase == "generation":
            self._watch.phase_end(self._measure(trainer, AFTER))

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Take a snapshot after a phase the module announces."""
        if self._running and not trainer.sanity_checking:
            self._announced = True
            self._take(trainer, phase)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot after training if the module does not announce its phases."""
        self._take_unannounced(trainer, "train")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot after validation if the module does not announce its phases."""
        self._take_unannounced(trainer, "validate")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's last snapshot, log the epoch, and report a leak."""
        if self.latest is not None and self.latest.phase in ("baseline", "generation"):  # there is no validation
            self._take_unannounced(trainer, "train")
        snapshot = self._take(trainer, "generation")
        for logger in trainer.loggers:
            logger.log_metrics(snapshot.metrics(), step=trainer.current_epoch)
        if self._watch is None:
            return
        lines = self._watch.generation_end(snapshot)
        self.leak = self._watch.leak
        if lines and trainer.is_global_zero:
            _print(lines)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print a summary and the verdict, once."""
        self._summarise(trainer, short=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Print the summary, in full where memory ran out, and close the file."""
        self._summarise(trainer, short=not isinstance(exception, MemoryBudgetExceeded))
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the file."""
        self._stop()

    def log_memory(self, label: str) -> MemorySnapshot:
        """Take a snapshot by hand and print it, outside of a fit too; `print_memory_growth` finds it by its label."""
        snapshot = self._take_by_hand(label, self._by_hand[-1] if self._by_hand else self.latest)
        self._by_hand.append(snapshot)
        owners = [f"{name} {nbytes / MB:.1f} MB" for name, nbytes in snapshot.owner_bytes.items()]
        rss = f"rss {snapshot.rss_bytes / GB:.3f} GB ({snapshot.delta_bytes / MB:+.1f} MB)"
        _print(["  ".join([f"generation {snapshot.generation:>3}  {label:<10}", rss, *owners])])
        return snapshot

    def print_memory_growth(self, baseline_label: str = "baseline") -> None:
        """Print who holds the memory, and the growth since the last snapshot by hand with this label.

        The label `baseline` also stands for the start of training. Raises ValueError if there is no such snapshot.
        """
        labelled = {} if self._baseline is None else {"baseline": self._baseline}
        labelled |= {snapshot.phase: snapshot for snapshot in self._by_hand}
        if baseline_label not in labelled:
            known = ", ".join(repr(label) for label in labelled) or "none yet"
            raise ValueError(f"no snapshot is labelled {baseline_label!r}: take it with log_memory; there are {known}")
        baseline = labelled[baseline_label]
        _print([f"growth since {baseline_label}", *format_owners(self._take_by_hand("now", baseline), baseline)])

    def _summarise(self, trainer: Trainer, short: bool) -> None:
        """Print a few lines if they are to be `short` and there is no leak, else generations and owners as tables."""
        baseline, watch = self._baseline, self._watch
        if watch is None or baseline is None:
            return
        self._watch = None
        self.leak = watch.close()
        self._verdict = watch.summary()
        if not trainer.is_global_zero:
            return
        now = self._take_by_hand("end", self.latest)
        if short and self.leak is None:
            _print([*format_summary(now, baseline), *self.verdict])
        else:
            _print([*format_generations(watch.trend), *format_owners(now, baseline), *self.verdict])

    def _take_unannounced(self, trainer: Trainer, phase: str) -> None:
        if self._running and not trainer.sanity_checking and not self._announced:
            self._take(trainer, phase)

    def _take(self, trainer: Trainer, phase: str) -> MemorySnapshot:
        """Take a snapshot and write it; a disk error is logged once an epoch."""
        snapshot = self.latest = self._measure(trainer, phase)
        if self._watch is not None and phase != "generation":
            self._watch.phase_end(snapshot)
        if self._csv is not None and not self._csv.append(snapshot.row()) and phase in ("baseline", "generation"):
            log.warning("generation %d: cannot write %s: %s", snapshot.generation, self._csv.path, self._csv.error)
        return snapshot

    def _measure(self, trainer: Trainer, phase: str) -> MemorySnapshot:
        owners, whole = self._owners(), phase == "baseline"
        return take_snapshot(trainer.current_epoch, phase, owners, self.latest, self._files, mappings=whole)

    def _take_by_hand(self, label: str, before: MemorySnapshot | None) -> MemorySnapshot:
        generation = self._running[0].current_epoch if self._running else 0
        return take_snapshot(generation, label, self._owners(), before, mappings=True)

    def _owners(self) -> dict[str, object]:
        """Return the owners of memory in the current fit by name."""
        if self._running is None:
            return {}
        trainer, pl_module = self._running
        data = getattr(trainer, "datamodule", None)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        return owners_of([pl_module, data, *callbacks, *trainer.loggers, trainer.strategy.checkpoint_io])

    def _stop(self) -> None:
        self._running = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._csv is not None:
            self._csv.close()
            self._csv = None


def get_profiler() -> MemoryProfiler:
    """Return the profiler of the current or last fit in this process; if there is none, one for use by hand."""
    global _latest_profiler
    if _latest_profiler is None:
        _latest_profiler = MemoryProfiler()
    return _latest_profiler


def log_memory(label: str) -> MemorySnapshot:
    """Take a snapshot by hand and print it: `get_profiler().log_memory(label)`."""
    return get_profiler().log_memory(label)


def _print(lines: Iterable[str]) -> None:
    print("\n".join(f"memory  {line}" for line in lines), flush=True)
