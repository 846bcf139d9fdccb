"""Selection against its definition, inheritance against NumPy, mutation against its statistics."""

import itertools
import math
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from eigen2.erl.evolution.selection import Child, Evolution, inherit, mutation_noise, plan, rank
from eigen2.errors import UserError
from tests.erl.reference import inherited

FITNESS = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf]), st.floats(-5, 5))
POPULATIONS = st.lists(FITNESS, min_size=1, max_size=40).map(np.array)


@st.composite
def evolutions(draw: st.DrawFn) -> Evolution:
    elite, crossover = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    assume(elite + crossover <= 1)
    return Evolution(elite_fraction=elite, crossover_fraction=crossover, tournament_size=draw(st.integers(1, 50)))


def better(fitness: np.ndarray, one: int, other: int) -> bool:
    """Whether row `one` goes before row `other`: the fitter, finite before not finite, the lower row of equals."""
    if not (math.isfinite(fitness[one]) and math.isfinite(fitness[other])):
        return math.isfinite(fitness[one]) or (not math.isfinite(fitness[other]) and one < other)
    return bool(fitness[one] > fitness[other]) if fitness[one] != fitness[other] else one < other


@given(POPULATIONS)
def test_rank_is_from_the_fittest_with_ties_by_row_and_what_is_not_finite_last(fitness: np.ndarray) -> None:
    order = rank(fitness)
    assert sorted(order) == list(range(len(fitness)))
    assert all(better(fitness, one, other) for one, other in pairwise(order))


@given(POPULATIONS, evolutions(), st.integers(0, 2**32 - 1))
def test_every_plan_keeps_the_fittest_and_replaces_every_other_row_once(
    fitness: np.ndarray, settings: Evolution, seed: int
) -> None:
    sound = set(np.flatnonzero(np.isfinite(fitness)).tolist())
    assume(sound)
    size, before = len(fitness), fitness.copy()
    children = plan(fitness, settings, np.random.default_rng(seed))
    np.testing.assert_array_equal(fitness, before)
    replaced = [child.row for child in children]
    elites = set(range(size)) - set(replaced)
    assert replaced == sorted(set(replaced))
    assert elites <= sound
    assert len(elites) == min(len(sound), max(1, round(settings.elite_fraction * size)))
    assert all(better(fitness, elite, row) for elite in elites for row in replaced)
    kinds = Counter(child.kind for child in children)
    assert kinds["offspring"] == min(round(settings.crossover_fraction * size), len(sound) - len(elites))
    for child in children:
        if child.kind == "mutant":
            assert child.parents[0] == child.parents[1] in elites
            assert child.blend == 1
        else:
            assert child.row in sound, "what failed becomes a mutant"
            assert set(child.parents) <= sound
            assert 0 <= child.blend < 1
    assert children == plan(fitness, settings, np.random.default_rng(seed))


def test_a_population_without_a_finite_fitness_has_no_parents() -> None:
    with pytest.raises(ValueError, match="no agent has a finite fitness"):
        plan(np.array([math.nan, math.inf, -math.inf]), Evolution(), np.random.default_rng(0))


def test_16_agents_become_8_elites_6_offspring_and_2_mutants() -> None:
    fitness = np.random.default_rng(0).normal(size=16)
    children = plan(fitness, Evolution(), np.random.default_rng(1))
    assert Counter(child.kind for child in children) == {"offspring": 6, "mutant": 2}
    assert {child.row for child in children} == set(np.argsort(fitness)[:8].tolist())


def test_another_generator_makes_another_plan() -> None:
    fitness = np.arange(16.0)
    plans = [plan(fitness, Evolution(), np.random.default_rng(seed)) for seed in range(5)]
    assert len({str(children) for children in plans}) == 5


def chance_to_win(position: int, size: int, tournament: int) -> float:
    """That the agent at a place in the ranking is the best of `tournament` drawn without replacement."""
    return math.comb(size - 1 - position, tournament - 1) / math.comb(size, tournament)


@pytest.mark.parametrize("tournament", [1, 2, 3, 8, 20])
def test_parents_win_tournaments_over_the_whole_population(tournament: int) -> None:
    fitness = np.array([3.0, 7.0, 1.0, 6.0, 0.0, 5.0, 2.0, 4.0])
    settings = Evolution(elite_fraction=0.5, crossover_fraction=0.5, tournament_size=tournament)
    generator = np.random.default_rng(3)
    plans = [plan(fitness, settings, generator) for _ in range(1000)]
    pairs = Counter(child.parents for children in plans for child in children)
    draws = 4 * len(plans)
    assert pairs.total() == draws
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


def test_offspring_have_two_parents() -> None:
    for size in range(2, 9):
        children = [
            c for seed in range(50) for c in plan(np.arange(float(size)), Evolution(), np.random.default_rng(seed))
        ]
        assert all(child.parents[0] != child.parents[1] for child in children if child.kind == "offspring")


