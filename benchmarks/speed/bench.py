"""`make bench`: figures against references kept here or against bounds, each pair measured in one process."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.machine import describe_machine
from benchmarks.speed import assembly, checkpointing, environment, evaluation, overhead, panel, replay, training
from benchmarks.speed.full_scale import CONFIG, FullScale
from benchmarks.timing import Row
from eigen2.errors import UserError, require_range

FEWER = 3
"""Pairs that take about a second run a third as often as asked."""


class Group(NamedTuple):
    """Rows that are measured together."""

    keys: tuple[str, ...]
    measure: Callable[[FullScale, int], list[Row]]
    """Of the run, and how often each pair is timed."""
    on_gpu: bool = False
    """Whether a GPU does any of it."""


GROUPS = (
    Group(("evaluation",), lambda full, runs: evaluation.rows(full, -(-runs // FEWER)), on_gpu=True),
    Group(("training_step",), lambda full, runs: training.rows(full, -(-runs // FEWER)), on_gpu=True),
    Group(("batch_assembly",), assembly.rows, on_gpu=True),
    Group(("replay_bytes",), lambda full, runs: replay.rows(full)),
    Group(("environment_256", "environment_16"), lambda full, runs: environment.rows(runs)),
    Group(("overhead", "profiler"), lambda full, runs: overhead.rows(full)),
    Group(("checkpoint_save", "checkpoint_load"), lambda full, runs: checkpointing.rows(full)),
    Group(("panel_build", "panel_load"), lambda full, runs: panel.rows()),
)
KEYS = tuple(key for group in GROUPS for key in group.keys)


def main(words: Sequence[str] | None = None) -> None:
    """Print the table row by row, or JSON with `--json`; bad input prints one line and exits with 2.

    Args:
        words: of the command line; None takes the process's.
    """
    try:
        bench(parser().parse_args(words))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.speed.bench", description=__doc__)
    options.add_argument("--only", metavar="KEY[,KEY]", help=f"these rows alone: {', '.join(KEYS)}")
    options.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="figures with machine and versions, in place of the table, or beside it into a file",
    )
    options.add_argument("--config", type=Path, default=CONFIG, help="sizes of all rows but environment and panel")
    options.add_argument("--runs", type=int, default=30, help="alternating runs of each pair (default 30)")
    options.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda leaves out rows of the CPU")
    return options


def bench(options: argparse.Namespace) -> None:
    """Measure and print what was asked for.

    Raises:
        UserError: an option's value is not possible.
    """
    require_range("--runs", options.runs, least=1)
    require_range("--threads", options.threads, least=1)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is cuda, but torch finds no GPU here; leave it out to measure on the CPU")
    if not options.config.is_file():
        raise UserError(f"--config {options.config} does not exist; give a configuration of eigen2's fit")
    if options.json not in (None, "-") and not Path(options.json).absolute().parent.is_dir():
        raise UserError(f"--json {options.json} lies in no folder that exists; make the folder or choose another file")
    asked = chosen(options.only, options.device)
    torch.set_num_threads(options.threads)
    rows = []
    if options.json != "-":
        print(HEADER, flush=True)
    for row in measure(asked, options):
        rows.append(row)
        if options.json != "-":
            print(line(row), flush=True)
    if options.json:
        facts = {**describe_machine(), "device": options.device, "threads": options.threads}
        text = json.dumps({**facts, "rows": [row.json() for row in rows]}, indent=2)
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n")


def chosen(only: str | None, device: str) -> set[str]:
    """Keys to measure.

    Raises:
        UserError: a key is unknown, or its row is not measured on this device.
    """
    possible = {key for group in GROUPS if device == "cpu" or group.on_gpu for key in group.keys}
    asked = possible if only is None else {key.strip() for key in only.split(",")}
    for key in sorted(asked - possible):
        where = f" with --device {device}" if key in KEYS else ""
        raise UserError(
            f"--only {key!r}: no such row{where}; choose from {', '.join(k for k in KEYS if k in possible)}"
        )
    return asked


def measure(asked: set[str], options: argparse.Namespace) -> Iterator[Row]:
    """The rows asked for, in the order of the table."""
    with FullScale(options.config, options.device) as full:
        for group in GROUPS:
            if asked.intersection(group.keys):
                yield from (row for row in group.measure(full, options.runs) if row.key in asked)


WHAT = 70
"""Characters of the table's first column."""
HEADER = f"{'what':<{WHAT}}{'eigen2':>10}{'reference':>14}{'ratio':>9}  {'bound':<12}kept"


def line(row: Row) -> str:
    """A row of the table; the bound is the least ratio, or the most of what the row counts in."""
    bound = f"{'>=' if row.unit == 'x' else '<='} {row.bound:,g} {row.unit}"
    figures = f"{_number(row.ours):>10}{_number(row.reference):>14}{row.ratio:>9,.1f}"
    return f"{row.what:<{WHAT}}{figures}  {bound:<12}{'yes' if row.kept else 'no'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


if __name__ == "__main__":
    main()
