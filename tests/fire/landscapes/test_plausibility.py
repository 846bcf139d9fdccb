"""Layers that contradict one another are refused with file, cause and remedy; sound ones of any terrain are not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eigen2.errors import UserError
from eigen2.fire.landscapes.landscape import slopes, synthesize
from eigen2.fire.landscapes.plausibility import contradictions
from eigen2.fire.landscapes.rasters import RegionFiles, read_region
from tests.fire.landscapes.test_rasters import SCALES, write

rasterio = pytest.importorskip("rasterio")
Layers = dict[str, NDArray[np.float64]]
FUEL = synthesize(24, np.random.default_rng(5)).fuel


def layers(seed: int = 5, mean_slope: float = 0.25, size: int = 24, base: float = 500.0) -> Layers:
    """All layers of a synthetic landscape but its fuel, rounded as LANDFIRE rounds them."""
    land = synthesize(size, np.random.default_rng(seed))
    height = (land.elevation.astype(float) - 500) * mean_slope / 0.25
    rise, facing = slopes(height, 30.0)
    made = {"elevation": np.rint(base + height), "slope": np.rint(np.degrees(np.arctan(rise)))}
    made["aspect"] = np.where(rise > 0, np.rint(facing) % 360, -1)
    return made | {name: np.rint(getattr(land, name).astype(float) * scale) for name, scale in SCALES.items()}


def swapped(one: str, other: str) -> Callable[[Layers], Layers]:
    return lambda made: {one: made[other], other: made[one]}


def nodata_zero(made: Layers) -> Layers:
    elevation = made["elevation"].copy()
    elevation[:5, :7] = 0
    return {"elevation": elevation}


FAULTS: dict[str, tuple[Callable[[Layers], Layers], str, str]] = {
    "feet": (lambda made: {"elevation": made["elevation"] / 0.3048}, "elevation", r"3\.[2-4] times.*in feet.*convert"),
    "aspect in radians": (
        lambda made: {"aspect": np.radians(made["aspect"].clip(0))},
        "aspect",
        "is in radians; give degrees",
    ),
    "aspect mirrored east to west": (lambda made: {"aspect": (-made["aspect"]) % 360}, "aspect", "is mirrored.*give"),
    "aspect mirrored north to south": (lambda made: {"aspect": (180 - made["aspect"]) % 360}, "aspect", "is mirrored"),
    "aspect uphill": (lambda made: {"aspect": (made["aspect"] + 180) % 360}, "aspect", "rotated by 180 degrees"),
    "aspect from east": (lambda made: {"aspect": (made["aspect"] - 90) % 360}, "aspect", "rotated by 270 degrees"),
    "aspect flipped as a raster": (lambda made: {"aspect": made["aspect"][::-1]}, "aspect", "disagrees.*flipped.*give"),
    "elevation and slope swapped": (swapped("elevation", "slope"), "slope", "swap the two files"),
    "slope in percent": (lambda made: {"slope": 100 * np.tan(np.radians(made["slope"]))}, "slope", "percent; give deg"),
    "slope as rise": (
        lambda made: {"slope": np.tan(np.radians(made["slope"]))},
        "slope",
        "rise over run; give degrees",
    ),
    "another slope": (lambda made: {"slope": made["slope"] / 8}, "slope", "disagrees with the elevation.*give degrees"),
    "height and base height swapped": (
        swapped("canopy_height", "canopy_base_height"),
        "canopy_base_height",
        "above canopy_height under many trees; swap",
    ),
    "cover and density swapped": (
        swapped("canopy_cover", "canopy_bulk_density"),
        "canopy_bulk_density",
        "above canopy_cover.*swap",
    ),
    "height and density swapped": (
        swapped("canopy_height", "canopy_bulk_density"),
        "canopy_bulk_density",
        "must be 0 to 200",
    ),
    "height and cover swapped": (swapped("canopy_height", "canopy_cover"), "canopy_cover", "must be 0 to 100"),
    "missing data as 0": (nodata_zero, "elevation", r"holds 0 beside cells \d+ m higher.*gdal_edit.py -a_nodata 0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused(fault: str, tmp_path: Path) -> None:
    change, layer, words = FAULTS[fault]
    sound = layers()
    files = {name: write(tmp_path / f"{name}.tif", values) for name, values in sound.items()}
    files["fuel"] = write(tmp_path / "fuel.tif", FUEL)
    read_region(RegionFiles(**files))
    files |= {name: write(tmp_path / f"{name}.tif", values) for name, values in change(sound).items()}
    with pytest.raises(UserError, match=words) as refused:
        read_region(RegionFiles(**files))
    assert f"{layer}.tif" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_feet_are_noticed_without_a_slope_layer(tmp_path: Path) -> None:
    """By the unit that a file declares, or by ground that is too steep."""
    fuel = write(tmp_path / "fuel.tif", FUEL)
    feet = write(tmp_path / "feet.tif", layers()["elevation"] / 0.3048)
    with pytest.raises(UserError, match=r"feet\.tif has a mean slope of 0\.8\d, as heights in feet.*convert"):
        read_region(RegionFiles(feet, fuel))
    gentle = write(tmp_path / "gentle.tif", layers(mean_slope=0.1)["elevation"] / 0.3048)
    read_region(RegionFiles(gentle, fuel))
    with rasterio.open(gentle, "r+") as file:
        file.units = ("ft",)
    with pytest.raises(UserError, match=r"gentle\.tif has values in ft; convert it to metres"):
        read_region(RegionFiles(gentle, fuel))


@settings(max_examples=60)
@given(
    st.integers(0, 2**31),
    st.floats(0.0, 0.4),
    st.integers(8, 40),
    st.floats(-50, 3000),
    st.sets(st.sampled_from(["slope", "aspect", *SCALES])),
    st.floats(0, 0.5),
)
def test_sound_layers_are_not_refused(
    seed: int, mean_slope: float, size: int, base: float, left_out: set[str], gaps: float
) -> None:
    made = {name: values for name, values in layers(seed, mean_slope, size, base).items() if name not in left_out}
    rng = np.random.default_rng(seed)
    for values in made.values():
        values[rng.random(values.shape) < gaps] = np.nan
    assert list(contradictions(made, 30.0)) == []


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.floats(0.0, 0.4))
def test_a_shore_is_not_missing_data(seed: int, mean_slope: float) -> None:
    height = np.maximum(layers(seed, mean_slope, base=0.0)["elevation"] - 20, 0)
    assert list(contradictions({"elevation": height}, 30.0)) == []
