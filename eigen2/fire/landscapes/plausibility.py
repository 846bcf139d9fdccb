"""Layers of a region that contradict one another: other units, swapped files, a rotated aspect, undeclared gaps.

The fire model would burn them without complaint. Each problem names the layer, the likely cause and the remedy. What
cannot be told from sound rasters passes: heights in feet of gentle ground without a slope layer, for example.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import NDArray

from eigen2.fire.landscapes.landscape import slopes

Layers = Mapping[str, Float64[np.ndarray, "rows columns"]]
STEEP = 0.05  # rise over run above which ground has a slope and an aspect to compare
ENOUGH = 20  # cells that a comparison needs
AGREES = 0.5  # least mean cosine of the angle between two aspects that agree; of unrelated ones it is near 0
STEEPEST = 0.6  # largest mean slope of a region that is believed without a slope layer; in mountains it is 0.2 to 0.5
CLIFF = 30.0  # m from a cell of height 0 to its neighbours, in the median, that no shore has
SWAPPED = 0.05  # largest share of the wooded cells in which two canopy layers may contradict each other
DECLARE = "gdal_edit.py -a_nodata"
LOWEST_TREES = 1.5  # m, least median height of the cells under trees


def contradictions(layers: Layers, cell_size: float) -> Iterator[tuple[str, str]]:
    """Yield the layer and what is wrong with it, from rasters in the units of `RegionFiles`; NaN is missing data."""
    yield from _elevation_problems(layers["elevation"])
    rise, facing = slopes(layers["elevation"], cell_size)
    if "slope" in layers:
        yield from _slope_problems(layers, rise, cell_size)
    elif (mean := float(np.nanmean(rise)) if np.isfinite(rise).any() else 0.0) > STEEPEST:
        remedy = "convert it to metres, or, if the ground is that steep, give the slope layer too"
        yield "elevation", f"has a mean slope of {mean:.2f}, as heights in feet would; {remedy}"
    if "aspect" in layers:
        yield from _aspect_problems(layers["aspect"], facing, rise)
    yield from _canopy_problems(layers)


def _elevation_problems(elevation: NDArray[np.float64]) -> Iterator[tuple[str, str]]:
    """Yield cells of height 0 that end in cliffs on all sides."""
    drops = []
    for axis in (0, 1):
        one, other = np.moveaxis(elevation, axis, 0)[:-1], np.moveaxis(elevation, axis, 0)[1:]
        shore = (one == 0) ^ (other == 0)
        drops.append(np.abs(one - other)[shore & np.isfinite(one - other)])
    if (cliffs := np.concatenate(drops)).size and np.median(cliffs) > CLIFF:
        cause = f"holds 0 beside cells {np.median(cliffs):.0f} m higher, so 0 seems to mark missing data"
        yield "elevation", f"{cause}; declare it: {DECLARE} 0"


def _slope_problems(layers: Layers, rise: NDArray[np.float64], cell_size: float) -> Iterator[tuple[str, str]]:
    elevation, slope = layers["elevation"], layers["slope"]
    given = np.tan(np.radians(slope.clip(0, 89.9)))
    steep = np.isfinite(given) & (np.maximum(rise, given) > STEEP)
    if steep.sum() < ENOUGH:
        return
    height, angle = np.nanmax(elevation), np.nanmax(slope)
    times = float(np.median(rise[steep] / np.maximum(given[steep], 1e-6)))
    if _same(slope[steep], 100 * rise[steep]):
        yield "slope", "is in percent; give degrees (LANDFIRE's SlpD)"
    elif _same(slope[steep], rise[steep]) or _same(slope[steep], np.arctan(rise[steep])):
        yield "slope", "is in radians or rise over run; give degrees (LANDFIRE's SlpD)"
    elif (angle > 90 >= height) or _correlation(elevation, slopes(slope, cell_size)[0]) > 0.9:
        yield "slope", "does not fit the elevation, but would as an elevation itself; swap the two files"
    elif angle > 90:
        yield "slope", f"holds {angle:g}; it must be 0 to 90 degrees; if that marks missing data, declare it: {DECLARE}"
    elif 2.5 < times < 4.5:
        yield "elevation", f"is {times:.1f} times as steep as the slope layer, so in feet; convert it to metres"
    elif not 0.5 < times < 2:
        yield "slope", f"disagrees with the elevation, which is {times:.1f} times as steep; give degrees of one region"


def _aspect_problems(
    aspect: NDArray[np.float64], facing: NDArray[np.float64], rise: NDArray[np.float64]
) -> Iterator[tuple[str, str]]:
    """Yield how an aspect differs from `facing`, that of the elevation, where the ground is steep enough."""
    steep = np.isfinite(facing) & (rise > STEEP) & (aspect >= 0)
    if steep.sum() < ENOUGH:
        return
    given, wanted = np.radians(aspect[steep]), np.radians(facing[steep])
    remedy = "give degrees clockwise from north, downhill, as LANDFIRE's Asp"
    turn, mirror = np.exp(1j * (given - wanted)).mean(), np.exp(1j * (given + wanted)).mean()
    if turn.real >= AGREES:
        return
    if aspect[steep].max() <= 2 * np.pi + 1e-3 and np.cos(aspect[steep] - wanted).mean() >= AGREES:
        yield "aspect", f"is in radians; {remedy}"
    elif abs(turn) >= AGREES:
        degrees = np.degrees(np.angle(turn)) % 360
        yield "aspect", f"is rotated by {degrees:.0f} degrees against the gradient of the elevation; {remedy}"
    elif abs(mirror) >= AGREES:
        yield "aspect", f"is mirrored against the gradient of the elevation; {remedy}"
    else:
        yield "aspect", f"disagrees with the gradient of the elevation, as if flipped or of another region; {remedy}"


def _canopy_problems(layers: Layers) -> Iterator[tuple[str, str]]:
    """Yield canopy layers that contradict one another under trees."""
    cover, height = layers.get("canopy_cover"), layers.get("canopy_height")
    base, density = layers.get("canopy_base_height"), layers.get("canopy_bulk_density")
    if height is not None and base is not None and _often(base > height, (base > 0) | (height > 0)):
        yield "canopy_base_height", "lies above canopy_height under many trees; swap the two files"
    if cover is not None and density is not None and _often(density > cover, (cover > 0) | (density > 0)):
        yield "canopy_bulk_density", "is above canopy_cover, in LANDFIRE's units, under many trees; swap the two files"
    if height is not None:
        trees = height[height > 0]
        if trees.size >= ENOUGH and np.median(trees) < 10 * LOWEST_TREES:
            low = f"has trees of {np.median(trees) / 10:.1f} m in the median"
            yield "canopy_height", f"{low}; give m x 10, and look whether it is swapped with another canopy layer"


def _same(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Return whether two layers are equal within a fifth, in the median."""
    return bool(np.median(np.abs(one - other)) < 0.2 * np.median(other))


def _often(wrong: Bool[np.ndarray, "rows columns"], wooded: Bool[np.ndarray, "rows columns"]) -> bool:
    return bool(wooded.sum() >= ENOUGH and wrong[wooded].mean() > SWAPPED)


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the correlation of two layers where both are known; 0 if one is constant."""
    known = np.isfinite(one) & np.isfinite(other)
    if known.sum() < ENOUGH or one[known].std() == 0 or other[known].std() == 0:
        return 0.0
    return float(np.corrcoef(one[known], other[known])[0, 1])
