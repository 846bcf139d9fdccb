"""Landscapes from rasters of a region: one file a layer, GeoTIFF or ESRI ASCII grid, as LANDFIRE and others hand out.

Rasters come in many units, and fires burn happily in the wrong ones. So what cannot be right is refused, and the likely
mistake named.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.landscapes.fuels import NON_BURNABLE, require_known
from eigen2.fire.landscapes.landscape import RANGES, Landscape, slopes

LARGEST = 25_000_000
"""Cells of a region: reading one takes about 150 bytes a cell."""
BARE = next(number for number, what in NON_BURNABLE.items() if what == "bare ground")
"""Fuel model of cells without data."""
LANDFIRE = {"canopy_cover": 100, "canopy_height": 10, "canopy_base_height": 10, "canopy_bulk_density": 100}
"""How many of LANDFIRE's units make one here: percent, m x 10, m x 10, kg/m3 x 100."""
CANOPY_MOST = {"canopy_cover": 1, "canopy_height": 120, "canopy_base_height": 120, "canopy_bulk_density": 2}
"""Largest value that a layer can have, in the units here; the tallest tree has 116 m."""
FILLERS = (-9999, -32768, 32767, -3.4028235e38)
"""What often stands for no data."""
TO_RISE: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "degrees": lambda slope: np.tan(np.radians(np.minimum(slope, 89))),
    "percent": lambda slope: slope / 100,
    "rise_run": lambda slope: slope,
}
"""Rise over run, from what slopes are given in."""
FEET = 3.28084
"""In a metre."""
PROJECT = "project it: gdalwarp -t_srs EPSG:NUMBER, with the number of the region's UTM zone"
PARTS = ("train", "validation", "test", "train", "train")
"""What the tiles of a block are for, by `(2 * block row + block column) % 5`."""


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
        slope_units: degrees, percent or rise_run (rise over run); needed where `slope` is given, for LANDFIRE hands
            out both of the first two.

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
        if self.slope_units is not None and self.slope_units not in TO_RISE:
            raise UserError(f"slope_units is {self.slope_units}; it must be one of {', '.join(TO_RISE)}")
        if self.slope is not None and self.slope_units is None:
            raise UserError(f"slope_units is missing for {self.slope}; it must be one of {', '.join(TO_RISE)}")

    def layers(self) -> dict[str, str]:
        """The files given, by layer; elevation first."""
        found = {field.name: getattr(self, field.name) for field in fields(self) if "units" not in field.name}
        return {name: str(path) for name, path in found.items() if path is not None}


class Region(NamedTuple):
    """A landscape as large as the rasters.

    Attributes:
        landscape: where data are missing, bare ground that does not burn, level and at height 0.
        missing: cells that lack data in any layer.
    """

    landscape: Landscape
    missing: Bool[np.ndarray, "rows columns"]


class Grid(NamedTuple):
    """Where the cells of a raster are.

    Attributes:
        shape: rows and columns.
        corner: of the north-western cell: its outer corner, in the unit of the projection.
        cell: edge of a cell, in that unit.
        unit: length of the unit, in m.
        crs: the projection; None if the file does not say.
    """

    shape: tuple[int, int]
    corner: tuple[float, float]
    cell: float
    unit: float
    crs: Any


def read_landscape(files: RegionFiles) -> Landscape:
    """The landscape of a whole region, as `read_region` has it."""
    return read_region(files).landscape


def read_region(files: RegionFiles) -> Region:
    """Read and check the rasters of a region.

    Row 0 becomes the northern edge, whichever way a file has it. A cell that lacks data in any of the files does not
    burn. Where only the aspect is missing, and the slope is 0, the cell is flat, not missing. Where LANDFIRE's aspect
    is -1, the slope becomes 0. Derived slopes and aspects are also missing next to cells without elevation.

    A projection in feet is understood; a file without a projection is taken to be in m.

    Raises:
        UserError: rasterio is not installed; a file is not there, cannot be read, has several bands, or cells that are
            not square or not aligned with those of the elevation; its values cannot be right, which is said with the
            likely reason; or there are no data.
    """
    layers: dict[str, NDArray[np.float64]] = {}
    paths = files.layers()
    first: Grid | None = None
    for name, path in paths.items():
        layers[name], grid = _read(path)
        first = grid if first is None else first
        _require_aligned(path, grid, paths["elevation"], first)
        first = first if first.crs is not None else first._replace(crs=grid.crs, unit=grid.unit)
    assert first is not None
    size = first.cell * first.unit
    for name, path in paths.items():
        layers[name] = _checked(name, path, layers[name], files)
    _add_terrain(layers, paths, files, size)
    for name in LANDFIRE:
        layers.setdefault(name, np.zeros(first.shape))
    missing = np.zeros(first.shape, bool)
    for values in layers.values():
        missing |= np.isnan(values)
    if missing.all():
        raise UserError(f"no cell has data in all of {', '.join(paths.values())}; give files of the same region")
    for name, values in layers.items():
        values[missing] = BARE if name == "fuel" else 0
    fuel = layers.pop("fuel").astype(np.int16)
    landscape = Landscape(
        fuel=fuel, **{name: values.astype(np.float32) for name, values in layers.items()}, cell_size=size
    )
    return Region(landscape, missing)


