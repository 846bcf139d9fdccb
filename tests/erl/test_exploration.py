"""Exploration noise: its size, its windows, and what it depends on."""

import pytest
import torch

from eigen2.core.randomness import Role
from eigen2.erl.exploration import Draws, explore


def drawn(agents: int, *shape: int, seed: int = 4, generation: int = 6) -> Draws:
    return Draws(Role.EXPLORATION, range(agents), shape, seed, generation)


def test_noise_has_each_agents_deviation_on_the_last_windows_alone() -> None:
    scale, action = torch.tensor([0.0, 0.05, 0.2]), torch.full((3, 402, 5, 4), 0.01)
    result = explore(action, 400, drawn(3, 400, 5, 4), scale)
    assert torch.equal(result[:, :2], action[:, :2])
    change = (result - action)[:, 2:].flatten(1)
    assert not change[0].any()
    for agent in (1, 2):
        assert float(change[agent].std()) == pytest.approx(float(scale[agent]), rel=0.03)
        assert abs(float(change[agent].mean())) < 4 * float(scale[agent]) / 8000**0.5
    assert abs(float(torch.corrcoef(change[1:])[0, 1])) < 4 / 8000**0.5
    assert (action == 0.01).all()
    assert explore(action, 0, drawn(3, 0, 5, 4), scale) is action


@pytest.mark.parametrize("uniform", [False, True])
def test_noisy_actions_stay_in_range_and_uniform_ones_are_even(uniform: bool) -> None:
    result = explore(torch.zeros(2, 600, 2), 500, drawn(2, 500, 2), torch.full((2,), 3.0), uniform)[:, 100:]
    assert result.abs().max() <= 1
    if uniform:
        assert torch.histc(result, 10, -1, 1).tolist() == pytest.approx([200] * 10, abs=4 * 200**0.5)
    else:
        assert (float(result.min()), float(result.max())) == (-1.0, 1.0)


def noise_of(agents: int, **address: int) -> torch.Tensor:
    draws, scale = drawn(agents, 3, 2, **address), torch.full((agents,), 0.1)
    return torch.stack([explore(torch.zeros(agents, 4, 2), 3, draws, scale)[:, 1:] for _ in range(5)], dim=1)


def test_noise_depends_on_seed_generation_and_agent_and_not_on_how_many_agents_there_are() -> None:
    few, many = noise_of(2), noise_of(5)
    assert torch.equal(few, many[:2])
    assert len(torch.unique(many)) == many.numel(), "steps, windows and agents each draw their own"
    for other in (noise_of(2, seed=5), noise_of(2, generation=7)):
        assert not torch.isin(other, few).any()
