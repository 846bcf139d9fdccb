"""`python -m eigen2.cli fire`: evaluate placements of fuel breaks with a second fire model."""

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
from eigen2.files import Folder, write
from eigen2.fire.evaluation.placements import LARGEST_GRID, Cells, read_placements
from eigen2.fire.evaluation.validator import VARIABLE, Conditions, Score, require_pyretechnics, validate
from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.simulation.baselines import PLACEMENTS
from eigen2.fire.simulation.spread import Weather

FIRE = {"duration": 240.0, "wind_speed": 15.0, "wind_from": 270.0}  # unless an option or --placements sets them
OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "placements": (str | None, None, "JSON file of placements; null scores the baselines on synthetic landscapes."),
    "python": (str | None, None, f"Python interpreter with pyretechnics; null reads the variable {VARIABLE}."),
    "baselines": (list[str] | None, None, f"Any of {', '.join(PLACEMENTS)}; null is all, or none with --placements."),
    "landscapes": (int, 6, "Number of synthetic landscapes (1 or more); unused with --placements."),
    "grid_size": (int, 32, f"Rows and columns of a synthetic landscape, in cells of 30 m (4 to {LARGEST_GRID})."),
    "seed": (int, 0, "Seed of synthetic landscapes, baselines and ignitions (0 or more)."),
    "budget": (float, 0.05, "Fraction of the cells that a baseline turns into fuel breaks (above 0, at most 1)."),
    "fires": (int, 60, "Fires per landscape simulated with pyretechnics (1 or more)."),
    **{
        name: (float | None, None, f"{text}; null takes the value of --placements, or {FIRE[name]:g}.")
        for name, text in {
            "duration": "Duration of a fire in minutes (above 0)",
            "wind_speed": "Wind speed 10 m above the vegetation, in km/h (0 to 200)",
            "wind_from": "Direction the wind blows from, in degrees clockwise from north (0 to 360)",
        }.items()
    },
    "out": (str | None, None, "JSON file to write the scores to."),
}
"""Type, default and help of each option of `fire validate`."""


def make_parser(command: str = "fire") -> Parser:
    """Return the parser of `fire`."""
    parser = Parser(prog=f"python -m eigen2.cli {command}", description="Evaluate placements of fuel breaks.")
    validate_cmd = Parser(description="Score placements with eigen2's fire model and, in more detail, pyretechnics.")
    for name, (kind, default, text) in OPTIONS.items():
        validate_cmd.add_argument(f"--{name}", type=kind, default=default, help=text)
    validate_cmd.add_argument("--overwrite", action="store_true", help="Replace the file of --out if it exists.")
    parser.add_subcommands(dest="command").add_subcommand("validate", validate_cmd)
    return parser


def run(command: str, options: Namespace) -> None:
    """Score placements, print the scores as a table, and write them to `--out`."""
    options = options[options.command]
    _check(options)
    python: str = options.python or os.environ.get(VARIABLE, "")
    version = require_pyretechnics(python)  # before anything that takes long
    fire: Mapping[str, float] = {}
    placements: dict[str, Cells] = {}
    if options.placements is None:
        landscapes = [synthetic(options.grid_size, options.seed, number) for number in range(options.landscapes)]
        names = list(PLACEMENTS) if options.baselines is None else options.baselines
    else:
        file = read_placements(options.placements)
        landscapes, placements, fire, names = file.landscapes, dict(file.placements), file.fire, options.baselines or []
    fire = {**FIRE, **fire, **{name: options[name] for name in FIRE if options[name] is not None}}
    weather = Weather(fire["wind_speed"], fire["wind_from"])
    conditions = Conditions(weather, fire["duration"], options.fires, options.seed)
    for name in names:
        if name in placements:
            raise UserError(f"--baselines {name} is a placement of {options.placements} already; rename one")
        placements[name] = []
        for number, landscape in enumerate(landscapes):
            rng, budget = np.random.default_rng([options.seed, number, 1]), int(options.budget * landscape.fuel.size)
            placements[name].append(PLACEMENTS[name](conditions.model(landscape), max(budget, 1), rng))
    if not placements:
        raise UserError("there is no placement to score; give --placements with some, or --baselines")
    scores = validate(landscapes, placements, conditions, python)
    _print(scores, version)
    if options.out is not None:
        used = {key: value for key, value in options.as_dict().items() if key not in ("python", "out", "overwrite")}
        reduction = {name: {by: round(value, 4) for by, value in vars(score).items()} for name, score in scores.items()}
        figures = {"settings": {**used, **fire}, "pyretechnics": version, "reduction": reduction}
        try:
            Folder(Path(options.out).parent).make()
            write(Path(options.out), json.dumps(figures, indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"--out {options.out} cannot be written ({error.strerror}); name another file") from error


def _check(options: Namespace) -> None:
    """Refuse bad options before anything is computed."""
    require_range("--landscapes", options.landscapes, least=1, most=10_000)
    require_range("--grid_size", options.grid_size, least=4, most=LARGEST_GRID)
    require_range("--seed", options.seed, least=0)
    require_range("--budget", options.budget, above=0, most=1)
    for name in options.baselines or []:
        if name not in PLACEMENTS:
            raise UserError(f"--baselines {name} is unknown; use any of {', '.join(PLACEMENTS)}")
    if options.out is not None and Path(options.out).exists() and not options.overwrite:
        raise UserError(f"{options.out!r} exists: name another file, or give --overwrite")


def _print(scores: Mapping[str, Score], version: str) -> None:
    titles = {"travel_time": "all fires", "same_fires": "same fires", "surface": "surface", "crown": "crown"}
    table = pd.DataFrame({name: vars(score) for name, score in scores.items()}).T.sort_values("travel_time")
    percent = (100 * table[[*titles]]).rename(columns=titles)
    print("burned area saved, %")
    print(pd.concat([table["breaks"], percent], axis=1).to_string(float_format="{:.1f}".format))
    print("all fires, same fires  by eigen2: fires from every cell that burns, or the fires of pyretechnics")
    print(f"surface, crown         by pyretechnics {version}: without the canopy, or with canopy and crown fire")
