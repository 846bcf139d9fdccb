"""What the user sees: facts at the start, a bar and a table while it runs, where everything lies at the end."""

import math
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from tqdm import tqdm

from eigen2.memory.process import GB, rss_bytes
from eigen2.runtime.phases import PHASES

FIRST = " gen  fitness mean       max       min       std  champion"
LOSSES = (("actor", "train/actor_loss"), ("critic", "train/critic_loss"))
"""Heading and metric of a module's two losses, unless it has others."""
PHASE_HEADINGS = {"evaluate": "eval", "train": "train", "evolve": "evolv", "validate": "valid"}
HEADER_EVERY = 10
EXTRA_WIDTHS = 9, 8
"""Characters of the two columns that a workload may add."""

Column = tuple[str, str, float]
"""Heading, name of the metric, factor on it."""


class GenerationReport(ProgressBar):
    """Prints a run for a person at a terminal of 80 columns; without a terminal it leaves the bar out.

    Reads the numbers of a generation from `module.metrics` and the facts at the start from `module.describe()` and
    `datamodule.describe()`, where they exist. A data module may add two columns by an attribute `table_columns`, of
    heading, name of the metric and factor; a module may have two losses of its own by `loss_columns`, of heading and
    name, and phases of its own by `clock`. Callbacks with a method `status_line()` add a row to the table.
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
        """Print the facts."""
        self._began, self._first, self._rss = time.monotonic(), trainer.current_epoch, rss_bytes()
        facts: dict[str, str] = {}
        for part in (getattr(trainer, "datamodule", None), pl_module):
            describe = getattr(part, "describe", None)
            facts |= describe() if callable(describe) else {}
        facts["writes to"] = str(trainer.default_root_dir)
        if self._first:
            facts["resumes"] = f"after {self._first} of {trainer.max_epochs} generations, from {trainer.ckpt_path}"
        for name, value in facts.items():
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
        phases = [*_phases(pl_module), "checkpoint"]
        self._describe(trainer, phases[phases.index(phase) + 1])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the generation's two rows and the time left."""
        if not self._enabled or self._bar is None:
            return
        extra = getattr(trainer.datamodule, "table_columns", ())  # type: ignore[attr-defined]
        losses, phases = getattr(pl_module, "loss_columns", LOSSES), _phases(pl_module)
        if self._rows % HEADER_EVERY == 0:
            for line in header(extra, losses, phases):
                self._print(f"[dim]{line}[/dim]")
        self._rows += 1
        rss, before = rss_bytes(), self._rss
        self._rss = rss
        metrics: dict[str, float] = getattr(pl_module, "metrics", {})
        start = trainer.datamodule.replay_min_size  # type: ignore[attr-defined]
        done = trainer.current_epoch + 1 - self._first
        left = (time.monotonic() - self._began) / done * ((trainer.max_epochs or 0) - trainer.current_epoch - 1)
        for line in generation_rows(
            trainer.current_epoch, metrics, start, rss, rss - before, left, extra, losses, phases
        ):
            self._print(line)
        for callback in getattr(trainer, "callbacks", []):
            status_line = getattr(callback, "status_line", None)
            if callable(status_line) and (line := status_line()):
                self._print(line[:80])
        self._describe(trainer, "evaluate")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what came out, where it lies and what to type next."""
        self._close()
        metrics: dict[str, float] = getattr(pl_module, "metrics", {})
        if not self._enabled or not metrics:
            return
        root = Path(trainer.default_root_dir)
        took = _clock(time.monotonic() - self._began)
        self._print(
            f"\n[bold]champion[/bold]     validation fitness {metrics['champion/validation_fitness']:.1f}, "
            f"found in generation {metrics['champion/generation']:.0f}"
        )
        buffer = trainer.datamodule.buffer  # type: ignore[attr-defined]
        self._print(
            f"[bold]totals[/bold]       {trainer.current_epoch} generations, {buffer.added:,} transitions, "
            f"{trainer.global_step:,} gradient steps"
        )
        self._print(f"[bold]took[/bold]         {trainer.current_epoch - self._first} generations in {took}")
        for what, where in (
            ("checkpoints", "checkpoints/last.ckpt, best.ckpt"),
            ("metrics", "metrics.csv, memory.csv, config.yaml"),
            ("curves", "tensorboard/"),
        ):
            self._print(f"[bold]{what:<12}[/bold] {root / where}")
        self._print(f"[bold]next[/bold]         tensorboard --logdir {root}")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the terminal clean; after Ctrl-C say how to go on."""
        self._close()
        if isinstance(exception, KeyboardInterrupt) and self._enabled:
            self._print("interrupted; with --ckpt_path last the same command resumes")

    def _describe(self, trainer: Trainer, phase: str) -> None:
        if self._bar is not None:
            generation = min(trainer.current_epoch + 1, trainer.max_epochs or 0)
            self._bar.set_description_str(f"generation {generation}/{trainer.max_epochs} {phase}")

    def _print(self, text: str) -> None:
        if not self._enabled:
            return
        if self._bar is not None and not self._bar.disable:
            self._bar.clear()
        self._console.print(text)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _phases(module: LightningModule) -> Sequence[str]:
    return getattr(getattr(module, "clock", None), "phases", PHASES)


