"""Graphs of four and eight neighbours against the model of eigen2 and known arrival times."""

import numpy as np
import pytest
from scipy.sparse import csgraph

from benchmarks.fire.neighbours import CORNERS, DIAGONAL_DEGREES, fires, graph, summarise
from benchmarks.harness import Task
from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.simulation.spread import DEGREES, FireModel, Weather, spread_rates

SIZE = 12


def test_four_neighbours_are_those_of_the_fire_model() -> None:
    landscape, weather, breaks = synthetic(SIZE, 3, 0), Weather(20.0, 250.0), [30, 43, 77]
    model = FireModel.of(landscape, weather, 120.0)
    breaks = [cell for cell in breaks if model.burnable[cell]]
    ignitions = model.draw(20, np.random.default_rng(0))
    burns = model.burnable.copy()
    burns[breaks] = False
    lit = ignitions[burns[ignitions]]
    rates = spread_rates(landscape, weather, DEGREES + DIAGONAL_DEGREES)
    assert np.array_equal(rates[:4], spread_rates(landscape, weather))
    minutes = graph(rates, landscape.cell_size, burns.reshape(landscape.shape), None)
    arrival = csgraph.dijkstra(minutes, indices=lit, limit=model.duration)
    np.testing.assert_allclose(arrival, model.start(lit, breaks).arrival, rtol=1e-6)


@pytest.mark.parametrize(
    ("broken", "reached"),
    [([], {None: 60.0, 0: 30 * 2**0.5, 1: 30 * 2**0.5, 2: 30 * 2**0.5})]  # cells of 30 m at 1 m/min
    + [([one], {None: 60.0, 0: 30 * 2**0.5, 1: 30 * 2**0.5, 2: 60.0}) for one in (1, 2)]
    + [([1, 2], {None: np.inf, 0: 30 * 2**0.5, 1: np.inf, 2: np.inf})],
)
def test_fire_takes_a_diagonal_past_as_many_burning_cells_as_asked_for(
    broken: list[int], reached: dict[int | None, float]
) -> None:
    burns = np.ones(4, bool)
    burns[broken] = False
    for sides in CORNERS.values():
        minutes = graph(np.ones((8, 2, 2), np.float32), 30.0, burns.reshape(2, 2), sides)
        for start, end in ((0, 3), (3, 0)):
            assert csgraph.dijkstra(minutes, indices=start)[end] == pytest.approx(reached[sides])


def test_the_figures_are_means_correlations_and_savings_over_all_fires() -> None:
    def cells(*by_placement: list[int]) -> dict[str, list[int]]:
        return dict(zip(("no breaks", "random", "adaptive_downstream", "greedy"), by_placement, strict=True))

    level = [cells([10], [9], [5], [5]), cells([30], [27], [15], [3])]
    other = [cells([20], [20], [10], [2]), cells([60], [60], [30], [6])]
    measured = {
        Task("fires", number): {"burned": {"pyretechnics": level[number], **dict.fromkeys(CORNERS, other[number])}}
        for number in range(2)
    }
    first, second, *_ = summarise(measured)["models"]
    assert [line["burned"] for line in (first, second)] == [20, 40]
    assert [line["plain"] for line in (first, second)] == pytest.approx([1, 1])
    assert [line["broken"] for line in (first, second)] == pytest.approx([1, -1])
    assert first["saved"] == pytest.approx({"random": 10, "adaptive_downstream": 50, "greedy": 80})
    assert second["saved"] == pytest.approx({"random": 0, "adaptive_downstream": 50, "greedy": 90})
    assert fires(measured)["cells"].sum() == 104 + len(CORNERS) * 208