def tiles(
    region: Region,
    size: int,
    part: str,
    block: int = 4,
    gap: int | None = None,
    burnable: float = 0.5,
) -> list[Landscape]:
    """Square landscapes cut from a region: those for training, for validation or for the test.

    The region is divided into blocks of `block` x `block` tiles, from its north-western corner, with `gap` cells
    between blocks, which no tile has. All tiles of a block are for the same: of five neighbouring blocks in a row or
    column three are for training, one is for validation and one for the test (`PARTS`). So tiles of different parts
    neither overlap nor touch, and the same settings always make the same tiles. Tiles that lack data, or in which too
    little burns, are left out.

    Args:
        region: from `read_region`.
        size: of a tile, its rows and columns (4 or more).
        part: train, validation or test.
        block: tiles along the edge of a block (1 or more).
        gap: cells between blocks (1 or more); None takes a quarter of `size`.
        burnable: share of a tile's cells that must burn (above 0, at most 1).

    Returns:
        From north to south, and from west to east within a row.

    Raises:
        UserError: a setting is outside its range, or there are no such tiles.
    """
    found = [
        _cut(region.landscape, row, column, size)
        for row, column in tile_corners(region, size, part, block, gap, burnable)
    ]
    if not found:
        rows, columns = region.missing.shape
        raise UserError(
            f"the region of {rows} x {columns} cells has no clean {part} tile of {size} x {size}: use smaller tiles, "
            f"smaller blocks (block is {block}), or a larger region"
        )
    return found


