"""What Lightning, callbacks and loggers add to a generation."""

import time
from typing import NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import Stopwatch
from benchmarks.speed.comparison import PERCENT, Comparison, at_most
from benchmarks.speed.full_scale import FullScale, fit
from callbacks import MemoryProfiler
from callbacks.plots import draw_lines

GENERATIONS = 5  # measured generations: `MetricsPlot` draws one picture in as many
OWN = ("on_train_epoch_start", "training_step", "evolve", "validate")  # methods of ERLModule that do its work
PROFILER_HOOKS = ("on_phase_end", "on_validation_start", "on_validation_end", "on_train_epoch_end")
"""Hooks of `MemoryProfiler` in a generation."""


class Share(NamedTuple):
    """Mean seconds of a generation and its parts."""

    generation: float  # from one start to the next, without writing checkpoints
    own: float  # in eigen2's own work
    profiler: float = 0.0  # in `MemoryProfiler`, which is part of what is not eigen2's own work

    @property
    def percent(self) -> float:
        """Return the part that is not eigen2's own work."""
        return 100 * (1 - self.own / self.generation)


class Marks(Callback):
    """Reads the clock and watches at each generation's start; lets the one after the last measured do no training."""

    def __init__(self, generations: int, *watches: Stopwatch) -> None:
        self.generations, self.watches = generations, watches
        self.marks: list[list[float]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read clock and watches; after the last measured generation, end training."""
        self.read()
        if len(self.marks) > self.generations:
            data = trainer.datamodule  # type: ignore[attr-defined]
            data.replay_min_size = data.replay_capacity + 1

    def read(self) -> None:
        """Read the clock and the watches."""
        self.marks.append([time.perf_counter(), *(watch.seconds for watch in self.watches)])

    def means(self) -> list[float]:
        """Return seconds a generation, by the clock and by each watch."""
        last = self.marks[self.generations]
        return [(end - begin) / self.generations for begin, end in zip(self.marks[0], last, strict=True)]


def overheads(full: FullScale, runs: int) -> list[Comparison]:
    """Measure the percent of a generation that goes to Trainer, callbacks and loggers, and to the profiler alone.

    Checkpoint writes are measured apart and left out, as are imports, the fit's start and its end.
    """
    share = overhead(full, min(GENERATIONS, runs))
    what = f"Lightning, callbacks and loggers in a generation of {share.generation:.1f} s, %"
    profiler = 100 * share.profiler / share.generation
    return [
        at_most("overhead", what, share.percent, 5.0, PERCENT),
        at_most("profiler", "of it MemoryProfiler, %", profiler, 2.0, PERCENT),
    ]


def overhead(full: FullScale, generations: int) -> Share:
    """Fit the configuration for so many trained generations, and one more, whose start ends the last measured."""
    # training starts with the first generation
    cli = full.start(f"--trainer.max_epochs={generations + 1}", f"--data.replay_min_size={full.data.batch_size}")
    draw_lines([0, 1], {"fitness": [0.0, 1.0]}, title="", ylabel="", band=None)  # imports matplotlib
    own, writes, profiler = Stopwatch(), Stopwatch(), Stopwatch()
    for name in OWN:
        own.wrap(cli.model, name)
    writes.wrap(cli.trainer.strategy.checkpoint_io, "save_checkpoint")
    callbacks: list[Callback] = cli.trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, MemoryProfiler):
            for name in PROFILER_HOOKS:
                profiler.wrap(callback, name)
    marks = Marks(generations, own, writes, profiler)
    callbacks.append(marks)
    fit(cli)
    generation, own_seconds, checkpoints, profiler_seconds = marks.means()
    return Share(generation - checkpoints, own_seconds, profiler_seconds)
