"""Files of placements: the fuel breaks of champion and baselines on each landscape, and what they save."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator, validators

from eigen2.core.datamodule import TestResult
from eigen2.core.saved_run import flatten
from eigen2.errors import UserError
from eigen2.files import Folder, archive_other_test, object_schema, writing
from eigen2.fire.landscapes.landscape import SERIES, SPLITS, Landscape, Split, Terrain, synthetic
from eigen2.fire.landscapes.rasters import Region, RegionFiles, read_region, tiles
from eigen2.fire.simulation.spread import FireModel

log = logging.getLogger(__name__)

PLACEMENTS_FILE = "placements.json"
FOLDERS: dict[Split, str] = {"validation": "champion", "test": "test"}  # subfolders of the run folder for records
LARGEST_GRID = 100  # most rows and columns of a landscape in a file: fires from all of its cells take 400 MB

FIRE_SETTINGS = {"duration": "fire_simulation_max_duration", "wind_speed": "wind_speed", "wind_from": "wind_from"}
"""What a file says of the fires on a landscape, and the setting of the data that it is."""
SEARCHED, SWAPPED = "local_search", "champion_swaps"  # by moves from a baseline, and from the champion's placement

Cells = list[list[int]]  # breaks of one placement: for each landscape, `row * columns + column`, in their order
Spec = dict[str, Any]  # description from which a landscape is made again; an item of `landscapes` in SCHEMA

_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**32}
_SIZE = {"type": "integer", "minimum": 4, "maximum": LARGEST_GRID}
_SPLIT, _PATH, _NUMBER = {"enum": [*SPLITS]}, {"type": "string"}, {"type": "number"}
_FILES = dict.fromkeys(RegionFiles.__dataclass_fields__, _PATH)
_FIRE = object_schema({}, dict.fromkeys(FIRE_SETTINGS, _NUMBER))
_SHARES = {"type": "object", "additionalProperties": _NUMBER, "propertyNames": {"pattern": "^[0-9]{2,3}$"}}
_TERRAIN = object_schema({"fuel": _SHARES, **dict.fromkeys(("water", "slope", "patchiness", "cell_size"), _NUMBER)})
_SYNTHETIC = object_schema(
    {"grid_size": _SIZE, "seed": _COUNT, "number": _COUNT},
    {"split": {"enum": [*SERIES]}, "terrain": _TERRAIN, "fire": _FIRE},
)
_REGION = object_schema({name: _FILES.pop(name) for name in ("elevation", "fuel")}, _FILES)
_TILE = object_schema({"grid_size": _SIZE, "region": _REGION, "number": _COUNT}, {"split": _SPLIT, "fire": _FIRE})
_LANDSCAPE = {"if": {"type": "object", "required": ["region"]}, "then": _TILE, "else": _SYNTHETIC}
_CELLS = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
SCHEMA = object_schema(
    {"landscapes": {"type": "array", "items": _LANDSCAPE, "minItems": 1}},
    {
        "placements": {"type": "object", "additionalProperties": _CELLS},
        "fire": _FIRE,
        "generation": {"type": "integer"},
    },
)
"""Schema of a file of placements.

- `landscapes`: `{"grid_size": 32, "seed": 0, "number": 5}` is a synthetic landscape; with a `"split"`, it is one of a
  run with that `data.landscape_seed` and, with `"terrain"`, that `data.terrain`, or with the `"split"` `environment`
  one of `FuelBreakEnv(grid_size, seed=seed)`; with a `"region"` as `data.region` in place of the seed, a tile of
  rasters (without a `"split"`, one of all);
- `placements`: for each name, one list of breaks for every landscape: numbers of cells, `row * columns + column`;
- `fire`: `duration` (minutes), `wind_speed` (km/h) and `wind_from` (degrees) where a landscape has no `"fire"` of its
  own;
- `generation`: of the champion; -1 is unknown.
"""
_INTEGERS = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)  # 1.0 is none
_Validator = validators.extend(Draft202012Validator, type_checker=_INTEGERS)


@dataclass(frozen=True)
class PlacementFile:
    """Content of a file of placements, as `SCHEMA` describes it."""

    specs: list[Spec]
    placements: dict[str, Cells]
    fire: dict[str, float]
    generation: int = -1

    @property
    def fires(self) -> list[dict[str, float]]:
        """Return what is known of the fires on each landscape, by the keys of FIRE_SETTINGS."""
        return [{**self.fire, **spec.get("fire", {})} for spec in self.specs]

    @cached_property
    def landscapes(self) -> list[Landscape]:
        """Make the landscapes again; raise UserError if rasters cannot be read or have no such tile."""
        regions: dict[RegionFiles, Region] = {}
        return [_landscape(spec, regions) for spec in self.specs]


def write_placements(folder: Folder, file: PlacementFile) -> None:
    """Write `placements.json`, which `read_placements` reads; raise OSError if it cannot be written."""
    content = {"generation": file.generation, "fire": file.fire, "landscapes": file.specs}
    text = json.dumps({**content, "placements": file.placements}, allow_nan=False) + "\n"
    folder.write(PLACEMENTS_FILE, text)


def read_placements(path: Path | str) -> PlacementFile:
    """Read a JSON file that follows `SCHEMA`; raise UserError if it does not exist or does not follow it."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a JSON file of placements") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error})") from error
    if wrong := next(_Validator(SCHEMA).iter_errors(content), None):
        where = wrong.json_path.removeprefix("$").lstrip(".") or "it"
        raise UserError(f"{path} is not a file of placements: in {where}, {wrong.message[:200]}; see docs/fire.md")
    return PlacementFile(
        content["landscapes"], content.get("placements", {}), content.get("fire", {}), content.get("generation", -1)
    )


