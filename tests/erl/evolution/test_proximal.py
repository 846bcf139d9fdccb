"""Mutation divided by the sensitivity of actions: the formula, its estimate and what mutants do."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from eigen2.control.networks import MLPActor
from eigen2.core.networks import Inputs, Sizes, StackedNetwork
from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution import MagnitudeMutation, ProximalMutation
from eigen2.erl.evolution.proximal import Probe, proximal_deviation, sensitivity
from tests.erl.conftest import SEED
from tests.erl.evolution.builders import context, evolution, mutation_noise, planned
from tests.erl.interrupted import check_resume
from tests.erl.probe import AIM, ProbeActor, fit
from tests.erl.recorder import Recorder, same

FEATURES, ACTIONS = 3, 2


class LinearActor(nn.Module):
    """Actions that are linear in the weights: d a_k / d w_kj = x_j."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, ACTIONS, bias=False)

    def forward(self, inputs: Inputs) -> Tensor:
        action: Tensor = self.layer(inputs["x"])
        return action


def perceptron() -> MLPActor:
    return MLPActor(Sizes({"x": (FEATURES,)}, (ACTIONS,)), (16, 16))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def signs(projections: int, states: int, seed: int = 0) -> Tensor:
    return 2 * torch.from_numpy(np.random.default_rng(seed).integers(2, size=(projections, 1, states, ACTIONS))) - 1.0


def every_sign(states: int) -> Tensor:
    """All patterns of signs: over them, products of different signs are exactly 0 in the mean."""
    patterns = list(itertools.product((1.0, -1.0), repeat=states * ACTIONS))
    return torch.tensor(patterns).reshape(-1, 1, states, ACTIONS)


@given(st.lists(st.floats(-10, 10, width=32), min_size=FEATURES, max_size=FEATURES), st.integers(1, 3))
def test_one_state_of_a_linear_actor_tells_each_weights_sensitivity_exactly(x: list[float], projections: int) -> None:
    """Each weight has a part in one action: |x_j|, over the square root of the number of actions."""
    probe = Probe({"x": torch.tensor(x)[None, None]}, signs(projections, 1))
    found = sensitivity(StackedNetwork(LinearActor()), drawn(ACTIONS * FEATURES), probe)
    expected = torch.tensor(x).abs().repeat(ACTIONS) / math.sqrt(ACTIONS)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-18)


@pytest.mark.parametrize("make", [perceptron, LinearActor])
def test_over_all_signs_the_estimate_is_the_formula(make: Callable[[], nn.Module]) -> None:
    """From every single derivative."""
    network, x = StackedNetwork(make()), drawn(1, 4, FEATURES)
    row = drawn(network.num_weights, seed=1) / 2
    found = sensitivity(network, row, Probe({"x": x}, every_sign(4)))
    jacobian: Any = torch.autograd.functional.jacobian(lambda w: network(w[None], {"x": x})[0], row)
    torch.testing.assert_close(found, jacobian.square().mean((0, 1)).sqrt(), rtol=1e-4, atol=1e-7)


# squares of numbers below 1e-100 would lose their digits
@given(
    st.lists(st.tuples(st.just(0.0) | st.floats(1e-100, 1e6), st.booleans()), min_size=1, max_size=30),
    st.floats(1e-3, 1),
)
def test_the_expected_change_is_one_and_even_above_the_floor(weights: list[tuple[float, bool]], floor: float) -> None:
    sensitive = torch.tensor([weight for weight, _ in weights], dtype=torch.float64)
    chosen = torch.tensor([choice for _, choice in weights])
    scale = proximal_deviation(sensitive, chosen, floor)
    if scale is None:
        assert not sensitive[chosen].square().any()
        return
    effect = (sensitive * scale)[chosen]
    assert float(effect.square().sum()) == pytest.approx(1)
    least = floor * float(sensitive.square().mean().sqrt())
    above = effect[sensitive[chosen] > least]
    assert not len(above) or float(above.max() - above.min()) <= 1e-9
    assert (scale <= scale[sensitive.argmin()] * (1 + 1e-9)).all(), "who matters least moves furthest"
    assert (sensitive <= least).sum() < 2 or len(scale[sensitive <= least].unique()) == 1


