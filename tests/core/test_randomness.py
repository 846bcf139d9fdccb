"""Addresses and what is drawn at them, exploration noise included."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.randomness import Role, generator, torch_seed
from eigen2.erl.exploration import ExplorationNoise

ADDRESSES = st.tuples(
    st.integers(0, 2**32 - 1), st.sampled_from(list(Role)), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)
)
SMALL = st.tuples(st.integers(0, 3), st.sampled_from(list(Role)), st.integers(0, 3), st.integers(0, 3))


def draw(address: tuple[int, Role, int, int]) -> list[int]:
    numbers: list[int] = generator(*address).integers(2**63, size=4).tolist()
    return numbers


@given(st.one_of(ADDRESSES, SMALL), st.one_of(ADDRESSES, SMALL))
def test_equal_addresses_draw_equal_numbers_and_different_ones_different(
    one: tuple[int, Role, int, int], other: tuple[int, Role, int, int]
) -> None:
    assert draw(one) == draw(one)
    assert (draw(one) == draw(other)) == (one == other)


def test_all_small_addresses_differ_in_their_first_number() -> None:
    first = {
        int(generator(seed, role, generation, agent).integers(2**63))
        for seed in range(4)
        for role in Role
        for generation in range(5)
        for agent in range(5)
    }
    assert len(first) == 4 * len(Role) * 25


def test_neighbouring_addresses_are_not_correlated() -> None:
    draws = np.stack([generator(1, Role.REPLAY, 0, agent).standard_normal(2000) for agent in range(8)])
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 4 / np.sqrt(2000)


def test_the_numbers_at_an_address_never_change() -> None:
    """Part of every result: a change here makes old runs irreproducible."""
    assert {role.name: int(role) for role in Role} == {
        "WEIGHTS": 0,
        "WINDOWS": 1,
        "EXPLORATION": 2,
        "REPLAY": 3,
        "SELECTION": 4,
        "MUTATION": 5,
        "VALIDATION": 6,
        "TARGET": 7,
        "PROBE": 8,
        "HYPERPARAMETERS": 9,
        "SENSITIVITY": 10,
        "LUCK": 11,
        "TEST": 12,
        "PREFILL": 13,
    }
    expected = np.random.default_rng(np.random.SeedSequence([42, 3, 7, 11])).integers(1000, size=5)
    assert generator(42, Role.REPLAY, 7, 11).integers(1000, size=5).tolist() == expected.tolist()


def test_drawing_at_an_address_disturbs_no_other() -> None:
    first, second = generator(0, Role.WINDOWS), generator(0, Role.WINDOWS)
    first.random(100)
    assert second.random() == generator(0, Role.WINDOWS).random()


def test_torch_is_seeded_inside_and_put_back_outside() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        expected = torch.rand(3)
        torch.manual_seed(9)
        inside = []
        for seed, agent in ((1, 0), (1, 0), (1, 1), (2, 0)):
            with torch_seed(seed, Role.WEIGHTS, agent):
                inside.append(torch.rand(3).tolist())
        assert torch.equal(torch.rand(3), expected)
    assert inside[0] == inside[1]
    assert len({tuple(each) for each in inside}) == 3


# Exploration


def test_noise_has_each_agents_deviation_on_the_last_windows_alone() -> None:
    scale = torch.tensor([0.0, 0.05, 0.2])
    noise = ExplorationNoise(scale, 400, (5, 4), range(3), seed=1, generation=2)
    action = torch.full((3, 402, 5, 4), 0.01)
    result = noise.add(action)
    assert torch.equal(result[:, :2], action[:, :2])
    change = (result - action)[:, 2:].flatten(1)
    assert not change[0].any()
    for agent in (1, 2):
        assert float(change[agent].std()) == pytest.approx(float(scale[agent]), rel=0.03)
        assert abs(float(change[agent].mean())) < 4 * float(scale[agent]) / 8000**0.5
    assert abs(float(torch.corrcoef(change[1:])[0, 1])) < 4 / 8000**0.5
    assert torch.equal(action, torch.full_like(action, 0.01))


def test_noisy_actions_stay_in_range_and_reach_both_ends() -> None:
    noise = ExplorationNoise(torch.full((2,), 3.0), 50, (2,), range(2), seed=0, generation=0)
    result = noise.add(torch.zeros(2, 60, 2))
    assert (float(result.min()), float(result.max())) == (-1.0, 1.0)


def test_without_exploration_windows_nothing_is_added() -> None:
    action = torch.rand(2, 3, 1)
    assert torch.equal(ExplorationNoise(torch.ones(2), 0, (1,), range(2), seed=0, generation=0).add(action), action)


def noise_of(agents: int, seed: int = 4, generation: int = 6) -> torch.Tensor:
    noise = ExplorationNoise(torch.full((agents,), 0.1), 3, (2,), range(agents), seed=seed, generation=generation)
    return torch.stack([noise.add(torch.zeros(agents, 4, 2))[:, 1:] for _ in range(5)], dim=1)


def test_noise_depends_on_seed_generation_and_agent_and_not_on_how_many_agents_there_are() -> None:
    few, many = noise_of(2), noise_of(5)
    assert torch.equal(few, many[:2])
    assert len(torch.unique(many)) == many.numel(), "steps, windows and agents each draw their own"
    for other in (noise_of(2, seed=5), noise_of(2, generation=7)):
        assert not torch.isin(other, few).any()
