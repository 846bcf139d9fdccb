"""Measure the memory of the process after every phase of every generation, list who holds it, and find leaks."""

from __future__ import annotations

import logging
import re
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.budget import MemoryBudgetExceeded
from eigen2.memory.csvfile import ResumableCsv
from eigen2.memory.leaks import HEALTHY, Leak, LeakWatch
from eigen2.memory.objects import InstanceCounter, classes_to_count, large_objects, type_counts
from eigen2.memory.owners import owners_of
from eigen2.memory.process import MB
from eigen2.memory.snapshot import MemorySnapshot, format_generations, format_growth, format_owners, take_snapshot

log = logging.getLogger(__name__)
_latest_profiler: MemoryProfiler | None = None


class MemoryProfiler(Callback):
    """Takes a snapshot of the process's memory after every phase and reports who holds it, what grew, and what leaks.

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

    A leak is reported as soon as it is identified, and once more at the end with a table of generations, who holds the
    memory and the largest objects. See docs/memory.md.
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
                walks all objects of the process that are not frozen (`GarbageCollector.freeze`), about 0.15 s per
                million. Default none.
            directory: Folder of memory.csv. Default none: the Trainer's `default_root_dir`.
            verbose: Print a line for every snapshot too, and at the end every generation. Default false.
            max_history: Snapshots kept in `snapshots`, >= 1; the file keeps all. Default 100.
            diagnose: Look for leaks, which takes milliseconds an epoch, and some seconds in two epochs after growth was
                found. Default true.
            least_leak_kb: Growth in kB (1,000 bytes) an epoch below which nothing is reported, above 0. Default 50.
            trace: Record from the start where objects are created (tracemalloc), which makes Python code some two times
                slower; else only after growth was found. Default false.
            top_objects: The most of the largest objects printed at the end; 0 prints none and saves about a second.
                Default 20.
            least_object_mb: Size in MB below which none is printed, above 0. Default 10.

        Raises:
            ValueError: `max_history` is below 1, `top_objects` below 0, another number not above 0, `watch` is a
                string, or a name in it is no class, or one whose instances cannot be counted.
        """
        super().__init__()
        if not 1 <= max_history <= 10**9:
            raise ValueError(f"max_history is {max_history}: give 1 to 1,000,000,000")
        if top_objects < 0:
            raise ValueError(f"top_objects is {top_objects}: give 0 or more")
        for name, number in (("least_leak_kb", least_leak_kb), ("least_object_mb", least_object_mb)):
            if not number > 0:
                raise ValueError(f"{name} is {number}: give a number above 0")
        if isinstance(watch, str):
            raise ValueError(f"watch is the string {watch!r}: give a list of class names")
        self.watch = tuple(watch)
        self.directory = directory
        self.verbose = verbose
        self.diagnose, self.least_leak_kb = diagnose, least_leak_kb
        self.trace = trace
        self.top_objects, self.least_object_mb = top_objects, least_object_mb
        self._classes = classes_to_count(self.watch)
        self._history: deque[MemorySnapshot] = deque(maxlen=max_history)
        self._by_hand: deque[tuple[MemorySnapshot, Counter[str]]] = deque(maxlen=max_history)
        self._baseline: MemorySnapshot | None = None
        self._delta_bytes: Counter[str] = Counter()
        self._count_instances = InstanceCounter({})
        self._csv: ResumableCsv | None = None
        self._watch: LeakWatch | None = None
        self._leak: Leak | None = None
        self._running: tuple[Trainer, LightningModule] | None = None
        self._announced = False
        self._traces = False

    @property
    def snapshots(self) -> tuple[MemorySnapshot, ...]:
        """Return the snapshots of the running or last fit, oldest first, at most `max_history`."""
        return tuple(self._history)

    @property
    def latest(self) -> MemorySnapshot | None:
        """Return the last snapshot; None before the first."""
        return self._history[-1] if self._history else None

    @property
    def leak(self) -> Leak | None:
        """Return the leak that was found in the running or last fit; None if there is none, or not yet."""
        return self._leak

    @property
    def verdict(self) -> str:
        """Return the kind of the leak; `healthy` without one."""
        return HEALTHY if self._leak is None else self._leak.verdict

    def memory_owners(self) -> dict[str, object]:
        """Return the profiler's own numbers of every generation."""
        return {"profiler": None if self._watch is None else self._watch.trend}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the file at the current epoch and take the baseline.

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
            folder = str(self.directory or trainer.default_root_dir)
            if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", folder):
                raise ValueError(f"memory.csv cannot be written to {folder}: give directory a local folder")
            name = "memory.csv" if trainer.is_global_zero else f"memory-{trainer.global_rank}.csv"
            self._csv = ResumableCsv(Path(folder) / name)
            self._csv.start(trainer.current_epoch)
        self._running = trainer, pl_module
        _set_latest(self)
        self._count_instances = InstanceCounter(self._classes)
        self._watch = LeakWatch(1e3 * self.least_leak_kb) if self.diagnose else None
        if self.trace and not tracemalloc.is_tracing():
            tracemalloc.start()
            self._traces = True
        self._baseline = self._take(trainer, pl_module, "baseline", end=True)

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Take a snapshot after a phase the module announces."""
        if self._running and not trainer.sanity_checking:
            self._announced = True
            self._take(trainer, pl_module, phase)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot after training if the module does not announce its phases."""
        if self._running and not trainer.sanity_checking and not self._announced:
            self._take(trainer, pl_module, "train")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take a snapshot after validation if the module does not announce its phases."""
        if self._running and not trainer.sanity_checking and not self._announced:
            self._take(trainer, pl_module, "validate")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's last snapshot, log the epoch, and report a leak."""
        snapshot = self._take(trainer, pl_module, "generation", end=True)
        deltas = {f"memory/{phase}_delta_mb": grown / MB for phase, grown in self._delta_bytes.items()}
        self._delta_bytes.clear()
        for logger in trainer.loggers:
            logger.log_metrics(snapshot.metrics() | deltas, step=trainer.current_epoch)
        leak = None if self._watch is None else self._watch.generation_end(snapshot)
        if leak is not None:
            self._leak = leak
            if trainer.is_global_zero:
                _print(leak.lines())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the summary and the largest objects."""
        self._print_summary(trainer)
        self._print_large(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Print the summary, and close the file."""
        self._print_summary(trainer)
        if isinstance(exception, MemoryBudgetExceeded):
            self._print_large(trainer)
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the file."""
        self._stop()

    def log_memory(self, label: str, show_objects: bool = False) -> MemorySnapshot:
        """Take a snapshot by hand and print it, outside of a fit too; `show_objects` takes about a second more.

        The label is its name for `print_memory_growth`.
        """
        before = self._by_hand[-1][0] if self._by_hand else self.latest
        generation = self._running[0].current_epoch if self._running else 0
        snapshot = self._take_by_hand(generation, label, before)
        self._by_hand.append((snapshot, type_counts()))
        print(snapshot.line(), flush=True)
        if show_objects:
            for each in large_objects(max(1, self.top_objects), int(self.least_object_mb * MB)):
                print(f"memory  {each}", flush=True)
        return snapshot

    def print_memory_growth(self, baseline_label: str = "baseline") -> None:
        """Print what grew since a snapshot: bytes, and the types whose objects became most.

        Args:
            baseline_label: The label of the last such snapshot of `log_memory`; `baseline` is the start of training.

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
        now = self._take_by_hand(baseline.generation, "now", baseline)
        more = type_counts() - types if types else Counter()
        lines = [*format_growth(now, baseline), *(f"{name:<40}{n:>+9,}" for name, n in more.most_common(10))]
        _print([f"growth since {baseline_label}", *lines])

    def _take(self, trainer: Trainer, pl_module: LightningModule, phase: str, end: bool = False) -> MemorySnapshot:
        """Take a snapshot; at the end of an epoch, and at the start, with all that takes longer."""
        owners = _owners(trainer, pl_module)
        snapshot = take_snapshot(trainer.current_epoch, phase, owners, None, self.latest, full=end)
        if end:  # after the measurement, as it lists all objects for a moment
            snapshot = replace(snapshot, counts=self._count_instances())
        self._history.append(snapshot)
        if phase != "baseline":
            self._delta_bytes[phase] += snapshot.delta_bytes
        if self._watch is not None and phase != "generation":
            self._watch.phase_end(snapshot)
        if self._csv is not None and not self._csv.append(snapshot.row()) and end:
            log.warning("generation %d: cannot write %s: %s", snapshot.generation, self._csv.path, self._csv.error)
        if self.verbose and trainer.is_global_zero:
            print(snapshot.line(), flush=True)
        return snapshot

    def _take_by_hand(self, generation: int, label: str, before: MemorySnapshot | None) -> MemorySnapshot:
        owners = _owners(*self._running) if self._running else {}
        return take_snapshot(generation, label, owners, self._count_instances(), before, full=True)

    def _print_summary(self, trainer: Trainer) -> None:
        """Print the table of generations, who holds the memory, and the verdict; once."""
        latest, watch = self.latest, self._watch
        if watch is None or latest is None or self._baseline is None:
            return
        self._watch = None
        self._leak = watch.close()
        owners = format_owners(latest, self._baseline, least_mb=0 if self.verbose else 0.05)
        verdict = ["verdict: healthy"] if self._leak is None else self._leak.lines()
        if trainer.is_global_zero:
            _print([*format_generations(watch.trend, self.verbose), *owners, *verdict])

    def _print_large(self, trainer: Trainer) -> None:
        if self.top_objects and trainer.is_global_zero:
            _print(large_objects(self.top_objects, int(self.least_object_mb * MB)))

    def _stop(self) -> None:
        self._running = None
        self._count_instances = InstanceCounter({})
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._traces:
            tracemalloc.stop()
            self._traces = False
        if self._csv is not None:
            self._csv.close()
            self._csv = None


def get_profiler() -> MemoryProfiler:
    """Return the profiler of the fit that runs, or ran last, in this process; without any, one for use by hand."""
    return _latest_profiler or _set_latest(MemoryProfiler())


def log_memory(label: str, show_objects: bool = False) -> MemorySnapshot:
    """Take a snapshot by hand and print it: `get_profiler().log_memory(label, show_objects)`."""
    return get_profiler().log_memory(label, show_objects)


def _set_latest(profiler: MemoryProfiler) -> MemoryProfiler:
    global _latest_profiler
    _latest_profiler = profiler
    return profiler


def _owners(trainer: Trainer, pl_module: LightningModule) -> dict[str, object]:
    """Return what holds bytes in a fit, by owner name."""
    data = getattr(trainer, "datamodule", None)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return owners_of([pl_module, data, *callbacks, *trainer.loggers, trainer.strategy.checkpoint_io])


def _print(lines: Iterable[object]) -> None:
    print("\n".join(f"memory  {line}" for line in lines), flush=True)
