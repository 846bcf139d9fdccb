"""Operators: settings, mutation against its statistics, injection through runs."""

import math

import numpy as np
import pytest
import torch

from eigen2.erl.evolution import (
    Elitism,
    FineMutation,
    Injection,
    MagnitudeMutation,
    TournamentCrossover,
)
from eigen2.errors import UserError
from tests.erl.evolution.builders import evolution, mutation_noise
from tests.erl.probe import AIM, fit
from tests.erl.recorder import Recorder, same

SIZES = [20_000, 40_000, 1]
SCALES = [0.5, 30.0, 2.0]


@pytest.mark.parametrize(
    ("operator", "settings"),
    [
        *((kind, {"share": value}) for kind in (Elitism, TournamentCrossover) for value in (-0.1, 1.1, math.nan)),
        *((MagnitudeMutation, {"fraction": value}) for value in (-0.01, 1.01, math.nan)),
        *((MagnitudeMutation, {"scale": value}) for value in (-0.5, math.nan)),
        (TournamentCrossover, {"tournament_size": 0}),
        (Injection, {"every": 0}),
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


def test_fine_mutation_changes_every_weight_beside_another_mutation() -> None:
    noise = mutation_noise(parent_row(), SIZES, FineMutation(), np.random.default_rng(0))
    assert noise.all()
    recorder = Recorder()
    operators = [Elitism(share=0.25), MagnitudeMutation(share=0.5, scale=0.0), FineMutation()]
    fit(AIM, recorder, epochs=2, population_size=4, evolution=operators)
    before, after = recorder.states[0, "train"]["actor"], recorder.states[0, "evolve"]["actor"]
    assert [any(same(row, old) for old in before) for row in after].count(True) == 3
    assert {"operators/mutant_fitness", "operators/fine_mutant_fitness"} <= set(recorder.metrics[1])


def test_mutation_without_scale_share_or_weights_changes_nothing_and_a_nan_spoils_its_tensor_alone() -> None:
    for settings in ({"scale": 0.0}, {"fraction": 0.0}):
        assert not mutation_noise(parent_row(), SIZES, MagnitudeMutation(**settings), np.random.default_rng(0)).any()
    row = torch.tensor([0.0, 0.0, 1.0, 1.0, math.nan, 1.0])
    noise = mutation_noise(row, [2, 2, 2], MagnitudeMutation(fraction=1.0), np.random.default_rng(0))
    assert noise[:2].tolist() == [0.0, 0.0]
    assert noise[2:4].isfinite().all()
    assert noise[2:4].all()


def test_the_learners_actor_replaces_the_least_fit_every_kth_generation() -> None:
    recorder = Recorder()
    fit(AIM, recorder, epochs=4, population_size=6, learners=1, evolution=evolution(inject_every=2))
    for generation in range(4):
        before, after = recorder.states[generation, "train"], recorder.states[generation, "evolve"]
        worst = 1 + int(recorder.fitness[generation][1:].argmin())
        assert same(after["head"][worst], before["actor"][0]) == (generation % 2 == 1)
        assert same(after["head"][0], before["actor"][0]), "the learner acts as it has learned"
        for name in ("actor", "critic", "actor.exp_avg", "critic.exp_avg_sq"):
            assert same(before[name], after[name]), "the learner does not evolve"
