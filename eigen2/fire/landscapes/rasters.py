"""Landscapes from rasters of a region: one GeoTIFF or ESRI ASCII grid a layer, as LANDFIRE publishes them.

Rasters come in many units, and the fire model accepts wrong ones silently. So values that cannot be right are refused,
and the likely mistake is named.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.landscapes.fuels import BARE, NON_BURNABLE, require_known
from eigen2.fire.landscapes.landscape import RANGES, Landscape, Split, slopes

LARGEST = 25_000_000  # cells of the largest region: reading one takes about 150 bytes a cell
CANOPY = {
    "canopy_cover": (100, 1),
    "canopy_height": (10, 120),
    "canopy_base_height": (10, 120),
    "canopy_bulk_density": (100, 2),
}
"""Of each canopy layer, LANDFIRE's units in one of ours (percent, m x 10, m x 10, kg/m3 x 100), and the largest
plausible value in ours; the tallest tree has 116 m."""
FILLERS = (-9999, -32768, 32767, -3.4028235e38)  # values that often mark missing data
Slopes = NDArray[np.float64]
SLOPE_UNITS: dict[str, tuple[Callable[[Slopes], Slopes], float, str]] = {
    "degrees": (
        lambda slope: np.tan(np.radians(np.minimum(slope, 89))),
        89,
        "degrees; is it percent? Then say slope_units: percent",
    ),
    "percent": (lambda slope: slope / 100, 2000, "percent"),
    "rise_run": (lambda slope: slope, 20, "rise over run; is it degrees or percent? Then say so in slope_units"),
}
"""Of each unit of slopes, its conversion to rise over run, the largest plausible value, and what to do about a larger
one."""
FEET = 3.28084  # in a metre
PROJECT = "project it: gdalwarp -t_srs EPSG:NUMBER, with the number of the region's UTM zone"
SPLIT_OF_BLOCK = ("train", "validation", "test", "train", "train")
"""Split of the tiles of a block, by `(2 * block row + block column) % 5`."""
BLOCK = 4  # tiles along the edge of a block
BURNABLE = 0.5  # least share of a tile's cells that must burn


@dataclass(frozen=True)
class RegionFiles:
    """Rasters of a region, all on the same grid of square cells in a projection whose unit is a length.

    Args:
        elevation: file of heights, in m.
        fuel: file of the numbers of fuel models, LANDFIRE's FBFM40.
        slope: file of slopes, in `slope_units`; null derives them from the elevation.
        aspect: file of the directions that slopes face, downhill, in degrees clockwise from north (0 to 360; -1 where
            it is flat); null derives them from the elevation.
        canopy_cover: file of the share of the ground under trees; null stands for none, as for the other three.
        canopy_height: file of the height of the trees.
        canopy_base_height: file of the height of their lowest branches.
        canopy_bulk_density: file of the mass of their needles and twigs in a volume.
        units: of the canopy: landfire (percent, m x 10, m x 10 and kg/m3 x 100, all whole numbers) or si (a fraction,
            m, m and kg/m3).
        slope_units: degrees, percent or rise_run (rise over run); needed where `slope` is given, for LANDFIRE
            publishes both of the first two.

    Raises:
        UserError: units are none of those, or `slope_units` is missing.
    """

    elevation: str
    fuel: str
    slope: str | None = None
    aspect: str | None = None
    canopy_cover: str | None = None
    canopy_height: str | None = None
    canopy_base_height: str | None = None
    canopy_bulk_density: str | None = None
    units: str = "landfire"
    slope_units: str | None = None

    def __post_init__(self) -> None:
        if self.units not in ("landfire", "si"):
            raise UserError(f"units is {self.units}; it must be landfire or si")
        if self.slope_units is not None and self.slope_units not in SLOPE_UNITS:
            raise UserError(f"slope_units is {self.slope_units}; it must be one of {', '.join(SLOPE_UNITS)}")
        if self.slope is not None and self.slope_units is None:
            raise UserError(f"slope_units is missing for {self.slope}; it must be one of {', '.join(SLOPE_UNITS)}")

    def layers(self) -> dict[str, str]:
        """Return the files given, by layer; elevation first."""
        return {name: str(path) for name, path in vars(self).items() if "units" not in name and path is not None}


class Region(NamedTuple):
    """A landscape as large as the rasters, with flat bare ground at height 0 where any layer lacks data."""

    landscape: Landscape
    missing: Bool[np.ndarray, "rows columns"]


class Raster(NamedTuple):
    """A raster as read from its file: NaN where data are missing, row 0 the northern edge, crs None if unknown."""

    path: str
    values: Float64[np.ndarray, "rows columns"]
    transform: Any
    crs: Any


def read_region(files: RegionFiles) -> Region:
    """Read and check the rasters of a region.

    Row 0 becomes the northern edge, whichever way a file is oriented. A cell that lacks data in any of the files does
    not burn. Where only the aspect is missing and the slope is 0, the cell is flat, not missing. Where LANDFIRE's
    aspect is -1, the slope becomes 0. Derived slopes and aspects are also missing next to cells without elevation.

    A projection in feet is understood; a file without a projection is taken to be in m.

    Raises:
        UserError: rasterio is not installed; a file is missing, cannot be read, has several bands, or cells that are
            not square or not aligned with those of the elevation; its values cannot be right, which is said with the
            likely reason; or no cell has data in all files.
    """
    rasters = {name: _read(path) for name, path in files.layers().items()}
    first = rasters["elevation"]
    crs = next((raster.crs for raster in rasters.values() if raster.crs is not None), None)
    layers = {}
    for name, raster in rasters.items():
        _raise_first(raster.path, _alignment_problems(raster, first, crs))
        known = raster.values[~np.isnan(raster.values)]
        _raise_first(raster.path, _value_problems(name, known, files))
        if name == "slope":
            layers[name] = SLOPE_UNITS[files.slope_units or ""][0](raster.values)
        else:
            layers[name] = raster.values / (CANOPY[name][0] if name in CANOPY and files.units == "landfire" else 1)
    cell_size = first.transform.a * (1.0 if crs is None else float(crs.linear_units_factor[1]))
    _add_terrain(layers, files, cell_size)
    for name in CANOPY:
        layers.setdefault(name, np.zeros(first.values.shape))
    missing: NDArray[np.bool_] = np.logical_or.reduce([np.isnan(values) for values in layers.values()])
    if missing.all():
        raise UserError(f"no cell has data in all of {', '.join(files.layers().values())}; give files of one region")
    for name, values in layers.items():
        values[missing] = BARE if name == "fuel" else 0
    fuel = layers.pop("fuel").astype(np.int16)
    return Region(Landscape(fuel=fuel, **layers, cell_size=cell_size), missing)


def tiles(region: Region, size: int, split: Split) -> list[Landscape]:
    """Return the square landscapes of a split, cut from a region; see `tile_corners`.

    Raises:
        UserError: the size is below 4, or there are no such tiles.
    """
    found = []
    for row, column in tile_corners(region, size, split):
        window = np.s_[row : row + size, column : column + size]
        layers = {name: layer[window] for name, layer in region.landscape.layers().items()}
        found.append(Landscape(**layers, cell_size=region.landscape.cell_size))
    if not found:
        rows, columns = region.missing.shape
        none = f"the region of {rows} x {columns} cells has no clean {split} tile of {size} x {size}"
        raise UserError(f"{none}: use smaller tiles, or a larger region")
    return found


def tile_corners(region: Region, size: int, split: Split) -> list[tuple[int, int]]:
    """Return row and column of the north-western cell of each tile of a split, from north to south.

    The region is divided into blocks of BLOCK x BLOCK tiles, from its north-western corner, with a quarter of `size`
    between blocks that belongs to no tile. All tiles of a block are of one split: of five neighbouring blocks in a row
    or column three are for training, one is for validation and one for the test. So tiles of different splits neither
    overlap nor touch, and the same rasters always make the same tiles. Tiles that lack data, or of which less than
    BURNABLE burns, are left out.
    """
    require_range("size", size, least=4)
    stride = BLOCK * size + size // 4
    burns = ~np.isin(region.landscape.fuel, list(NON_BURNABLE))
    rows, columns = (
        [first + size * tile for first in range(0, cells, stride) for tile in range(BLOCK)]
        for cells in region.missing.shape
    )
    corners = []
    for row, column in product(rows, columns):
        of_split = SPLIT_OF_BLOCK[(2 * (row // stride) + column // stride) % len(SPLIT_OF_BLOCK)] == split
        window = np.s_[row : row + size, column : column + size]
        whole = burns[window].shape == (size, size) and not region.missing[window].any()
        if of_split and whole and burns[window].mean() >= BURNABLE:
            corners.append((row, column))
    return corners


def _raise_first(path: str, problems: Iterator[str]) -> None:
    for problem in problems:
        raise UserError(f"{path} {problem}")


def _read(path: str) -> Raster:
    """Read a raster whose grid can be a landscape's."""
    try:
        import rasterio
    except ImportError as error:
        raise UserError(f"rasters need rasterio ({error}): pip install 'eigen2[fire]'") from error
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist, or is no file; name a GeoTIFF or an ESRI ASCII grid")
    try:
        with rasterio.open(path) as source:
            _raise_first(path, _grid_problems(source))
            values = source.read(1, masked=True)
            transform, crs = source.transform, source.crs or None
    except rasterio.errors.RasterioError as error:
        raise UserError(f"{path} cannot be read as a raster ({error}); give a GeoTIFF or an ESRI ASCII grid") from error
    if values.dtype.kind not in "iuf":
        raise UserError(f"{path} holds {values.dtype} values; give whole numbers or floats")
    filled: NDArray[np.float64] = values.astype(np.float64).filled(np.nan)
    if transform.e > 0:  # the first row is the southern one
        filled = filled[::-1].copy()
        north = transform.f + transform.e * len(filled)
        transform = rasterio.Affine(transform.a, 0, transform.c, 0, -transform.e, north)
    return Raster(path, filled, transform, crs)


