"""Measure the process's memory after every phase of every generation, say who holds it, and find what leaks."""

from __future__ import annotations

import logging
import re
import tracemalloc
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.budget import MemoryBudgetExceeded
from eigen2.memory.csvfile import ResumableCsv
from eigen2.memory.instances import InstanceCounter, classes_to_count
from eigen2.memory.leaks import HEALTHY, Leak, LeakWatch
from eigen2.memory.lines import generation_lines, growth_lines, ledger_lines
from eigen2.memory.objects import large_objects, type_counts
from eigen2.memory.owners import MemoryOwner, owners_of
from eigen2.memory.snapshot import BYTES_PER_MB, MemorySnapshot, take_snapshot

__all__ = ["MemoryOwner", "MemoryProfiler", "MemorySnapshot", "get_profiler", "log_memory"]

log = logging.getLogger(__name__)

_TYPES = 10
_MOST_HISTORY = 10**9
_LEAST_OWNER_MB = 0.05

_latest_profiler: MemoryProfiler | None = None


class MemoryProfiler(Callback):
    """Takes a snapshot of the process's memory after every phase and says who holds it, what grew, and what leaks.

    Snapshots are taken when training starts (`baseline`), after each phase that the module announces by
    calling `on_phase_end(trainer, module, phase)` on the Trainer's callbacks, and at the end of the epoch
    (`generation`). If the module announces nothing, snapshots are taken before and after every validation (`train`,
    `validate`).

    Each snapshot is a row of memory.csv, of memory-N.csv in process N of several, which a resumed run continues:
    rows of the epoch it starts with and of later ones are dropped. At the end of an epoch every logger gets, at the
    epoch as step, in MB (10^6 bytes) and GB (10^9 bytes): `memory/rss_gb`, `memory/vms_gb`, `memory/heap_gb`,
    `memory/unaccounted_gb`, with CUDA `memory/gpu_allocated_gb`, `memory/gpu_reserved_gb` and `memory/gpu_peak_gb`;
    `memory/<phase>_delta_mb`, the growth of RSS since the snapshot before, where `generation` is what the epoch
    added after its last phase, so that together they are the growth of the epoch; `memory/owner/<name>_mb` and
    `memory/objects/<ClassName>`.

    Owners are the module, the data module, callbacks, loggers and the checkpoint plugin that have a method
    `memory_owners`, see `MemoryOwner`.

    A leak is told as soon as it is made out, and once more at the end with a table of generations, who holds the memory
    and the largest objects. See docs/memory.md.
    """

    def __init__(
        self,
        watch: Sequence[str] = (),
        directory: str | Path | None = None,
        verbose: bool = False,
        max_history: int = 100,
        diagnose: bool = True,
        least_leak_kb: float = 50.0,
        trace: bool = False,
        top_objects: int = 20,
        least_object_mb: float = 10.0,
    ) -> None:
        """Choose what is watched and where the file goes.

        Args:
            watch: Dotted names of classes whose live instances (subclasses not included) are counted when
                training starts and at the end of every epoch, such as `torch.nn.parameter.Parameter`. A count
                walks all objects of the process that are not set aside (`GarbageCollector.freeze`), about 0.15 s per
                million. Default none.
            directory: Folder of memory.csv. Default none: the Trainer's `default_root_dir`.
            verbose: Print a line for every snapshot too, and at the end every generation. Default false.
            max_history: Snapshots kept in `snapshots`, >= 1; the file keeps all. Default 100.
            diagnose: Look for leaks, which takes milliseconds an epoch, and some seconds in two epochs after growth was
                found. Default true.
            least_leak_kb: Growth in kB (1,000 bytes) an epoch below which nothing is said, above 0. Default 50.
            trace: Note from the start where objects are made (tracemalloc), which makes Python code some two times
                slower; else only after growth was found. Default false.
            top_objects: The largest objects told at the end, at most; 0 leaves them out and saves about a second.
                Default 20.
            least_object_mb: The least of them in MB, above 0. Default 10.

        Raises:
            ValueError: `max_history` is below 1, `top_objects` below 0, another number not above 0, `watch` is a
                single text, or a name in it is no class, or one whose instances cannot be counted.
        """
        super().__init__()
        if not 1 <= max_history <= _MOST_HISTORY:
            raise ValueError(f"max_history is {max_history}: give 1 to {_MOST_HISTORY:,}")
        if top_objects < 0:
            raise ValueError(f"top_objects is {top_objects}: give 0 or more")
        for name, number in (("least_leak_kb", least_leak_kb), ("least_object_mb", least_object_mb)):
            if not number > 0:
                raise ValueError(f"{name} is {number}: give a number above 0")
        if isinstance(watch, str):
            raise ValueError(f"watch is the text {watch!r}: give a list of class names")
        self.watch = tuple(watch)
        self.directory = directory
        self.verbose = verbose
        self.diagnose = diagnose
        self.least_leak_kb = least_leak_kb
        self.trace = trace
        self.top_objects, self.least_object_mb = top_objects, least_object_mb
        self._history: deque[MemorySnapshot] = deque(maxlen=max_history)
        self._by_hand: deque[tuple[MemorySnapshot, Counter[str]]] = deque(maxlen=max_history)
        self._baseline: MemorySnapshot | None = None
        self._delta_bytes: Counter[str] = Counter()
        self._classes = classes_to_count(self.watch)
        self._count_instances: InstanceCounter | None = None
        self._csv: ResumableCsv | None = None
        self._leaks: LeakWatch | None = None
        self._leak: Leak | None = None
        self._running: tuple[Trainer, LightningModule] | None = None
        self._announced = False
        self._traces = False

    @property
    def snapshots(self) -> tuple[MemorySnapshot, ...]:
        """Snapshots of the running or last fit, oldest first, at most `max_history`."""
        return tuple(self._history)

    @property
    def latest(self) -> MemorySnapshot | None:
        """The last snapshot; None before the first."""
        return self._history[-1] if self._history else None

    @property
    def leak(self) -> Leak | None:
        """The leak that was found in the running or last fit; None if there is none, or not yet."""
        return self._leak

    @property
    def verdict(self) -> str:
        """What the growth is called; `healthy` if nothing leaks."""
        return HEALTHY if self._leak is None else self._leak.verdict

    def memory_owners(self) -> dict[str, object]:
        """The profiler's own numbers of every generation."""
        return {"profiler": None if self._leaks is None else self._leaks.trend}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the file at the current epoch and take the baseline.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.

        Raises:
            ValueError: `directory` is not local, or two owners use one name.
        """
        self._stop()
        self._history.clear()
        self._by_hand.clear()
        self._delta_bytes.clear()
        self._announced = False
        self._leak = None
        # a trial run of one batch leaves the files of real runs alone, as Lightning's own loggers do
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            name = "memory.csv" if trainer.is_global_zero else f"memory-{trainer.global_rank}.csv"
            self._csv = ResumableCsv(_local(self.directory or trainer.default_root_dir) / name)
            self._csv.start(trainer.current_epoch)
        self._running = trainer, pl_module
        _remember(self)
        self._count_instances = InstanceCounter(self._classes)
        self._leaks = LeakWatch(1e3 * self.least_leak_kb) if self.diagnose else None
        if self.trace and not tracemalloc.is_tracing():
            tracemalloc.start()
            self._traces = True
        self._baseline = self._take(trainer, pl_module, "baseline", end=True)

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Take a snapshot after a phase the module announces.

        Args:
            trainer: The Trainer.
            pl_module: The module that announces the phase.
            phase: Name of the phase that ended.
        """
        if self._running and not trainer.sanity_checking:
            self._announced = True
            self._take(trainer, pl_module, phase)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot of what training left if the module does not announce its phases.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.
        """
        if self._running and not trainer.sanity_checking and not self._announced:
            self._take(trainer, pl_module, "train")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot if the module does not announce its phases.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.
        """
        if self._running and not trainer.sanity_checking and not self._announced:
            self._take(trainer, pl_module, "validate")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's last snapshot and log the epoch.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.
        """
        snapshot = self._take(trainer, pl_module, "generation", end=True)
        deltas = {f"memory/{phase}_delta_mb": grown / BYTES_PER_MB for phase, grown in self._delta_bytes.items()}
        metrics = snapshot.metrics() | deltas
        self._delta_bytes.clear()
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.current_epoch)
        if self._leaks is not None:
            found = self._leaks.generation_end(snapshot)
            if found is not None:
                self._leak = found
                self._print(trainer, found.lines())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what became of the memory.

        Args:
            trainer: The Trainer.
            pl_module: The module in training.
        """
        self._conclude(trainer)
        self._print_large(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Say what became of the memory, and close the file.

        Args:
            trainer: The Trainer.
            pl_module: The module that ran.
            exception: What ended the run.
        """
        self._conclude(trainer)
        if isinstance(exception, MemoryBudgetExceeded):
            self._print_large(trainer)
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the file.

        Args:
            trainer: The Trainer.
            pl_module: The module that ran.
            stage: `fit`, `validate`, `test` or `predict`.
        """
        self._stop()

    def log_memory(self, label: str, show_objects: bool = False) -> MemorySnapshot:
        """Take a snapshot by hand and print it, outside of a fit too.

        Args:
            label: Its name, for `print_memory_growth`.
            show_objects: Print the largest objects too, which takes about a second.
        """
        generation, owners = 0, {}
        if self._running is not None:
            generation, owners = self._running[0].current_epoch, _owners(*self._running)
        counts = self._count_instances() if self._count_instances else {}
        before = self._by_hand[-1][0] if self._by_hand else self.latest
        snapshot = take_snapshot(generation, label, owners, counts, before, full=True)
        self._by_hand.append((snapshot, type_counts()))
        print(snapshot.line(), flush=True)
        if show_objects:
            for each in large_objects(max(1, self.top_objects), int(self.least_object_mb * BYTES_PER_MB)):
                print(f"memory  {each}", flush=True)
        return snapshot

    def print_memory_growth(self, baseline_label: str = "baseline") -> None:
        """Print what grew since a snapshot: bytes, and the types whose objects became most.

        Args:
            baseline_label: The label of a snapshot taken by `log_memory`, the last of that name; `baseline` is the
                start of training.

        Raises:
            ValueError: There is no such snapshot.
        """
        labelled = {snapshot.phase: (snapshot, types) for snapshot, types in self._by_hand}
        if self._baseline is not None:
            labelled.setdefault("baseline", (self._baseline, Counter()))
        if baseline_label not in labelled:
            known = ", ".join(repr(label) for label in labelled) or "none yet"
            raise ValueError(f"no snapshot is labelled {baseline_label!r}: take it with log_memory; there are {known}")
        baseline, types = labelled[baseline_label]
        owners = _owners(*self._running) if self._running else {}
        counts = self._count_instances() if self._count_instances else {}
        now = take_snapshot(baseline.generation, "now", owners, counts, baseline)
        more = type_counts() - types if types else Counter()
        lines = [*growth_lines(now, baseline), *(f"{name:<40}{n:>+9,}" for name, n in more.most_common(_TYPES))]
        print("\n".join(f"memory  {line}" for line in [f"growth since {baseline_label}", *lines]), flush=True)

    def _conclude(self, trainer: Trainer) -> None:
        """Print the table of generations, who holds the memory, and the verdict; once."""
        latest, watch = self.latest, self._leaks
        if watch is None or latest is None or self._baseline is None:
            return
        self._leaks = None
        self._leak = watch.close()
        verdict = ["verdict: healthy"] if self._leak is None else self._leak.lines()
        holders = ledger_lines(latest, self._baseline, least_mb=0 if self.verbose else _LEAST_OWNER_MB)
        self._print(trainer, [*generation_lines(watch.trend, self.verbose), *holders, *verdict])

    def _print_large(self, trainer: Trainer) -> None:
        if self.top_objects and trainer.is_global_zero:
            large = large_objects(self.top_objects, int(self.least_object_mb * BYTES_PER_MB))
            self._print(trainer, [str(each) for each in large])

    def _print(self, trainer: Trainer, lines: Sequence[str]) -> None:
        if trainer.is_global_zero:
            print("\n".join(f"memory  {line}" for line in lines), flush=True)

    def _stop(self) -> None:
        self._running = None
        self._count_instances = None
        if self._leaks is not None:
            self._leaks.close()
            self._leaks = None
        if self._traces:
            tracemalloc.stop()
            self._traces = False
        if self._csv is not None:
            self._csv.close()
            self._csv = None

    def _take(self, trainer: Trainer, pl_module: LightningModule, phase: str, end: bool = False) -> MemorySnapshot:
        """Take a snapshot; at the end of an epoch, and at the start, with all that takes longer."""
        before = self.latest
        owners = _owners(trainer, pl_module)
        snapshot = take_snapshot(trainer.current_epoch, phase, owners, None, before, full=end)
        if end and self._count_instances is not None:  # after the measurement, as it lists all objects for a moment
            snapshot = replace(snapshot, counts=self._count_instances())
        self._history.append(snapshot)
        if phase != "baseline":
            self._delta_bytes[phase] += snapshot.delta_bytes
        if self._leaks is not None and phase != "generation":
            self._leaks.phase_end(snapshot)
        if self._csv is not None and not self._csv.append(snapshot.row()) and end:
            log.warning("generation %d: cannot write %s: %s", snapshot.generation, self._csv.path, self._csv.error)
        if self.verbose and trainer.is_global_zero:
            print(snapshot.line(), flush=True)
        return snapshot


def get_profiler() -> MemoryProfiler:
    """The profiler of the fit that runs, or ran last, in this process; without any, one for snapshots by hand."""
    if _latest_profiler is None:
        _remember(MemoryProfiler())
    assert _latest_profiler is not None
    return _latest_profiler


def log_memory(label: str, show_objects: bool = False) -> MemorySnapshot:
    """Take a snapshot by hand and print it: `get_profiler().log_memory(label, show_objects)`."""
    return get_profiler().log_memory(label, show_objects)


def _owners(trainer: Trainer, pl_module: LightningModule) -> dict[str, object]:
    """What holds bytes in a fit, by owner name."""
    data = getattr(trainer, "datamodule", None)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return owners_of([pl_module, data, *callbacks, *trainer.loggers, trainer.strategy.checkpoint_io])


def _remember(profiler: MemoryProfiler) -> None:
    global _latest_profiler
    _latest_profiler = profiler


def _local(directory: str | Path) -> Path:
    """The folder as a path; raises ValueError for an address such as s3://bucket."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(directory)):
        raise ValueError(f"memory.csv cannot be written to {directory}: give directory a local folder")
    return Path(directory)
