"""Addressed randomness: every generator is made from (seed, role, generation, agent) where it is used.

A checkpoint holds no generator: a run that resumes, or uses more processes, makes the same generators and so draws the
same numbers.
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
    HYPERPARAMETERS = 9
    SENSITIVITY = 10
    LUCK = 11
    TEST = 12
    PREFILL = 13


def generator(seed: int, role: Role, generation: int = 0, agent: int = 0) -> np.random.Generator:
    """Return the generator at an address; equal addresses draw equal numbers, others independent ones.

    Args:
        seed: the run's seed, >= 0.
        role: purpose of the numbers.
        generation: the generation that draws them, >= 0.
        agent: number of the agent that draws them, >= 0; 0 for draws that all agents share.
    """
    return np.random.default_rng(np.random.SeedSequence([seed, int(role), generation, agent]))


@contextmanager
def torch_seed(seed: int, role: Role, agent: int) -> Iterator[None]:
    """Seed torch's global CPU generator at an address, for `nn.Module` initialisers, and restore it afterwards."""
    address = generator(seed, role, agent=agent)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(address.integers(2**63)))
        yield
