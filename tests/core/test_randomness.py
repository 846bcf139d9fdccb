"""Addresses and what is drawn at them."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.randomness import Role, generator, torch_seed

ADDRESSES = st.tuples(
    st.integers(0, 2**32 - 1), st.sampled_from(list(Role)), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)
)
SMALL = st.tuples(st.integers(0, 3), st.sampled_from(list(Role)), st.integers(0, 3), st.integers(0, 3))


def draw(address: tuple[int, Role, int, int]) -> list[int]:
    return generator(*address).integers(2**63, size=4).tolist()


@given(st.one_of(ADDRESSES, SMALL), st.one_of(ADDRESSES, SMALL))
def test_equal_addresses_draw_equal_numbers_and_different_ones_different(
    one: tuple[int, Role, int, int], other: tuple[int, Role, int, int]
) -> None:
    assert draw(one) == draw(one)
    assert (draw(one) == draw(other)) == (one == other)


def test_neighbouring_addresses_are_not_correlated() -> None:
    draws = np.stack([generator(1, Role.REPLAY, 0, agent).standard_normal(2000) for agent in range(8)])
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 4 / np.sqrt(2000)


def test_the_numbers_at_an_address_never_change() -> None:
    """Part of every result: a change here makes old runs irreproducible."""
    names = "WEIGHTS WINDOWS EXPLORATION REPLAY SELECTION MUTATION VALIDATION TARGET PROBE LUCK TEST"
    assert [role.name for role in sorted(Role)] == names.split()
    assert [int(role) for role in sorted(Role)] == [*range(9), 11, 12]
    expected = np.random.default_rng(np.random.SeedSequence([42, 3, 7, 11])).integers(1000, size=5)
    assert generator(42, Role.REPLAY, 7, 11).integers(1000, size=5).tolist() == expected.tolist()


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
