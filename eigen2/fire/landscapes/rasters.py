"""Landscapes from rasters of a region: one GeoTIFF or ESRI ASCII grid per layer, as LANDFIRE publishes them.

The fire model would silently accept values in wrong units, so implausible values are refused.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import NDArray

from eigen2.errors import UserError, install_hint, require_range
from eigen2.fire.landscapes.fuels import BARE, NON_BURNABLE, require_known
from eigen2.fire.landscapes.landscape import RANGES, Landscape, Split, slopes
from eigen2.fire.landscapes.plausibility import DECLARE, contradictions
from eigen2.memory.limits import require_room

LARGEST = 25_000_000  # most cells of a region
READ_BYTES = 150  # of a cell while a region is read
CANOPY = {"canopy_cover": (100, 1), "canopy_height": (10, 120), "canopy_base_height": (10, 120)}
CANOPY["canopy_bulk_density"] = 100, 2
"""For each canopy layer: LANDFIRE's units (percent, m x 10, m x 10, kg/m3 x 100) per unit of ours, and the largest
plausible value in our units; the tallest tree is 116 m high."""
LIMITS: dict[str, tuple[float, float, str]] = {
    "elevation": (*RANGES["elevation"][:2], "in metres; convert feet or cm"),
    "slope": (0, np.inf, "in degrees"),  # `contradictions` tells why one is above 90
    "aspect": (-np.inf, 360, "in degrees clockwise from north"),
    **{name: (0, scale * most, "in LANDFIRE's units") for name, (scale, most) in CANOPY.items()},
}
"""Least and largest value in the file of each layer but fuel, and its unit."""
PROJECT = "project it: gdalwarp -t_srs EPSG:NUMBER, with the number of the region's UTM zone"
MISSING = f"if that marks missing data, declare it: {DECLARE}"
SPLIT_OF_BLOCK = ("train", "validation", "test", "train", "train")
"""Split of the tiles of a block, by `(2 * block row + block column) % 5`."""
BLOCK = 4  # tiles along the edge of a block
FEET = re.compile(r"f(oo|ee)?t")  # in a unit that a file may declare: ft, US survey foot, us-ft
STRETCHED = re.compile(r'PROJECTION\["(Mercator|Equirectangular)')  # more than others, the farther from the equator
BURNABLE = 0.5  # least share of a tile's cells that must burn


@dataclass(frozen=True)
class RegionFiles:
    """Rasters of a region, all on the same grid of square cells in a projection whose unit is a length.

    Slope and aspect follow from the elevation; files of them only check its units and orientation.

    Args:
        elevation: file of heights, in m.
        fuel: file of fuel model numbers, LANDFIRE's FBFM40.
        slope: file of slopes, in degrees (LANDFIRE's SlpD); null leaves heights in feet unnoticed on gentle ground.
        aspect: file of the directions that slopes face, in degrees clockwise from north, below 0 on level ground
            (LANDFIRE's Asp); null checks no orientation.
        canopy_cover: file of the ground under trees, in percent; null, as in the layers below, means no trees.
        canopy_height: file of tree heights, in m x 10.
        canopy_base_height: file of the heights of the lowest branches, in m x 10.
        canopy_bulk_density: file of the canopy's density, in kg/m3 x 100.
    """

    elevation: str
    fuel: str
    slope: str | None = None
    aspect: str | None = None
    canopy_cover: str | None = None
    canopy_height: str | None = None
    canopy_base_height: str | None = None
    canopy_bulk_density: str | None = None

    def given(self) -> dict[str, str]:
        """Return the files that are set, by layer; elevation first."""
        return {name: str(path) for name, path in vars(self).items() if path is not None}


class Region(NamedTuple):
    """Landscape of the size of the rasters, with flat bare ground at height 0 where any layer lacks data."""

    landscape: Landscape
    missing: Bool[np.ndarray, "rows columns"]
    transform: Any = None  # from column and row to coordinates, row 0 the northern edge
    crs: Any = None

    @property
    def extent(self) -> list[float]:
        """Return west, north, east, south and the side of a cell in the rasters' units; [] where they are not known."""
        if self.transform is None:
            return []
        rows, columns = self.missing.shape
        return [*map(float, (*(self.transform * (0, 0)), *(self.transform * (columns, rows)), self.transform.a))]


class Raster(NamedTuple):
    """A raster as read from its file: NaN where data are missing, row 0 the northern edge, crs None if unknown."""

    values: Float64[np.ndarray, "rows columns"]
    transform: Any
    crs: Any


def read_region(files: RegionFiles) -> Region:
    """Read the rasters of a region; raise UserError if a file or rasterio is missing, or values cannot be right.

    Row 0 becomes the northern edge, whichever way a file is oriented. A cell that lacks data in any file but slope and
    aspect, or a neighbour's elevation, does not burn. A projection in feet is converted; a file without a projection is
    assumed to have that of the others, or one in m.
    """
    require_room("a region", count_cells(files.elevation), READ_BYTES, "cut a smaller one out: gdalwarp -te")
    rasters = {name: _read(path) for name, path in files.given().items()}
    first = rasters["elevation"]
    crs = next((raster.crs for raster in rasters.values() if raster.crs is not None), None)
    for name, raster in rasters.items():
        path = files.given()[name]
        if not _same_grid(raster, first, crs):
            grids = (f"{each.values.shape} {tuple(each.transform)[:6]} {each.crs}" for each in (raster, first))
            raise UserError(
                f"{path} and {files.elevation} have different grids: {' and '.join(grids)}; warp it to that of the "
                "elevation: gdalwarp -te and -tr as gdalinfo says, -r near"
            )
        if problem := next(_value_problems(name, raster.values[~np.isnan(raster.values)]), None):
            raise UserError(f"{path} {problem}")
    cell_size = first.transform.a * (1.0 if crs is None else float(crs.linear_units_factor[1]))
    if min(first.values.shape) < 2:
        raise UserError(f"{files.elevation} has {first.values.shape} cells; give 2 or more a side")
    given = {name: raster.values for name, raster in rasters.items()}
    for name, problem in contradictions(given, cell_size):
        raise UserError(f"{files.given()[name]} {problem}")
    layers = {name: given[name] / CANOPY.get(name, (1, 1))[0] for name in given.keys() - {"slope", "aspect"}}
    layers |= {name: np.zeros(first.values.shape) for name in CANOPY.keys() - layers.keys()}
    layers["slope"], layers["aspect"] = slopes(first.values, cell_size)
    if (steepest := np.nanmax(layers["slope"], initial=0)) > (most := RANGES["slope"][1]):
        raise UserError(
            f"{files.elevation} rises by {steepest:.0f} m a metre between neighbouring cells, more than {most}; if one "
            f"of them marks missing data, declare it: {DECLARE}, else resample to larger cells"
        )
    missing: NDArray[np.bool_] = np.logical_or.reduce([np.isnan(values) for values in layers.values()])
    if missing.all():
        raise UserError(f"no cell has data in all of {', '.join(files.given().values())}; give files of one region")
    for name, values in layers.items():
        values[missing] = BARE if name == "fuel" else 0
    fuel = layers.pop("fuel").astype(np.int16)
    return Region(Landscape(fuel=fuel, **layers, cell_size=cell_size), missing, first.transform, crs)


def read_on_grid(path: str, region: Region) -> Float64[np.ndarray, "rows columns"]:
    """Read a further raster of a region, NaN where data are missing; raise UserError if it has another grid."""
    raster = _read(path)
    crs = raster.crs if region.crs is None else region.crs
    if not _same_grid(raster, Raster(region.landscape.elevation, region.transform, crs), crs):
        raise UserError(f"{path} has another grid than the elevation; warp it to that: gdalwarp -te and -tr, -r near")
    return raster.values


def tiles(region: Region, size: int, split: Split | None) -> list[Landscape]:
    """Return the square landscapes of a split, cut from a region at `tile_corners`; raise UserError if it has none."""
    if not (corners := tile_corners(region, size, split)):
        rows, columns = region.missing.shape
        kind = f"{split} tile" if split else "tile"
        none = f"the region of {rows} x {columns} cells has no clean {kind} of {size} x {size}"
        raise UserError(f"{none}: use smaller tiles, or a larger region")
    layers, cell_size = region.landscape.layers(), region.landscape.cell_size
    windows = [np.s_[row : row + size, column : column + size] for row, column in corners]
    return [Landscape(**{n: layer[each] for n, layer in layers.items()}, cell_size=cell_size) for each in windows]


def tile_corners(region: Region, size: int, split: Split | None) -> list[tuple[int, int]]:
    """Return row and column of the north-western cell of each tile of a split, or of all, from north to south.

    The region is divided into blocks of BLOCK x BLOCK tiles, with a quarter of `size` between blocks that belongs to no
    tile. All tiles of a block are of one split, by SPLIT_OF_BLOCK, so tiles of different splits do not touch. Tiles
    that lack data, or burn in less than BURNABLE of their cells, are left out.
    """
    require_range("size", size, least=4)
    stride = BLOCK * size + size // 4
    burns = ~np.isin(region.landscape.fuel, NON_BURNABLE)
    rows, columns = (
        [first + size * tile for first in range(0, cells, stride) for tile in range(BLOCK)]
        for cells in region.missing.shape
    )
    corners = []
    for row, column in product(rows, columns):
        of_block = SPLIT_OF_BLOCK[(2 * (row // stride) + column // stride) % len(SPLIT_OF_BLOCK)]
        window = np.s_[row : row + size, column : column + size]
        whole = burns[window].shape == (size, size) and not region.missing[window].any()
        if split in (None, of_block) and whole and burns[window].mean() >= BURNABLE:
            corners.append((row, column))
    return corners


def count_cells(path: str) -> int:
    """Return the number of cells of a raster without reading them; raise UserError as `read_region` does."""
    with _opened(path) as source:
        return int(source.width * source.height)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a raster; raise UserError if it cannot be read, or its grid does not suit a landscape."""
    try:
        import rasterio
    except ImportError as error:
        raise UserError(f"rasters need rasterio ({error}): {install_hint('fire')}") from error
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist, or is no file; name a GeoTIFF or an ESRI ASCII grid")
    try:
        with rasterio.open(path) as source:
            if problem := next(_grid_problems(source), None):
                raise UserError(f"{path} {problem}")
            yield source
    except rasterio.errors.RasterioError as error:
        raise UserError(f"{path} cannot be read as a raster ({error}); give a GeoTIFF or an ESRI ASCII grid") from error


def _read(path: str) -> Raster:
    """Read a raster; raise UserError if its grid does not suit a landscape."""
    with _opened(path) as source:
        values = source.read(1, masked=True)
        transform, crs = source.transform, _horizontal(source.crs)
        scale, offset = source.scales[0], source.offsets[0]
    filled: NDArray[np.float64] = values.astype(np.float64).filled(np.nan) * scale + offset
    if transform.e > 0:  # the first row is the southern one
        filled = filled[::-1].copy()
        north = transform.f + transform.e * len(filled)
        transform = type(transform)(transform.a, 0, transform.c, 0, -transform.e, north)
    return Raster(filled, transform, crs)


def _horizontal(crs: Any) -> Any:
    """Return the projection of a coordinate system that may also say what heights are above; None if there is none."""
    if not crs:
        return None
    described = crs.to_dict(projjson=True)
    compound = described.get("type") == "CompoundCRS"
    return type(crs).from_user_input(described["components"][0]) if compound else crs


def _grid_problems(source: Any) -> Iterator[str]:
    """Yield what keeps an open raster's grid from being a landscape's, with the remedy."""
    at, crs, shape = source.transform, _horizontal(source.crs), source.shape
    if source.count != 1:
        yield f"has {source.count} bands; give a file of one: gdal_translate -b NUMBER IN.tif OUT.tif"
    if shape[0] * shape[1] > LARGEST:
        yield f"has {shape[0]} x {shape[1]} cells, above {LARGEST:,}; cut a region out: gdalwarp -te"
    if at.is_identity:
        yield "has no place on the ground; give it one: gdal_translate -a_ullr LEFT TOP RIGHT BOTTOM -a_srs EPSG:NUMBER"
    if crs is not None and not (crs.is_geographic or crs.is_projected):
        yield f"is in {crs}, which is no map projection; {PROJECT}"
    if crs is not None and (crs.is_geographic or STRETCHED.search(crs.to_wkt())):
        yield f"is in {crs}, whose units are not metres on the ground; {PROJECT}"
    if at.b or at.d or abs(abs(at.e) - at.a) > 1e-3 * at.a:
        yield f"is not north-up with square cells ({tuple(at)[:6]}); make it so: gdalwarp -tr SIZE SIZE IN.tif OUT.tif"
    if FEET.search(unit := (source.units[0] or "").lower()):
        yield f"has values in {unit}; convert it to metres: gdal_calc.py -A IN.tif --calc=A*0.3048 --outfile=OUT.tif"
    if crs is None and at.a < 0.5:
        yield f"has cells of {at.a:g} and no projection; that looks like degrees: {PROJECT}"


def _same_grid(raster: Raster, first: Raster, crs: Any) -> bool:
    """Return whether a raster lies on the elevation's grid; one without a projection is taken to share `crs`."""
    at, wanted = raster.transform, first.transform
    return bool(
        (raster.crs is None or raster.crs == crs)
        and raster.values.shape == first.values.shape
        and abs(at.a / wanted.a - 1) <= 1e-4
        and max(abs(at.c - wanted.c), abs(at.f - wanted.f)) <= 0.01 * wanted.a
    )


def _value_problems(name: str, known: NDArray[np.float64]) -> Iterator[str]:
    """Yield what is wrong with the known values of a layer, with the likely reason."""
    if known.size == 0:
        yield f"has no data at all; give another file for {name}"
    if name == "fuel":
        numbers = np.unique(known)
        if (broken := numbers[numbers != np.rint(numbers)]).size:
            yield f"holds {broken[0]:g}; fuel models have whole numbers (warp them with -r near)"
        if (old := numbers[(numbers >= 1) & (numbers <= 13)]).size:
            yield f"holds fuel model {old[0]:g}, one of Anderson's 13; give Scott and Burgan's 40 (LANDFIRE's FBFM40)"
        try:
            require_known(numbers.tolist())
        except UserError as error:
            yield f"is wrong: {error}; {MISSING}"
        return
    least, most, unit = LIMITS[name]
    if (wrong := known[~((known >= least) & (known <= most))]).size:
        yield f"holds {wrong[0]:g}; it must be {least} to {most}, {unit}; {MISSING}"
    if name in CANOPY and (broken := known[known != np.rint(known)]).size:
        yield f"holds {broken[0]:g}, and LANDFIRE's {name} whole numbers; convert it to LANDFIRE's units"