def _landscape(spec: Spec, regions: dict[RegionFiles, Region]) -> Landscape:
    """Make a landscape; `regions` caches the regions already read."""
    size, number, split = spec["grid_size"], spec["number"], spec.get("split")
    if "region" not in spec:
        return synthetic(size, spec["seed"], number, split, _terrain(spec))
    files = RegionFiles(**spec["region"])
    if files not in regions:
        regions[files] = read_region(files)
    available = tiles(regions[files], size, split)
    if number >= len(available):
        kind = f"{split} tiles" if split else "tiles"
        raise UserError(f"the region has {len(available)} {kind} of {size} x {size}, no number {number}")
    return available[number]


def _terrain(spec: Spec) -> Terrain | None:
    """Return the statistics of a synthetic landscape, None for the usual ones."""
    if "terrain" not in spec:
        return None
    fuel = {int(model): share for model, share in spec["terrain"]["fuel"].items()}
    return Terrain(**{**spec["terrain"], "fuel": fuel})


def require_fit(placements: Mapping[str, Cells], models: Sequence[FireModel]) -> None:
    """Raise UserError for a placement that lacks breaks for a landscape, or has one where there can be none."""
    for number, model in enumerate(models):
        if not model.burnable.any():
            raise UserError(f"nothing burns on landscape {number}; look at its fuel")
    for name, placed in placements.items():
        if len(placed) != len(models):
            problem = f"placements.{name} has breaks for {len(placed)} landscapes"
            raise UserError(f"{problem}; it must have a list for each of the {len(models)}")
        for number, (model, cells) in enumerate(zip(models, placed, strict=True)):
            try:
                model.start(np.empty(0, int), cells)
            except ValueError as error:
                raise UserError(f"placements.{name}[{number}] does not fit landscape {number}: {error}") from error


def save_champion(folder: Folder, placements: PlacementFile) -> None:
    """Write the placements of the new champion and the baselines; log a warning if they cannot be written."""
    try:
        write_placements(folder, placements)
    except OSError as error:
        log.warning("cannot write the champion's placements to %s: %s", folder, error.strerror or error)


def save_test(
    root: Folder, placements: PlacementFile, saved: Mapping[str, np.ndarray], unit: str, settings: dict[str, Any]
) -> None:
    """Write `test/` into a run's folder; move one of another champion or other settings to `test-1`, ..."""
    folder = root / FOLDERS["test"]
    summary = {
        "champion_generation": placements.generation,
        "unit": unit,
        "cases": "landscapes",
        "scores": {name: [round(100 * float(value), 4) for value in values] for name, values in saved.items()},
        "settings": flatten({"data": settings}),
    }
    text = json.dumps(summary, indent=1, allow_nan=False) + "\n"
    with writing(f"the test to {folder}", "make room there"):
        keys = ("settings", "champion_generation")
        archive_other_test(root, FOLDERS["test"], "scores.json", json.loads(text), keys)
        write_placements(folder, placements)
        folder.write("scores.json", text)


def make_test_result(
    saved: Mapping[str, np.ndarray], burned: np.ndarray, generation: int, measured: bool = False
) -> TestResult:
    """Return the metrics and the table of a test.

    Args:
        saved: share that each placement saves on each landscape (0 to 1).
        burned: cells that a fire burns without breaks, the mean on each landscape.
        generation: of the champion.
        measured: whether the terrain that the fit was given may have been fitted to these landscapes.
    """
    unseen = "did not train on; its data.terrain may have been fitted to some of them" if measured else "has not seen"
    lines = [
        f"champion     of epoch {generation}, on {len(saved['champion'])} landscapes that fit {unseen}",
        f"a fire burns {burned.mean():,.0f} cells without breaks ({burned.min():,.0f} to {burned.max():,.0f})",
        f"percent of the burned area saved: mean, standard error, least, most; gap to {SEARCHED}, % of what it saves",
    ]
    goal = saved[SEARCHED].mean()
    for name, part in saved.items():
        error = part.std(ddof=1) / np.sqrt(len(part)) if len(part) > 1 else np.nan
        figures = (part.mean(), error, part.min(), part.max(), 1 - part.mean() / goal if goal else np.nan)
        lines.append(f"{name:<20}" + "".join(f"{100 * figure:>8.1f}" for figure in figures))
    return TestResult({f"test/{name}": float(100 * part.mean()) for name, part in saved.items()}, "\n".join(lines))
