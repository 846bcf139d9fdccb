"""Addressed randomness: a generator is made from where it is used, never carried along.

Nothing random is saved in a checkpoint: a run resumed at generation g, or spread over more processes, makes the same
generators as the uninterrupted one and so draws the same numbers.
"""

import enum
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


class Role(enum.IntEnum):
    """What a generator is for. The numbers are part of every result: never renumber, only add."""

    WEIGHTS = 0
    WINDOWS = 1
    EXPLORATION = 2
    REPLAY = 3
    SELECTION = 4
    MUTATION = 5
    VALIDATION = 6
    TARGET = 7
    PROBE = 8
    HYPERPARAMETERS = 9
    SENSITIVITY = 10
    LUCK = 11
    TEST = 12
    PREFILL = 13


def generator(seed: int, role: Role, generation: int = 0, agent: int = 0) -> np.random.Generator:
    """The generator at an address; equal addresses draw equal numbers, different ones independent numbers.

    Args:
        seed: the run's seed, >= 0.
        role: what the numbers are for.
        generation: the generation that draws them, >= 0.
        agent: the row of the population that draws them, >= 0; 0 for draws that all agents share.
    """
    return np.random.default_rng(np.random.SeedSequence([seed, int(role), generation, agent]))


@contextmanager
def torch_seed(seed: int, role: Role, agent: int) -> Iterator[None]:
    """Torch's global CPU generator at an address, for `nn.Module` initialisers; put back as it was afterwards."""
    address = generator(seed, role, agent=agent)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(address.integers(2**63)))
        yield
