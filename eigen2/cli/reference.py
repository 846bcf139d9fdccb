"""Documentation generated from the code: all settings, and all modules (`python -m eigen2.cli.reference docs`)."""

import ast
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from jsonargparse import Namespace

from eigen2.cli.parser import type_text
from eigen2.cli.training import TrainingParser, add_run_arguments
from eigen2.compat import option_type, parser_options
from eigen2.files import write

HEAD = """# Configuration

Every key of a configuration file, with type, default, unit and range.
On the command line a key is an option, `--model.population_size 32`; `fit --help` lists the same. `trainer` is
Lightning's [Trainer](https://lightning.ai/docs/pytorch/stable/common/trainer.html).
"""
TABLE = "| key | type, default | |\n| -- | -- | -- |"
SECTIONS = {
    "The algorithm (`workload: market` and `control`)": "model=eigen2.erl.module.ERLModule",
    "Learners (`model.learner`: `class_path` and `init_args`)": "eigen2.erl.learners.DDPG eigen2.erl.learners.TD3",
    "Evolution (`model.evolution`: a list of `class_path` and `init_args`)": """
        eigen2.erl.evolution.Elitism eigen2.erl.evolution.TournamentCrossover eigen2.erl.evolution.MagnitudeMutation
        eigen2.erl.evolution.FineMutation eigen2.erl.evolution.Injection""",
    "Trading (`workload: market`)": """
        data=eigen2.market.datamodule.MarketDataModule
        data.synthetic=eigen2.market.synthetic.generator.SyntheticMarket""",
    "Gymnasium tasks (`workload: control`)": "data=eigen2.control.datamodule.ControlDataModule",
    "Fuel breaks (`workload: fire`)": """
        model=eigen2.dqn.module.DQNModule data=eigen2.fire.datamodule.FuelBreakDataModule
        data.region=eigen2.fire.landscapes.rasters.RegionFiles""",
    "Networks (`model.actor`, `model.critic`: `class_path` and `init_args`)": """
        eigen2.market.networks.columns.ColumnActor eigen2.market.networks.columns.ColumnCritic
        eigen2.market.networks.columns.TradeModel eigen2.market.networks.windows.ConvolutionActor
        eigen2.market.networks.windows.ConvolutionCritic eigen2.control.networks.MLPActor
        eigen2.control.networks.MLPCritic""",
    "Callbacks (`trainer.callbacks`: a list of `class_path` and `init_args`)": """
        callbacks.MemoryProfiler callbacks.GarbageCollector callbacks.MetricsPlot
        eigen2.runtime.checkpoint.ChampionCheckpoint eigen2.runtime.checkpoint.GenerationCheckpoint
        eigen2.runtime.uploader.CheckpointUploader eigen2.runtime.console.GenerationReport
        eigen2.market.evaluation.equity_plot.EquityPlot eigen2.fire.hygiene.MemoryHygiene
        eigen2.fire.pictures.BreaksPlot""",
}
"""Classes by heading, as `group=path` if their settings are a group of keys, else as `path`."""


def reference() -> str:
    """Return the Markdown page of all settings."""
    run = TrainingParser()
    add_run_arguments(run)
    lines = [HEAD, "## The run\n", TABLE, *_rows("", run)]
    for heading, classes in SECTIONS.items():
        lines += [f"\n## {heading}\n", TABLE]
        for entry in classes.split():
            group, _, path = entry.rpartition("=")
            parser = TrainingParser()
            parser.add_class_arguments(resolve_name(path), "x")
            rows = list(_rows(group, parser))
            lines += ([] if group else [f"| **`{path}`** | | {'' if rows else 'No settings.'} |"]) + rows
    return "\n".join(lines) + "\n"


def _rows(group: str, parser: TrainingParser) -> Iterator[str]:
    for name, option in parser_options(parser).items():
        if option_type(option) is not None and not name.startswith("x.sizes"):
            key = ".".join(filter(None, (group, name.removeprefix("x."))))
            kind = ", ".join(filter(None, (type_text(option_type(option)), _default(option.default))))
            text = " ".join((option.help or "").split()).replace("|", "\\|")
            yield f"| `{key}` | {kind} | {text[:1].upper()}{text[1:]} |"


def _default(value: Any) -> str:
    """Return a default in YAML, a class without its settings; empty for a required key or a group."""
    if value == "==SUPPRESS==" or dataclasses.is_dataclass(value) or (value and isinstance(value, dict)):
        return ""
    if isinstance(value, Namespace):
        return f"`{value.class_path}`"
    if isinstance(value, list | tuple) and any(dataclasses.is_dataclass(item) for item in value):
        return ", ".join(f"`{type(item).__name__}`" for item in value)
    return f"`{json.dumps(value)}`".replace('"', "")


def module_table(root: Path) -> str:
    """Return a Markdown table of all modules of a checkout, each with the first line of its docstring."""
    rows = ["| module | |", "| -- | -- |"]
    for path in sorted([*root.glob("eigen2/**/*.py"), *root.glob("callbacks/*.py")]):
        line = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        if not path.name.startswith("__"):
            rows.append(f"| `{path.relative_to(root)}` | {line} |")
    return "\n".join(rows)


def with_modules(page: str, table: str) -> str:
    """Return the page with its table of modules replaced."""
    head, _, rest = page.partition("<!-- modules -->\n")
    return f"{head}<!-- modules -->\n{table}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"


def main(docs: Path) -> None:
    """Write the table of modules into `architecture.md` in the folder `docs` of a checkout."""
    page = docs / "architecture.md"
    write(page, with_modules(page.read_text(), module_table(docs.resolve().parent)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