def header(
    extra: Sequence[Column] = (), losses: Sequence[tuple[str, str]] = LOSSES, phases: Sequence[str] = PHASES
) -> tuple[str, str]:
    """The table's two heading lines, with the columns of workload and module."""
    more = "".join(f"{name:>{width}}" for (name, _, _), width in zip(extra, EXTRA_WIDTHS, strict=False))
    first, second = (heading for heading, _ in losses)
    seconds = "".join(f"{PHASE_HEADINGS.get(phase, phase)[:5]:>6}" for phase in phases)
    return FIRST + more, f"{f'loss: {first}':>13}{second:>9}{'replay':>9}{seconds}  RSS GB    MB    left"


def generation_rows(
    generation: int,
    metrics: dict[str, float],
    training_starts: int,
    rss: int,
    growth: int,
    left_s: float,
    extra: Sequence[Column] = (),
    losses: Sequence[tuple[str, str]] = LOSSES,
    phases: Sequence[str] = PHASES,
) -> tuple[str, str]:
    """A generation's two table rows, at most 80 columns each, under `header(extra, losses, phases)`.

    Args:
        generation: counted from 0; shown so too, as in TensorBoard and the CSV files.
        metrics: of the module.
        training_starts: transitions at which training starts.
        rss: bytes now.
        growth: bytes since the last generation.
        left_s: seconds until the run is over.
        extra: the workload's columns.
        losses: heading and metric of the module's two.
        phases: of the module's generations.
    """
    get = metrics.get
    fitness = "".join(f"{get(f'fitness/{k}', math.nan):>10.1f}" for k in ("max", "min", "std"))
    first = (
        f"{generation:>4}{get('fitness/mean', math.nan):>14.1f}{fitness}"
        f"{get('champion/validation_fitness', math.nan):>10.1f}"
    ) + "".join(
        f"{factor * get(name, math.nan):>{width}.1f}"
        for (_, name, factor), width in zip(extra, EXTRA_WIDTHS, strict=False)
    )
    first_loss, second_loss = (get(name, math.nan) for _, name in losses)
    learning = f"{first_loss:>13.3f}{second_loss:>9.3f}{get('replay/size', 0):>9,.0f}"
    if math.isnan(first_loss):
        learning = f"{f'training starts at {training_starts:,}':>31}"
    seconds = "".join(f"{get(f'time/{phase}_s', math.nan):>6.2f}" for phase in phases)
    return first, f"{learning}{seconds}{rss / GB:>8.3f}{growth / 1e6:>+6.1f}{_clock(left_s):>8}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
