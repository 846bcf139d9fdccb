"""`python -m eigen2.cli fire`: place fuel breaks in a region, or score placements with a second fire model."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.errors import UserError, require_range
from eigen2.files import Folder, write
from eigen2.fire.evaluation.placements import LARGEST_GRID, Cells, read_placements
from eigen2.fire.evaluation.regions import Plan, Wind, judge, needed_bytes, place, tail_mean, write_breaks
from eigen2.fire.evaluation.validator import VARIABLE, Conditions, Score, require_pyretechnics, validate
from eigen2.fire.landscapes.fuels import NON_BURNABLE
from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.landscapes.rasters import Region, RegionFiles, count_cells, read_on_grid, read_region
from eigen2.fire.networks import load_champion
from eigen2.fire.pictures import write_map
from eigen2.fire.simulation.baselines import PLACEMENTS
from eigen2.fire.simulation.spread import Weather
from eigen2.memory.estimate import PeakEstimate
from eigen2.runtime.run_folder import find_checkpoint

FIRE = {"duration": 240.0, "wind_speed": 15.0, "wind_from": 270.0}  # unless an option or --placements sets them
WORST = 0.05  # share of the fires that burn most, whose mean loss (CVaR) `fire place` prints too
CONDITIONS = {
    "duration": "Duration of a fire in minutes (above 0)",
    "wind_speed": "Wind speed 10 m above the vegetation, in km/h (0 to 200)",
    "wind_from": "Direction the wind blows from, in degrees clockwise from north (0 to 360)",
}
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
        for name, text in CONDITIONS.items()
    },
    "out": (str | None, None, "JSON file to write the scores to."),
}
"""Type, default and help of each option of `fire validate`."""


PLACE: dict[str, tuple[Any, Any, str]] = {
    "ckpt_path": (str, "best", "Champion: best or last of the run, or a checkpoint file."),
    "trainer.default_root_dir": (str, "lightning_logs/fuel_breaks", "The run's folder."),
    "landscape": (RegionFiles, ..., "Rasters of the region."),
    "budget": (float, 0.05, "Cost of all breaks over that of all cells that burn (above 0, at most 1)."),
    "output": (
        str,
        "breaks.tif",
        "GeoTIFF to write; outlines go to a .geojson beside it, a map to a .png.",
    ),
    "cost": (str | None, None, "Raster of the cost of a break in each cell (above 0); null makes all cells cost 1."),
    "no_go": (str | None, None, "Raster that is not 0 where no break may be; null allows all cells."),
    "value": (str | None, None, "Raster of what burns with each cell, 0 or more, as houses; null counts cells."),
    **{name: (float | None, None, f"{text}; null is that of the fit.") for name, text in CONDITIONS.items()},
    "winds": (list[Wind], [], "Several winds in place of one, as [{wind_speed: 9, wind_from: 270, weight: 0.7}, ...]."),
}
"""Type, default (`...` if required) and help of each option of `fire place`."""


def make_parser(command: str = "fire") -> Parser:
    """Return the parser of `fire`."""
    parser = Parser(prog=f"python -m eigen2.cli {command}", description="Place fuel breaks, or score placements.")
    commands = parser.add_subcommands(dest="command")
    for name, options, text in (
        ("validate", OPTIONS, "Score placements with eigen2's fire model and, in more detail, pyretechnics."),
        ("place", PLACE, "Place fuel breaks in a region of any size by the champion of a fit."),
    ):
        subcommand = Parser(description=text)
        for option, (kind, default, words) in options.items():
            given: dict[str, Any] = {"required": True} if default is ... else {"default": default}
            subcommand.add_argument(f"--{option}", type=kind, help=words, **given)
        subcommand.add_argument("--overwrite", action="store_true", help="Replace the files written if they exist.")
        commands.add_subcommand(name, subcommand)
    return parser


def run(command: str, options: Namespace) -> None:
    """Run `fire place` or `fire validate`."""
    (_place if options.command == "place" else _validate)(options[options.command])


def _place(options: Namespace) -> None:
    """Place breaks in a region, and write them."""
    output = Path(options.output)
    picture, outlines = output.with_suffix(".png"), output.with_suffix(".geojson")
    if output in (picture, outlines):
        raise UserError(f"--output is {str(output)!r}; name a GeoTIFF, such as breaks.tif")
    for file in (output, outlines, picture):
        if file.exists() and not options.overwrite:
            raise UserError(f"{str(file)!r} exists: name another --output, or give --overwrite")
    checkpoint = find_checkpoint(Path(options.trainer.default_root_dir), options.ckpt_path, or_start=False)
    if checkpoint is None:
        raise UserError("fire place needs a champion: --ckpt_path best, last or a checkpoint file")
    network, fit = load_champion(Path(checkpoint))
    kept = {"duration": "fire_simulation_max_duration", "wind_speed": "wind_speed", "wind_from": "wind_from"}
    fire = {name: fit[f"data.{key}"] if options[name] is None else options[name] for name, key in kept.items()}
    winds: tuple[Wind, ...] = (Wind(fire["wind_speed"], fire["wind_from"]),)
    if options.winds:
        if options.wind_speed is not None or options.wind_from is not None:
            raise UserError("--winds replaces --wind_speed and --wind_from; give one or the other")
        winds = tuple(options.winds)
    plan = Plan(options.budget, fire["duration"], winds)
    memory = PeakEstimate("cut a smaller region out: gdalwarp -te", torch.device("cpu"))
    memory.require(needed_bytes(count_cells(options.landscape.elevation), plan))
    region = read_region(RegionFiles(**vars(options.landscape)))
    costs = None if options.cost is None else read_on_grid(options.cost, region)
    if costs is not None and (free := costs[costs <= 0]).size:
        raise UserError(
            f"{options.cost} holds {free[0]:g}; a break must cost more than 0, or have no data where none may be"
        )
    barred = None if options.no_go is None else np.nan_to_num(read_on_grid(options.no_go, region)) != 0
    values = None if options.value is None else _values(options.value, region)

    def show(done: float) -> None:
        print(f"{done:.0%}", end="\r", file=sys.stderr)

    breaks = place(region, network, plan, costs, barred, values, show)
    write_breaks(output, region, breaks)
    share = breaks.sum() / max(int((~np.isin(region.landscape.fuel, NON_BURNABLE)).sum()), 1)
    print(f"{breaks.sum():,} breaks, {100 * share:.1f} % of the cells that burn, in {output} and {outlines}")
    losses, hectares = judge(region, breaks, plan, values), region.landscape.cell_size**2 / 1e4
    unit, scale = ("ha", hectares) if values is None else ("of the value", 1.0)
    for text, part in (("a fire", 1.0), (f"the worst {WORST:.0%} of fires", WORST)):
        before, after = (scale * tail_mean(each, losses.weights, part) for each in (losses.before, losses.after))
        saved = f"{100 * (1 - after / before):.1f} % saved" if before else "nothing to save"
        print(f"{text}: {before:,.1f} {unit} burned without breaks, {after:,.1f} with them on average, {saved}")
    write_map(picture, region.landscape, breaks, losses.burned)
    print(f"map in {picture}")


def _values(path: str, region: Region) -> Float64[np.ndarray, "rows columns"]:
    """Read what burns with each cell, 0 where data are missing."""
    values: Float64[np.ndarray, "rows columns"] = np.nan_to_num(read_on_grid(path, region), nan=0.0)
    if (wrong := values[~((values >= 0) & (values < np.inf))]).size:
        raise UserError(f"{path} holds {wrong[0]:g}; a value must be 0 or more, and finite")
    if not values[~np.isin(region.landscape.fuel, NON_BURNABLE)].any():
        raise UserError(f"{path} holds no value above 0 where cells burn; give what is to be saved")
    return values


def _validate(options: Namespace) -> None:
    """Score placements, print the scores as a table, and write them to `--out`."""
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
