"""Measure the memory of the process after every phase of every generation, list who holds it, and find leaks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.budget import MemoryBudgetExceeded
from eigen2.errors import UserError, is_shortage, require_range
from eigen2.files import Folder
from eigen2.memory.csvfile import ResumableCsv
from eigen2.memory.leaks import AFTER, Leak, LeakWatch
from eigen2.memory.owners import MappedFiles, owners_of
from eigen2.memory.process import GB, MB
from eigen2.memory.snapshot import MemorySnapshot, format_owners, format_summary, take_snapshot

log = logging.getLogger(__name__)
_latest_profiler: MemoryProfiler | None = None


class MemoryProfiler(Callback):
    """Takes a snapshot of the process's memory after every phase and reports who holds it, what grew, and what leaks.

    Snapshots are taken when training starts (`baseline`), after each phase that the module announces by calling
    `on_phase_end(trainer, module, phase)` on the Trainer's callbacks, and at the end of the epoch (`generation`). If it
    announces none, they are taken after training and after validation (`train`, `validate`). See also `MemoryOwner`.

    Each snapshot is a row of memory.csv in the Trainer's folder if that is local, of memory-N.csv in process N of
    several. Every logger gets the metrics `memory/` of docs/curves.md once an epoch.

    Growth is judged anew every epoch. A leak is reported once there is evidence; the lines that allocate what is kept
    follow some epochs later, and a leak that ends is taken back. The last report, whose verdict is also in
    memory/verdict.json, has a table of who holds the memory; without a leak it is a summary of four lines. See
    docs/memory.md.
    """

    def __init__(self, least_leak_kb: float = 50.0, trace_at: int | None = None) -> None:
        """Choose what is reported.

        Args:
            least_leak_kb: Growth in kB (1,000 bytes) an epoch below which nothing is reported, above 0. Default 50.
            trace_at: Epoch, from 0, at which four are traced whether or not memory grows, to report the lines that
                allocate what stays, as for a leak. Default none: only a leak is traced.

        Raises:
            UserError: A number is out of its range.
        """
        super().__init__()
        require_range("MemoryProfiler.least_leak_kb", least_leak_kb, above=0)
        require_range("MemoryProfiler.trace_at", 0 if trace_at is None else trace_at, least=0, whole=True)
        self.least_leak_kb, self.trace_at = least_leak_kb, trace_at
        self.leak: Leak | None = None  # of the current or last fit
        self.latest: MemorySnapshot | None = None  # of the current or last fit
        self._by_hand: deque[MemorySnapshot] = deque(maxlen=100)
        self._baseline: MemorySnapshot | None = None
        self._files = MappedFiles()
        self._csv: ResumableCsv | None = None
        self._watch: LeakWatch | None = None
        self._running: tuple[Trainer, LightningModule] | None = None
        self._announced = False

    def memory_owners(self) -> dict[str, object]:
        """Return the profiler's own history."""
        return {"profiler": 0 if self._watch is None else self._watch.trend.nbytes}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a second profiler, which would write to the same file."""
        profilers = [callback for callback in trainer.callbacks if isinstance(callback, MemoryProfiler)]  # type: ignore[attr-defined]
        if len(profilers) > 1:
            raise UserError(f"trainer.callbacks has {len(profilers)} MemoryProfilers: set the one that is there")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the file at the current epoch and take the baseline; raises UserError if two owners use one name."""
        global _latest_profiler
        _latest_profiler = self
        self._stop()
        self._by_hand.clear()
        self._announced, self.leak, self.latest = False, None, None
        self._running, folder = (trainer, pl_module), None
        # a fast_dev_run does not touch the files of real runs, as with Lightning's own loggers
        if not trainer.fast_dev_run and "://" not in trainer.default_root_dir:  # type: ignore[attr-defined]
            name = "memory.csv" if trainer.is_global_zero else f"memory-{trainer.global_rank}.csv"
            self._csv = ResumableCsv(Path(trainer.default_root_dir) / name)
            self._csv.start(trainer.current_epoch)
            folder = Folder(trainer.default_root_dir) / "memory" if trainer.is_global_zero else None
        self._watch = LeakWatch(1e3 * self.least_leak_kb, folder)
        self._baseline = self._take("baseline")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure what the callbacks did that the Trainer lists after this one; start the trace that is asked for."""
        if self._watch is None or self.latest is None:
            return
        if self.latest.phase == "generation":
            self._watch.phase_end(self._measure(AFTER, self.latest))
        if trainer.current_epoch == self.trace_at:
            self._print_once(self._watch.trace())

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Take a snapshot after a phase the module announces."""
        if self._running and not trainer.sanity_checking:
            self._announced = True
            self._take(phase)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot after training if the module does not announce its phases."""
        self._take_unannounced("train")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot after validation if the module does not announce its phases."""
        self._take_unannounced("validate")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's last snapshot, log the epoch, and report a leak."""
        if self.latest is not None and self.latest.phase in ("baseline", "generation"):  # there is no validation
            self._take_unannounced("train")
        snapshot = self._take("generation")
        for logger in trainer.loggers:
            logger.log_metrics(snapshot.metrics(), step=trainer.current_epoch)
        if self._watch is not None:
            lines = self._watch.generation_end(snapshot)
            if lines and not trainer.is_global_zero:  # which may not leak itself
                log.warning("process %d: %s", trainer.global_rank, lines[0].strip())
            self._print_once(lines)
            self.leak = self._watch.leak

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print a summary and the verdict, once."""
        self._summarise(short=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Print the summary, in full where memory ran out, and close the file."""
        ran_out = isinstance(exception, MemoryBudgetExceeded) or is_shortage(exception)
        if ran_out and self._watch is None and self._baseline is not None:  # the end of training printed it in short
            self._print_once(format_owners(self._measure("end", self.latest, whole=True), self._baseline))
        self._summarise(short=not ran_out)
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the file."""
        self._stop()

    def log_memory(self, label: str) -> MemorySnapshot:
        """Take a snapshot by hand and print it, outside of a fit too; `print_memory_growth` finds it by its label."""
        snapshot = self._measure(label, self._by_hand[-1] if self._by_hand else self.latest, whole=True)
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
        _print([f"growth since {baseline_label}", *format_owners(self._measure("now", baseline, whole=True), baseline)])

    def _summarise(self, short: bool) -> None:
        """Print a few lines if they are to be `short` and there is no leak, else a table of who holds the memory."""
        baseline, watch = self._baseline, self._watch
        if watch is None or baseline is None:
            return
        self._watch, self.leak = None, watch.close()
        now = self._measure("end", self.latest, whole=True)
        if short and self.leak is None:
            self._print_once([*format_summary(now, baseline), *watch.summary()])
        else:
            self._print_once([*format_owners(now, baseline), *watch.summary()])

    def _take_unannounced(self, phase: str) -> None:
        if self._running and not self._running[0].sanity_checking and not self._announced:
            self._take(phase)

    def _take(self, phase: str) -> MemorySnapshot:
        """Take a snapshot and write it; a disk error is logged once an epoch."""
        snapshot = self.latest = self._measure(phase, self.latest, whole=phase == "baseline")
        if self._watch is not None and phase != "generation":
            self._watch.phase_end(snapshot)
        if self._csv is not None and not self._csv.append(snapshot.row()) and phase in ("baseline", "generation"):
            log.warning("generation %d: cannot write %s: %s", snapshot.generation, self._csv.path, self._csv.error)
        return snapshot

    def _measure(self, phase: str, before: MemorySnapshot | None, whole: bool = False) -> MemorySnapshot:
        """Measure the process; at the end of a generation its owners too; if `whole` all that RSS consists of."""
        generation = self._running[0].current_epoch if self._running else 0
        owners = self._owners() if whole or phase == "generation" else {}  # to walk through them takes milliseconds
        return take_snapshot(generation, phase, owners, before, whole, self._files)

    def _print_once(self, lines: list[str]) -> None:
        """Print lines in one process of the run."""
        if lines and self._running is not None and self._running[0].is_global_zero:
            _print(lines)

    def _owners(self) -> dict[str, object]:
        """Return the owners of memory in the current fit by name."""
        if self._running is None:
            return {}
        trainer, pl_module = self._running
        data, callbacks = getattr(trainer, "datamodule", None), trainer.callbacks  # type: ignore[attr-defined]
        return owners_of([pl_module, data, *callbacks, *trainer.loggers, trainer.strategy.checkpoint_io])

    def _stop(self) -> None:
        self._running = self._watch = None
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
