"""Plans against their definition, inheritance against NumPy."""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution import (
    AgentRows,
    Elitism,
    EvolutionContext,
    Injection,
    MagnitudeMutation,
    Operator,
    TournamentCrossover,
)
from eigen2.erl.evolution.breeding import breed, inherit, parents_of
from eigen2.erl.evolution.operator import Child, Parents, Ranking
from eigen2.erl.evolution.selection import check_operators, idle, plan, rank, ranking_of
from eigen2.errors import UserError
from tests.erl.evolution.builders import context, evolution, planned
from tests.erl.reference import inherited

FITNESS = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf]), st.floats(-5, 5))
POPULATIONS = st.lists(FITNESS, min_size=1, max_size=40).map(np.array)
OFFSPRING, MUTANT = TournamentCrossover(), MagnitudeMutation()


@dataclass
class Childless(Operator):
    """Does not say who the parents are."""

    name: ClassVar[str] = "childless"
    share: float = 0.1


@st.composite
def shares(draw: st.DrawFn) -> tuple[float, float]:
    elites, crossover = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    assume(elites + crossover <= 1)
    return elites, crossover


def names(children: list[Child]) -> Counter[str]:
    return Counter(child.operator.name for child in children)


def better(fitness: np.ndarray, one: int, other: int) -> bool:
    """Return whether agent `one` ranks before `other`: fitter, finite before not finite, the lower number of equals."""
    if not (math.isfinite(fitness[one]) and math.isfinite(fitness[other])):
        return math.isfinite(fitness[one]) or (not math.isfinite(fitness[other]) and one < other)
    return bool(fitness[one] > fitness[other]) if fitness[one] != fitness[other] else one < other


