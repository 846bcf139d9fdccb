"""Statistics of evolution: by hand, and through a run."""

import math

import pytest
import torch

from eigen2.erl.evolution.selection import Child, Evolution
from eigen2.erl.evolution.statistics import (
    KINDS,
    action_diversity,
    kinds,
    operator_metrics,
    parents_fitness,
    weight_diversity,
)
from tests.erl.probe import Probe, fit
from tests.erl.recorder import Recorder

AIM = Probe(lambda x, action, step: -((action - 0.5) ** 2), contexts=(-1.0, 1.0))
CHILDREN = [Child(1, "offspring", (0, 2), 0.3), Child(3, "mutant", (2, 2), 1.0), Child(4, "injected", (0, 0), 1.0)]


def names(kind: torch.Tensor) -> list[str]:
    return [KINDS[place] for place in kind.tolist()]


def test_rows_are_named_by_how_they_came_to_be() -> None:
    assert names(kinds(5, CHILDREN)) == ["elite", "offspring", "elite", "mutant", "injected"]
    assert names(kinds(5, CHILDREN, learners=1)) == ["learner", "offspring", "elite", "mutant", "injected"]


def test_parents_are_those_who_bred_and_survivors_their_own() -> None:
    fitness = torch.tensor([5.0, 1.0, 3.0, 0.0, -1.0], dtype=torch.float64)
    assert parents_fitness(fitness, CHILDREN).tolist() == [5.0, 4.0, 3.0, 3.0, 5.0]


def test_numbers_are_those_worked_out_by_hand() -> None:
    kind = torch.tensor([KINDS.index(name) for name in ("elite", "elite", "offspring", "mutant", "mutant")])
    parents = torch.tensor([4.0, 2.0, 3.0, 1.0, 5.0], dtype=torch.float64)
    fitness = torch.tensor([6.0, 1.0, 2.0, math.nan, 7.0], dtype=torch.float64)
    survived = torch.tensor([KINDS.index(name) for name in ("elite", "mutant", "offspring", "mutant", "elite")])
    found = operator_metrics(kind, parents, fitness, survived)
    assert (found["operators/elite_survival"], found["operators/elite_fitness"]) == (0.5, 3.5)
    assert (found["operators/offspring_survival"], found["operators/offspring_parents_fitness"]) == (0.0, 3.0)
    assert (found["operators/mutant_survival"], found["operators/mutant_fitness"]) == (1.0, 7.0)
    assert found["operators/mutant_parents_fitness"] == 5.0, "of those that have a fitness themselves"
    assert math.isnan(found["operators/injected_survival"])


def test_diversity_is_nothing_among_equals_and_grows_with_distance() -> None:
    row = torch.randn(1, 30)
    assert weight_diversity(row.expand(4, -1)) == 0
    assert weight_diversity(row) == 0
    assert weight_diversity(torch.cat([row, -row])) == pytest.approx(2)
    actions = torch.tensor([0.3, -0.1]).expand(5, 7, 2)
    assert action_diversity(actions) == pytest.approx(0, abs=1e-7)
    assert action_diversity(torch.tensor([[[1.0]], [[-1.0]]])) == 1


def test_a_run_tells_them_for_every_generation() -> None:
    recorder = Recorder()
    module = fit(AIM, recorder, epochs=4, population_size=8, evolution=Evolution(elite_fraction=0.5))
    assert math.isnan(recorder.metrics[0]["operators/elite_fitness"])
    for generation in range(1, 4):
        metrics, before = recorder.metrics[generation], recorder.fitness[generation - 1]
        best = before.sort(descending=True).values[:4]
        assert metrics["operators/elite_parents_fitness"] == pytest.approx(float(best.mean()), rel=1e-5)
        total = sum(metrics[f"operators/{name}_survival"] * count for name, count in COUNTS.items())
        assert total == pytest.approx(4, rel=1e-5), "elites are those that survive"
        assert 0 < metrics["diversity/actions"] < 1
        assert metrics["diversity/weights"] > 0
    assert names(module.population.kind).count("mutant") == 1


COUNTS = {"elite": 4, "offspring": 3, "mutant": 1}
