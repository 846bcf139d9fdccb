"""What evolution does while validation finds no better champion."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen2.erl.evolution import Evolution, mutation_noise, plan
from eigen2.erl.module import ERLModule
from eigen2.erl.plateau import AdaptiveMutation
from eigen2.erl.population import Population
from eigen2.erl.randomness import Role, generator
from eigen2.errors import UserError
from tests.erl.conftest import SEED
from tests.erl.interrupted import resumed
from tests.erl.probe import ProbeActor, ProbeCritic, make_trainer
from tests.erl.recorder import Recorder
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
    assert [metrics["mutation/validations_since_champion"] for metrics in told] == lengths
    assert [metrics["mutation/scale"] for metrics in told] == pytest.approx(scales)
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
    lengths = [recorder.metrics[generation]["mutation/validations_since_champion"] for generation in range(7)]
    assert lengths == [0, 0, 0, 0, 0, 0, 1], "the first validation always crowns"
    assert recorder.metrics[6]["mutation/scale"] == pytest.approx(0.3)


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


def test_a_reset_forgets_the_plateau() -> None:
    population = Population(2, ProbeActor, ProbeCritic, SEED, 0.3)
    population.validations_since_champion.fill_(7)
    population.reset_memory(ProbeActor, ProbeCritic, SEED, 0.3)
    assert int(population.validations_since_champion) == 0


@pytest.mark.parametrize("after", [1, 4])
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(after: int, tmp_path: Path) -> None:
    evolution = Evolution(adaptive_mutation=AdaptiveMutation(patience=1, factor=2.0))
    recorder = resumed(tmp_path, after, evolution=evolution, actor_lr=1e-30)
    assert recorder.metrics[5]["mutation/scale"] > 0.1


@pytest.mark.parametrize(
    ("setting", "value"),
    [*((name, value) for name in ("factor", "most") for value in (0.9, math.nan, math.inf)), ("patience", 0)],
)
def test_settings_out_of_range_are_named_with_their_value(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UserError, match=rf"^model\.evolution\.adaptive_mutation\.{setting} is {value};"):
        AdaptiveMutation(**settings)