def _grid_problems(source: Any) -> Iterator[str]:
    """Yield why an open raster's grid cannot be a landscape's, with the remedy."""
    at, crs, shape = source.transform, source.crs or None, source.shape
    if source.count != 1:
        yield f"has {source.count} bands; give a file of one: gdal_translate -b NUMBER IN.tif OUT.tif"
    if shape[0] * shape[1] > LARGEST:
        yield f"has {shape[0]} x {shape[1]} cells, above {LARGEST:,}; cut a region out: gdalwarp -te"
    if crs is not None and crs.is_geographic:
        yield f"is in degrees ({crs}), so that its cells differ in size; {PROJECT}"
    if crs is not None and crs.to_epsg() == 3857:
        yield f"is in web Mercator (EPSG:3857), whose metres are not metres on the ground; {PROJECT}"
    if at.b or at.d or at.a <= 0 or at.e == 0:
        yield f"is rotated or mirrored ({tuple(at)[:6]}); make it north-up: gdalwarp IN.tif OUT.tif"
    if abs(abs(at.e) / at.a - 1) > 1e-3:
        yield f"has cells of {at.a:g} x {abs(at.e):g}; make them square: gdalwarp -tr {at.a:g} {at.a:g}"
    if crs is None and at.a < 0.5:
        yield f"has cells of {at.a:g} and no projection; that looks like degrees: {PROJECT}"


