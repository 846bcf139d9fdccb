"""`python -m eigen2.cli fire`: what concerns fuel breaks and is no training."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import Namespace
from rich.console import Console
from rich.table import Table

from eigen2.cli.parser import Parser
from eigen2.errors import UserError, require_range
from eigen2.fire.evaluation.placements import LARGEST_GRID, Cells, read_placements
from eigen2.fire.evaluation.validator import (
    VARIABLE,
    Conditions,
    Validation,
    require_pyretechnics,
    validate,
)
from eigen2.fire.landscapes.landscape import Landscape, synthetic
from eigen2.fire.simulation.baselines import PLACEMENTS
from eigen2.fire.simulation.spread import Weather

FIRE = {"duration": 240.0, "wind_speed": 15.0, "wind_from": 270.0}
"""Conditions where neither an option nor a file says so."""


def make_parser(command: str = "fire") -> Parser:
    """Return the parser of `fire`."""
    parser = Parser(prog=f"python -m eigen2.cli {command}", description="Evaluate placements of fuel breaks.")
    commands = parser.add_subcommands(dest="command")
    for name, (make, _) in COMMANDS.items():
        own = make()
        commands.add_subcommand(name, own, help=own.description)
    return parser


def run(command: str, chosen: Namespace) -> None:
    """Run a fire command.

    Raises:
        UserError: bad input, in one line.
    """
    COMMANDS[chosen.command][1](chosen[chosen.command])


def _validate_parser() -> Parser:
    parser = Parser(
        description="Score placements of fuel breaks by pyretechnics too, a slower and more detailed model of fire.",
    )
    parser.add_argument(
        "--placements",
        type=str | None,
        default=None,
        help="JSON file of landscapes and placements on them; null takes synthetic landscapes and all baselines.",
    )
    parser.add_argument(
        "--python",
        type=str | None,
        default=None,
        help=f"Python of the environment that has pyretechnics; null takes the environment variable {VARIABLE}.",
    )
    parser.add_argument(
        "--baselines",
        type=list[str] | None,
        default=None,
        help=f"Of {', '.join(PLACEMENTS)}; null takes all without --placements, and none beside it.",
    )
    parser.add_argument("--landscapes", type=int, default=6, help="Synthetic ones, without --placements (1 or more).")
    parser.add_argument(
        "--grid_size", type=int, default=32, help=f"Their rows, and columns, of 30 m (4 to {LARGEST_GRID})."
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="Of synthetic landscapes, of the baselines and of the ignitions (0 or more).",
    )
    parser.add_argument(
        "--budget", type=float, default=0.05, help="Share of all cells that baselines break (above 0, at most 1)."
    )
    parser.add_argument("--fires", type=int, default=60, help="Fires on a landscape by pyretechnics (1 or more).")
    for name, text in {
        "duration": "Of a fire, in minutes (above 0)",
        "wind_speed": "10 m above the vegetation, in km/h (0 to 200)",
        "wind_from": "Where the wind comes from, in degrees clockwise from north (0 to 360)",
    }.items():
        parser.add_argument(
            f"--{name}",
            type=float | None,
            default=None,
            help=f"{text}; null takes what --placements says, or {FIRE[name]:g}.",
        )
    parser.add_argument("--out", type=str | None, default=None, help="JSON file to write the figures to.")
    parser.add_argument("--overwrite", action="store_true", help="Replace the file --out if it exists.")
    return parser


def _validate(chosen: Namespace) -> None:
    _require(chosen)
    python = chosen.python or os.environ.get(VARIABLE)
    require_pyretechnics(python)  # before anything that takes long
    if chosen.placements is None:
        landscapes, placements, fire = _landscapes(chosen), {}, {}
    else:
        request = read_placements(chosen.placements)
        landscapes, placements, fire = request.landscapes, dict(request.placements), request.fire
    fire = FIRE | fire | {name: chosen[name] for name in FIRE if chosen[name] is not None}
    conditions = Conditions(Weather(fire["wind_speed"], fire["wind_from"]), fire["duration"], chosen.fires, chosen.seed)
    names = list(PLACEMENTS) if chosen.baselines is None and chosen.placements is None else chosen.baselines or []
    for name in names:
        if name in placements:
            raise UserError(f"--baselines {name} is a placement of {chosen.placements} already; rename one")
        placements[name] = _baseline(name, landscapes, conditions, chosen.budget)
    if not placements:
        raise UserError("there is no placement to score; give --placements with some, or --baselines")
    found = validate(landscapes, placements, conditions, python, quiet=False)
    _show(found)
    if chosen.out is not None:
        given = {key: value for key, value in chosen.as_dict().items() if key not in ("python", "out", "overwrite")}
        _write(Path(chosen.out), {"settings": {**given, **fire}, **found.as_dict()})


def _require(chosen: Namespace) -> None:
    """Refuse what can be refused before anything is computed."""
    require_range("--landscapes", chosen.landscapes, least=1, most=10_000)
    require_range("--grid_size", chosen.grid_size, least=4, most=LARGEST_GRID)
    require_range("--seed", chosen.seed, least=0)
    require_range("--budget", chosen.budget, above=0, most=1)
    for name in chosen.baselines or []:
        if name not in PLACEMENTS:
            raise UserError(f"--baselines {name} is unknown; use any of {', '.join(PLACEMENTS)}")
    if chosen.out is not None and Path(chosen.out).exists() and not chosen.overwrite:
        raise UserError(f"{chosen.out!r} exists: name another file, or give --overwrite")


def _landscapes(chosen: Namespace) -> list[Landscape]:
    return [synthetic(chosen.grid_size, chosen.seed, number) for number in range(chosen.landscapes)]


def _baseline(name: str, landscapes: Sequence[Landscape], conditions: Conditions, budget: float) -> Cells:
    """What a baseline chooses, which may look at fires from every cell that burns."""
    return [
        PLACEMENTS[name](
            conditions.model(landscape),
            max(int(budget * landscape.fuel.size), 1),
            np.random.default_rng([conditions.seed, number, 1]),
        )
        for number, landscape in enumerate(landscapes)
    ]


def _show(found: Validation) -> None:
    heads = {"travel_time": "all fires", "same_fires": "same fires", "surface": "surface", "crown": "crown"}
    table = Table(title="burned area saved, %")
    table.add_column("placement", no_wrap=True)
    for head in ("breaks", *heads.values()):
        table.add_column(head, justify="right")
    for name in found.order("travel_time"):
        score = found.scores[name]
        table.add_row(name, f"{score.breaks:g}", *(f"{100 * getattr(score, key):.1f}" for key in heads))
    others = [heads[by] for by in ("surface", "crown") if found.order(by) != found.order("travel_time")]
    console = Console(highlight=False)
    console.print(table)
    for line in (
        "all fires, same fires  by eigen2: fires from every cell that burns, and the same ones as pyretechnics",
        f"surface, crown         by pyretechnics {found.pyretechnics}: without the canopy, and with it and crown fire",
        f"order                  {'another by ' + ' and '.join(others) if others else 'the same by both'}",
    ):
        console.print(line, soft_wrap=True, markup=False)


def _write(path: Path, figures: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path} cannot be written ({error.strerror}); name another file") from error
    Console(highlight=False).print(f"wrote                  {path}", soft_wrap=True, markup=False)


COMMANDS: dict[str, tuple[Callable[[], Parser], Callable[[Namespace], None]]] = {
    "validate": (_validate_parser, _validate),
}
