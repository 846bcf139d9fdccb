"""Fires: known answers on simple ground, and what breaks do to them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eigen2.errors import UserError
from eigen2.fire.landscapes.landscape import Landscape, synthesize
from eigen2.fire.simulation.spread import FireModel, Fires, Weather, spread_rates, tree_sizes
from tests.fire.conftest import flat, uniform

CALM = Weather(wind_speed=0)


def burned_from_the_middle(land: Landscape, weather: Weather, duration: float = 240.0) -> NDArray[np.bool_]:
    model = FireModel.of(land, weather, duration)
    middle = np.array([model.cells // 2])
    return np.isfinite(model.start(middle).arrival[0]).reshape(land.shape)


def hill(size: int, towards: str) -> Landscape:
    """A slope of 0.4 that rises towards one side."""
    aspect = {"north": 180, "east": 270, "south": 0, "west": 90}[towards]
    return flat((size, size), 102, slope=0.4, aspect=aspect)


def centroid(burned: NDArray[np.bool_]) -> tuple[float, float]:
    rows, columns = np.nonzero(burned)
    return rows.mean() - burned.shape[0] // 2, columns.mean() - burned.shape[1] // 2


def test_without_wind_on_the_level_a_fire_is_symmetric() -> None:
    assert spread_rates(flat((2, 3), 104), CALM) == pytest.approx(0.4757, rel=0.01)
    burned = burned_from_the_middle(flat((41, 41), 104), CALM)
    assert burned.sum() == 25  # within 3 cells: 240 min at 0.476 m/min are 3.8 of them
    for same in (burned[::-1], burned[:, ::-1], burned.T):
        assert (burned == same).all()


def test_the_wind_drives_a_fire_away_from_where_it_comes_from() -> None:
    land = flat((41, 41), 102)
    for wind_from, (down, right) in ((270, (0, 1)), (180, (-1, 0)), (90, (0, -1)), (0, (1, 0)), (360, (1, 0))):
        row, column = centroid(burned_from_the_middle(land, Weather(wind_from=wind_from)))
        assert row * down + column * right > 1
        assert row * right + column * down == pytest.approx(0, abs=1e-9)


def test_fire_runs_uphill() -> None:
    for towards, (down, right) in (("north", (-1, 0)), ("east", (0, 1)), ("south", (1, 0)), ("west", (0, -1))):
        row, column = centroid(burned_from_the_middle(hill(41, towards), CALM))
        assert row * down + column * right > 1


def test_wind_and_slope_add_as_vectors() -> None:
    """Rates at the head by hand: phi is the sum uphill, the difference downhill."""
    up, level = spread_rates(hill(3, "east"))[:, 1, 1], spread_rates(flat((3, 3), 102))[:, 1, 1]
    calm = spread_rates(flat((3, 3), 102), CALM)[0, 1, 1]
    slope_alone = spread_rates(hill(3, "east"), CALM)[1, 1, 1]
    assert up[1] - calm == pytest.approx((level[1] - calm) + (slope_alone - calm), rel=1e-5)
    assert up[0] == pytest.approx(up[2])
    assert up[3] < up[0] < up[1]


def test_a_fire_is_no_longer_than_eight_times_its_width() -> None:
    """Head over back is (1 + e) / (1 - e)."""
    north, east, _, west = spread_rates(flat((3, 3), 101), Weather(wind_speed=200))[:, 1, 1].astype(float)
    e = (east / west - 1) / (east / west + 1)
    assert 1 / np.sqrt(1 - e**2) == pytest.approx(8, rel=1e-3)
    assert north == pytest.approx((east + west) / 2 * (1 - e**2), rel=1e-3)  # the flank, seen from a focus


def test_arrival_is_the_time_to_cross_each_cell_it_enters() -> None:
    rates = np.array([[[10.0, 20, 30, 60]], [[15, 5, 10, 30]], [[10, 10, 10, 10]], [[3, 6, 5, 10]]], np.float32)
    fires = FireModel(rates, 30.0, 1e6).start()
    east, west = [2.0, 6, 3, 1], [10.0, 5, 6, 3]
    for start in range(4):
        expected = [sum(west[cell:start]) if cell < start else sum(east[start + 1 : cell + 1]) for cell in range(4)]
        assert fires.arrival[start] == pytest.approx(expected)


def test_a_fire_ends_with_its_duration() -> None:
    model = uniform((1, 9), rate=10.0, duration=6.0)  # three minutes a cell
    assert np.flatnonzero(np.isfinite(model.start(np.array([4])).arrival[0])).tolist() == [2, 3, 4, 5, 6]


def test_fire_does_not_slip_through_between_corners() -> None:
    model = uniform((4, 4))
    fires = model.start(np.array([0]), breaks=[3, 6, 9, 12])
    assert fires.burns.sum() == 6


def test_lakes_do_not_burn() -> None:
    model = uniform((3, 3), holes=[1, 4, 7])
    fires = model.start()
    assert fires.ignitions.tolist() == [0, 2, 3, 5, 6, 8]
    assert fires.burned == pytest.approx(3 / 9)
    assert fires.frequency.reshape(3, 3).tolist() == [[0.5, 0, 0.5]] * 3


def test_a_fire_that_starts_on_a_break_burns_nothing() -> None:
    model = uniform((1, 5))
    fires = model.start(np.array([2, 4]))
    fires.add_break(2)
    assert fires.burns.tolist() == [0, 0, 0, 1, 1]
    assert model.start(np.array([2]), breaks=[2]).burned == 0


def test_downstream_counts_down_along_a_line() -> None:
    fires = uniform((1, 6)).start(np.array([0]), trees=True)
    assert fires.downstream.tolist() == [6, 5, 4, 3, 2, 1]
    fires.add_break(4)
    assert fires.downstream.tolist() == [4, 3, 2, 1, 0, 0]


def test_what_burns_counts_by_its_value() -> None:
    line = uniform((1, 6))
    fires = FireModel(line.rates, 30.0, 1e6, np.array([0, 7, 1, 0, 5, 2])).start(np.array([0, 5]), trees=True)
    assert fires.downstream.tolist() == [15 + 0, 15 + 7, 8 + 8, 7 + 8, 7 + 13, 2 + 15]
    assert (fires.lost, fires.burned) == (30, 1.0)
    assert [fires.saved(cell) for cell in (1, 4)] == [15 + 7, 7 + 13]
    fires.add_break(4)
    assert fires.downstream.tolist() == [8, 8, 1, 0, 0, 2]
    assert (fires.lost, fires.burned) == (10, 10 / 30)


def descendants(before: NDArray[np.int32], values: NDArray[np.int64]) -> list[int]:
    """The slow way."""
    counts = [0] * len(before)
    for cell in range(len(before)):
        at = cell
        while at >= 0:
            counts[at] += int(values[cell])
            at = int(before[at])
    return counts


@given(st.integers(1, 60), st.integers(0, 2**31))
def test_tree_sizes_are_those_of_the_slow_way(cells: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = np.array([[-1, *(rng.integers(max(cell - 3, 0), cell) for cell in range(1, cells))]], np.int32)
    shuffled = rng.permutation(cells)
    moved = np.full_like(before, -1)
    moved[0, shuffled] = np.where(before[0] < 0, -1, shuffled[before[0]])
    values = np.random.default_rng(seed).integers(0, 9, cells)
    assert tree_sizes(moved, np.ones((1, cells), bool), values).tolist() == [descendants(moved[0], values)]


def same(one: Fires, other: Fires) -> bool:
    return (
        one.arrival.tobytes() == other.arrival.tobytes()
        and (one.burns == other.burns).all()
        and (one.downstream == other.downstream).all()
        and one.burned == other.burned
    )


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.booleans())
def test_step_by_step_is_the_same_as_anew(seed: int, level: bool) -> None:
    """On the level all ways of the same length tie, which must not matter either."""
    rng = np.random.default_rng(seed)
    model = uniform((12, 12), duration=9.0) if level else FireModel.of(synthesize(12, rng), duration=120.0)
    fires = model.start(model.draw(40, rng), trees=True)
    breaks = rng.choice(np.flatnonzero(model.burnable), 12, replace=False).tolist()
    burned = [fires.burned]
    for count, cell in enumerate(breaks, 1):
        bound, saved, before = fires.downstream[cell], fires.saved(cell), int(fires.burns.sum())
        fires.add_break(cell)
        assert before - int(fires.burns.sum()) == saved <= bound
        assert same(fires, model.start(fires.ignitions, breaks[:count], trees=True))
        burned.append(fires.burned)
    assert all(later <= earlier for earlier, later in pairwise(burned))


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.booleans())
def test_a_removed_break_leaves_no_trace(seed: int, level: bool) -> None:
    rng = np.random.default_rng(seed)
    model = uniform((8, 8), duration=9.0) if level else FireModel.of(synthesize(8, rng), duration=120.0)
    breaks = rng.choice(np.flatnonzero(model.burnable), 8, replace=False).tolist()
    fires = model.start(breaks=breaks, trees=True)
    for cell in rng.permutation(breaks).tolist():
        fires.remove_break(cell)
        breaks.remove(cell)
        assert same(fires, model.start(breaks=breaks, trees=True))
    with pytest.raises(ValueError, match="is no break"):
        fires.remove_break(cell)


def test_many_fires_are_the_same_as_each_alone() -> None:
    model = FireModel.of(synthesize(18, np.random.default_rng(3)))
    together = model.start(trees=True)
    assert together.ignitions.size > 256
    apart = [model.start(cells, trees=True) for cells in np.array_split(together.ignitions, 40)]
    assert together.arrival.tobytes() == np.concatenate([fires.arrival for fires in apart]).tobytes()
    assert (together.downstream == sum(fires.downstream for fires in apart)).all()


@pytest.mark.parametrize("cell", [-1, 9, 4, 0])
def test_what_cannot_be_a_break_is_refused(cell: int) -> None:
    fires = uniform((3, 3), holes=[4]).start(breaks=[0])
    for refused in (fires.add_break, fires.saved):
        with pytest.raises(ValueError, match=f"cell {cell} cannot become a break"):
            refused(cell)


@pytest.mark.parametrize("cell", [4, -1, 9])
def test_an_ignition_where_nothing_burns_is_refused(cell: int) -> None:
    with pytest.raises(ValueError, match="not a cell that burns"):
        uniform((3, 3), holes=[4]).start(np.array([cell]))


def test_wrong_weather_is_refused() -> None:
    for words, settings_ in (("wind_speed is -1", {"wind_speed": -1}), ("wind_from is 400", {"wind_from": 400})):
        with pytest.raises(UserError, match=words):
            Weather(**settings_)
    with pytest.raises(UserError, match="fire_simulation_max_duration is 0"):
        FireModel.of(flat((3, 3)), duration=0)
