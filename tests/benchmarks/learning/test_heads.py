"""Candidates for heads: which weights they change and how, and where their gradients go."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.learning import planted
from benchmarks.learning.heads import CrossEntropy, HeadsDDPG, OutputCrossover, OutputMutation, SoftUpdate, outputs
from eigen2.control.networks import MLPActor
from eigen2.core.networks import Sizes, StackedNetwork
from eigen2.erl.evolution import Elitism, Injection, Ranking
from eigen2.erl.evolution.selection import idle, plan, ranking_of
from eigen2.erl.heads import Heads
from eigen2.erl.learners import DDPG
from tests.erl.evolution.builders import context
from tests.erl.probe import AIM, fit
from tests.erl.recorder import Recorder

ACTIONS, HIDDEN = 3, 4
STACKED = StackedNetwork(MLPActor(Sizes({"state": (2,)}, (ACTIONS,)), (HIDDEN,)))
HEADS = Heads(STACKED, torch.zeros(1, STACKED.num_weights))
HEAD = HIDDEN * ACTIONS + ACTIONS


def of_output(row: torch.Tensor) -> list[set[float]]:
    """Return the values that the weights of each output have."""
    weight, bias = row[: HIDDEN * ACTIONS].reshape(ACTIONS, HIDDEN), row[HIDDEN * ACTIONS :]
    return [{*weight[i].tolist(), float(bias[i])} for i in range(ACTIONS)]


def test_weights_of_an_output_share_a_number() -> None:
    assert outputs(HEADS).tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0, 1, 2]
    first = [0, 0, 1, 1, 2, 2, 3, 3, 0, 1, 2, 3]
    assert outputs(STACKED).tolist() == first + [4 + number for number in outputs(HEADS)]


def test_crossover_takes_whole_outputs_of_either_parent() -> None:
    operator, parents = OutputCrossover(), {"actor": torch.stack([torch.zeros(HEAD), torch.ones(HEAD)])}
    taken = np.zeros(ACTIONS)
    for seed in range(400):
        agent = {"actor": torch.zeros(HEAD)}
        operator.apply(agent, parents, context(actor_network=HEADS), np.random.default_rng(seed))
        found = of_output(agent["actor"])
        assert all(len(values) == 1 for values in found)
        taken += [values.pop() for values in found]
    np.testing.assert_allclose(taken / 400, 0.5, atol=4 * 0.5 / 20)


def test_mutation_changes_all_weights_of_an_output_or_none() -> None:
    counts = []
    for seed in range(400):
        agent = {"actor": torch.ones(HEAD)}
        OutputMutation(fraction=0.1).apply(agent, {}, context(actor_network=HEADS), np.random.default_rng(seed))
        changed = of_output(agent["actor"] - 1)
        assert all(values == {0.0} or 0.0 not in values for values in changed)
        counts.append(sum(values != {0.0} for values in changed))
    assert min(counts) == 1
    expected = 1 + (ACTIONS - 1) * 0.1
    assert np.mean(counts) == pytest.approx(expected, abs=4 * np.sqrt(2 * 0.09 / 400))


def test_draws_have_the_weighted_mean_and_variance_of_the_elites() -> None:
    rows = torch.tensor([[1.0, 5.0], [4.0, 5.0]])
    logs = np.log(3) - np.log([1, 2])
    mean = logs @ [1, 4] / logs.sum()
    variance = logs @ (np.array([1, 4]) - mean) ** 2 / logs.sum()
    drawn = []
    for seed in range(2000):
        agent = {"actor": torch.zeros(2)}
        operator = CrossEntropy(noise=0.5, decay=0.5)
        operator.apply(agent, {"actor": rows}, context(generation=1), np.random.default_rng(seed))
        drawn.append(agent["actor"].tolist())
    np.testing.assert_allclose(np.mean(drawn, 0), [mean, 5.0], atol=0.15)
    np.testing.assert_allclose(np.std(drawn, 0), [np.sqrt(variance + 0.0625), 0.25], rtol=0.08)
    ranking = Ranking(np.zeros(4), [3, 1, 2, 0], [3, 1, 2, 0], [3, 1], [0, 2], None)
    assert CrossEntropy().parents(ranking, np.random.default_rng(0)).rows == (3, 1)


@pytest.mark.parametrize("variant", planted.HEADS)
def test_every_variant_plans_a_generation_in_which_all_its_operators_have_agents(variant: str) -> None:
    operators, at = planted.HEADS[variant]["model"]["evolution"], context(first_evolving=1)
    assert plan(ranking_of(np.arange(16.0), operators, 1), operators, at, np.random.default_rng(0))
    assert idle(operators, 16, at) == []


@pytest.mark.parametrize("heads", [1, 3])
def test_other_heads_move_the_trunk_alone(heads: int) -> None:
    """At the same weights the gradients of the learner's head and of the critic are DDPG's own, the trunk's are not."""
    seen: dict[str, Any] = {}

    class Gradients(HeadsDDPG):
        def losses(self, population: Any, batch: Any, train_actor: bool = True) -> Any:
            if population.heads is None:  # memory is estimated
                return super().losses(population, batch, train_actor)
            for name, learner in (("own", DDPG()), ("others", HeadsDDPG(heads=heads))):
                found = learner.losses(population, batch)
                parts = torch.autograd.grad((found.actor + found.critic).sum(), [population.actor, population.critic])
                seen.setdefault(name, (population.heads.chosen, *parts))
            return super().losses(population, batch, train_actor)

    operators = [Elitism(), Injection(), OutputMutation()]
    fit(AIM, representation="shared", population_size=8, learner=Gradients(), evolution=operators)
    (chosen, actor, critic), (_, moved, same) = seen["own"], seen["others"]
    assert torch.equal(critic, same)
    torch.testing.assert_close(moved[:, chosen], actor[:, chosen])
    assert not torch.isclose(moved[:, ~chosen], actor[:, ~chosen]).all()


def test_the_learner_moves_a_part_of_the_way_to_the_elites() -> None:
    recorder = Recorder()
    operators = [Elitism(), Injection(), OutputMutation()]
    module = fit(
        AIM, recorder, module_class=SoftUpdate, representation="shared", population_size=5, evolution=operators
    )
    trained, after = recorder.states[0, "train"], recorder.states[0, "evolve"]
    fittest = [row for row in np.argsort(-recorder.fitness[0].numpy(), kind="stable") if row > 0][:2]
    assert module.population.heads is not None
    chosen = module.population.heads.chosen
    before = trained["actor"][:, chosen]
    expected = before + 0.1 * (after["head"][fittest].mean(0) - before)
    torch.testing.assert_close(after["actor"][:, chosen], expected)
    torch.testing.assert_close(after["head"][:1], expected)
    assert torch.equal(after["actor"][:, ~chosen], trained["actor"][:, ~chosen])
