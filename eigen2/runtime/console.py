"""Terminal output of a run: its settings at the start, a bar and a table while it trains, where to look at the end."""

import math
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from tqdm import tqdm

from eigen2.memory.process import GB, rss_bytes
from eigen2.runtime.phases import PHASES, PhaseClock

LOSSES = (("actor", "train/actor_loss"), ("critic", "train/critic_loss"))  # heading and metric of a population's two
PHASE_HEADINGS = {"evaluate": "eval", "train": "train", "evolve": "evolv", "validate": "valid"}
EXTRA_WIDTHS = 9, 8  # characters of the two columns that a workload may add

Column = tuple[str, str, float]  # heading, name of the metric, factor on it


@runtime_checkable
class ReportedModule(Protocol):
    """What the report reads from the module."""

    clock: PhaseClock
    metrics: dict[str, float]
    loss_columns: Sequence[tuple[str, str]]
    describe: Callable[[], dict[str, str]]


@runtime_checkable
class ReportedData(Protocol):
    """What the report reads from the data module."""

    table_columns: Sequence[Column]
    replay_min_size: int
    buffer: Any
    describe: Callable[[], dict[str, str]]


@runtime_checkable
class HasStatusLine(Protocol):
    """A callback that adds a line to the table."""

    def status_line(self) -> str | None:
        """Return the line; None for none."""


class GenerationReport(ProgressBar):
    """Prints a run for a person at a terminal of 80 columns; without a terminal it leaves the bar out.

    Callbacks with a method `status_line()` add a line to the table.
    """

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False, soft_wrap=True)
        self._bar: Any = None
        self._began = 0.0
        self._first = 0
        self._rows = 0
        self._rss = 0
        self._enabled = True

    def disable(self) -> None:
        """Print nothing."""
        self._enabled = False

    def enable(self) -> None:
        """Print again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print what the run is about."""
        self._began, self._first, self._rss = time.monotonic(), trainer.current_epoch, rss_bytes()
        lines = {**_data(trainer).describe(), **_module(pl_module).describe()}
        lines["writes to"] = str(trainer.default_root_dir)
        if self._first:
            lines["resumes"] = f"after {self._first} of {trainer.max_epochs} generations, from {trainer.ckpt_path}"
        for name, value in lines.items():
            first, *further = textwrap.wrap(value, 66, break_on_hyphens=False)
            self._print(f"[bold]{name:<12}[/bold] {first}")
            for line in further:
                self._print(" " * 13 + line)
        self._bar = tqdm(
            total=(trainer.max_epochs or 0) * int(self.total_train_batches),
            initial=self._first * int(self.total_train_batches),
            disable=None if self._enabled else True,  # None: only on a terminal
            leave=False,
            bar_format="{desc} |{bar}| {percentage:3.0f} % {elapsed}",
            ncols=79,
        )
        self._describe(trainer, "evaluate")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update()
            if batch_idx == 0:
                self._describe(trainer, "train")

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Name the phase that follows."""
        phases = [*_module(pl_module).clock.phases, "checkpoint"]
        self._describe(trainer, phases[phases.index(phase) + 1])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the generation's two rows and the time left."""
        if not self._enabled or self._bar is None:
            return
        module, data = _module(pl_module), _data(trainer)
        extra, losses, phases = data.table_columns, module.loss_columns, module.clock.phases
        if self._rows % 10 == 0:
            for line in header(extra, losses, phases):
                self._print(f"[dim]{line}[/dim]")
        self._rows += 1
        generation, starts = trainer.current_epoch, data.replay_min_size
        before, self._rss = self._rss, rss_bytes()
        done = trainer.current_epoch + 1 - self._first
        left_s = (time.monotonic() - self._began) / done * ((trainer.max_epochs or 0) - trainer.current_epoch - 1)
        memory = self._rss, self._rss - before
        for line in generation_rows(generation, module.metrics, starts, *memory, left_s, extra, losses, phases):
            self._print(line)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, HasStatusLine) and (text := callback.status_line()):
                self._print(text[:80])
        self._describe(trainer, "evaluate")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the champion, where everything lies and what to type next."""
        self._close()
        metrics = _module(pl_module).metrics
        if not self._enabled or not metrics:
            return
        root = Path(trainer.default_root_dir)
        lines = {
            "champion": f"validation fitness {metrics['champion/validation_fitness']:.1f}, "
            f"found in generation {metrics['champion/generation']:.0f}",
            "totals": f"{trainer.current_epoch} generations, {_data(trainer).buffer.added:,} transitions, "
            f"{trainer.global_step:,} gradient steps",
            "took": f"{trainer.current_epoch - self._first} generations in {_clock(time.monotonic() - self._began)}",
            "checkpoints": root / "checkpoints/last.ckpt, best.ckpt",
            "metrics": root / "metrics.csv, memory.csv, config.yaml",
            "curves": f"{root / 'tensorboard'}",
            "next": f"tensorboard --logdir {root}",
        }
        self._print("")
        for name, value in lines.items():
            self._print(f"[bold]{name:<12}[/bold] {value}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the terminal clean; after Ctrl-C print how to go on."""
        self._close()
        if isinstance(exception, KeyboardInterrupt) and self._enabled:
            self._print("interrupted; with --ckpt_path last the same command resumes")

    def _describe(self, trainer: Trainer, phase: str) -> None:
        if self._bar is not None:
            generation = min(trainer.current_epoch + 1, trainer.max_epochs or 0)
            self._bar.set_description_str(f"generation {generation}/{trainer.max_epochs} {phase}")

    def _print(self, text: str) -> None:
        if self._enabled:
            if self._bar is not None and not self._bar.disable:
                self._bar.clear()
            self._console.print(text)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _module(module: LightningModule) -> ReportedModule:
    return cast(ReportedModule, module)


