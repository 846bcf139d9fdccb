"""The best placement: against all placements of small landscapes, against an integer program, and stopped early."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.fire.integer_program import solve
from eigen2.fire.landscapes.landscape import synthesize
from eigen2.fire.simulation.optimum import optimum
from eigen2.fire.simulation.spread import FireModel
from tests.fire.conftest import uniform


def landscape(size: int, seed: int, duration: float, most: int = 1) -> FireModel:
    rng = np.random.default_rng(seed)
    ground = synthesize(size, rng)
    return FireModel.of(ground, None, duration, None if most == 1 else rng.integers(0, most + 1, size**2))


def saved(model: FireModel, ignitions: np.ndarray, breaks: list[int]) -> int:
    spared = model.start(ignitions).burns - model.start(ignitions, breaks).burns
    return sum(count * value for count, value in zip(spared.tolist(), model.values.tolist(), strict=True))


def best_of_all(model: FireModel, ignitions: np.ndarray, budget: int) -> int:
    """The slow way."""
    return max(
        saved(model, ignitions, [*cells]) for cells in combinations(np.flatnonzero(model.burnable).tolist(), budget)
    )


@settings(max_examples=8)
@example(1, 3, 60.0, 10, 1)
@given(
    st.integers(0, 2**31),
    st.integers(1, 2),
    st.sampled_from([20.0, 60.0, 240.0]),
    st.integers(3, 12),
    st.sampled_from([1, 9]),
)
def test_it_is_the_best_of_all_placements(seed: int, budget: int, duration: float, fires: int, most: int) -> None:
    """Of cells that are all worth 1, or 0 to 9."""
    model = landscape(5, seed, duration, most)
    ignitions = model.draw(fires, np.random.default_rng(seed))
    found = optimum(model, budget, ignitions)
    assert len(found.cells) <= budget
    assert found.saved == saved(model, ignitions, found.cells) == found.bound
    assert found.saved == best_of_all(model, ignitions, budget)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_integer_program_is_right_too(seed: int) -> None:
    model = landscape(5, seed, 60.0)
    ignitions = model.draw(12, np.random.default_rng(seed))
    found = solve(model, 2, ignitions)
    assert found.saved == saved(model, ignitions, found.cells) == found.bound == best_of_all(model, ignitions, 2)


@pytest.mark.parametrize(("seed", "budget"), [(0, 3), (1, 4)])
def test_it_is_that_of_the_integer_program(seed: int, budget: int) -> None:
    model = landscape(8, seed, 90.0)
    ignitions = model.draw(12, np.random.default_rng(seed))
    program = solve(model, budget, ignitions)
    assert program.saved == program.bound == optimum(model, budget, ignitions).saved


def test_a_wall_is_found_whose_cells_save_nothing_alone() -> None:
    """Two fields joined by two cells: only both together part them."""
    rows, columns = 5, 9
    gaps = [1 * columns + 4, 3 * columns + 4]
    holes = [cell for cell in range(4, rows * columns, columns) if cell not in gaps]
    model = uniform((rows, columns), holes=holes)
    apart = saved(model, np.flatnonzero(model.burnable), gaps)
    assert optimum(model, 2).saved == apart == 42**2 - 2 * 20**2
    assert optimum(model, 1).saved < apart / 4


def test_stopped_early_it_says_what_may_be_missing() -> None:
    model = landscape(8, 3, 240.0)
    whole = optimum(model, 3)
    assert whole.saved == whole.bound
    bounds = []
    for nodes in (1, 3, 10):
        found = optimum(model, 3, nodes=nodes)
        assert found.saved == int(model.start().burns.sum() - model.start(breaks=found.cells).burns.sum())
        assert found.saved <= whole.saved <= found.bound
        bounds.append(found.bound)
    assert bounds[0] > whole.bound
    assert sorted(bounds, reverse=True) == bounds
    from_it = optimum(model, 3, start=whole.cells, nodes=1)
    assert from_it.saved == whole.saved


def test_no_more_breaks_than_cells() -> None:
    model = uniform((2, 2), holes=[0])
    assert optimum(model, 5).saved == 9
    with pytest.raises(ValueError, match="start has 2 breaks, more than the budget of 1"):
        optimum(model, 1, start=[1, 2])
