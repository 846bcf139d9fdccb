"""Tasks whose values are known, learned by the real module: what comes out must be those values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from eigen2.erl.evolution import MagnitudeMutation
from eigen2.erl.evolution.selection import rank
from eigen2.erl.module import ERLModule
from tests.erl.evolution.builders import evolution
from tests.erl.probe import Probe, fit

GAMMA = 0.5


def constant(x: Tensor, action: Tensor, step: int) -> Tensor:
    return torch.ones_like(x)


def observed(x: Tensor, action: Tensor, step: int) -> Tensor:
    return 2 * x


def second_step(x: Tensor, action: Tensor, step: int) -> Tensor:
    return torch.full_like(x, 3.0 if step == 1 else 0.0)


def aim(x: Tensor, action: Tensor, step: int) -> Tensor:
    return -((action - 0.5) ** 2)


def aim_at_half_x(x: Tensor, action: Tensor, step: int) -> Tensor:
    return -((action - 0.5 * x) ** 2)


VALUES: dict[str, tuple[Probe, dict[float, float]]] = {
    "observation": (Probe(observed, contexts=(-1.0, 1.0)), {-1.0: -2.0, 1.0: 2.0}),
    "discounted": (Probe(second_step, steps=2, walks=True), {0.0: GAMMA * 3, 1.0: 3.0}),
    "constant, terminated": (Probe(constant, truncated=False), {0.0: 1.0}),
    "constant, truncated": (Probe(constant, truncated=True), {0.0: 1 / (1 - GAMMA)}),
}
"""Probe, and the value of each x, whatever is done there."""

POLICIES: dict[str, tuple[Probe, dict[float, float]]] = {
    "action": (Probe(aim), {0.0: 0.5}),
    "observation and action": (Probe(aim_at_half_x, contexts=(-1.0, 1.0)), {-1.0: -0.5, 1.0: 0.5}),
}
"""Probe, and the best action at each x, which is worth 0."""

SLOWLY: dict[str, Any] = {"actor_lr": 3e-3, "data": {"critic_hidden": 32}}
"""An actor that waits for its critic, and a critic wide enough for a parabola."""


def values(module: ERLModule, x: float, action: Callable[[Tensor], Tensor]) -> Tensor:
    """The critics' values at x, (agents,)."""
    population = module.population
    inputs = {"x": torch.full((population.size, 1, 1), x)}
    acted = action(population.act(inputs))
    return population.critic_network(population.critic, inputs, acted).detach()[:, 0]


def policies(module: ERLModule, x: float) -> Tensor:
    """The actors' actions at x, (agents,)."""
    return module.population.act({"x": torch.full((1, 1, 1), x)}).detach()[:, 0, 0]


@pytest.mark.parametrize("name", VALUES)
def test_every_critic_learns_the_value(name: str) -> None:
    probe, known = VALUES[name]
    module = fit(probe, epochs=6, gradient_steps=30, gamma=GAMMA)
    for x, value in known.items():
        for other in (0.0, 0.4, -0.4):
            got = values(module, x, lambda action, other=other: (action + other).clamp(-1, 1))  # type: ignore[misc]
            torch.testing.assert_close(got, torch.full((4,), value), atol=0.1, rtol=0)


@pytest.mark.parametrize("name", POLICIES)
def test_every_actor_finds_the_best_action(name: str) -> None:
    probe, known = POLICIES[name]
    module = fit(probe, epochs=8, gradient_steps=60, gamma=GAMMA, **SLOWLY)
    for x, best in known.items():
        torch.testing.assert_close(policies(module, x), torch.full((4,), best), atol=0.1, rtol=0)
        torch.testing.assert_close(values(module, x, lambda action: action), torch.zeros(4), atol=0.1, rtol=0)
    assert float(module.population.champion_fitness) > -0.01


@pytest.mark.parametrize("name", ["discounted", "constant, truncated", "constant, terminated"])
def test_elites_learn_the_value_with_evolution_on(name: str) -> None:
    probe, known = VALUES[name]
    module = fit(probe, epochs=6, gradient_steps=30, gamma=GAMMA, evolution=evolution())
    elites = rank(module.state.fitness.numpy())[:2]
    for x, value in known.items():
        got = values(module, x, lambda action: action)[elites]
        torch.testing.assert_close(got, torch.full((2,), value), atol=0.15, rtol=0)


@pytest.mark.parametrize("name", POLICIES)
def test_the_champion_finds_the_best_action_with_evolution_on(name: str) -> None:
    probe, known = POLICIES[name]
    module = fit(probe, epochs=8, gradient_steps=40, gamma=GAMMA, evolution=evolution(), **SLOWLY)
    for x, best in known.items():
        action = module.population.champion.act({"x": torch.full((1, 1, 1), x)})
        assert float(action.detach()) == pytest.approx(best, abs=0.15)
    assert float(module.population.champion_fitness) > -0.02


def test_evolution_alone_finds_the_best_action() -> None:
    module = fit(
        Probe(aim),
        epochs=60,
        population_size=16,
        gradient_steps=0,
        evolution=evolution(mutation=MagnitudeMutation(fraction=0.5, scale=0.2)),
    )
    assert float(module.population.champion_fitness) > -0.001


def test_rewards_are_scaled_in_the_value_and_not_in_fitness() -> None:
    module = fit(Probe(constant), epochs=6, gradient_steps=30, reward_scale=0.1)
    torch.testing.assert_close(values(module, 0.0, lambda action: action), torch.full((4,), 0.1), atol=0.02, rtol=0)
    assert module.state.fitness.tolist() == [1.0] * 4