def test_blends_are_even_and_mutants_parents_are_drawn_evenly_from_the_elites() -> None:
    fitness = np.arange(8.0)
    settings = Evolution(elite_fraction=0.5, crossover_fraction=0.25)
    children = [c for seed in range(500) for c in plan(fitness, settings, np.random.default_rng(seed))]
    blends = np.array([child.blend for child in children if child.kind == "offspring"])
    assert abs(blends.mean() - 0.5) < 0.04
    assert abs(blends.std() - 1 / math.sqrt(12)) < 0.02
    parents = Counter(child.parents[0] for child in children if child.kind == "mutant")
    assert parents.keys() == {4, 5, 6, 7}
    assert all(abs(count - 250) < 60 for count in parents.values())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *((name, value) for name in ("elite_fraction", "crossover_fraction") for value in (-0.1, 1.1, math.nan)),
        *(("mutation_fraction", value) for value in (-0.01, 1.01, math.nan)),
        ("tournament_size", 0),
        ("mutation_scale", -0.5),
        ("mutation_scale", math.nan),
    ],
)
def test_settings_out_of_range_are_named_with_their_value(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UserError) as error:
        Evolution(**settings)
    assert f"model.evolution.{setting} is {value};" in str(error.value)
    assert "\n" not in str(error.value)


def test_shares_of_more_than_all_are_refused_with_both_values() -> None:
    with pytest.raises(UserError, match=r"^model\.evolution\.elite_fraction 0\.8 and crossover_fraction 0\.3 .*$"):
        Evolution(elite_fraction=0.8, crossover_fraction=0.3)
    for elite in range(101):
        Evolution(elite_fraction=elite / 100, crossover_fraction=(100 - elite) / 100)


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert asdict(Evolution()) == {
        "elite_fraction": 0.5,
        "crossover_fraction": 0.375,
        "tournament_size": 3,
        "mutation_fraction": 0.1,
        "mutation_scale": 0.1,
        "inject_every": 1,
        "hyperparameters": None,
        "adaptive_mutation": None,
        "proximal": None,
        "reinject_after": None,
    }


@st.composite
def families(draw: st.DrawFn) -> tuple[int, list[Child]]:
    """A population size and children of any rows, parents that are replaced themselves included."""
    size = draw(st.integers(1, 12))
    row = st.integers(0, size - 1)
    children = []
    for replaced in draw(st.lists(row, unique=True)):
        if draw(st.booleans()):
            children.append(Child(replaced, "offspring", (draw(row), draw(row)), draw(st.floats(0, 0.99))))
        else:
            parent = draw(row)
            children.append(Child(replaced, "mutant", (parent, parent), 1.0))
    return size, children


@given(families(), st.sampled_from([(), (1,), (5,), (3, 2)]), st.integers(0, 1000))
def test_children_are_blends_of_their_parents_old_rows(
    family: tuple[int, list[Child]], shape: tuple[int, ...], seed: int
) -> None:
    size, children = family
    old = np.random.default_rng(seed).normal(size=(size, *shape)).astype(np.float32)
    rows = torch.from_numpy(old.copy())
    address = rows.data_ptr()
    inherit(rows, children)
    np.testing.assert_allclose(rows.numpy(), inherited(old, children), rtol=1e-5, atol=1e-6)
    assert rows.data_ptr() == address
    kept = sorted(set(range(size)) - {child.row for child in children})
    assert rows.numpy()[kept].tobytes() == old[kept].tobytes()
    for child in children:
        if child.blend == 1:
            assert rows.numpy()[child.row].tobytes() == old[child.parents[0]].tobytes()


def test_a_chain_of_parents_that_are_replaced_reads_the_rows_as_they_were() -> None:
    rows = torch.tensor([[10.0], [20.0], [30.0], [40.0]])
    inherit(
        rows,
        [
            Child(1, "mutant", (0, 0), 1.0),
            Child(2, "mutant", (1, 1), 1.0),
            Child(3, "offspring", (1, 2), 0.25),
        ],
    )
    assert rows.flatten().tolist() == [10.0, 10.0, 20.0, 0.25 * 20 + 0.75 * 30]


def test_rows_swap() -> None:
    rows = torch.tensor([1.0, 2.0])
    inherit(rows, [Child(0, "mutant", (1, 1), 1.0), Child(1, "mutant", (0, 0), 1.0)])
    assert rows.tolist() == [2.0, 1.0]


