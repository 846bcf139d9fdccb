"""Operators, contexts and plans for tests, by the numbers that matter in them."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigen2.core.networks import StackedNetwork
from eigen2.erl.evolution import (
    Elitism,
    EvolutionContext,
    Injection,
    MagnitudeMutation,
    Operator,
    TournamentCrossover,
)
from eigen2.erl.evolution.operator import Child
from eigen2.erl.evolution.selection import plan, ranking_of


def evolution(
    elites: float = 0.5,
    crossover: float = 0.375,
    tournament_size: int = 3,
    *,
    inject_every: int | None = None,
    mutation: Operator | None = None,
) -> list[Operator]:
    """Return elitism, crossover and mutation, with injection where asked for."""
    return [
        Elitism(elites),
        *([] if inject_every is None else [Injection(inject_every)]),
        TournamentCrossover(crossover, tournament_size),
        mutation or MagnitudeMutation(),
    ]


def context(sizes: list[int] | None = None, **changes: Any) -> EvolutionContext:
    """Return the state of a run in its first generation, of actors with tensors of these sizes."""
    network = _network(*(sizes or []))
    return replace(EvolutionContext(seed=0, generation=0, first_evolving=0, actor_network=network), **changes)


@functools.cache
def _network(*sizes: int) -> StackedNetwork:
    return StackedNetwork(nn.ParameterList(torch.zeros(size) for size in sizes))


def planned(
    fitness: np.ndarray, operators: list[Operator], generator: np.random.Generator, **changes: Any
) -> list[Child]:
    """Return the children of a generation."""
    told = context(**changes)
    return plan(ranking_of(fitness, operators, told.first_evolving), operators, told, generator)


def mutation_noise(
    parent: Tensor, sizes: list[int], mutation: MagnitudeMutation, generator: np.random.Generator
) -> Tensor:
    """Return what a mutation adds to a copy of an actor's row."""
    agent = {"actor": parent.clone(), "actor_target": torch.zeros_like(parent)}
    mutation.apply(agent, {}, context(sizes), generator)
    return agent["actor_target"]
