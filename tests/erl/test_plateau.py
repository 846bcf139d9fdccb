"""What evolution does while validation finds no better champion."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eigen2.erl.evolution.hyperparameters import Hyperparameters
from eigen2.erl.evolution.plateau import AdaptiveMutation
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution.selection import Child, Evolution, mutation_noise, plan, rank
from eigen2.erl.evolution.statistics import KINDS
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Population
from eigen2.errors import UserError
from tests.erl.conftest import SEED
from tests.erl.interrupted import resumed
from tests.erl.probe import ProbeActor, ProbeCritic, make_trainer
from tests.erl.recorder import Recorder, same
from tests.erl.test_champion import ScriptedRollouts

WORST = -100.0


def scripted(champions: set[int], generations: int, evolution: Evolution, **settings: Any) -> Recorder:
    """A run of eight agents, the first the fittest, that crowns a champion in the given generations alone."""
    recorder = Recorder()
    fitness = [[8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]] * generations
    validation = [[float(n) if n in champions else WORST] * 8 for n in range(generations)]
    every = settings.get("validate_every", 1)
    data = ScriptedRollouts(fitness, validation[every - 1 :: every])
    module = ERLModule(population_size=8, gradient_steps=1, accumulate=1, evolution=evolution, **settings)
    make_trainer(recorder, epochs=generations).fit(module, datamodule=data)
    return recorder


def test_the_scale_grows_on_a_plateau_up_to_its_bound_and_returns_with_a_champion() -> None:
    adaptive = AdaptiveMutation(patience=2, factor=2.0, most=3.0)
    evolution = Evolution(0.5, 0.25, mutation_scale=0.1, adaptive_mutation=adaptive)
    recorder = scripted({0, 6}, 9, evolution)
    # the plateau's length is known when a generation evolves: it counts the validations of those before
    lengths = [0, 0, 1, 2, 3, 4, 5, 0, 1]
    scales = [0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.1, 0.1]
    told = [recorder.metrics[generation] for generation in range(9)]
    assert [metrics["plateau/validations"] for metrics in told] == lengths
    assert [metrics["plateau/mutation_scale"] for metrics in told] == pytest.approx(scales)
    for generation in range(9):
        before, after = (recorder.states[generation, phase]["actor"] for phase in ("train", "evolve"))
        children = plan(recorder.fitness[generation].numpy(), evolution, generator(SEED, Role.SELECTION, generation))
        mutants = [child for child in children if child.kind == "mutant"]
        assert len(mutants) == 2
        for child in mutants:
            parent, settings = before[child.parents[0]], Evolution(mutation_scale=scales[generation])
            chance = generator(SEED, Role.MUTATION, generation, child.row)
            sizes = [weight.numel() for weight in ProbeActor().parameters()]
            torch.testing.assert_close(after[child.row], parent + mutation_noise(parent, sizes, settings, chance))


def test_without_a_champion_validations_count_from_the_start_and_those_left_out_do_not() -> None:
    evolution = Evolution(adaptive_mutation=AdaptiveMutation(patience=1, factor=3.0, most=1e9))
    recorder = scripted(set(), 7, evolution, validate_every=3)
    lengths = [recorder.metrics[generation]["plateau/validations"] for generation in range(7)]
    assert lengths == [0, 0, 0, 0, 0, 0, 1], "the first validation always crowns"
    assert recorder.metrics[6]["plateau/mutation_scale"] == pytest.approx(0.3)


@given(st.integers(1, 20), st.floats(1, 50), st.floats(1, 1e6), st.integers(0, 10**6))
def test_a_multiple_is_a_power_of_the_factor_between_one_and_its_bound(
    patience: int, factor: float, most: float, validations: int
) -> None:
    adaptive = AdaptiveMutation(patience, factor, most)
    multiple = adaptive.multiple(validations)
    assert 1 <= multiple <= most * (1 + 1e-9)
    assert multiple <= adaptive.multiple(validations + 1) * (1 + 1e-9)
    assert multiple == adaptive.multiple(validations // patience * patience)
    if multiple < most:
        assert math.log(multiple) == pytest.approx(validations // patience * math.log(factor))


def kinds_of(recorder: Recorder, generation: int) -> list[str]:
    return [KINDS[place] for place in recorder.states[generation, "evolve"]["kind"].tolist()]


@pytest.mark.parametrize(
    ("every", "champions", "comes"),
    [(1, {0, 5}, [3, 5, 8, 10]), (2, {1, 7}, [6, 12, 16])],
)
def test_the_champion_comes_back_once_for_each_so_many_validations_without_a_better_one(
    every: int, champions: set[int], comes: list[int]
) -> None:
    """In the generation after the second validation of a plateau, the fourth and so on."""
    recorder = scripted(champions, max(comes) + 2, Evolution(reinject_after=2), validate_every=every)
    generations = range(max(comes) + 2)
    assert [n for n in generations if "reinjected" in kinds_of(recorder, n)] == comes
    for generation in comes:
        before, after = (recorder.states[generation, phase] for phase in ("train", "evolve"))
        (row,) = (row for row, kind in enumerate(kinds_of(recorder, generation)) if kind == "reinjected")
        assert row == 7, "the least fit"
        for network in ("actor", "critic"):
            champion = before[f"champion_{network}"][0]
            assert not same(before[network][row], champion)
            assert same(after[network][row], champion)
            assert same(after[f"{network}_target"][row], champion)
            assert not after[f"{network}.exp_avg"][row].any()
            assert not after[f"{network}.exp_avg_sq"][row].any()
            assert after[f"{network}.exp_avg"][:4].any(1).all(), "elites keep their moments"
        assert math.isnan(float(after["parents_fitness"][row]))
        told = recorder.metrics[generation + 1]
        assert (told["operators/reinjected_survival"], told["operators/reinjected_fitness"]) == (0, 1)


def test_without_the_option_no_champion_comes_back() -> None:
    recorder = scripted({0}, 6, Evolution())
    assert not any("reinjected" in kinds_of(recorder, generation) for generation in range(6))
    assert not any(name.startswith("plateau/") for name in recorder.metrics[5])


def test_the_champion_brings_its_own_hyperparameters() -> None:
    evolution = Evolution(0.5, 0.0, reinject_after=1, hyperparameters=Hyperparameters(scale=0.7))
    recorder = Recorder()
    # row 4 is a mutant of the first generation, becomes champion in the second and falls behind in the third
    fitness = [[8.0, 7.0, 6.0, 5.0, 1.0, 2.0, 3.0, 4.0], [1.0] * 4 + [9.0] + [1.0] * 3]
    data = ScriptedRollouts([*fitness, fitness[0], fitness[0]], [[0.0] * 8, [1.0] * 8, [WORST] * 8, [WORST] * 8])
    module = ERLModule(population_size=8, gradient_steps=1, accumulate=1, evolution=evolution)
    make_trainer(recorder, epochs=4).fit(module, datamodule=data)
    champion = recorder.states[1, "validate"]["champion_hyperparameters"][0]
    assert champion.all()
    assert same(champion, recorder.states[1, "evolve"]["hyperparameters"][4])
    assert kinds_of(recorder, 3)[4] == "reinjected"
    assert same(recorder.states[3, "evolve"]["hyperparameters"][4], champion)
    assert not same(recorder.states[2, "evolve"]["hyperparameters"][4], champion)


@given(
    st.lists(st.one_of(st.floats(-5, 5), st.just(math.nan)), min_size=2, max_size=20),
    st.integers(0, 5),
    st.booleans(),
    st.floats(0, 0.6),
    st.integers(0, 1000),
)
def test_the_champion_takes_the_least_fit_row_that_is_no_elite(
    fitness: list[float], learners: int, inject: bool, elites: float, seed: int
) -> None:
    values, learners = np.array(fitness), min(learners, len(fitness) - 1)
    if not np.isfinite(values[learners:]).any():
        return
    settings = Evolution(elites, 0.375)

    def planned(reinject: bool) -> dict[int, Child]:
        children = plan(values, settings, np.random.default_rng(seed), learners, inject, reinject)
        return {child.row: child for child in children}

    without, children = planned(False), planned(True)
    assert children.keys() == without.keys(), "elites stay elites"
    taken = [row for row in rank(values) if row >= learners and row in without and without[row].kind != "injected"]
    reinjected = [row for row, child in children.items() if child.kind == "reinjected"]
    assert reinjected == taken[-1:]
    assert [row for row, child in children.items() if child.kind == "injected"] == [
        row for row, child in without.items() if child.kind == "injected"
    ]


def test_a_reset_forgets_the_plateau() -> None:
    population = Population(2, ProbeActor, ProbeCritic, SEED, 0.3)
    population.validations_since_champion.fill_(7)
    population.reset_memory(ProbeActor, ProbeCritic, SEED, 0.3)
    assert int(population.validations_since_champion) == 0


@pytest.mark.parametrize("after", [1, 4])
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(after: int, tmp_path: Path) -> None:
    evolution = Evolution(adaptive_mutation=AdaptiveMutation(patience=1, factor=2.0))
    recorder = resumed(tmp_path, after, evolution=evolution, actor_lr=1e-30)
    assert recorder.metrics[5]["plateau/mutation_scale"] > 0.1


@pytest.mark.parametrize("after", [2, 4])
def test_a_run_with_a_champion_that_comes_back_is_resumed_bit_for_bit(after: int, tmp_path: Path) -> None:
    recorder = resumed(tmp_path, after, evolution=Evolution(reinject_after=2), actor_lr=1e-30)
    assert any("reinjected" in kinds_of(recorder, generation) for generation in range(after, 6))


def test_a_plateau_of_no_length_is_refused() -> None:
    with pytest.raises(UserError, match=r"^model\.evolution\.reinject_after is 0; it must be at least 1$"):
        Evolution(reinject_after=0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [*((name, value) for name in ("factor", "most") for value in (0.9, math.nan, math.inf)), ("patience", 0)],
)
def test_settings_out_of_range_are_named_with_their_value(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UserError, match=rf"^model\.evolution\.adaptive_mutation\.{setting} is {value};"):
        AdaptiveMutation(**settings)
