"""`python -m eigen2.cli fire`: place fuel breaks in a region, or score placements with a second fire model."""

import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from jaxtyping import Float64
from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.errors import UserError, require_range
from eigen2.files import Folder, write, writing
from eigen2.fire.evaluation.cell2fire import SCENARIO, instance_files
from eigen2.fire.evaluation.placements import FIRE_SETTINGS, LARGEST_GRID, Cells, read_placements, require_fit
from eigen2.fire.evaluation.regions import Plan, Wind, judge, needed_bytes, place, tail_mean, write_breaks
from eigen2.fire.evaluation.terrain import ALIKE, fit_terrain
from eigen2.fire.evaluation.validator import VARIABLE, Conditions, Estimate, Score, require_pyretechnics, validate
from eigen2.fire.landscapes.fuels import NON_BURNABLE
from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.landscapes.rasters import Region, RegionFiles, count_cells, read_on_grid, read_region, tiles
from eigen2.fire.networks import load_champion
from eigen2.fire.pictures import write_map
from eigen2.fire.simulation.baselines import PLACEMENTS
from eigen2.fire.simulation.environment import breaks_of
from eigen2.fire.simulation.spread import Weather
from eigen2.memory.estimate import PeakEstimate
from eigen2.runtime.run_folder import find_checkpoint

log = logging.getLogger(__name__)

FIRE = {"duration": 240.0, "wind_speed": 15.0, "wind_from": 270.0}  # unless an option or --placements sets them
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
WORST = 0.05  # share of the fires that burn most, whose mean loss (CVaR) `fire place` prints too
BUDGET = 0.05  # share of the cells that baselines turn into breaks
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
    "budget": (
        float | None,
        None,
        "Fraction of all cells that a baseline turns into fuel breaks (above 0, at most 1); null takes as many as the "
        f"first placement of --placements, or {BUDGET}.",
    ),
    "fires": (int, 60, "Fires per landscape simulated with pyretechnics (1 or more)."),
    **{
        name: (float | None, None, f"{text}; null takes the value of --placements, or {FIRE[name]:g}.")
        for name, text in CONDITIONS.items()
    },
    "processes": (int | None, None, "Processes of pyretechnics at a time (1 or more); null is the number of cores."),
    "output": (str | None, None, "JSON file to write the scores to."),
}
"""Type, default and help of each option of `fire validate`."""

EXPORT: dict[str, tuple[Any, Any, str]] = {
    "placements": (str, ..., "JSON file of placements."),
    "placement": (str, "champion", "Name of the placement whose breaks to write."),
    "number": (int, 0, "Number of the landscape in the file (0 or more)."),
    "output": (str, ..., "Folder to write."),
}
"""Type, default (`...` if required) and help of each option of `fire export`."""

PLACE: dict[str, tuple[Any, Any, str]] = {
    "ckpt_path": (str, "best", "Champion: best or last of the run, or a checkpoint file."),
    "trainer.default_root_dir": (str, "lightning_logs/fuel_breaks", "The run's folder."),
    "landscape": (RegionFiles, ..., "Rasters of the region."),
    "budget": (float, 0.05, "Cost of all breaks over that of the cells that burn, not of all (above 0, at most 1)."),
    "output": (str, "breaks.tif", "GeoTIFF to write; outlines go to a .geojson beside it, a map to a .png."),
    "cost": (str | None, None, "Raster of the cost of a break in each cell (above 0); null makes all cells cost 1."),
    "no_go": (
        str | None,
        None,
        "Raster that is not 0 where no break may be; null and cells without data allow it.",
    ),
    "value": (str | None, None, "Raster of what burns with each cell, 0 or more, as houses; null counts cells."),
    **{name: (float | None, None, f"{text}; null is that of the fit.") for name, text in CONDITIONS.items()},
    "winds": (list[Wind], [], "Several winds in place of one, as [{wind_speed: 9, wind_from: 270, weight: 0.7}, ...]."),
}
"""Type, default (`...` if required) and help of each option of `fire place`."""
TERRAIN: dict[str, tuple[Any, Any, str]] = {
    "landscape": (RegionFiles, ..., "Rasters of the region."),
    "output": (str, "terrain.yaml", "YAML file to write, for `fit --data.terrain`."),
    "grid_size": (int, 32, f"Rows and columns of the tiles compared, in cells (4 to {LARGEST_GRID})."),
    **{name: (float, FIRE[name], f"{text}.") for name, text in CONDITIONS.items()},
}
"""Type, default (`...` if required) and help of each option of `fire terrain`."""


