"""The configuration reference, from the code: `python -m eigen2.cli.reference docs/configuration.md`."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import callbacks
from eigen2.cli.training import TrainingParser, add_run_arguments
from eigen2.control.datamodule import ControlDataModule
from eigen2.control.networks import MLPActor, MLPCritic
from eigen2.dqn.module import DQNModule
from eigen2.erl.evolution import (
    Elitism,
    Injection,
    MagnitudeMutation,
    PlateauGrowth,
    ProximalMutation,
    Reinjection,
    TournamentCrossover,
)
from eigen2.erl.learners import DDPG, TD3
from eigen2.erl.module import ERLModule
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.hygiene import MemoryHygiene
from eigen2.fire.landscapes.rasters import RegionFiles
from eigen2.fire.pictures import BreaksPlot
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.evaluation.equity_plot import EquityPlot
from eigen2.market.networks.columns import Choice, ColumnActor, ColumnCritic
from eigen2.market.networks.windows import ConvolutionActor, ConvolutionCritic
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime.checkpoint import ChampionCheckpoint, GenerationCheckpoint
from eigen2.runtime.console import GenerationReport
from eigen2.runtime.uploader import CheckpointUploader

HEAD = """# Configuration

Every key of a configuration file, with its type, default, unit and range, as the code has them (`make reference`). On
the command line a key is an option: `--model.population_size 32`; `fit --help` says the same. `trainer` is Lightning's
[Trainer](https://lightning.ai/docs/pytorch/stable/common/trainer.html). `null` stands for nothing; what can be null
says what that means.
"""
SECTIONS: dict[str, dict[str, Any]] = {
    "The run": {"": add_run_arguments},
    "The algorithm (`workload: market` and `control`)": {
        "model": ERLModule,
    },
    "Learners (`model.learner`: `class_path` and `init_args`)": {
        f"eigen2.erl.learners.{cls.__name__}": cls for cls in (DDPG, TD3)
    },
    "Evolution (`model.evolution`: a list of `class_path` and `init_args`)": {
        f"eigen2.erl.evolution.{cls.__name__}": cls
        for cls in (
            *(Elitism, TournamentCrossover, MagnitudeMutation, PlateauGrowth),
            *(ProximalMutation, Injection, Reinjection),
        )
    },
    "Trading (`workload: market`)": {"data": MarketDataModule, "data.synthetic": SyntheticMarket},
    "Gymnasium tasks (`workload: control`)": {"data": ControlDataModule},
    "Fuel breaks (`workload: fire`)": {
        "model": DQNModule,
        "data": FuelBreakDataModule,
        "data.region": RegionFiles,
    },
    "Networks (`model.actor`, `model.critic`: `class_path` and `init_args`)": {
        f"{cls.__module__}.{cls.__qualname__}": cls
        for cls in (ColumnActor, ColumnCritic, Choice, ConvolutionActor, ConvolutionCritic, MLPActor, MLPCritic)
    },
    "Callbacks (`trainer.callbacks`: a list of `class_path` and `init_args`)": {
        **{
            f"callbacks.{cls.__name__}": cls
            for cls in (callbacks.MemoryProfiler, callbacks.GarbageCollector, callbacks.MetricsPlot)
        },
        **{
            f"{cls.__module__}.{cls.__qualname__}": cls
            for cls in (
                *(EquityPlot, ChampionCheckpoint, GenerationCheckpoint),
                *(CheckpointUploader, GenerationReport, MemoryHygiene, BreaksPlot),
            )
        },
    },
}
"""What is documented: by heading, the group of keys or the class path, and what defines the keys."""


def reference() -> str:
    """The page."""
    lines = [HEAD]
    for heading, groups in SECTIONS.items():
        lines.append(f"## {heading}\n")
        for name, source in groups.items():
            if len(groups) > 1:
                lines.append(f"### `{name}`\n")
            rows = list(_rows(name, source))
            lines += ["| key | type | default | |", "| -- | -- | -- | -- |", *rows, ""] if rows else ["No settings.\n"]
    return "\n".join(lines).rstrip() + "\n"


def _rows(name: str, source: Any) -> Iterator[str]:
    if isinstance(source, type):
        parser: Any = TrainingParser()
        parser.add_class_arguments(source, "x")
    else:
        parser = TrainingParser()
        source(parser)
    for action in parser._actions:
        if not hasattr(action, "_typehint") or action.dest.endswith(".help") or action.dest == "x.sizes":
            continue
        key = action.dest.removeprefix("x.")
        if name.startswith(("model", "data")):
            key = f"{name}.{key}"
        yield f"| `{key}` | {_type(action._typehint)} | {_default(action.default)} | {_text(action.help)} |"


def _type(hint: Any) -> str:
    """A type as a user thinks of it."""
    if hint is type(None):
        return "null"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    words = re.sub(
        r"\b(?:[a-z_]\w*\.)+(?=\w)", "", str(hint) if get_args(hint) else getattr(hint, "__name__", str(hint))
    )
    words = words.replace("NoneType", "null").replace("None", "null")
    words = re.sub(r"Optional\[(.*)\]$", r"\1 or null", words)
    words = re.sub(r"Union\[(.*)\]$", lambda found: found[1].replace(", ", " or "), words)
    if words.startswith("Callable"):
        return "class" + " or null" * words.endswith("null")
    return words.replace(" | ", " or ")


def _default(value: Any) -> str:
    if value is None:
        return "`null`"
    if (value and isinstance(value, dict)) or hasattr(value, "__dataclass_fields__"):
        return "see below"
    if isinstance(value, tuple):
        value = list(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "" if text == "==SUPPRESS==" else f"`{text}`" if text else "empty"


def _text(help_text: str | None) -> str:
    found = " ".join((help_text or "").split()).replace("|", "\\|")
    return found[:1].upper() + found[1:]


def main() -> None:
    """Write the page to the file that the command line names."""
    Path(sys.argv[1]).write_text(reference())


if __name__ == "__main__":
    main()
