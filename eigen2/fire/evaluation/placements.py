"""Files of placements: which cells become fuel breaks on which landscapes, as runs write them and others read them."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eigen2.errors import UserError, require_range
from eigen2.fire.landscapes.landscape import SPLITS, Landscape, synthetic
from eigen2.fire.landscapes.rasters import Region, RegionFiles, read_region, tiles
from eigen2.runtime.files import replacing

LARGEST_GRID = 100  # rows, and columns, of the largest landscape in a file: fires from all of its cells take 400 MB
FIRE = ("duration", "wind_speed", "wind_from")
KEYS = ("landscapes", "placements", "fire", "generation")

Cells = list[list[int]]
"""The breaks of one placement: for each landscape, numbers of cells, `row * columns + column`, in their order."""
Spec = dict[str, Any]
"""Description of a landscape, from which it is made again; see `read_placements`."""


@dataclass(frozen=True)
class PlacementFile:
    """Content of a file of placements, as `read_placements` describes it; generation -1 is unknown."""

    specs: list[Spec]
    placements: dict[str, Cells]
    fire: dict[str, float]
    generation: int = -1

    @cached_property
    def landscapes(self) -> list[Landscape]:
        """Return the landscapes, made again.

        Raises:
            UserError: rasters cannot be read, or have no such tile.
        """
        regions: dict[RegionFiles, Region] = {}
        return [_landscape(spec, regions) for spec in self.specs]


def write_placements(path: Path, file: PlacementFile) -> None:
    """Write a file that `read_placements` reads, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    content = {"generation": file.generation, "fire": file.fire, "landscapes": file.specs}
    with replacing(path) as draft:
        draft.write_text(json.dumps({**content, "placements": file.placements}, allow_nan=False) + "\n", "utf-8")


def read_placements(path: Path | str) -> PlacementFile:
    """Read a JSON file of placements.

    It is an object of

    - `landscapes`, a list of one or more objects. `{"grid_size": 32, "seed": 0, "number": 5}` is a synthetic landscape
      as `FuelBreakEnv(grid_size, seed=seed)` has it under that number. With `"split": "validation"`, `"train"` or
      `"test"` in it, it is one of a run with that `data.landscape_seed`. With `"region": {"elevation": "dem.tif",
      "fuel": "fbfm40.tif"}` in place of the seed, the keys those of `data.region`, it is a tile of rasters:
      that number of those for the split;
    - `placements`, an object of names and, for each, one list of breaks for every landscape: numbers of cells,
      `row * columns + column`;
    - `fire`, optional: any of `duration` (minutes), `wind_speed` (km/h) and `wind_from` (degrees);
    - `generation`, optional: a whole number, of the champion.

    Raises:
        UserError: it does not exist, or holds anything else.
    """
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a JSON file of placements") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON ({error})") from error
    if not isinstance(given, dict) or given.keys() - set(KEYS):
        raise UserError(f"{path} must be an object with the keys {', '.join(KEYS)}, the last two optional, no others")
    landscapes, placements, fire = (given.get(key, {}) for key in ("landscapes", "placements", "fire"))
    if not isinstance(landscapes, list) or not landscapes:
        raise UserError(f"landscapes of {path} must be a list of one or more")
    for number, spec in enumerate(landscapes):
        _check_spec(spec, f"landscapes[{number}] of {path}")
    _check_rest(placements, fire, path)
    if type(generation := given.get("generation", -1)) is not int:
        raise UserError(f"generation of {path} is {generation}; it must be a whole number")
    return PlacementFile(landscapes, placements, fire, generation)


def _check_rest(placements: object, fire: object, path: Path | str) -> None:
    if not isinstance(placements, dict):
        raise UserError(f"placements of {path} must be an object of names and lists")
    for name, placed in placements.items():
        lists = isinstance(placed, list) and all(isinstance(cells, list) for cells in placed)
        if not lists or any(type(cell) is not int for cells in placed for cell in cells):
            raise UserError(f"placements.{name} of {path} must be a list of lists of cell numbers")
    if not isinstance(fire, dict) or fire.keys() - set(FIRE):
        raise UserError(f"fire of {path} must be an object with the keys {', '.join(FIRE)}, no others")
    for key, value in fire.items():
        if type(value) not in (int, float):
            raise UserError(f"fire.{key} of {path} is {json.dumps(value)[:80]}; it must be a number")


def _check_spec(spec: object, where: str) -> None:
    """Refuse a value that describes no landscape."""
    tile = isinstance(spec, dict) and "region" in spec
    keys = ("grid_size", "region", "split", "number") if tile else ("grid_size", "seed", "number")
    if not isinstance(spec, dict) or not set(keys) <= spec.keys() <= {*keys, "split"}:
        raise UserError(f"{where} is {json.dumps(spec)[:80]}; it must be an object with the keys {', '.join(keys)}")
    for key, least, most in (("grid_size", 4, LARGEST_GRID), ("seed", 0, 2**32), ("number", 0, 2**32)):
        if key in spec and type(spec[key]) is not int:
            raise UserError(f"{where} has {key} {spec[key]}; it must be a whole number")
        require_range(f"{where}: {key}", spec.get(key, least), least=least, most=most)
    if spec.get("split", "test") not in SPLITS:
        raise UserError(f"{where} has split {spec['split']}; it must be one of {', '.join(SPLITS)}")
    if not tile:
        return
    region, known = spec["region"], RegionFiles.__dataclass_fields__.keys()
    texts = isinstance(region, dict) and all(isinstance(value, str | None) for value in region.values())
    if not texts or not {"elevation", "fuel"} <= region.keys() <= known:
        raise UserError(f"region of {where} must be an object of texts with the keys of data.region")
    RegionFiles(**region)


def _landscape(spec: Spec, regions: dict[RegionFiles, Region]) -> Landscape:
    """Make a landscape; `regions` keeps those that were read."""
    size, number, split = spec["grid_size"], spec["number"], spec.get("split")
    if "region" not in spec:
        return synthetic(size, spec["seed"], number, split)
    files = RegionFiles(**spec["region"])
    if files not in regions:
        regions[files] = read_region(files)
    found = tiles(regions[files], size, spec["split"])
    if number >= len(found):
        raise UserError(f"the region has {len(found)} {split} tiles of {size} x {size}, no number {number}")
    return found[number]


def region_spec(files: RegionFiles) -> dict[str, str]:
    """Return rasters as a file of placements names them: their absolute paths, and their units."""
    given = {name: value for name, value in vars(files).items() if value is not None}
    return {name: value if "units" in name else str(Path(value).resolve()) for name, value in given.items()}