def make_parser(command: str = "fire") -> Parser:
    """Return the parser of `fire`."""
    parser = Parser(prog=f"python -m eigen2.cli {command}", description="Place fuel breaks, or score placements.")
    commands = parser.add_subcommands(dest="command")
    for name, options, text in (
        ("validate", OPTIONS, "Score placements with eigen2's fire model and, in more detail, pyretechnics."),
        ("place", PLACE, "Place fuel breaks in a region of any size by the champion of a fit."),
        ("terrain", TERRAIN, "Fit the synthetic landscapes to a region: its fuel, water, slope, and how much burns."),
        ("export", EXPORT, "Write a landscape, its weather and breaks as an instance folder of Cell2Fire."),
    ):
        subcommand = Parser(description=text)
        subcommand.add_options(options)
        subcommand.add_argument("--overwrite", action="store_true", help="Replace the files written if they exist.")
        commands.add_subcommand(name, subcommand)
    return parser


def run(command: str, options: Namespace) -> None:
    """Run a command of `fire`."""
    commands = {"validate": _validate, "place": _place, "terrain": _terrain, "export": _export}
    commands[options.command](options[options.command])


def _require_new(options: Namespace, *files: Path) -> None:
    """Refuse to replace files or folders without `--overwrite`."""
    for file in files:
        if file.exists() and not options.overwrite:
            raise UserError(f"{str(file)!r} exists: name another --output, or give --overwrite")


def _require_output(output: Path) -> None:
    """Refuse an --output that is no file in a folder: it would be found out after all the work."""
    if not output.name:
        raise UserError(f"--output is {str(output)!r}; name a file")
    if not output.parent.is_dir():
        raise UserError(f"--output is {str(output)!r}, but there is no folder {str(output.parent)!r}; create it")
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        raise UserError(f"--output {str(output)!r} cannot be written; name a file in a folder that can")


def _require_other(outputs: Sequence[Path], inputs: Sequence[str | None]) -> None:
    """Refuse to write over a file that is read, whatever `--overwrite` says."""
    read = {Path(file).resolve() for file in inputs if file is not None}
    for output in outputs:
        if output.resolve() in read:
            raise UserError(f"--output would replace {str(output)!r}, which is read; name another file")


def _terrain(options: Namespace) -> None:
    """Fit the terrain of synthetic landscapes to a region, and write it."""
    output, size = Path(options.output), options.grid_size
    require_range("--grid_size", size, least=4, most=LARGEST_GRID)
    require_range("--duration", options.duration, above=0, most=1e6)
    _require_output(output)
    _require_new(options, output)
    files = RegionFiles(**vars(options.landscape))
    _require_other([output], [*files.given().values()])
    weather = Weather(options.wind_speed, options.wind_from)
    region = read_region(files)
    fitted = fit_terrain(tiles(region, size, "train"), weather, options.duration)
    with writing(f"--output {output}", "name another file"):
        write(output, yaml.safe_dump(asdict(fitted.terrain), sort_keys=False))
    if max(fitted.region, fitted.synthetic) > ALIKE * min(fitted.region, fitted.synthetic):
        log.warning("no patchiness makes fires burn as much as in the region: fit on --data.region itself")
    print(f"a fire burns {fitted.region:.1%} of a tile of the region, {fitted.synthetic:.1%} of a synthetic landscape")
    print(f"fit on such landscapes: --data.terrain {shlex.quote(str(output))}")


def _place(options: Namespace) -> None:
    """Place breaks in a region, and write them."""
    output = Path(options.output)
    _require_output(output)
    picture, outlines = output.with_suffix(".png"), output.with_suffix(".geojson")
    if output in (picture, outlines):
        raise UserError(f"--output is {str(output)!r}; name a GeoTIFF, such as breaks.tif")
    _require_new(options, output, outlines, picture)
    files = RegionFiles(**vars(options.landscape))
    read = [*files.given().values(), options.cost, options.no_go, options.value]
    _require_other((output, outlines, picture), read)
    checkpoint = find_checkpoint(Path(options.trainer.default_root_dir), options.ckpt_path, or_start=False)
    assert checkpoint is not None  # without one it is an error, as nothing can start anew
    network, fit = load_champion(Path(checkpoint))
    plan = _plan(options, fit)
    memory = PeakEstimate("cut a smaller region out: gdalwarp -te", torch.device("cpu"))
    memory.require(needed_bytes(count_cells(files.elevation), plan))
    region = read_region(files)
    costs = None if options.cost is None else read_on_grid(options.cost, region)
    if costs is not None and (free := costs[costs <= 0]).size:
        raise UserError(
            f"{options.cost} holds {free[0]:g}; a break must cost more than 0, or have no data where none may be"
        )
    barred = None if options.no_go is None else np.nan_to_num(read_on_grid(options.no_go, region)) != 0
    values = None if options.value is None else _values(options.value, region)

    breaks = place(region, network, plan, costs, barred, values, _show)
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