def _alignment_problems(raster: Raster, first: Raster, crs: Any) -> Iterator[str]:
    """Yield how a raster's grid differs from the elevation's; a file without a projection is taken to share `crs`."""
    remedy = f"warp it to that grid: gdalwarp -te and -tr as gdalinfo says of {first.path}, -r near"
    at, wanted = raster.transform, first.transform
    if raster.crs is not None and raster.crs != crs:
        yield f"is in {raster.crs} and {first.path} in {crs}; {remedy}"
    if abs(at.a / wanted.a - 1) > 1e-4:
        yield f"has cells of {at.a:g} and {first.path} of {wanted.a:g}; {remedy}"
    if (shape := raster.values.shape) != first.values.shape:
        rows, columns = first.values.shape
        yield f"has {shape[0]} x {shape[1]} cells and {first.path} {rows} x {columns}; {remedy}"
    if max(abs(at.c - wanted.c), abs(at.f - wanted.f)) > 0.01 * wanted.a:
        corner, other = (at.c, at.f), (wanted.c, wanted.f)
        yield f"has its north-western corner at {corner} and {first.path} at {other}; {remedy}"


def _value_problems(name: str, known: NDArray[np.float64], files: RegionFiles) -> Iterator[str]:
    """Yield why the known values of a layer cannot be right, with the likely reason."""
    if known.size == 0:
        yield f"has no data at all; give another file for {name}"
    if (infinite := known[~np.isfinite(known)]).size:
        yield f"holds {infinite[0]}; set such cells to its nodata value"
    for filler in FILLERS:
        if np.any(known == np.float32(filler)):
            declare = f"gdal_edit.py -a_nodata {filler:g} {files.layers()[name]}"
            yield f"holds {filler:g}, which looks like missing data but is not declared so; declare it: {declare}"
    if name == "fuel":
        yield from _fuel_problems(np.unique(known))
        return
    if name in CANOPY and files.units == "landfire" and (broken := known[known != np.rint(known)]).size:
        yield f"holds {broken[0]:g}, and LANDFIRE's {name} whole numbers; is it in other units? Then say units: si"
    least, most, words = _limits(name, files)
    if (wrong := known[(known < least) | (known > most)]).size:
        yield f"holds {wrong[0]:g}; it must be {least:g} to {most:g}, {words}"
    if name == "aspect" and (between := known[(known < 0) & (known != -1)]).size:
        yield f"holds {between[0]:g}; aspect must be 0 to 360 degrees, or -1 where it is flat"


