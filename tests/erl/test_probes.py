"""Tasks whose values are known, learned by the real module: what comes out must be those values."""

import pytest
import torch
from torch import Tensor

from eigen2.erl.evolution import MagnitudeMutation
from eigen2.erl.evolution.selection import rank
from tests.erl.evolution.builders import evolution
from tests.erl.probe import Probe, fit

pytestmark = pytest.mark.usefixtures("unchecked")
GAMMA = 0.5


def constant(x: Tensor, action: Tensor, step: int) -> Tensor:
    return torch.ones_like(x)


def second_step(x: Tensor, action: Tensor, step: int) -> Tensor:
    return torch.full_like(x, 3.0 if step == 1 else 0.0)


@pytest.mark.parametrize(
    ("probe", "scale", "known"),
    [
        (Probe(second_step, steps=2, walks=True), 1.0, {0.0: GAMMA * 3, 1.0: 3.0}),
        (Probe(constant, truncated=True), 1.0, {0.0: 1 / (1 - GAMMA)}),
        (Probe(constant), 0.1, {0.0: 0.1}),
    ],
)
def test_elites_learn_the_value_of_a_state_whatever_is_done_there(
    probe: Probe, scale: float, known: dict[float, float]
) -> None:
    module = fit(probe, epochs=6, gradient_steps=30, gamma=GAMMA, reward_scale=scale, evolution=evolution())
    elites, population = rank(module.state.fitness.numpy())[:2], module.population
    for x, value in known.items():
        inputs = {"x": torch.full((population.size, 1, 1), x)}
        for change in (0.0, 0.4, -0.4):
            action = (population.act(inputs) + change).clamp(-1, 1)
            values = population.critic_network(population.critic, inputs, action).detach()[elites, 0]
            torch.testing.assert_close(values, torch.full((2,), value), atol=0.15 * scale, rtol=0)
    assert module.state.fitness.tolist() == [3.0 if probe.walks else 1.0] * 4, "not scaled"


def test_the_champion_finds_the_best_action_with_evolution_on() -> None:
    # an actor that waits for its critic, and a critic wide enough for a parabola
    probe = Probe(lambda x, action, step: -((action - 0.5 * x) ** 2), contexts=(-1.0, 1.0))
    settings = {"actor_lr": 3e-3, "data": {"critic_hidden": 32}, "evolution": evolution()}
    module = fit(probe, epochs=8, gradient_steps=40, gamma=GAMMA, **settings)
    for x in (-1.0, 1.0):
        action = module.population.policy("champion")({"x": torch.full((1, 1, 1), x)})
        assert float(action.detach()) == pytest.approx(0.5 * x, abs=0.15)
    assert float(module.population.champion_fitness) > -0.02


def test_evolution_alone_finds_the_best_action() -> None:
    operators = evolution(mutation=MagnitudeMutation(fraction=0.5, scale=0.2))
    probe = Probe(lambda x, action, step: -((action - 0.5) ** 2))
    module = fit(probe, epochs=40, population_size=16, gradient_steps=0, evolution=operators)
    assert float(module.population.champion_fitness) > -0.001