def _plan(options: Namespace, fit: Mapping[str, Any]) -> Plan:
    """Return budget, fire duration and winds by the options and, where they leave them, the settings of the fit."""
    settings = FIRE_SETTINGS.items()
    fire = {name: fit[f"data.{key}"] if options[name] is None else options[name] for name, key in settings}
    for name in FIRE_SETTINGS if not options.winds else ("duration",):
        if isinstance(fire[name], list):
            raise UserError(f"the fit had {name} from {fire[name][0]:g} to {fire[name][1]:g}; give --{name}")
    if options.winds and (options.wind_speed is not None or options.wind_from is not None):
        raise UserError("--winds replaces --wind_speed and --wind_from; give one or the other")
    winds = options.winds or [Wind(fire["wind_speed"], fire["wind_from"])]
    return Plan(options.budget, fire["duration"], tuple(winds))


def _show(done: float) -> None:
    """Show on stderr which share is done (0 to 1)."""
    print(f"{done:.0%}", end="\r", file=sys.stderr)


def _values(path: str, region: Region) -> Float64[np.ndarray, "rows columns"]:
    """Read what burns with each cell, 0 where data are missing."""
    values: Float64[np.ndarray, "rows columns"] = np.nan_to_num(
        read_on_grid(path, region), posinf=np.inf, neginf=-np.inf
    )
    if (wrong := values[~((values >= 0) & (values < np.inf))]).size:
        raise UserError(f"{path} holds {wrong[0]:g}; a value must be 0 or more, and finite")
    if not values[~np.isin(region.landscape.fuel, NON_BURNABLE)].any():
        raise UserError(f"{path} holds no value above 0 where cells burn; give what is to be saved")
    return values


def _validate(options: Namespace) -> None:
    """Score placements, print the scores as a table, and write them to `--output`."""
    _check(options)
    python: str = options.python or os.environ.get(VARIABLE, "")
    version = require_pyretechnics(python)  # before anything that takes long
    placements: dict[str, Cells] = {}
    if options.placements is None:
        landscapes = [synthetic(options.grid_size, options.seed, number) for number in range(options.landscapes)]
        fires: list[dict[str, float]] = [{}] * len(landscapes)
        names = list(PLACEMENTS) if options.baselines is None else options.baselines
    else:
        file = read_placements(options.placements)
        landscapes, placements, names = file.landscapes, dict(file.placements), options.baselines or []
        fires = file.fires
    given = {name: options[name] for name in FIRE if options[name] is not None}
    fires = [{**FIRE, **fire, **given} for fire in fires]
    conditions = [_conditions(fire, options.fires, options.seed) for fire in fires]
    models = [each.model(landscape) for each, landscape in zip(conditions, landscapes, strict=True)]
    require_fit(placements, models)
    counts = [breaks_of(options.budget or BUDGET, landscape.fuel.size) for landscape in landscapes]
    if placements and options.budget is None:
        counts = [len(breaks) for breaks in next(iter(placements.values()))]
    for name in dict.fromkeys(names):
        if name in placements:
            raise UserError(f"--baselines {name} is a placement of {options.placements} already; rename one")
        placements[name] = []
        for number, model in enumerate(models):
            rng = np.random.default_rng([options.seed, number, 1])
            placements[name].append(PLACEMENTS[name](model, counts[number], rng))
    if not placements:
        raise UserError("there is no placement to score; give --placements with some, or --baselines")
    scores = validate(landscapes, placements, conditions, python, options.processes or CORES, _show)
    _print(scores, version)
    if options.output is not None:
        unused = ("python", "processes", "output", "overwrite")
        used = {key: value for key, value in options.as_dict().items() if key not in unused}
        if options.placements is None:
            used["budget"] = options.budget or BUDGET
        by_landscape = {name: [fire[name] for fire in fires] for name in FIRE}
        shared = {name: values[0] if len({*values}) == 1 else values for name, values in by_landscape.items()}
        figures = {"settings": {**used, **shared}, "pyretechnics": version, **_figures(scores)}
        with writing(f"--output {options.output}", "name another file"):
            write(Path(options.output), json.dumps(figures, indent=2, allow_nan=False) + "\n")


