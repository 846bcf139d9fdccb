"""What Lightning, callbacks and loggers add to a generation."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI

from benchmarks.speed.full_scale import FullScale, fit
from benchmarks.timing import PERCENT, Row, at_most
from callbacks import MemoryProfiler
from callbacks.plots import draw_lines

BOUND = 5.0
PROFILER_BOUND = 2.0
GENERATIONS = 5
"""As many as a picture of `MetricsPlot` comes once in."""
OWN = ("evaluate", "learn", "evolve", "validate")
"""Methods of ERLModule that do its work; the data module's is `draw_slots`."""
PROFILER_HOOKS = ("on_phase_end", "on_validation_start", "on_validation_end", "on_train_epoch_end")
"""Of `MemoryProfiler` in a generation."""


class Share(NamedTuple):
    """Seconds a generation, the mean of several."""

    generation: float
    """From one start to the next, without writing checkpoints."""
    own: float
    """In eigen2's own work."""
    checkpoints: float
    """Writing checkpoints."""
    profiler: float = 0.0
    """In `MemoryProfiler`, which is part of what is not eigen2's own work."""

    @property
    def percent(self) -> float:
        """What is not eigen2's own work, of the generation."""
        return 100 * (1 - self.own / self.generation)


def rows(full: FullScale) -> list[Row]:
    """Percent of a generation that goes to the Trainer, its callbacks and its loggers, and to the profiler alone.

    Checkpoint writes are measured apart and left out, as are imports, the fit's start and its end.
    """
    share = overhead(full, GENERATIONS)
    what = f"Lightning, callbacks and loggers in a generation of {share.generation:.1f} s, %"
    profiler = "of it MemoryProfiler, %"
    return [
        at_most("overhead", what, share.percent, BOUND, PERCENT),
        at_most("profiler", profiler, 100 * share.profiler / share.generation, PROFILER_BOUND, PERCENT),
    ]


class Stopwatch:
    """Adds up the seconds spent in the functions it is given, which must not call each other."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, owner: object, name: str) -> None:
        """Put a timed method in place of `owner`'s; its class stays as it is."""
        method: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begun

        setattr(owner, name, timed)


class Marks(Callback):
    """Notes the time at the start of each generation, and lets the one after the last measured do no training.

    Args:
        generations: measured.
        watches: read at the same moments.
    """

    def __init__(self, generations: int, *watches: Stopwatch) -> None:
        self.generations, self.watches = generations, watches
        self.marks: list[list[float]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the time; after the last measured generation, end training."""
        self.note()
        if len(self.marks) > self.generations:
            data = trainer.datamodule  # type: ignore[attr-defined]
            data.replay_min_size = data.replay_capacity + 1

    def note(self) -> None:
        """Read the clock and the watches."""
        self.marks.append([time.perf_counter(), *(watch.seconds for watch in self.watches)])

    def means(self) -> list[float]:
        """Seconds a generation, by the clock and by each watch."""
        last = self.marks[self.generations]
        return [(end - begin) / self.generations for begin, end in zip(self.marks[0], last, strict=True)]


def overhead(full: FullScale, generations: int) -> Share:
    """Fit the configuration for so many trained generations, and one more, whose start ends the last measured.

    Args:
        full: the run; on the CPU.
        generations: measured, 1 or more.
    """
    # training starts with the first generation
    cli = full.start(f"--trainer.max_epochs={generations + 1}", f"--data.replay_min_size={full.data.batch_size}")
    draw_lines([0, 1], {"fitness": [0.0, 1.0]}, title="", ylabel="", band=None)  # imports matplotlib
    own, writes, profiler = Stopwatch(), Stopwatch(), Stopwatch()
    marks = Marks(generations, own, writes, profiler)
    _attach(cli, marks, own, writes, profiler)
    fit(cli)
    generation, own_seconds, checkpoints, profiler_seconds = marks.means()
    return Share(generation - checkpoints, own_seconds, checkpoints, profiler_seconds)


def _attach(cli: LightningCLI, marks: Marks, own: Stopwatch, writes: Stopwatch, profiler: Stopwatch) -> None:
    for name in OWN:
        own.wrap(cli.model, name)
    own.wrap(cli.datamodule, "draw_slots")
    writes.wrap(cli.trainer.strategy.checkpoint_io, "save_checkpoint")
    callbacks: list[Callback] = cli.trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, MemoryProfiler):
            for name in PROFILER_HOOKS:
                profiler.wrap(callback, name)
    callbacks.append(marks)
