"""Landscapes from rasters: what is read, and what is refused with a reason."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigen2.errors import UserError
from eigen2.fire.landscapes.fuels import BARE
from eigen2.fire.landscapes.landscape import SPLITS, Landscape, slopes, synthesize
from eigen2.fire.landscapes.rasters import (
    SPLIT_OF_BLOCK,
    Region,
    RegionFiles,
    read_on_grid,
    read_region,
    tile_corners,
    tiles,
)

rasterio = pytest.importorskip("rasterio")
UTM = "EPSG:32611"
SCALES = {"canopy_cover": 100, "canopy_height": 10, "canopy_base_height": 10, "canopy_bulk_density": 100}
HILLS = synthesize(24, np.random.default_rng(5))
CLIFF = HILLS.elevation.copy()
CLIFF[10, 6] += 2 * 30 * 40


def write(
    path: Path, values: Any, cell: float = 30.0, crs: str | None = UTM, nodata: float | None = -9999, **options: Any
) -> str:
    """A GeoTIFF whose first row is the northern one, or an ASCII grid."""
    array = np.asarray(values, options.pop("dtype", np.float32))
    bands = array if array.ndim == 3 else array[None]
    transform = options.pop("transform", rasterio.Affine(cell, 0, 500_000, 0, -cell, 4_500_000))
    driver = "AAIGrid" if path.suffix == ".asc" else "GTiff"
    if driver == "AAIGrid":
        bands = bands.astype(np.float32)
    shape = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    given = {"dtype": bands.dtype, "crs": crs, "transform": transform, "nodata": nodata, **shape}
    with rasterio.open(path, "w", driver=driver, **given) as file:
        file.write(bands)
        if "scale" in options:
            file.scales, file.offsets = (options.pop("scale"),), (options.pop("offset"),)
        if "unit" in options:
            file.units = (options.pop("unit"),)
    return str(path)


def whole(folder: Path, landscape: Landscape = HILLS, suffix: str = ".tif") -> dict[str, Any]:
    """All layers of a landscape, as LANDFIRE has them."""
    given = {"elevation": landscape.elevation, "fuel": landscape.fuel}
    given |= {name: np.rint(getattr(landscape, name) * scale) for name, scale in SCALES.items()}
    return {name: write(folder / f"{name}{suffix}", values) for name, values in given.items()}


@pytest.mark.parametrize("suffix", [".tif", ".asc"])
def test_what_was_written_is_read(tmp_path: Path, suffix: str) -> None:
    region = read_region(RegionFiles(**whole(tmp_path, suffix=suffix)))
    assert not region.missing.any()
    found = region.landscape
    assert found.cell_size == 30
    np.testing.assert_array_equal(found.fuel, HILLS.fuel)
    rise, facing = slopes(HILLS.elevation.astype(float), 30.0)
    for name, expected, tolerance in (
        ("elevation", HILLS.elevation, 1e-2),
        ("slope", rise, 1e-3),
        ("aspect", facing, 1),
    ):
        np.testing.assert_allclose(getattr(found, name)[rise > 0.01], expected[rise > 0.01], atol=tolerance)
    for name, scale in SCALES.items():
        np.testing.assert_allclose(getattr(found, name), getattr(HILLS, name), atol=0.51 / scale)


def test_the_first_row_is_the_northern_one(tmp_path: Path) -> None:
    files = whole(tmp_path)
    north = 4_500_000
    upwards = rasterio.Affine(30, 0, 500_000, 0, 30, north - 24 * 30)
    files["fuel"] = write(tmp_path / "up.tif", HILLS.fuel[::-1], transform=upwards)
    np.testing.assert_array_equal(read_region(RegionFiles(**files)).landscape.fuel, HILLS.fuel)


def test_feet_of_the_projection_become_metres(tmp_path: Path) -> None:
    # EPSG:2225 is California zone 1 in US survey feet
    feet = 30 / 0.3048006096
    files = {
        "elevation": write(tmp_path / "e.tif", HILLS.elevation, cell=feet, crs="EPSG:2225"),
        "fuel": write(tmp_path / "f.tif", HILLS.fuel, cell=feet, crs="EPSG:2225"),
    }
    assert read_region(RegionFiles(**files)).landscape.cell_size == pytest.approx(30, rel=1e-6)
    # a file without a projection has that of the others
    files["elevation"] = write(tmp_path / "none.tif", HILLS.elevation, cell=feet, crs=None)
    assert read_region(RegionFiles(**files)).landscape.cell_size == pytest.approx(30, rel=1e-6)


def test_a_band_may_have_a_scale_and_heights_a_datum(tmp_path: Path) -> None:
    fuel, decimetres = write(tmp_path / "f.tif", HILLS.fuel), 10 * (HILLS.elevation - 100)
    scaled = write(tmp_path / "d.tif", decimetres, scale=0.1, offset=100.0)
    above_sea = write(tmp_path / "h.tif", HILLS.elevation, crs=f"{UTM}+5773")
    for heights in (scaled, above_sea):
        region = read_region(RegionFiles(heights, fuel))
        np.testing.assert_allclose(region.landscape.elevation, HILLS.elevation, atol=1e-3)
        assert region.crs == rasterio.crs.CRS.from_user_input(UTM)


def test_cells_without_data_do_not_burn(tmp_path: Path) -> None:
    files = whole(tmp_path)
    cover = np.rint(HILLS.canopy_cover * 100)
    cover[3, 4] = -9999
    files["canopy_cover"] = write(tmp_path / "c.tif", cover)
    region = read_region(RegionFiles(**files))
    assert region.missing.sum() == 1
    assert region.missing[3, 4]
    assert region.landscape.fuel[3, 4] == BARE
    assert region.landscape.elevation[3, 4] == 0
    heights = HILLS.elevation.copy()
    heights[10, 6] = np.nan  # and so no slope around it
    region = read_region(RegionFiles(elevation=write(tmp_path / "e.tif", heights), fuel=files["fuel"]))
    assert np.argwhere(region.missing).tolist() == [[9, 6], [10, 5], [10, 6], [10, 7], [11, 6]]
    assert not region.landscape.canopy_cover.any(), "a canopy that is not given means no trees"


@pytest.mark.parametrize(
    ("layer", "values", "changes", "words"),
    [
        ("fuel", HILLS.fuel[:, :-1], {}, "different grids.*(24, 23).*(24, 24).*warp it"),
        ("fuel", HILLS.fuel, {"cell": 60}, "different grids.*60.*30.*gdalwarp -te"),
        ("fuel", HILLS.fuel, {"crs": "EPSG:32612"}, "different grids.*EPSG:32612.*EPSG:32611"),
        ("fuel", HILLS.fuel, {"transform": rasterio.Affine(30, 0, 30, 0, -30, 0)}, "different grids"),
        ("fuel", HILLS.fuel, {"transform": rasterio.Affine(30, 0, 0, 0, -20, 0)}, "square cells.*-tr"),
        ("fuel", HILLS.fuel, {"transform": rasterio.Affine(30, 1, 0, 1, -30, 0)}, "not north-up.*gdalwarp"),
        ("fuel", np.stack([HILLS.fuel] * 3), {}, "3 bands.*gdal_translate -b"),
        ("fuel", HILLS.fuel, {"cell": 0.0003, "crs": "EPSG:4326"}, "EPSG:4326, whose units are not metres.*UTM"),
        ("fuel", HILLS.fuel, {"cell": 0.0003, "crs": None}, "looks like degrees.*UTM"),
        ("fuel", HILLS.fuel, {"crs": "EPSG:4978"}, "EPSG:4978, which is no map projection.*UTM"),
        (
            "fuel",
            HILLS.fuel,
            {"transform": rasterio.Affine.identity()},
            "no place on the ground.*gdal_translate -a_ullr",
        ),
        *(
            ("fuel", HILLS.fuel, {"crs": crs}, f"{crs}, whose units are not metres.*UTM")
            for crs in ("EPSG:3857", "EPSG:3395", "EPSG:4087")
        ),
        ("fuel", np.full((24, 24), 1e30), {}, r"fuel model 1e\+30 is not known"),
        ("fuel", np.full((24, 24), 5), {}, "fuel model 5.*Anderson's 13.*FBFM40"),
        ("fuel", np.full((24, 24), 150), {}, "fuel model 150.*FBFM40"),
        ("fuel", np.full((24, 24), 101.5), {}, "101.5.*whole numbers.*-r near"),
        ("fuel", np.full((24, 24), -9999), {}, "no data at all"),
        ("fuel", np.full((24, 24), 32767), {}, "32767.*missing data.*gdal_edit.py -a_nodata"),
        ("elevation", np.full((24, 24), 12_000), {}, "12000.*feet"),
        ("elevation", np.full((24, 24), np.inf), {}, "inf.*nodata"),
        *(
            ("elevation", HILLS.elevation, {"unit": unit}, f"has values in {unit.lower()}; convert it to metres")
            for unit in ("ft", "US survey foot", "international foot", "foot_us", "Feet")
        ),
        ("elevation", CLIFF, {}, "rises by 40 m a metre.*more than 20.*gdal_edit.py -a_nodata, else resample"),
        ("canopy_cover", np.full((24, 24), 140), {}, "140.*0 to 100"),
        ("canopy_cover", HILLS.canopy_cover, {}, "whole numbers"),
        ("canopy_height", np.full((24, 24), 4000), {}, "4000.*0 to 1200"),
        ("canopy_bulk_density", np.full((24, 24), -1), {}, "-1.*0 to 200"),
    ],
)
def test_what_cannot_be_right_is_refused(
    tmp_path: Path, layer: str, values: Any, changes: dict[str, Any], words: str
) -> None:
    files = {"elevation": write(tmp_path / "e.tif", HILLS.elevation), "fuel": write(tmp_path / "f.tif", HILLS.fuel)}
    files[layer] = write(tmp_path / "wrong.tif", values, **changes)
    with pytest.raises(UserError, match=re.sub(r"[()]", r"\\\g<0>", words)) as refused:
        read_region(RegionFiles(**files))
    assert "wrong.tif" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heights, text = write(tmp_path / "e.tif", HILLS.elevation), tmp_path / "text.tif"
    text.write_text("no raster")
    for fuel, words in (
        (str(tmp_path / "none.tif"), r"none\.tif does not exist"),
        (str(tmp_path), "does not exist, or is no file"),
        (str(text), r"text\.tif cannot be read as a raster"),
    ):
        with pytest.raises(UserError, match=words):
            read_region(RegionFiles(heights, fuel))
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(UserError, match=r"pip install -c constraints.txt -e '\.\[fire\]'"):
        read_region(RegionFiles(heights, heights))


def region(rows: int, columns: int, seed: int = 0) -> Region:
    """Part of a synthetic landscape, all of it known."""
    made = synthesize(max(rows, columns), np.random.default_rng(seed))
    layers = {name: layer[:rows, :columns] for name, layer in made.layers().items()}
    return Region(Landscape(**layers), np.zeros((rows, columns), bool))


def test_tiles_of_different_splits_neither_overlap_nor_touch() -> None:
    whole_region = region(180, 180)
    owner = np.zeros((182, 182), int)  # a border of one cell around it
    for number, split in enumerate(SPLITS, 1):
        corners = tile_corners(whole_region, 4, split)
        assert len(corners) > 10
        for row, column in corners:
            around = owner[row : row + 6, column : column + 6]
            assert set(np.unique(around)) <= {0, number}
            inner = owner[row + 1 : row + 5, column + 1 : column + 5]
            assert not inner.any()
            inner[:] = number
    counts = [(owner == number).sum() for number in (1, 2, 3)]
    assert counts[0] / sum(counts) == pytest.approx(0.6, abs=0.06)
    assert {SPLIT_OF_BLOCK.count(split) for split in ("validation", "test")} == {1}


def test_tiles_are_clean_and_as_the_region_is() -> None:
    given = region(100, 100)
    given.missing[10, 10] = True
    found, corners = tiles(given, 16, "train"), tile_corners(given, 16, "train")
    assert (0, 0) not in corners
    assert (0, 16) in corners
    for tile, (row, column) in zip(found, corners, strict=True):
        assert tile.shape == (16, 16)
        np.testing.assert_array_equal(tile.fuel, given.landscape.fuel[row : row + 16, column : column + 16])
        assert np.isin(tile.fuel, [91, 92, 93, 98, 99]).mean() <= 0.5


def test_a_region_without_tiles_is_refused() -> None:
    with pytest.raises(UserError, match="no clean test tile of 16 x 16"):
        tiles(region(20, 20), 16, "test")
    with pytest.raises(UserError, match="size is 3"):
        tiles(region(20, 20), 3, "test")


def test_a_further_raster_may_have_a_projection_that_the_layers_lack(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(3, 4)
    for crs in (None, UTM):
        elevation = write(tmp_path / "elevation.tif", np.zeros((3, 4)), crs=crs)
        found = read_region(
            RegionFiles(elevation=elevation, fuel=write(tmp_path / "fuel.tif", values * 0 + 101, crs=crs))
        )
        for own in (None, UTM):
            cost = write(tmp_path / "cost.tif", values, crs=own)
            np.testing.assert_array_equal(read_on_grid(cost, found), values)
    with pytest.raises(UserError, match="has another grid than the elevation"):
        read_on_grid(write(tmp_path / "cost.tif", values, crs="EPSG:32612"), found)
