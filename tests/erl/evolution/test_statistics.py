"""Statistics of evolution: by hand, and through a run."""

import math

import pytest
import torch

from eigen2.core.networks import StackedNetwork
from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution.operator import Child
from eigen2.erl.evolution.statistics import (
    COMPARED_AT_ONCE,
    bred_origins,
    diversity_metrics,
    operator_metrics,
    origins,
    parents_fitness,
    reliability,
    weight_diversity,
)
from tests.erl.evolution.builders import evolution
from tests.erl.probe import AIM, ProbeActor, fit
from tests.erl.recorder import Recorder

OPERATORS = evolution(inject_every=1)
NAMES = origins(OPERATORS)
_, INJECTION, CROSSOVER, MUTATION = OPERATORS
CHILDREN = [Child(1, CROSSOVER, (0, 2), 0.3), Child(3, MUTATION, (2,)), Child(4, INJECTION, (0,))]


def test_agents_are_named_by_the_operator_that_made_them() -> None:
    for first_evolving, first in ((0, "elite"), (1, "learner")):
        found = [NAMES[place] for place in bred_origins(5, CHILDREN, OPERATORS, first_evolving).tolist()]
        assert found == [first, "offspring", "elite", "mutant", "injected"]


def test_parents_fitness_is_of_those_who_bred_an_agent() -> None:
    fitness = torch.tensor([5.0, 1.0, 3.0, 0.0, -1.0], dtype=torch.float64)
    assert parents_fitness(fitness, CHILDREN).tolist() == [5.0, 4.0, 3.0, 3.0, 5.0]


def test_metrics_are_those_worked_out_by_hand() -> None:
    place = {name: i for i, name in enumerate(NAMES)}
    origin = torch.tensor([place[name] for name in ("elite", "elite", "offspring", "mutant", "mutant")])
    parents = torch.tensor([4.0, 2.0, 3.0, 1.0, 5.0], dtype=torch.float64)
    fitness = torch.tensor([6.0, 1.0, 2.0, math.nan, 7.0], dtype=torch.float64)
    survived = torch.tensor([place[name] for name in ("elite", "mutant", "offspring", "mutant", "elite")])
    found = operator_metrics(origin, parents, fitness, survived, OPERATORS, first_evolving=0)
    assert (found["operators/elite_survival"], found["operators/elite_fitness"]) == (0.5, 3.5)
    assert (found["operators/offspring_survival"], found["operators/offspring_parents_fitness"]) == (0.0, 3.0)
    assert (found["operators/mutant_survival"], found["operators/mutant_fitness"]) == (0.5, 7.0)
    assert found["operators/mutant_parents_fitness"] == 5.0, "of those that have a fitness themselves"
    assert math.isnan(found["operators/injected_survival"])


def test_reliability_is_the_share_of_variance_that_is_due_to_agents() -> None:
    generator = torch.Generator().manual_seed(0)
    skill = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    luck = torch.randn(400, 8, generator=generator, dtype=torch.float64)
    market = 10 * torch.randn(1, 8, generator=generator, dtype=torch.float64)  # the same for all agents
    assert reliability(skill + market.expand(400, 8)) == pytest.approx(1)
    assert reliability(luck + market) == pytest.approx(0, abs=0.15)
    # the mean of 8 windows has the variance 1 / 8 of a window
    assert reliability(skill + 2 * luck + market) == pytest.approx(1 / (1 + 4 / 8), abs=0.05)
    assert reliability(torch.cat([skill + luck, torch.full((1, 8), math.nan)])) == reliability(skill + luck)
    for unknown in (luck[:1], luck[:, :1], torch.zeros(3, 3)):
        assert math.isnan(reliability(unknown))


def test_diversity_is_zero_among_equals_and_grows_with_distance() -> None:
    row = torch.randn(1, 30, generator=torch.Generator().manual_seed(0))
    assert weight_diversity(row.expand(4, -1)) == 0
    assert weight_diversity(row) == 0
    assert weight_diversity(torch.cat([row, -row])) == pytest.approx(2)


@pytest.mark.parametrize("agents", [3, 2 * COMPARED_AT_ONCE + 1])
def test_the_diversity_of_actions_is_that_of_agents_one_by_one(agents: int) -> None:
    network = StackedNetwork(ProbeActor())
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(agents, network.num_weights, generator=chance)
    inputs = {"x": torch.randn(1, 5, 1, generator=chance)}
    actions = torch.stack([network(row[None], inputs)[0] for row in rows])
    measured = diversity_metrics(network, rows, inputs, Communicator(agents))
    assert measured["diversity/actions"] == pytest.approx(float(actions.std(0, correction=0).mean()), rel=1e-5)


def test_the_share_of_elites_is_of_the_agents_that_evolve() -> None:
    module = fit(AIM, population_size=5, learners=1, evolution=evolution(0.25, inject_every=1))
    assert module.metrics["operators/elite_share"] == 0.25


def test_a_run_logs_them_in_every_generation() -> None:
    recorder = Recorder()
    module = fit(AIM, recorder, epochs=3, population_size=8, evolution=evolution())
    assert math.isnan(recorder.metrics[0]["operators/elite_fitness"])
    for generation in range(1, 3):
        metrics, before = recorder.metrics[generation], recorder.fitness[generation - 1]
        best = before.sort(descending=True).values[:4]
        assert metrics["operators/elite_parents_fitness"] == pytest.approx(float(best.mean()), rel=1e-5)
        counts = {"elite": 4, "offspring": 3, "mutant": 1}
        total = sum(metrics[f"operators/{name}_survival"] * count for name, count in counts.items())
        assert total == pytest.approx(4, rel=1e-5), "elites are those that survive"
        assert metrics["operators/elite_share"] == 0.5
        assert 0 < metrics["diversity/actions"] < 1
        assert metrics["diversity/weights"] > 0
    assert (module.population.origin == origins(module.operators).index("mutant")).sum() == 1