def _data(trainer: Trainer) -> ReportedData:
    return cast(ReportedData, trainer.datamodule)  # type: ignore[attr-defined]


def header(
    extra: Sequence[Column] = (), losses: Sequence[tuple[str, str]] = LOSSES, phases: Sequence[str] = PHASES
) -> tuple[str, str]:
    """Return the table's two heading lines, with the columns of workload and module."""
    more = "".join(f"{name:>{width}}" for (name, _, _), width in zip(extra, EXTRA_WIDTHS, strict=False))
    first, second = (heading for heading, _ in losses)
    seconds = "".join(f"{PHASE_HEADINGS.get(phase, phase)[:5]:>6}" for phase in phases)
    return (
        f" gen  fitness mean       max       min       std  champion{more}",
        f"{f'loss: {first}':>13}{second:>9}{'replay':>9}{seconds}  RSS GB    MB    left",
    )


def generation_rows(
    generation: int,
    metrics: Mapping[str, float],
    training_starts: int,
    rss: int,
    growth: int,
    left_s: float,
    extra: Sequence[Column] = (),
    losses: Sequence[tuple[str, str]] = LOSSES,
    phases: Sequence[str] = PHASES,
) -> tuple[str, str]:
    """Return a generation's two table rows, at most 80 columns each, under `header(extra, losses, phases)`.

    The generation counts from 0, as in TensorBoard and the CSV files. Metrics that are missing are shown as nan.
    `training_starts` is in transitions, RSS and its growth are in bytes, `left_s` is until the run is over.
    """

    def value(name: str) -> float:
        return metrics.get(name, math.nan)

    fitness = "".join(f"{value(f'fitness/{k}'):>10.1f}" for k in ("max", "min", "std"))
    more = "".join(
        f"{factor * value(name):>{width}.1f}" for (_, name, factor), width in zip(extra, EXTRA_WIDTHS, strict=False)
    )
    champion = f"{value('champion/validation_fitness'):>10.1f}"
    first_loss, second_loss = (value(name) for _, name in losses)
    learning = f"{first_loss:>13.3f}{second_loss:>9.3f}{metrics.get('replay/size', 0):>9,.0f}"
    if math.isnan(first_loss):
        learning = f"{f'training starts at {training_starts:,}':>31}"
    seconds = "".join(f"{value(f'time/{phase}_s'):>6.2f}" for phase in phases)
    return (
        f"{generation:>4}{value('fitness/mean'):>14.1f}{fitness}{champion}{more}",
        f"{learning}{seconds}{rss / GB:>8.3f}{growth / 1e6:>+6.1f}{_clock(left_s):>8}",
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
