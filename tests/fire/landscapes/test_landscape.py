"""Landscapes: synthetic ones are plausible and repeat, wrong ones are refused, none can be changed."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from eigen2.errors import UserError
from eigen2.fire.landscapes.landscape import Landscape, Terrain, slopes, synthesize
from tests.fire.conftest import flat

LADDER = [*Terrain().fuel]


def test_a_synthetic_landscape_is_plausible() -> None:
    land = synthesize(48, np.random.default_rng(0))
    assert land.shape == (48, 48)
    assert land.slope.mean() == pytest.approx(0.25, rel=1e-4)
    assert (land.fuel == 98).mean() == pytest.approx(0.03, abs=0.002)
    shares = [(land.fuel == number).mean() for number in LADDER]
    assert min(shares) > 0.08
    timber = np.isin(land.fuel, (165, 183, 188))
    assert (land.canopy_cover[timber] >= 0.3).all()
    for name in ("canopy_cover", "canopy_height", "canopy_base_height", "canopy_bulk_density"):
        assert (getattr(land, name)[~timber] == 0).all()
    assert (land.slope[land.fuel == 98].min()) == 0
    near = np.abs(np.diff(np.argsort(LADDER)[np.searchsorted(LADDER, np.where(land.fuel == 98, 101, land.fuel))]))
    assert near.mean() < 1.5  # chance alone: 2.6; neighbours have like vegetation


def test_terrain_decides_fuel_water_slope_and_patches() -> None:
    shares = {93: 0.25, 101: 0.25, 145: 0.5}
    for patchiness, like in ((0.0, 0.375), (3.0, 0.8)):  # of two independent cells, 0.0625 + 0.0625 + 0.25 are alike
        land = synthesize(64, np.random.default_rng(0), Terrain(shares, 0.0, 0.1, patchiness, cell_size=20.0))
        found = {number: (land.fuel == number).mean() for number in shares}
        assert found == pytest.approx(shares, abs=1e-3)
        assert (land.slope.mean(), land.cell_size) == (pytest.approx(0.1, rel=1e-4), 20.0)
        assert (land.fuel[1:] == land.fuel[:-1]).mean() == pytest.approx(like, abs=0.03 if patchiness == 0 else 0.15)
        assert not land.canopy_cover.any()
    drowned = synthesize(64, np.random.default_rng(0), Terrain(shares, water=0.4))
    assert (drowned.fuel == 98).mean() == pytest.approx(0.4, abs=0.001)


def test_it_repeats_and_follows_the_seed() -> None:
    one, same, other = (synthesize(16, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for name, values in one.layers().items():
        assert values.tobytes() == getattr(same, name).tobytes()
    assert not np.array_equal(one.elevation, other.elevation)


@pytest.mark.parametrize(("down", "expected"), [((1, 0), 180), ((-1, 0), 0), ((0, 1), 90), ((0, -1), 270)])
def test_aspect_is_downhill_clockwise_from_north(down: tuple[int, int], expected: int) -> None:
    """Row numbers grow southwards, column numbers eastwards."""
    rows, columns = np.mgrid[:5, :5]
    slope, aspect = slopes(-3.0 * (rows * down[0] + columns * down[1]), 30.0)
    assert slope == pytest.approx(0.1)
    assert aspect == pytest.approx(expected)


def test_nobody_can_change_it() -> None:
    given = np.full((3, 4), 5.0, np.float32)
    land = Landscape(**{**flat((3, 4)).layers(), "elevation": given})
    given[0, 0] = 7
    assert land.elevation[0, 0] == 5
    for values in land.layers().values():
        with pytest.raises(ValueError, match="read-only"):
            values[0, 0] = 1
    with pytest.raises(FrozenInstanceError):
        land.cell_size = 1.0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("slope", np.zeros((2, 2), np.float32), r"slope has shape \(2, 2\).*elevation's \(3, 4\)"),
        ("slope", np.full((3, 4), -1, np.float32), "slope holds -1.0; it must be 0 to 20, rise over run"),
        ("aspect", np.full((3, 4), np.nan, np.float32), "aspect holds nan"),
        ("canopy_cover", np.full((3, 4), 60, np.float32), "canopy_cover holds 60.0.*not percent"),
        ("fuel", np.full((3, 4), 14, np.int16), "fuel model 14 is not known"),
        ("fuel", np.full((3, 4), 2**17 + 101, np.int64), "fuel model 131173 is not known"),
        ("fuel", np.full((3, 4), 101, np.float32), "fuel has dtype float32"),
        ("elevation", np.zeros((0, 4), np.float32), r"elevation has shape \(0, 4\)"),
        ("cell_size", 0.0, "cell_size is 0.0"),
    ],
)
def test_wrong_ones_are_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Landscape(**{**flat((3, 4)).layers(), name: value})