def _fuel_problems(numbers: NDArray[np.float64]) -> Iterator[str]:
    """Yield why numbers of fuel models cannot be right."""
    if (broken := numbers[numbers != np.rint(numbers)]).size:
        yield f"holds {broken[0]:g}; fuel models have whole numbers (warp them with -r near)"
    if (old := numbers[(numbers >= 1) & (numbers <= 13)]).size:
        yield f"holds fuel model {old[0]:g}, one of Anderson's 13; give Scott and Burgan's 40 (LANDFIRE's FBFM40)"
    try:
        require_known(numbers.astype(int).tolist())
    except UserError as error:
        yield f"is wrong: {error}"


def _limits(name: str, files: RegionFiles) -> tuple[float, float, str]:
    """Return the least and largest plausible value of a layer in its file's units, and what to say about others."""
    if name == "elevation":
        least, most, unit = RANGES[name]
        return least, most, f"{unit}; heights in feet or cm must be converted"
    if name == "aspect":
        return -1, 360, "degrees clockwise from north, or -1 where it is flat"
    if name == "slope":
        _, steepest, words = SLOPE_UNITS[files.slope_units or ""]
        return 0, steepest, words
    scale, largest = CANOPY[name]
    if files.units == "landfire":
        return 0, largest * scale, "LANDFIRE's units"
    return 0, largest, f"{RANGES[name][2]}; is it LANDFIRE's? Then say units: landfire"


def _add_terrain(layers: dict[str, NDArray[np.float64]], files: RegionFiles, cell_size: float) -> None:
    """Complete slope and aspect from the elevation, and refuse given ones that contradict it."""
    if min(layers["elevation"].shape) < 2:
        raise UserError(f"{files.elevation} has {layers['elevation'].shape} cells; give 2 or more a side")
    rise, facing = slopes(layers["elevation"], cell_size)
    if "slope" in layers:
        _require_agreeing_slope(files, layers["slope"], rise)
    slope = layers.setdefault("slope", rise)
    if "aspect" not in layers:
        layers["aspect"] = facing
        return
    aspect = layers["aspect"]
    steep = (rise > 0.05) & (aspect >= 0)
    if steep.sum() >= 50 and np.cos(np.radians(aspect - facing))[steep].mean() < -0.3:
        uphill = f"{files.aspect} faces uphill on the heights of {files.elevation}"
        raise UserError(f"{uphill}; it must be downhill, in degrees clockwise from north")
    level = aspect == -1
    layers["slope"] = np.where(level, 0, slope)
    layers["aspect"] = np.where(level | (np.isnan(aspect) & (layers["slope"] == 0)), 0, aspect)


def _require_agreeing_slope(files: RegionFiles, slope: NDArray[np.float64], rise: NDArray[np.float64]) -> None:
    """Refuse slopes that other units, or heights in feet, would explain far better."""
    both = ~(np.isnan(slope) | np.isnan(rise))
    if not both.any() or rise[both].mean() < 0.02 or slope[both].mean() == 0:
        return
    given, derived, units = slope[both], rise[both].mean(), files.slope_units or ""
    in_file = {"degrees": np.degrees(np.arctan(given)), "percent": 100 * given, "rise_run": given}[units]
    error = {name: abs(np.log(convert(in_file).mean() / derived)) for name, (convert, _, _) in SLOPE_UNITS.items()}
    likely = min(error, key=lambda name: float(error[name]))
    if error[units] > np.log(1.5) and error[likely] < np.log(1.25):
        raise UserError(
            f"{files.slope} has a mean slope of {given.mean():.3g} rise over run, and {files.elevation} of "
            f"{derived:.3g}; slope_units is {units}: is it {likely}?"
        )
    if abs(np.log(given.mean() * FEET / derived)) < np.log(1.15):
        steeper = f"{files.elevation} is {FEET:.2g} times as steep as {files.slope}"
        raise UserError(f"{steeper}: are its heights in feet? They must be in m")