def _conditions(fire: Mapping[str, float], fires: int = 1, seed: int = 0) -> Conditions:
    """Return the conditions of fires by the keys of FIRE_SETTINGS, of which pyretechnics burns some."""
    return Conditions(Weather(fire["wind_speed"], fire["wind_from"]), fire["duration"], fires, seed)


def _figures(scores: Mapping[str, Score]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the scores for JSON: `reduction`, and its `standard_error`, None if that is not known."""
    reduction: dict[str, dict[str, float | None]] = {}
    errors: dict[str, dict[str, float | None]] = {}
    for name, score in scores.items():
        saved: dict[str, Estimate] = {by: each for by, each in vars(score).items() if by != "breaks"}
        reduction[name] = {"breaks": score.breaks, **{by: round(each.mean, 4) for by, each in saved.items()}}
        errors[name] = {by: None if np.isnan(each.error) else round(each.error, 4) for by, each in saved.items()}
    return {"reduction": reduction, "standard_error": errors}


def _export(options: Namespace) -> None:
    """Write an instance folder of Cell2Fire, and print how to run it."""
    out, name, number = Path(options.output), options.placement, options.number
    _require_new(options, out)
    file = read_placements(options.placements)
    if name not in file.placements:
        known = ", ".join(file.placements) or "none"
        raise UserError(f"{options.placements} has no --placement {name}; its placements: {known}")
    require_range("--number", number, least=0, most=len(file.specs) - 1)
    conditions = [_conditions({**FIRE, **fire}) for fire in file.fires]
    models = [each.model(landscape) for each, landscape in zip(conditions, file.landscapes, strict=True)]
    require_fit({name: file.placements[name]}, models)
    breaks = file.placements[name][number]
    contents = instance_files(file.landscapes[number], breaks, conditions[number])
    rasters = [path for spec in file.specs for path in spec.get("region", {}).values()]
    _require_other([out / each for each in contents], [options.placements, *rasters])
    with writing(f"--output {out}", "name another folder"):
        for each, content in contents.items():
            Folder(out).write(each, content)
    print(f"{len(breaks)} breaks of {name} on landscape {number} are in {out}; burn it by")
    folder, results, cells = (shlex.quote(str(path)) for path in (out, out / "results", out / "breaks.csv"))
    words = f"--input-instance-folder {folder} --output-folder {results} --FirebreakCells {cells}"
    fires = f"--scenario {SCENARIO} --max-fire-periods {round(conditions[number].duration)} --nsims 100 --final-grid"
    print(f"Cell2Fire --sim S {words} {fires}")


def _check(options: Namespace) -> None:
    """Refuse bad options before anything is computed."""
    require_range("--landscapes", options.landscapes, least=1, most=10_000)
    require_range("--grid_size", options.grid_size, least=4, most=LARGEST_GRID)
    require_range("--seed", options.seed, least=0)
    if options.budget is not None:
        require_range("--budget", options.budget, above=0, most=1)
    if options.processes is not None:
        require_range("--processes", options.processes, least=1)
    for name in options.baselines or []:
        if name not in PLACEMENTS:
            raise UserError(f"--baselines {name} is unknown; use any of {', '.join(PLACEMENTS)}")
    if options.output is not None:
        output = Path(options.output)
        _require_output(output)
        _require_new(options, output)
        _require_other([output], [options.placements])


def _print(scores: Mapping[str, Score], version: str) -> None:
    titles = {"travel_time": "all fires", "same_fires": "same fires", "surface": "surface", "crown": "crown"}
    table = {
        name: {
            "breaks": f"{score.breaks:.1f}",
            **{
                title: "{:.1f} ± {:.1f}".format(*(100 * part for part in vars(score)[by]))
                for by, title in titles.items()
            },
        }
        for name, score in sorted(scores.items(), key=lambda item: item[1].travel_time.mean)
    }
    print("burned area saved, %, ± standard error")
    print(pd.DataFrame(table).T.to_string())
    print("all fires, same fires  by eigen2: fires from every cell that burns, or the fires of pyretechnics")
    print(f"surface, crown         by pyretechnics {version}: without the canopy, or with canopy and crown fire")
    print("All share landscapes and fires, so a difference of two scores usually has a smaller error than the scores.")
