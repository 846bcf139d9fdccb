"""Local search: it finds the optimum, keeps what it was given, stops when told, and repeats."""

import numpy as np
import pytest

from eigen2.fire.landscapes.landscape import synthetic
from eigen2.fire.simulation.baselines import adaptive_downstream, greedy, reduction
from eigen2.fire.simulation.local_search import Limit, improve
from eigen2.fire.simulation.optimum import optimum
from eigen2.fire.simulation.spread import FireModel
from tests.fire.conftest import uniform


def random_generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("seed", [2, 18, 105])
def test_it_ends_by_itself_at_the_proven_optimum(seed: int) -> None:
    """Single moves alone miss it on each of these landscapes."""
    model = FireModel.of(synthetic(10, seed, 0))
    start, limit = adaptive_downstream(model, 3, random_generator()), Limit()
    cells = improve(model, start, random_generator(seed), limit)
    best = optimum(model, 3)
    assert model.start().burns.sum() - model.start(breaks=cells).burns.sum() == best.saved == best.bound
    assert limit.used < 6000
    moved = improve(model, start, random_generator(seed), Limit(60))
    assert reduction(model, moved) < reduction(model, cells)


def test_a_bad_start_ends_well_and_a_good_one_is_kept() -> None:
    model = FireModel.of(synthetic(12, 0, 1))
    good = greedy(model, 6, random_generator())
    bad = np.flatnonzero(model.burnable)[:6].tolist()
    improved = improve(model, bad, random_generator(), Limit(evaluations=400))
    assert len(set(improved)) == 6
    assert model.burnable[improved].all()
    assert reduction(model, improved) > 3 * reduction(model, bad)
    assert reduction(model, improve(model, good, random_generator(), Limit(evaluations=400))) >= reduction(model, good)


def test_it_repeats_and_stops_when_told() -> None:
    model = FireModel.of(synthetic(12, 0, 2))
    start = np.flatnonzero(model.burnable)[:5].tolist()
    one, same = (improve(model, start, random_generator(3), Limit(evaluations=60)) for _ in range(2))
    assert one == same
    assert improve(model, start, random_generator(3), Limit(evaluations=0)) == start
    limit = Limit(evaluations=60)
    improve(model, start, random_generator(3), limit)
    assert 60 <= limit.used <= 70  # breaks that were removed are put back


def test_it_simulates_no_more_fires_than_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, counts = FireModel.of(synthetic(12, 0, 3)), []
    starts = FireModel.start
    monkeypatch.setattr(
        FireModel, "start", lambda self, *given, **more: counts.append(given[0].size) or starts(self, *given, **more)
    )
    improve(model, np.flatnonzero(model.burnable)[:3].tolist(), random_generator(), Limit(evaluations=20), fires=10)
    assert {*counts} == {10}


def test_there_may_be_no_break_and_no_free_cell() -> None:
    model = uniform((1, 4))
    assert improve(model, [], random_generator(), Limit(evaluations=9)) == []
    assert sorted(improve(model, [0, 1, 2, 3], random_generator(), Limit(evaluations=30))) == [0, 1, 2, 3]