def test_children_of_different_parents_are_neither_zero_nor_outside_their_parents() -> None:
    rows = torch.rand(16, 50) + 1
    old = rows.clone()
    children = plan(np.arange(16.0), Evolution(), np.random.default_rng(5))
    inherit(rows, children)
    assert (rows >= 1).all()
    for child in children:
        parents = old[list(child.parents)]
        assert (rows[child.row] >= parents.amin(0) - 1e-5).all()
        assert (rows[child.row] <= parents.amax(0) + 1e-5).all()


def test_each_child_gets_its_own_parents_scalars() -> None:
    """Row i holds i, so a child's value tells whose child it is."""
    scalars = torch.arange(16.0)
    children = plan(np.random.default_rng(8).normal(size=16), Evolution(), np.random.default_rng(9))
    shuffled = [children[i] for i in np.random.default_rng(0).permutation(len(children))]
    inherit(scalars, shuffled)
    for child in children:
        expected = child.blend * child.parents[0] + (1 - child.blend) * child.parents[1]
        assert float(scalars[child.row]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("poison", [math.inf, -math.inf, math.nan])
def test_a_full_blend_copies_exactly_whatever_the_second_parent_holds(poison: float) -> None:
    rows = torch.tensor([[1.25, -3e38], [poison, poison], [0.0, 0.0]])
    inherit(rows, [Child(2, "offspring", (0, 1), 1.0)])
    assert rows[2].tolist() == rows[0].tolist()


def test_copies_keep_infinities_and_nan() -> None:
    rows = torch.tensor([[math.inf, math.nan, -0.0], [1.0, 1.0, 1.0]])
    inherit(rows, [Child(1, "mutant", (0, 0), 1.0)])
    assert rows.numpy()[1].tobytes() == rows.numpy()[0].tobytes()


def test_a_child_changed_later_leaves_its_parent_alone() -> None:
    rows = torch.ones(3, 4)
    inherit(rows, [Child(1, "mutant", (0, 0), 1.0), Child(2, "offspring", (0, 1), 0.5)])
    rows[1:] += 5
    assert rows[0].tolist() == [1.0] * 4


def test_no_children_no_change() -> None:
    rows = torch.arange(6.0).reshape(3, 2)
    inherit(rows, [])
    assert rows.tolist() == [[0, 1], [2, 3], [4, 5]]


SIZES = [20_000, 40_000, 1]
SCALES = [0.5, 30.0, 2.0]


def parent_row() -> torch.Tensor:
    generator = np.random.default_rng(4)
    pieces = [generator.choice([-scale, scale], size) for size, scale in zip(SIZES, SCALES, strict=True)]
    return torch.from_numpy(np.concatenate(pieces).astype(np.float32))


@pytest.mark.parametrize(("fraction", "scale"), [(0.1, 0.1), (0.5, 2.0), (1.0, 0.01)])
def test_mutation_changes_the_right_share_by_the_right_amount_in_every_tensor(fraction: float, scale: float) -> None:
    row = parent_row()
    before = row.clone()
    settings = Evolution(mutation_fraction=fraction, mutation_scale=scale)
    noise = mutation_noise(row, SIZES, settings, np.random.default_rng(0))
    assert noise.shape == row.shape
    assert torch.equal(row, before)
    for piece, size, rms in list(zip(torch.split(noise, SIZES), SIZES, SCALES, strict=True))[:2]:
        changed = piece[piece != 0]
        spread = math.sqrt(size * fraction * (1 - fraction))
        assert abs(len(changed) - size * fraction) <= 4 * spread
        expected = scale * rms
        assert abs(float(changed.std()) / expected - 1) < 4 / math.sqrt(2 * len(changed))
        assert abs(float(changed.mean())) < 4 * expected / math.sqrt(len(changed))
        kurtosis = float((changed / expected).pow(4).mean())
        assert abs(kurtosis - 3) < 4 * math.sqrt(96 / len(changed))


@pytest.mark.parametrize("change", [{"mutation_scale": 0.0}, {"mutation_fraction": 0.0}])
def test_mutation_of_no_scale_or_no_share_is_zero(change: dict[str, Any]) -> None:
    noise = mutation_noise(parent_row(), SIZES, Evolution(**change), np.random.default_rng(0))
    assert not noise.any()


def test_a_tensor_of_zeros_is_not_mutated_and_a_broken_weight_spoils_only_its_tensor() -> None:
    settings = Evolution(mutation_fraction=1.0)
    row = torch.tensor([0.0, 0.0, 1.0, 1.0, math.nan, 1.0])
    noise = mutation_noise(row, [2, 2, 2], settings, np.random.default_rng(0))
    assert noise[:2].tolist() == [0.0, 0.0]
    assert noise[2:4].isfinite().all()
    assert noise[2:4].all()


def test_mutation_depends_on_the_generator_alone() -> None:
    row, settings = parent_row(), Evolution()
    first, again, other = (mutation_noise(row, SIZES, settings, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
