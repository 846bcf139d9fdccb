"""Operators: settings, mutation against its statistics, plateaus, injection and reinjection through runs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution import (
    Elitism,
    Injection,
    MagnitudeMutation,
    Operator,
    PlateauGrowth,
    ProximalMutation,
    Reinjection,
    TournamentCrossover,
)
from eigen2.erl.evolution.statistics import origins
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError
from tests.erl.conftest import SEED
from tests.erl.evolution.builders import evolution, mutation_noise, planned
from tests.erl.interrupted import check_resume
from tests.erl.probe import AIM, ProbeActor, fit, make_trainer
from tests.erl.recorder import Recorder, same
from tests.erl.test_champion import ScriptedRollouts

WORST = -100.0
SIZES = [20_000, 40_000, 1]
SCALES = [0.5, 30.0, 2.0]


@pytest.mark.parametrize(
    ("operator", "settings"),
    [
        *((kind, {"share": value}) for kind in (Elitism, TournamentCrossover) for value in (-0.1, 1.1, math.nan)),
        *((MagnitudeMutation, {"fraction": value}) for value in (-0.01, 1.01, math.nan)),
        *((MagnitudeMutation, {"scale": value}) for value in (-0.5, math.nan)),
        *((PlateauGrowth, {name: value}) for name in ("factor", "most") for value in (0.9, math.nan, math.inf)),
        *((ProximalMutation, {name: 0}) for name in ("probes", "projections", "floor")),
        (TournamentCrossover, {"tournament_size": 0}),
        (PlateauGrowth, {"patience": 0}),
        (Injection, {"every": 0}),
        (Reinjection, {"patience": 0}),
    ],
)
def test_settings_out_of_range_are_named_with_their_value(operator: type, settings: dict[str, float]) -> None:
    ((setting, value),) = settings.items()
    with pytest.raises(UserError, match=rf"^{operator.__name__}\.{setting} is {value};.*$"):
        operator(**settings)


def parent_row() -> torch.Tensor:
    chance = np.random.default_rng(4)
    pieces = [chance.choice([-scale, scale], size) for size, scale in zip(SIZES, SCALES, strict=True)]
    return torch.from_numpy(np.concatenate(pieces).astype(np.float32))


@pytest.mark.parametrize(("fraction", "scale"), [(0.1, 0.1), (0.5, 2.0), (1.0, 0.01)])
def test_mutation_changes_the_right_share_by_the_right_amount_in_every_tensor(fraction: float, scale: float) -> None:
    row = parent_row()
    noise = mutation_noise(row, SIZES, MagnitudeMutation(fraction=fraction, scale=scale), np.random.default_rng(0))
    assert noise.shape == row.shape
    for piece, size, rms in list(zip(torch.split(noise, SIZES), SIZES, SCALES, strict=True))[:2]:
        changed = piece[piece != 0]
        assert abs(len(changed) - size * fraction) <= 4 * math.sqrt(size * fraction * (1 - fraction))
        expected = scale * rms
        assert abs(float(changed.std()) / expected - 1) < 4 / math.sqrt(2 * len(changed))
        assert abs(float(changed.mean())) < 4 * expected / math.sqrt(len(changed))
        kurtosis = float((changed / expected).pow(4).mean())
        assert abs(kurtosis - 3) < 4 * math.sqrt(96 / len(changed))


def test_mutation_without_scale_share_or_weights_changes_nothing_and_a_nan_spoils_its_tensor_alone() -> None:
    for settings in ({"scale": 0.0}, {"fraction": 0.0}):
        assert not mutation_noise(parent_row(), SIZES, MagnitudeMutation(**settings), np.random.default_rng(0)).any()
    row = torch.tensor([0.0, 0.0, 1.0, 1.0, math.nan, 1.0])
    noise = mutation_noise(row, [2, 2, 2], MagnitudeMutation(fraction=1.0), np.random.default_rng(0))
    assert noise[:2].tolist() == [0.0, 0.0]
    assert noise[2:4].isfinite().all()
    assert noise[2:4].all()


def scripted(champions: set[int], generations: int, operators: list[Operator], **settings: Any) -> Recorder:
    """Run eight agents, the first the fittest, with a new champion in the given generations alone."""
    recorder = Recorder()
    fitness = [[8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]] * generations
    validation = [[float(n) if n in champions else WORST] * 8 for n in range(generations)]
    every = settings.get("validate_every", 1)
    data = ScriptedRollouts(fitness, validation[every - 1 :: every])
    module = ERLModule(population_size=8, gradient_steps=1, accumulate=1, evolution=operators, **settings)
    make_trainer(recorder, epochs=generations).fit(module, datamodule=data)
    return recorder


def test_the_scale_grows_on_a_plateau_up_to_its_bound_and_returns_with_a_champion() -> None:
    mutation = MagnitudeMutation(scale=0.1, growth=PlateauGrowth(patience=2, factor=2.0, most=3.0))
    operators = evolution(0.5, 0.25, mutation=mutation)
    recorder = scripted({0, 6}, 9, operators)
    # the plateau's length is known when a generation evolves: it counts the validations of those before
    lengths = [0, 0, 1, 2, 3, 4, 5, 0, 1]
    scales = [0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.1, 0.1]
    logged = [recorder.metrics[generation] for generation in range(9)]
    assert [metrics["plateau/validations"] for metrics in logged] == lengths
    assert [metrics["plateau/mutation_scale"] for metrics in logged] == pytest.approx(scales)
    sizes = [weight.numel() for weight in ProbeActor().parameters()]
    before, after = (recorder.states[5, phase]["actor"] for phase in ("train", "evolve"))
    children = planned(recorder.fitness[5].numpy(), operators, generator(SEED, Role.SELECTION, 5))
    mutant = next(child for child in children if child.operator.name == "mutant")
    parent, chance = before[mutant.parents[0]], generator(SEED, Role.MUTATION, 5, mutant.row)
    noise = mutation_noise(parent, sizes, MagnitudeMutation(scale=scales[5]), chance)
    torch.testing.assert_close(after[mutant.row], parent + noise)


def test_validations_count_from_the_start_and_those_left_out_do_not() -> None:
    mutation = MagnitudeMutation(growth=PlateauGrowth(patience=1, factor=3.0, most=1e9))
    recorder = scripted(set(), 7, evolution(mutation=mutation), validate_every=3)
    lengths = [recorder.metrics[generation]["plateau/validations"] for generation in range(7)]
    assert lengths == [0, 0, 0, 0, 0, 0, 1], "the first validation always finds a champion"
    assert recorder.metrics[6]["plateau/mutation_scale"] == pytest.approx(0.3)


@given(st.integers(1, 20), st.floats(1, 50), st.floats(1, 1e6), st.integers(0, 10**6))
def test_a_multiple_is_a_power_of_the_factor_between_one_and_its_bound(
    patience: int, factor: float, most: float, validations: int
) -> None:
    growth = PlateauGrowth(patience, factor, most)
    multiple = growth.multiple(validations)
    assert 1 <= multiple <= most * (1 + 1e-9)
    assert multiple <= growth.multiple(validations + 1) * (1 + 1e-9)
    assert multiple == growth.multiple(validations // patience * patience)
    if multiple < most:
        assert math.log(multiple) == pytest.approx(validations // patience * math.log(factor))


def origins_of(recorder: Recorder, generation: int, operators: list[Operator]) -> list[str]:
    return [origins(operators)[place] for place in recorder.states[generation, "evolve"]["origin"].tolist()]


@pytest.mark.parametrize(("every", "champions", "comes"), [(1, {0, 5}, [3, 5, 8, 10]), (2, {1, 7}, [6, 12, 16])])
def test_the_champion_returns_once_after_each_plateau(every: int, champions: set[int], comes: list[int]) -> None:
    """In the generation after the second validation of a plateau, the fourth and so on."""
    operators = evolution(reinject_after=2)
    recorder = scripted(champions, max(comes) + 2, operators, validate_every=every)
    generations = range(max(comes) + 2)
    assert [n for n in generations if "reinjected" in origins_of(recorder, n, operators)] == comes
    for generation in comes:
        before, after = (recorder.states[generation, phase] for phase in ("train", "evolve"))
        found = origins_of(recorder, generation, operators)
        assert [row for row in range(8) if found[row] == "reinjected"] == [7], "the least fit"
        for network in ("actor", "critic"):
            champion = before[f"champion_{network}"][0]
            assert not same(before[network][7], champion)
            assert same(after[network][7], champion)
            assert same(after[f"{network}_target"][7], champion)
            assert not after[f"{network}.exp_avg"][7].any()
            assert not after[f"{network}.exp_avg_sq"][7].any()
            assert after[f"{network}.exp_avg"][:4].any(1).all(), "elites keep their moments"
        assert math.isnan(float(after["parents_fitness"][7]))
        logged = recorder.metrics[generation + 1]
        assert (logged["operators/reinjected_survival"], logged["operators/reinjected_fitness"]) == (0, 1)


@pytest.mark.parametrize(
    ("after", "operators"),
    [
        (1, evolution(mutation=MagnitudeMutation(growth=PlateauGrowth(patience=1, factor=2.0)))),
        (4, evolution(reinject_after=2)),
    ],
)
def test_a_run_on_a_plateau_is_resumed_bit_for_bit(after: int, operators: list[Operator], tmp_path: Path) -> None:
    recorder = check_resume(tmp_path, after, evolution=operators, actor_lr=1e-30)
    last = recorder.metrics[5]
    reinjected = [n for n in range(after, 6) if "reinjected" in origins_of(recorder, n, operators)]
    assert reinjected or last["plateau/mutation_scale"] > 0.1


def test_the_fittest_learners_actor_replaces_the_least_fit_every_kth_generation() -> None:
    recorder = Recorder()
    fit(AIM, recorder, epochs=4, population_size=6, learners=2, evolution=evolution(inject_every=2))
    for generation in range(4):
        before, after = recorder.states[generation, "train"], recorder.states[generation, "evolve"]
        fitness = recorder.fitness[generation]
        learner, worst = int(fitness[:2].argmax()), 2 + int(fitness[2:].argmin())
        assert same(after["actor"][worst], before["actor"][learner]) == (generation % 2 == 1)
        assert not after["actor.exp_avg"][2:].any(), "agents that do not learn have no momentum"
        for name in ("actor", "critic", "actor.exp_avg", "critic.exp_avg_sq"):
            assert same(before[name][:2], after[name][:2]), "learners do not evolve"
