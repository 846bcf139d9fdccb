"""What rows take along when they evolve on the real Trainer: weights, targets, noise and the optimizer's moments."""

from typing import Any

import numpy as np
import pytest
import torch

from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution import MagnitudeMutation
from eigen2.erl.population import Population
from tests.erl.conftest import SEED
from tests.erl.evolution.builders import evolution, mutation_noise, planned
from tests.erl.probe import AIM, ProbeActor, fit
from tests.erl.recorder import MOMENTS, ROWS, Recorder, same
from tests.erl.reference import inherited

OPERATORS = evolution(0.25, mutation=MagnitudeMutation(fraction=0.3))


@pytest.fixture(scope="module")
def evolved() -> Recorder:
    """Three generations of eight agents that evolve and learn."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", str(SEED))
        fit(AIM, recorder, epochs=3, population_size=8, noise=0.3, noise_decay=0.5, noise_min=0.1, evolution=OPERATORS)
    return recorder


def family(recorder: Recorder, generation: int) -> tuple[list[Any], list[int]]:
    """The children of a generation and the rows that stayed."""
    fitness = recorder.fitness[generation].numpy()
    children = planned(fitness, OPERATORS, generator(SEED, Role.SELECTION, generation))
    return children, sorted(set(range(8)) - {child.row for child in children})


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_elites_keep_everything_and_offspring_inherit_the_blend(evolved: Recorder, generation: int) -> None:
    before, after = evolved.states[generation, "train"], evolved.states[generation, "evolve"]
    children, elites = family(evolved, generation)
    assert sorted(elites) == sorted(evolved.fitness[generation].argsort()[-2:].tolist())
    for name in (*ROWS[:4], *MOMENTS):
        assert same(before[name][elites], after[name][elites]), name
    offspring = [child.row for child in children if child.operator.name == "offspring"]
    assert len(offspring) == 3
    for name in (*ROWS[:4], *MOMENTS):
        expected = inherited(before[name].numpy(), children)[offspring]
        np.testing.assert_allclose(after[name].numpy()[offspring], expected, rtol=1e-4, atol=1e-6, err_msg=name)
        assert after[name][offspring].abs().sum(1).min() > 0, f"{name}: a child of zeros"


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_mutants_are_their_elite_parent_but_for_the_actors_noise(evolved: Recorder, generation: int) -> None:
    before, after = evolved.states[generation, "train"], evolved.states[generation, "evolve"]
    children, elites = family(evolved, generation)
    mutants = [child for child in children if child.operator.name == "mutant"]
    assert len(mutants) == 3
    sizes = [weight.numel() for weight in ProbeActor().parameters()]
    for child in mutants:
        parent = child.parents[0]
        assert parent in elites
        for name in ("critic", "critic_target", *MOMENTS):
            assert same(after[name][child.row], before[name][parent]), name
        change = after["actor"][child.row] - before["actor"][parent]
        chance = generator(SEED, Role.MUTATION, generation, child.row)
        expected = mutation_noise(before["actor"][parent], sizes, OPERATORS[-1], chance)
        torch.testing.assert_close(change, expected, atol=1e-6, rtol=0)
        assert 0 < int((change != 0).sum()) < len(change)
        assert len(torch.unique(after["actor"], dim=0)) >= 7, "mutants of one parent differ"
        moved = after["actor_target"][child.row] - before["actor_target"][parent]
        torch.testing.assert_close(moved, change, atol=1e-6, rtol=0)


def test_noise_decays_and_stops_at_its_least(evolved: Recorder) -> None:
    for generation, expected in enumerate((0.15, 0.1, 0.1)):
        np.testing.assert_allclose(evolved.states[generation, "evolve"]["noise"], expected, rtol=1e-5)


def test_noise_follows_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise that differs between agents, a child has its parents' and no other's."""
    recorder, levels = Recorder(), torch.linspace(0.1, 0.8, 8)

    class Uneven(Population):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.noise.copy_(levels)

    monkeypatch.setattr("eigen2.erl.base.Population", Uneven)
    fit(AIM, recorder, population_size=8, evolution=OPERATORS, noise_min=0.0, gradient_steps=0)
    children, _ = family(recorder, 0)
    expected = inherited(levels.numpy(), children)
    np.testing.assert_allclose(recorder.states[0, "evolve"]["noise"].numpy(), expected, rtol=1e-5)


def test_a_population_of_one_trains() -> None:
    recorder = Recorder()
    fit(AIM, recorder, population_size=1, evolution=evolution(), data={"replay_min_size": 16, "batch_size": 16})
    assert not same(recorder.states[0, "evaluate"]["actor"], recorder.states[0, "validate"]["actor"])
    assert same(recorder.states[0, "train"]["actor"], recorder.states[0, "evolve"]["actor"])


def test_nothing_is_allocated_for_agents_after_the_start(evolved: Recorder) -> None:
    assert len(set(evolved.pointers)) == 1