def tile_corners(
    region: Region, size: int, part: str, block: int = 4, gap: int | None = None, burnable: float = 0.5
) -> list[tuple[int, int]]:
    """Row and column of the north-western cell of each of `tiles`, which says what the arguments are."""
    require_range("size", size, least=4)
    require_range("block", block, least=1)
    require_range("burnable", burnable, above=0, most=1)
    between = max(size // 4, 1) if gap is None else gap
    require_range("gap", between, least=1)
    if part not in PARTS:
        raise UserError(f"part is {part}; it must be train, validation or test")
    clean = ~region.missing
    burns = ~np.isin(region.landscape.fuel, list(NON_BURNABLE))
    stride = block * size + between
    corners = []
    for row in _starts(region.missing.shape[0], size, block, stride):
        for column in _starts(region.missing.shape[1], size, block, stride):
            own = PARTS[(2 * (row // stride) + column // stride) % len(PARTS)]
            window = np.s_[row : row + size, column : column + size]
            if own == part and clean[window].all() and burns[window].mean() >= burnable:
                corners.append((row, column))
    return corners


def _starts(cells: int, size: int, block: int, stride: int) -> Iterator[int]:
    """First cells of the tiles along an edge, as far as whole ones fit."""
    for first in range(0, cells, stride):
        yield from (start for start in range(first, first + block * size, size) if start + size <= cells)


def _cut(landscape: Landscape, row: int, column: int, size: int) -> Landscape:
    window = np.s_[row : row + size, column : column + size]
    return Landscape(
        **{name: getattr(landscape, name)[window] for name in landscape.layers()}, cell_size=landscape.cell_size
    )


def _read(path: str) -> tuple[Float64[np.ndarray, "rows columns"], Grid]:
    """Values of a raster, NaN where there are none and row 0 in the north, and where its cells are."""
    try:
        import rasterio
    except ImportError as error:
        raise UserError(f"rasters need rasterio ({error}): pip install 'eigen2[fire]'") from error
    if not Path(path).is_file():
        raise UserError(f"{path} is not there, or no file; name a GeoTIFF or an ESRI ASCII grid")
    try:
        with rasterio.open(path) as source:
            if source.count != 1:
                raise UserError(
                    f"{path} has {source.count} bands; give a file of one: gdal_translate -b NUMBER IN.tif OUT.tif"
                )
            grid = _grid(path, source)
            read = source.read(1, masked=True)
            south_first = source.transform.e > 0
    except rasterio.errors.RasterioError as error:
        raise UserError(f"{path} cannot be read as a raster ({error}); give a GeoTIFF or an ESRI ASCII grid") from error
    if read.dtype.kind not in "iuf":
        raise UserError(f"{path} holds {read.dtype} values; give whole numbers or floats")
    values: NDArray[np.float64] = read.astype(np.float64).filled(np.nan)
    return (values[::-1].copy() if south_first else values), grid


def _grid(path: str, source: Any) -> Grid:
    """Where a raster's cells are, if they are such as a landscape needs."""
    shape, at, crs = (source.height, source.width), source.transform, source.crs or None
    if shape[0] * shape[1] > LARGEST:
        raise UserError(f"{path} has {shape[0]} x {shape[1]} cells, above {LARGEST:,}; cut a region out: gdalwarp -te")
    if crs is not None and crs.is_geographic:
        raise UserError(f"{path} is in degrees ({crs}), so that its cells have no one size; {PROJECT}")
    if crs is not None and crs.to_epsg() == 3857:
        raise UserError(f"{path} is in web Mercator (EPSG:3857), whose metres are none on the ground; {PROJECT}")
    if at.b or at.d or at.a <= 0 or at.e == 0:
        raise UserError(f"{path} is rotated or mirrored ({tuple(at)[:6]}); make it north-up: gdalwarp IN.tif OUT.tif")
    if abs(abs(at.e) / at.a - 1) > 1e-3:
        raise UserError(
            f"{path} has cells of {at.a:g} x {abs(at.e):g}; make them square: gdalwarp -tr {at.a:g} {at.a:g}"
        )
    if crs is None and at.a < 0.5:
        raise UserError(f"{path} has cells of {at.a:g} and no projection; that looks like degrees: {PROJECT}")
    north = at.f + (at.e * shape[0] if at.e > 0 else 0)
    return Grid(shape, (at.c, north), at.a, 1.0 if crs is None else float(crs.linear_units_factor[1]), crs)


def _require_aligned(path: str, grid: Grid, reference: str, first: Grid) -> None:
    """Refuse a raster that lies elsewhere than the first; a file that does not name its projection has the other's."""
    remedy = f"warp it to that grid: gdalwarp -te and -tr as gdalinfo says of {reference}, -r near"
    if None not in (grid.crs, first.crs) and grid.crs != first.crs:
        raise UserError(f"{path} is in {grid.crs} and {reference} in {first.crs}; {remedy}")
    if abs(grid.cell / first.cell - 1) > 1e-4:
        raise UserError(f"{path} has cells of {grid.cell:g} and {reference} of {first.cell:g}; {remedy}")
    if grid.shape != first.shape:
        raise UserError(
            f"{path} has {' x '.join(map(str, grid.shape))} cells and {reference} "
            f"{' x '.join(map(str, first.shape))}; {remedy}"
        )
    if max(abs(a - b) for a, b in zip(grid.corner, first.corner, strict=True)) > 0.01 * first.cell:
        raise UserError(
            f"{path} has its north-western corner at {grid.corner} and {reference} at {first.corner}; {remedy}"
        )


def _checked(name: str, path: str, values: NDArray[np.float64], files: RegionFiles) -> NDArray[np.float64]:
    """A layer in the units of a landscape, NaN where data are missing."""
    known = values[~np.isnan(values)]
    if known.size == 0:
        raise UserError(f"{path} has no data at all; give another file for {name}")
    infinite = known[~np.isfinite(known)]
    if infinite.size:
        raise UserError(f"{path} holds {infinite[0]}; set such cells to its nodata value")
    for filler in FILLERS:
        if np.any(known == np.float32(filler)):
            raise UserError(
                f"{path} holds {filler:g}, which looks like no data but is not declared as such; declare it: "
                f"gdal_edit.py -a_nodata {filler:g} {path}"
            )
    if name == "fuel":
        _require_fuel(path, known)
        return values
    if name == "slope":
        return _rise(path, values, known, files.slope_units or "")
    if name == "aspect":
        _require(path, known, -1, 360, "degrees clockwise from north, or -1 where it is flat")
        between = known[(known < 0) & (known != -1)]
        if between.size:
            raise UserError(f"{path} holds {between[0]:g}; aspect must be 0 to 360 degrees, or -1 where it is flat")
        return values
    if name == "elevation":
        least, most, unit = RANGES[name]
        _require(path, known, float(least), float(most), f"{unit}; heights in feet or cm must be converted")
        return values
    return _canopy(name, path, values, known, files.units)


def _require(path: str, known: NDArray[np.float64], least: float, most: float, words: str) -> None:
    wrong = known[(known < least) | (known > most)]
    if wrong.size:
        raise UserError(f"{path} holds {wrong[0]:g}; it must be {least:g} to {most:g}, {words}")


def _require_fuel(path: str, known: NDArray[np.float64]) -> None:
    numbers = np.unique(known)
    broken = numbers[numbers != np.rint(numbers)]
    if broken.size:
        raise UserError(f"{path} holds {broken[0]:g}; fuel models have whole numbers (warp them with -r near)")
    old = numbers[(numbers >= 1) & (numbers <= 13)]
    if old.size:
        raise UserError(
            f"{path} holds fuel model {old[0]:g}, one of Anderson's 13; give the 40 of Scott and Burgan instead "
            "(LANDFIRE's FBFM40)"
        )
    try:
        require_known(numbers.astype(int).tolist())
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _rise(path: str, values: NDArray[np.float64], known: NDArray[np.float64], units: str) -> NDArray[np.float64]:
    """Slopes as rise over run."""
    if units == "degrees":
        _require(path, known, 0, 89, "degrees; is it percent? Then say slope_units: percent")
    elif units == "rise_run":
        _require(path, known, 0, 20, "rise over run; is it degrees or percent? Then say so in slope_units")
    else:
        _require(path, known, 0, 2000, "percent")
    return TO_RISE[units](values)


def _canopy(
    name: str, path: str, values: NDArray[np.float64], known: NDArray[np.float64], units: str
) -> NDArray[np.float64]:
    scale = LANDFIRE[name] if units == "landfire" else 1
    other = "si" if units == "landfire" else "landfire"
    broken = known[known != np.rint(known)]
    if units == "landfire" and broken.size:
        raise UserError(
            f"{path} holds {broken[0]:g}, and LANDFIRE's {name} whole numbers; is it in other units? Then say units: si"
        )
    words = (
        "LANDFIRE's units" if units == "landfire" else f"{RANGES[name][2]}; is it LANDFIRE's? Then say units: {other}"
    )
    _require(path, known, 0, CANOPY_MOST[name] * scale, words)
    return values / scale


def _add_terrain(
    layers: dict[str, NDArray[np.float64]], paths: dict[str, str], files: RegionFiles, size: float
) -> None:
    """Complete slope and aspect by the elevation's, and see whether those given agree with it."""
    if min(layers["elevation"].shape) < 2:
        raise UserError(f"{paths['elevation']} has {layers['elevation'].shape} cells; give 2 or more a side")
    rise, facing = slopes(layers["elevation"], size)
    if "slope" in paths:
        _require_agreeing_slope(paths, layers["slope"], rise, files.slope_units or "")
    else:
        layers["slope"] = rise
    if "aspect" in paths:
        aspect = layers["aspect"]
        _require_agreeing_aspect(paths, aspect, facing, rise)
        flat = aspect == -1
        layers["slope"] = np.where(flat, 0, layers["slope"])
        layers["aspect"] = np.where(flat | (np.isnan(aspect) & (layers["slope"] == 0)), 0, aspect)
    else:
        layers["aspect"] = facing


def _require_agreeing_slope(
    paths: dict[str, str], slope: NDArray[np.float64], rise: NDArray[np.float64], units: str
) -> None:
    """Refuse slopes that other units, or heights in feet, would explain far better."""
    both = ~(np.isnan(slope) | np.isnan(rise))
    if not both.any() or rise[both].mean() < 0.02 or slope[both].mean() == 0:
        return
    given, derived = slope[both], rise[both].mean()
    read = {"degrees": np.degrees(np.arctan(given)), "percent": 100 * given, "rise_run": given}[units]
    off = {name: abs(np.log(convert(read).mean() / derived)) for name, convert in TO_RISE.items()}
    likely = min(off, key=lambda name: float(off[name]))
    if off[units] > np.log(1.5) and off[likely] < np.log(1.25):
        raise UserError(
            f"{paths['slope']} has a mean slope of {given.mean():.3g} rise over run, and {paths['elevation']} of "
            f"{derived:.3g}; slope_units is {units}: is it {likely}?"
        )
    if abs(np.log(given.mean() * FEET / derived)) < np.log(1.15):
        raise UserError(
            f"{paths['elevation']} is {FEET:.2g} times as steep as {paths['slope']}: are its heights in feet? "
            "They must be in m"
        )


def _require_agreeing_aspect(
    paths: dict[str, str], aspect: NDArray[np.float64], facing: NDArray[np.float64], rise: NDArray[np.float64]
) -> None:
    """Refuse aspects that face the other way."""
    steep = (rise > 0.05) & (aspect >= 0)
    if steep.sum() >= 50 and np.cos(np.radians(aspect - facing))[steep].mean() < -0.3:
        raise UserError(
            f"{paths['aspect']} faces uphill on the heights of {paths['elevation']}; it must be downhill, in degrees "
            "clockwise from north"
        )
