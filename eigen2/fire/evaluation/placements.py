"""Files of placements: which cells become fuel breaks on which landscapes, as runs write them and others read them."""

import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from eigen2.errors import UserError, require_range
from eigen2.fire.landscapes.landscape import SPLITS, Landscape, synthetic
from eigen2.fire.landscapes.rasters import Region, RegionFiles, read_region, tiles
from eigen2.runtime.files import replacing

LARGEST_GRID = 100
"""Rows, and columns, of a landscape in a file of placements: fires from all of its cells take 400 MB."""
SYNTHETIC, TILE = ("grid_size", "seed", "number"), ("grid_size", "region", "split", "number")
"""Keys of the two kinds of landscapes."""
FIRE = ("duration", "wind_speed", "wind_from")

Cells = list[list[int]]
"""The breaks of one placement: for each landscape, numbers of cells, `row * columns + column`, in their order."""
Spec = dict[str, Any]
"""How a landscape is made again; `read_placements` says what it holds."""


@dataclass(frozen=True)
class Placed:
    """A file of placements: `read_placements` says what it holds.

    Attributes:
        specs: one a landscape.
        placements: the breaks of each placement, by its name.
        fire: any of `FIRE`.
        generation: the champion's; -1 if it is not told.
    """

    specs: list[Spec]
    placements: dict[str, Cells]
    fire: dict[str, float]
    generation: int = -1

    @cached_property
    def landscapes(self) -> list[Landscape]:
        """Made anew.

        Raises:
            UserError: rasters cannot be read, or have no such tile.
        """
        read = cache(_region)
        return [_landscape(spec, read) for spec in self.specs]


def write_placements(path: Path, placed: Placed) -> None:
    """Write a file that `read_placements` reads, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    told = {"generation": placed.generation, "fire": placed.fire, "landscapes": placed.specs}
    with replacing(path) as draft:
        draft.write_text(
            json.dumps({**told, "placements": placed.placements}, allow_nan=False) + "\n", encoding="utf-8"
        )


def read_placements(path: Path | str) -> Placed:
    """Read a JSON file of placements.

    It is an object of

    - `landscapes`, a list of one or more objects. `{"grid_size": 32, "seed": 0, "number": 5}` is a synthetic landscape
      as `FuelBreakEnv(grid_size, seed=seed)` has it under that number. With `"split": "validation"`, `"train"` or
      `"test"` in it, it is one of a run with that `data.landscape_seed`. With `"region": {"elevation": "dem.tif",
      "fuel": "fbfm40.tif"}` in place of the seed, the keys those of `data.region`, it is a tile of rasters:
      that number of those for the split;
    - `placements`, an object of names and, for each, one list of breaks for every landscape: numbers of cells,
      `row * columns + column`;
    - `fire`, which may be left out: any of `duration` (minutes), `wind_speed` (km/h) and `wind_from` (degrees);
    - `generation`, which may be left out: a whole number, of the champion.

    Raises:
        UserError: it is not there, or holds anything else.
    """
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a JSON file of placements") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON ({error})") from error
    if not isinstance(given, dict) or given.keys() - {"landscapes", "placements", "fire", "generation"}:
        raise UserError(
            f"{path} must be an object with the keys landscapes, placements and perhaps fire and generation, no others"
        )
    landscapes, placements, fire = (given.get(key, {}) for key in ("landscapes", "placements", "fire"))
    if not isinstance(landscapes, list) or not landscapes:
        raise UserError(f"landscapes of {path} must be a list of one or more")
    for number, spec in enumerate(landscapes):
        _check(spec, f"landscapes[{number}] of {path}")
    _check_cells(placements, path)
    _check_fire(fire, path)
    if type(generation := given.get("generation", -1)) is not int:
        raise UserError(f"generation of {path} is {generation}; it must be a whole number")
    return Placed(landscapes, placements, fire, generation)


def _check_cells(placements: object, path: Path | str) -> None:
    if not isinstance(placements, dict):
        raise UserError(f"placements of {path} must be an object of names and lists")
    for name, placed in placements.items():
        if not isinstance(placed, list) or not all(
            isinstance(cells, list) and all(type(cell) is int for cell in cells) for cells in placed
        ):
            raise UserError(f"placements.{name} of {path} must be a list of lists of cell numbers")


def _check_fire(fire: object, path: Path | str) -> None:
    if not isinstance(fire, dict) or fire.keys() - set(FIRE):
        raise UserError(f"fire of {path} must be an object with the keys duration, wind_speed and wind_from, no others")
    for key, value in fire.items():
        if type(value) not in (int, float):
            raise UserError(f"fire.{key} of {path} is {json.dumps(value)[:80]}; it must be a number")


def _check(spec: object, where: str) -> None:
    """Refuse what names no landscape."""
    keys = SYNTHETIC if not isinstance(spec, dict) or "region" not in spec else TILE
    if not isinstance(spec, dict) or not set(keys) <= spec.keys() <= {*keys, "split"}:
        raise UserError(f"{where} is {json.dumps(spec)[:80]}; it must be an object with the keys {', '.join(keys)}")
    for key, least, most in (("grid_size", 4, LARGEST_GRID), ("seed", 0, 2**32), ("number", 0, 2**32)):
        if key not in spec:
            continue
        if type(spec[key]) is not int:
            raise UserError(f"{where} has {key} {spec[key]}; it must be a whole number")
        require_range(f"{where}: {key}", spec[key], least=least, most=most)
    if spec.get("split", "test") not in SPLITS:
        raise UserError(f"{where} has split {spec['split']}; it must be one of {', '.join(SPLITS)}")
    if "region" in spec:
        _region_files(spec["region"], where)


def _region_files(given: object, where: str) -> RegionFiles:
    known = RegionFiles.__dataclass_fields__
    if (
        not isinstance(given, dict)
        or given.keys() - known.keys()
        or not {"elevation", "fuel"} <= given.keys()
        or not all(isinstance(value, str | None) for value in given.values())
    ):
        raise UserError(f"region of {where} must be an object of texts with the keys of data.region")
    return RegionFiles(**given)


def _region(files: str) -> Region:
    return read_region(_region_files(json.loads(files), "landscapes"))


def _landscape(spec: Spec, read: Any) -> Landscape:
    size, number, split = spec["grid_size"], spec["number"], spec.get("split")
    if "region" not in spec:
        return synthetic(size, spec["seed"], number, split)
    found = tiles(read(json.dumps(spec["region"], sort_keys=True)), size, split)  # type: ignore[arg-type]
    if number >= len(found):
        raise UserError(f"the region has {len(found)} {split} tiles of {size} x {size}, no number {number}")
    return found[number]


def region_spec(files: RegionFiles) -> dict[str, str]:
    """Rasters as a file of placements names them: their absolute paths, and their units."""
    given = {name: value for name, value in vars(files).items() if value is not None}
    return {name: value if "units" in name else str(Path(value).resolve()) for name, value in given.items()}