@given(POPULATIONS, shares(), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_every_plan_keeps_the_fittest_and_replaces_every_other_agent_once(
    fitness: np.ndarray, share: tuple[float, float], tournament: int, seed: int
) -> None:
    finite = set(np.flatnonzero(np.isfinite(fitness)).tolist())
    assume(finite)
    size, before, operators = len(fitness), fitness.copy(), evolution(*share, tournament)
    children = planned(fitness, operators, np.random.default_rng(seed))
    np.testing.assert_array_equal(fitness, before)
    order = rank(fitness)
    assert sorted(order) == list(range(size))
    assert all(better(fitness, one, other) for one, other in pairwise(order))
    replaced = [child.row for child in children]
    elites = set(range(size)) - set(replaced)
    assert replaced == sorted(set(replaced))
    assert elites <= finite
    assert len(elites) == min(len(finite), max(1, round(share[0] * size)))
    assert all(better(fitness, elite, row) for elite in elites for row in replaced)
    assert names(children)["offspring"] == min(int(share[1] * size + 1e-9), len(finite) - len(elites))
    for child in children:
        if child.operator.name == "mutant":
            assert len(child.parents) == 1
            assert set(child.parents) <= elites
            assert child.blend == 1
        else:
            assert child.row in finite, "an agent that failed becomes a mutant"
            assert len(set(child.parents)) == 2
            assert set(child.parents) <= finite
            assert 0 <= child.blend < 1
    assert children == planned(fitness, operators, np.random.default_rng(seed))


@pytest.mark.parametrize("agents", [2, *range(4, 200)])
def test_by_default_every_population_has_mutants(agents: int) -> None:
    children = planned(np.arange(float(agents)), evolution(), np.random.default_rng(0))
    assert names(children)["mutant"] >= 1


@pytest.mark.parametrize(
    ("operators", "agents", "idlers"),
    [
        ([Elitism(), TournamentCrossover(), MagnitudeMutation()], 16, []),
        ([Elitism(), TournamentCrossover(), MagnitudeMutation()], 3, ["mutant"]),
        ([Elitism(), Injection(every=7), TournamentCrossover(), MagnitudeMutation()], 16, []),
        ([Elitism(), Injection(), TournamentCrossover(), MagnitudeMutation()], 5, ["mutant"]),
        ([Elitism(), MagnitudeMutation(), Injection(), TournamentCrossover()], 16, ["injected", "offspring"]),
        ([Elitism(), Injection(), MagnitudeMutation()], 2, ["injected", "mutant"]),
    ],
)
def test_operators_that_get_no_agent_are_found(operators: list[Operator], agents: int, idlers: list[str]) -> None:
    first = int(any(isinstance(operator, Injection) for operator in operators))
    at = replace(context(), generation=3, first_evolving=first)
    assert [operator.name for operator in idle(operators, agents, at)] == idlers


def chance_to_win(position: int, size: int, tournament: int) -> float:
    """Return the chance that the agent at a place in the ranking is the best of `tournament` without replacement."""
    return math.comb(size - 1 - position, tournament - 1) / math.comb(size, tournament)


@pytest.mark.parametrize(("tournament", "draws"), [(1, 2000), (3, 2000), (20, 10)])
def test_parents_win_tournaments_over_the_whole_population(tournament: int, draws: int) -> None:
    fitness = np.array([3.0, 7.0, 1.0, 6.0, 0.0, 5.0, 2.0, 4.0])
    operator, generator = TournamentCrossover(0.5, tournament), np.random.default_rng(3)
    ranking = ranking_of(fitness, evolution(), 0)
    pairs = Counter(operator.parents(ranking, generator).rows for _ in range(draws))
    order = np.argsort(-fitness).tolist()
    for first, second in itertools.product(range(8), repeat=2):
        if first == second:
            assert pairs[order[first], order[second]] == 0
            continue
        # the second tournament is held among the seven others
        among_others = second - (second > first)
        chance = chance_to_win(first, 8, min(tournament, 8)) * chance_to_win(among_others, 7, min(tournament, 7))
        bound = 5 * math.sqrt(draws * chance * (1 - chance))
        assert abs(pairs[order[first], order[second]] - draws * chance) <= bound


def test_blends_are_uniform_and_mutants_parents_are_drawn_evenly_from_the_elites() -> None:
    ranking, generator = ranking_of(np.arange(8.0), evolution(), 0), np.random.default_rng(0)
    blends = np.array([OFFSPRING.parents(ranking, generator).blend for _ in range(1000)])
    assert abs(blends.mean() - 0.5) < 0.04
    assert abs(blends.std() - 1 / math.sqrt(12)) < 0.02
    parents = Counter(MUTANT.parents(ranking, generator).rows[0] for _ in range(1000))
    assert parents.keys() == {4, 5, 6, 7}
    assert all(abs(count - 250) < 60 for count in parents.values())


@given(
    st.lists(st.one_of(st.floats(-5, 5), st.just(math.nan)), min_size=3, max_size=20),
    st.booleans(),
    st.integers(0, 1000),
)
def test_the_learner_does_not_evolve_and_is_a_parent_by_injection_alone(
    fitness: list[float], inject: bool, seed: int
) -> None:
    values = np.array(fitness)
    evolving = range(1, len(values))
    operators = evolution(inject_every=1 if inject else None)
    if not np.isfinite(values[1:]).any():
        with pytest.raises(ValueError, match="no parent"):
            planned(values, operators, np.random.default_rng(seed), first_evolving=1)
        return
    children = planned(values, operators, np.random.default_rng(seed), first_evolving=1)
    kept = len(evolving) - len(children)
    free = np.isfinite(values[1:]).sum() > kept
    assert names(children)["injected"] == (inject and np.isfinite(values[0]) and free)
    for child in children:
        if child.operator.name == "injected":
            assert child.parents == (0,)
            assert np.isfinite(values[child.row]), "one that failed becomes a mutant"
        else:
            assert set(child.parents) <= set(evolving)
            assert np.isfinite(values[list(child.parents)]).all()
        assert child.row in evolving
    replaced = [child.row for child in children]
    assert len(set(replaced)) == len(replaced)
    assert {row for row in evolving if not np.isfinite(values[row])} <= set(replaced)
    assert max(evolving, key=lambda row: (np.isfinite(values[row]), values[row])) not in replaced


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ([Elitism(0.8), TournamentCrossover(0.3), MUTANT], r"exceed 1 \(elite 0.8 \+ offspring 0.3\); lower one"),
        ([Elitism(), MUTANT, MagnitudeMutation()], "two operators named mutant"),
        ([Elitism(), MagnitudeMutation(share=0.2)], "no operator that fills the rest"),
        ([Elitism(), Injection()], "no operator that fills the rest"),
        ([Elitism(), MUTANT, Childless()], r"has Childless\(share=0.1\), which has no `parents`"),
        ([TournamentCrossover(0.3), MUTANT], "keeps no agent, so that the fittest would be lost .* add .*Elitism$"),
    ],
)
def test_lists_that_cannot_fill_a_population_are_refused(operators: list[Operator], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_operators(operators)


@pytest.mark.parametrize("parents", [(0, 1), Parents(()), Parents((99,)), Parents((0,), 2.0)])
def test_what_are_no_parents_is_refused(parents: Any) -> None:
    class Own(Elitism):
        name = "own"

        def rows(self, ranking: Ranking, context: EvolutionContext, taken: Collection[int]) -> Sequence[int]:
            return ranking.replaced

        def parents(self, ranking: Ranking, generator: np.random.Generator) -> Parents:
            return parents

    ranking = ranking_of(np.arange(4.0), [Elitism()], 0)
    with pytest.raises(
        UserError, match=r"^Own\.parents returns .*; return Parents of one or more of the agents 0 to 3"
    ):
        plan(ranking, [Own()], context(), np.random.default_rng(0))


class Fine(MagnitudeMutation):
    name = "fine"


def test_shares_that_add_up_to_one_are_accepted_whatever_their_rounding() -> None:
    for elites in range(101):
        check_operators(evolution(elites / 100, (100 - elites) / 100))
    check_operators([Elitism(0.33), TournamentCrossover(0.56), Fine(share=0.11), MUTANT])  # 1.0000000000000002


def bred(rows: torch.Tensor, *children: Child) -> None:
    inherit(rows, children, rows[parents_of(children)])


@st.composite
def families(draw: st.DrawFn) -> tuple[int, list[Child]]:
    """Draw a population size and children of any agents, parents that are replaced themselves included."""
    size = draw(st.integers(1, 12))
    row = st.integers(0, size - 1)
    children = [
        Child(replaced, OFFSPRING, (draw(row), draw(row)), draw(st.floats(0, 0.99)))
        if draw(st.booleans())
        else Child(replaced, MUTANT, (draw(row),))
        for replaced in draw(st.lists(row, unique=True))
    ]
    return size, children


@given(families(), st.sampled_from([(), (1,), (3, 2)]), st.integers(0, 1000))
def test_children_are_blends_of_their_parents_old_rows(
    family: tuple[int, list[Child]], shape: tuple[int, ...], seed: int
) -> None:
    size, children = family
    old = np.random.default_rng(seed).normal(size=(size, *shape)).astype(np.float32)
    rows = torch.from_numpy(old.copy())
    address = rows.data_ptr()
    bred(rows, *children)
    np.testing.assert_allclose(rows.numpy(), inherited(old, children), rtol=1e-5, atol=1e-6)
    assert rows.data_ptr() == address
    kept = sorted(set(range(size)) - {child.row for child in children})
    assert rows.numpy()[kept].tobytes() == old[kept].tobytes()
    for child in children:
        if child.blend == 1:
            assert rows.numpy()[child.row].tobytes() == old[child.parents[0]].tobytes()


class Witness(Operator):
    """Overwrites the actor by the sum of its parents', the first one doubled."""

    name = "witness"

    def apply(
        self, agent: AgentRows, parents: AgentRows, context: EvolutionContext, generator: np.random.Generator
    ) -> None:
        agent["actor"].copy_(parents["actor"].sum(0) + parents["actor"][0])


def test_an_operator_gets_its_own_parents_rows_in_their_order() -> None:
    old = torch.arange(12.0).reshape(6, 2).exp()
    rows, witness = {"actor": old.clone(), "noise": torch.arange(6.0)}, Witness()
    children = [
        Child(1, witness, (4, 2, 5)),
        Child(2, MUTANT, (0,)),
        Child(3, witness, (2,)),
        Child(5, witness, (1, 4)),
    ]
    breed(rows, children, context([2]), Communicator(6))
    expected = [old[0], 2 * old[4] + old[2] + old[5], old[0], 2 * old[2], old[4], 2 * old[1] + old[4]]
    torch.testing.assert_close(rows["actor"], torch.stack(expected))


def test_a_row_changes_in_place_alone() -> None:
    class Own(Elitism):
        def apply(
            self, agent: AgentRows, parents: AgentRows, context: EvolutionContext, generator: np.random.Generator
        ) -> None:
            agent["actor"] *= 2
            if self.share:
                agent["actor"] = agent["actor"] * 2

    for share, rows in ((0.0, torch.ones(2, 3)), (0.5, torch.ones(2, 3))):
        child = Child(1, Own(share), (0,))
        with nullcontext() if not share else pytest.raises(UserError, match="in the place of 'actor'; change it in pl"):
            breed({"actor": rows}, [child], context(), Communicator(2))
        assert rows.tolist() == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_copies_are_exact_whatever_a_second_parent_holds(poison: float) -> None:
    rows = torch.tensor([[1.25, -3e38, -0.0], [poison, poison, poison], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    bred(rows, Child(2, OFFSPRING, (0, 1), 1.0), Child(3, MUTANT, (1,)))
    assert rows.numpy()[2].tobytes() == rows.numpy()[0].tobytes()
    assert rows.numpy()[3].tobytes() == rows.numpy()[1].tobytes()
    bred(rows)
    rows[2:] += 5
    assert rows[0].tolist() == [1.25, torch.tensor(-3e38).item(), 0.0]