@pytest.mark.parametrize("sensitive", [[0.0, 0.0], [0.0, 1.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_there_is_no_deviation_where_no_number_would_do(sensitive: list[float]) -> None:
    assert proximal_deviation(torch.tensor(sensitive), torch.tensor([True, False]), 0.1) is None
    assert proximal_deviation(torch.tensor([5e-324], dtype=torch.float64), torch.tensor([True]), 1.0) is None


def test_without_stored_observations_the_noise_is_that_of_magnitude() -> None:
    row = torch.tensor([3.0, 4.0])
    plain, proximal = (
        mutation_noise(row, [2], kind(fraction=1.0), np.random.default_rng(0))
        for kind in (MagnitudeMutation, ProximalMutation)
    )
    assert same(plain, proximal)


def probed(x: Tensor, **settings: Any) -> ProximalMutation:
    """Return a mutation with the observations that its `begin` would draw."""
    mutation = ProximalMutation(**settings)
    mutation._probe = Probe({"x": x}, signs(mutation.projections, x.shape[1]))
    return mutation


def changes(network: StackedNetwork, rows: Tensor, x: Tensor, mutation: MagnitudeMutation) -> Tensor:
    """Return the root mean square change of the actions of four mutants of each row."""
    found = []
    for row, seed in itertools.product(rows, range(4)):
        mutant = row + mutation_noise(row, [], mutation, np.random.default_rng(seed), actor_network=network)
        difference = network(mutant[None], {"x": x}) - network(row[None], {"x": x})
        found.append(difference.detach().square().mean().sqrt())
    return torch.stack(found)


def test_with_equal_settings_actions_change_far_more_evenly_than_by_magnitude() -> None:
    """Parents whose last layers differ a hundredfold in size: so do their plain mutants' changes."""
    network, x = StackedNetwork(perceptron()), drawn(1, 64, FEATURES)
    rows = drawn(8, network.num_weights, seed=3) / 3
    rows[:, -(16 * ACTIONS + ACTIONS) :] *= torch.logspace(-1, 1, 8)[:, None]
    settings: dict[str, Any] = {"fraction": 0.3, "scale": 0.02}
    plain = changes(network, rows, x, MagnitudeMutation(**settings))
    proximal = changes(network, rows, x, probed(x, **settings))
    spread = [float(found.std() / found.mean()) for found in (plain, proximal)]
    assert spread[1] < spread[0] / 2
    assert float(plain.max() / plain.min()) > 10
    assert float(proximal.max() / proximal.min()) < 4
    assert float(proximal.mean()) == pytest.approx(0.02, rel=0.3)


def test_mutants_of_a_run_are_those_of_observations_drawn_from_the_buffer() -> None:
    recorder, mutation = Recorder(), ProximalMutation(probes=16, projections=3)
    operators = evolution(0.5, 0.0, mutation=mutation)
    module = fit(AIM, recorder, population_size=6, evolution=operators)
    chance = generator(SEED, Role.SENSITIVITY, 0)
    slots = chance.integers(len(module.data.buffer), size=(1, 16))
    x = module.data.buffer["x"][torch.from_numpy(slots)]
    probe = Probe({"x": x}, torch.from_numpy(2.0 * chance.integers(2, size=(3, 1, 16, 1), dtype=np.int8) - 1).float())
    network, expected = StackedNetwork(ProbeActor()), ProximalMutation(probes=16, projections=3)
    expected._probe = probe
    before, after = recorder.states[0, "train"], recorder.states[0, "evolve"]
    children = planned(recorder.fitness[0].numpy(), operators, generator(SEED, Role.SELECTION, 0))
    assert len(children) == 3
    for child in children:
        parent = before["actor"][child.parents[0]]
        agent = {"actor": parent.clone(), "actor_target": before["actor_target"][child.parents[0]].clone()}
        expected.apply(agent, {}, context(actor_network=network), generator(SEED, Role.MUTATION, 0, child.row))
        assert not same(agent["actor"], parent)
        for name, row in agent.items():
            torch.testing.assert_close(after[name][child.row], row)
        for name in ("critic", "critic_target"):
            assert same(after[name][child.row], before[name][child.parents[0]])


def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(tmp_path: Path) -> None:
    check_resume(tmp_path, 4, evolution=evolution(0.5, 0.25, mutation=ProximalMutation(probes=16)))
