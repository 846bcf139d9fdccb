"""`python -m eigen2.cli fire`: commands about fuel breaks besides training."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.errors import UserError, require_range
from eigen2.fire.evaluation.placements import LARGEST_GRID, Cells, read_placements
from eigen2.fire.evaluation.validator import VARIABLE, Conditions, Score, require_pyretechnics, validate
from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.simulation.baselines import PLACEMENTS
from eigen2.fire.simulation.spread import Weather

FIRE = {"duration": 240.0, "wind_speed": 15.0, "wind_from": 270.0}  # where neither an option nor a file says so
OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "placements": (str | None, None, "JSON file of placements; null takes synthetic landscapes and all baselines."),
    "python": (str | None, None, f"Python that has pyretechnics; null takes the environment variable {VARIABLE}."),
    "baselines": (list[str] | None, None, f"Of {', '.join(PLACEMENTS)}; null takes all, or none with --placements."),
    "landscapes": (int, 6, "Synthetic ones, without --placements (1 or more)."),
    "grid_size": (int, 32, f"Their rows, and columns, of 30 m (4 to {LARGEST_GRID})."),
    "seed": (int, 0, "Of synthetic landscapes, of the baselines and of the ignitions (0 or more)."),
    "budget": (float, 0.05, "Share of all cells that baselines break (above 0, at most 1)."),
    "fires": (int, 60, "Fires on a landscape by pyretechnics (1 or more)."),
    **{
        name: (float | None, None, f"{text}; null takes what --placements says, or {FIRE[name]:g}.")
        for name, text in {
            "duration": "Of a fire, in minutes (above 0)",
            "wind_speed": "10 m above the vegetation, in km/h (0 to 200)",
            "wind_from": "Where the wind comes from, in degrees clockwise from north (0 to 360)",
        }.items()
    },
    "out": (str | None, None, "JSON file to write the figures to."),
}
"""Type, default and help of each option of `fire validate`."""


def make_parser(command: str = "fire") -> Parser:
    """Return the parser of `fire`."""
    parser = Parser(prog=f"python -m eigen2.cli {command}", description="Evaluate placements of fuel breaks.")
    validating = Parser(
        description="Score placements of fuel breaks by pyretechnics too, a slower and more detailed model of fire."
    )
    for name, (kind, default, text) in OPTIONS.items():
        validating.add_argument(f"--{name}", type=kind, default=default, help=text)
    validating.add_argument("--overwrite", action="store_true", help="Replace the file --out if it exists.")
    parser.add_subcommands(dest="command").add_subcommand("validate", validating, help=validating.description)
    return parser


def run(command: str, chosen: Namespace) -> None:
    """Score the chosen placements, print them as a table, and write the figures."""
    chosen = chosen[chosen.command]
    _check(chosen)
    python: str = chosen.python or os.environ.get(VARIABLE, "")
    version = require_pyretechnics(python)  # before anything that takes long
    fire: Mapping[str, float] = {}
    placements: dict[str, Cells] = {}
    if chosen.placements is None:
        landscapes = [synthetic(chosen.grid_size, chosen.seed, number) for number in range(chosen.landscapes)]
        names = list(PLACEMENTS) if chosen.baselines is None else chosen.baselines
    else:
        file = read_placements(chosen.placements)
        landscapes, placements, fire, names = file.landscapes, dict(file.placements), file.fire, chosen.baselines or []
    fire = {**FIRE, **fire, **{name: chosen[name] for name in FIRE if chosen[name] is not None}}
    conditions = Conditions(Weather(fire["wind_speed"], fire["wind_from"]), fire["duration"], chosen.fires, chosen.seed)
    for name in names:
        if name in placements:
            raise UserError(f"--baselines {name} is a placement of {chosen.placements} already; rename one")
        placements[name] = []
        for number, landscape in enumerate(landscapes):
            rng, budget = np.random.default_rng([chosen.seed, number, 1]), int(chosen.budget * landscape.fuel.size)
            placements[name].append(PLACEMENTS[name](conditions.model(landscape), max(budget, 1), rng))
    if not placements:
        raise UserError("there is no placement to score; give --placements with some, or --baselines")
    found = validate(landscapes, placements, conditions, python)
    _print(found, version)
    if chosen.out is not None:
        given = {key: value for key, value in chosen.as_dict().items() if key not in ("python", "out", "overwrite")}
        scores = {name: {by: round(value, 4) for by, value in vars(score).items()} for name, score in found.items()}
        figures = {"settings": {**given, **fire}, "pyretechnics": version, "reduction": scores}
        try:
            Path(chosen.out).parent.mkdir(parents=True, exist_ok=True)
            Path(chosen.out).write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"--out {chosen.out} cannot be written ({error.strerror}); name another file") from error


def _check(chosen: Namespace) -> None:
    """Refuse bad options before anything is computed."""
    require_range("--landscapes", chosen.landscapes, least=1, most=10_000)
    require_range("--grid_size", chosen.grid_size, least=4, most=LARGEST_GRID)
    require_range("--seed", chosen.seed, least=0)
    require_range("--budget", chosen.budget, above=0, most=1)
    for name in chosen.baselines or []:
        if name not in PLACEMENTS:
            raise UserError(f"--baselines {name} is unknown; use any of {', '.join(PLACEMENTS)}")
    if chosen.out is not None and Path(chosen.out).exists() and not chosen.overwrite:
        raise UserError(f"{chosen.out!r} exists: name another file, or give --overwrite")


def _print(found: Mapping[str, Score], version: str) -> None:
    heads = {"travel_time": "all fires", "same_fires": "same fires", "surface": "surface", "crown": "crown"}
    scores = pd.DataFrame({name: vars(score) for name, score in found.items()}).T.sort_values("travel_time")
    shares = (100 * scores[[*heads]]).rename(columns=heads)
    print("burned area saved, %")
    print(pd.concat([scores["breaks"], shares], axis=1).to_string(float_format="{:.1f}".format))
    print("all fires, same fires  by eigen2: fires from every cell that burns, and the same ones as pyretechnics")
    print(f"surface, crown         by pyretechnics {version}: without the canopy, and with it and crown fire")
