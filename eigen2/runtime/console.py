"""Terminal output of a run: its settings at the start, a bar and a table while it trains, a summary at the end."""

import logging
import math
import shlex
import textwrap
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.markup import escape
from tqdm import tqdm

from eigen2.errors import UserError
from eigen2.memory.process import GB, rss_bytes
from eigen2.runtime.phases import PHASES
from eigen2.runtime.reliability import RECENT, SURVIVAL, selection_verdict

LOSSES = (("actor", "train/actor_loss"), ("critic", "train/critic_loss"))  # heading and metric of a loss
PHASE_HEADINGS = {"evaluate": "eval", "evolve": "evolv", "validate": "valid"}
Column = tuple[str, str, float]  # heading, name of the metric, factor on it


class GenerationReport(ProgressBar):
    """Prints the progress of a `GenerationModule` in 80 columns; on a terminal, a bar and the phase too.

    Callbacks that have `status_line()` add its line, unless it is None, to the table.
    """

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False, soft_wrap=True)
        self._enabled = True
        self._bar: Any = None
        self._generation = self._phase = self._shown = ""  # what stands beside the bar
        self._steps = 0  # of the evaluation in progress
        self._began = 0.0
        self._first = self._rows = self._rss = 0
        self._generations: deque[Mapping[Any, float]] = deque(maxlen=RECENT)

    def disable(self) -> None:
        """Print nothing."""
        self._enabled = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Print the model, the data and the folder of the run."""
        self._began, self._first, self._rss = time.monotonic(), trainer.current_epoch, rss_bytes()
        self._rows = 0
        self._generations.clear()
        lines = {**trainer.datamodule.describe(), **pl_module.describe()}
        lines |= {"fitness": trainer.datamodule.fitness_labels["unit"], "writes to": str(trainer.default_root_dir)}
        total = _generations(trainer)
        if self._first:
            of = "" if total is None else f"of {total} "
            lines["resumes"] = f"after {self._first} {of}generations, from {trainer.ckpt_path}"
        self._print_values({name: textwrap.wrap(text, 66, break_on_hyphens=False) for name, text in lines.items()})
        steps = int(self.total_train_batches)
        self._bar = tqdm(
            total=None if total is None else total * steps,
            initial=self._first * steps,
            disable=None if self._enabled else True,  # None: only on a terminal
            leave=False,
            bar_format="{desc} |{bar}| {percentage:3.0f}% {elapsed}",
            ncols=79,
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Show the generation in progress and its first phase."""
        total = _generations(trainer)
        of = "" if total is None else f"/{total}"
        self._generation, self._steps = f"generation {trainer.current_epoch + 1}{of}", 0
        self._show(pl_module.clock.phases[0])

    def on_environment_step(self, trainer: Any, pl_module: Any) -> None:
        """Show how much of the evaluation is done, where its length is known."""
        if not self._bar.disable and self._phase == "evaluate":
            self._steps += 1
            with suppress(UserError):
                self._show("evaluate", self._steps / trainer.datamodule.longest_episode)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Advance the bar and show how much of the training is done."""
        self._bar.update()
        if not trainer.is_last_batch:
            self._show("train", (batch_idx + 1) / self.total_train_batches)

    def on_phase_end(self, trainer: Any, pl_module: Any, phase: str) -> None:
        """Show the phase that follows."""
        following = pl_module.clock.phases[pl_module.clock.phases.index(phase) + 1 :]
        self._show(following[0] if following else "checkpoint")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Print the generation's two rows and the time left."""
        if not self._enabled:
            return
        before, self._rss = self._rss, rss_bytes()
        self._generations.append(pl_module.metrics)
        done, total = trainer.current_epoch + 1 - self._first, _generations(trainer)
        left = math.inf if total is None else total - trainer.current_epoch - 1
        header, rows = table(
            trainer.current_epoch,
            pl_module.metrics,
            training_starts=trainer.datamodule.replay_min_size,
            rss=self._rss,
            growth=self._rss - before,
            left_s=(time.monotonic() - self._began) / done * left,
            extra=trainer.datamodule.table_columns,
            losses=pl_module.loss_columns,
            phases=pl_module.clock.phases,
        )
        lines = [f"[dim]{line}[/dim]" for line in header] if self._rows % 10 == 0 else []
        self._rows += 1
        others = (callback.status_line() for callback in trainer.callbacks if hasattr(callback, "status_line"))
        for line in (*lines, *rows, *filter(None, others)):
            self._print(line)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Print the champion, the totals and a command to run next."""
        self.on_exception()
        if not (metrics := pl_module.metrics):
            return
        fitness, generation = metrics["champion/validation_fitness"], metrics["champion/generation"]
        unit = trainer.datamodule.fitness_labels["unit"]
        champion = f"validation fitness {fitness:.1f} ({unit}), of generation {generation:.0f}"
        if math.isnan(generation):
            champion = "none yet: nothing was validated"
        took = f"{trainer.current_epoch - self._first} generations in {_clock(time.monotonic() - self._began)}"
        self._print("")
        verdict = selection_verdict(self._generations)
        self._print_values(
            {
                "champion": textwrap.wrap(champion, 66),
                **({} if verdict is None else {"selection": textwrap.wrap(verdict, 66)}),
                "totals": [f"{took}, {trainer.datamodule.buffer.added:,} transitions, {trainer.global_step:,} steps"],
                "next": [f"tensorboard --logdir {shlex.quote(str(trainer.default_root_dir))}"],
            }
        )

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.close()

    def _show(self, phase: str, done: float | None = None) -> None:
        """Show a phase beside the bar, and the fraction of it that is done if it is known."""
        self._phase = phase
        text = f"{self._generation}, {phase}" + ("" if done is None else f" {min(done, 1):.0%}")
        if not self._bar.disable and text != self._shown:
            self._shown = text
            self._bar.set_description_str(f"{text:<32}")

    def _print_values(self, values: Mapping[str, Sequence[str]]) -> None:
        for name, lines in values.items():
            self._print(f"[bold]{name:<12}[/bold] " + f"\n{'':13}".join(map(escape, lines)))

    def _print(self, text: str) -> None:
        if self._enabled:
            if self._bar is not None and not self._bar.disable:
                self._bar.clear()
            self._console.print(text)


def table(
    generation: int,
    metrics: Mapping[str, float],
    *,
    training_starts: int,
    rss: int,
    growth: int,
    left_s: float,
    extra: Sequence[Column] = (),
    losses: Sequence[tuple[str, str]] = LOSSES,
    phases: Sequence[str] = PHASES,
) -> tuple[list[str], list[str]]:
    """Return the table's two heading lines and a generation's two rows, at most 80 columns each.

    The generation counts from 0, as in TensorBoard and the CSV files. Metrics that are missing are shown as nan.
    `training_starts` is in transitions, RSS and its growth are in bytes, `left_s` is the time until the run ends, inf
    without an end.
    """

    def value(name: str) -> float:
        return metrics.get(name, math.nan)

    # heading, width, text
    first = [("gen", 4, f"{generation}"), ("fitness mean", 14, f"{value('fitness/mean'):.1f}")]
    first += [(name, 10, f"{value(f'fitness/{name}'):.1f}") for name in ("max", "min")]
    if SURVIVAL in metrics:
        first += [("elites %", 10, f"{100 * value(SURVIVAL):.0f}")]
    else:
        first += [("std", 10, f"{value('fitness/std'):.1f}")]
    first += [("champion", 10, f"{value('champion/validation_fitness'):.1f}")]
    widths = zip(extra, (9, 8), strict=False)
    first += [(name, width, f"{factor * value(metric):.1f}") for (name, metric, factor), width in widths]
    (name_1, loss_1), (name_2, loss_2) = losses
    second = [(f"loss: {name_1}", 13, f"{value(loss_1):.3f}"), (name_2, 9, f"{value(loss_2):.3f}")]
    second += [("replay", 9, f"{metrics.get('replay/size', 0):,.0f}")]
    if math.isnan(value(loss_1)):
        heading = "".join(f"{name:>{width}}" for name, width, _ in second)
        second = [(heading, 31, f"training starts at {training_starts:,}")]
    second += [(PHASE_HEADINGS.get(phase, phase)[:5], 6, f"{value(f'time/{phase}_s'):.2f}") for phase in phases]
    second += [("RSS GB", 8, f"{rss / GB:.3f}"), ("MB", 6, f"{growth / 1e6:+.1f}"), ("left", 8, _clock(left_s))]
    header = ["".join(f"{name:>{width}}" for name, width, _ in row) for row in (first, second)]
    return header, ["".join(f"{text:>{width}}" for _, width, text in row) for row in (first, second)]


def _generations(trainer: Any) -> int | None:
    """Return the number of generations; None for a run without an end (`max_epochs` of -1)."""
    return None if trainer.max_epochs < 0 else int(trainer.max_epochs)


def _clock(seconds: float) -> str:
    if math.isinf(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def hide_library_messages() -> None:
    """Hide messages of libraries that do not concern users: tips, hardware, number of workers."""
    for name in ("pytorch.utilities.rank_zero", "fabric.utilities.seed", "fabric.utilities.distributed"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    # Lightning 2.6 checks a deprecated pytree type of torch 2.13 on every batch
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    texts = "LightningCLI's args", "Checkpoint directory .* exists", ".*does not have many workers"
    # validate and test need no callbacks of the fit
    for text in (*texts, "Be aware that when using `ckpt_path`, callbacks used to create"):
        warnings.filterwarnings("ignore", message=text)
