"""Addressed randomness: every generator is made from (seed, role, generation, agent) where it is used.

No checkpoint holds a generator: a run that resumes, or uses more processes, makes the same ones again.
"""

import enum
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


class Role(enum.IntEnum):
    """Purpose of a generator. The numbers are part of every result: add to them, never renumber."""

    WEIGHTS = 0
    WINDOWS = 1
    EXPLORATION = 2
    REPLAY = 3
    SELECTION = 4
    MUTATION = 5
    VALIDATION = 6
    TARGET = 7
    PROBE = 8
    LUCK = 11  # 9 and 10 were of operators that are gone
    TEST = 12


def generator(seed: int, role: Role, generation: int = 0, agent: int = 0) -> np.random.Generator:
    """Return the generator at an address of numbers >= 0; equal addresses draw equal numbers, others independent ones.

    `agent` is its number in the whole population; 0 for draws that all agents share.
    """
    return np.random.default_rng(np.random.SeedSequence([seed, int(role), generation, agent]))


@contextmanager
def torch_seed(seed: int, role: Role, agent: int) -> Iterator[None]:
    """Seed torch's global CPU generator at an address, for `nn.Module` initialisers, and restore it afterwards."""
    rng = generator(seed, role, agent=agent)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        yield
