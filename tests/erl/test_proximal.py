"""Mutation divided by the sensitivity of actions: the formula, its estimate and what mutants do."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from eigen2.core.networks import Inputs, Linear, StackedNetwork
from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution.proximal import Probe, Proximal, proximal_scale, sensitivity
from eigen2.erl.evolution.selection import Evolution, mutation_noise, plan
from eigen2.errors import UserError
from tests.erl.conftest import SEED
from tests.erl.interrupted import AIM, resumed
from tests.erl.probe import ProbeActor, fit
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


class Perceptron(nn.Module):
    """Two hidden layers, of this package's `Linear` or of torch's."""

    def __init__(self, over_agents: str = "vmap") -> None:
        super().__init__()
        self.over_agents = over_agents
        layer: Any = Linear if over_agents == "broadcast" else nn.Linear
        self.layers = nn.Sequential(
            layer(FEATURES, 16), nn.Tanh(), layer(16, 16), nn.Tanh(), layer(16, ACTIONS), nn.Tanh()
        )

    def forward(self, inputs: Inputs) -> Tensor:
        action: Tensor = self.layers(inputs["x"])
        return action


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def signs(projections: int, states: int, seed: int = 0) -> Tensor:
    return 2 * torch.from_numpy(np.random.default_rng(seed).integers(2, size=(projections, 1, states, ACTIONS))) - 1.0


def every_sign(states: int) -> Tensor:
    """All patterns of signs: over them, products of different signs are exactly 0 in the mean."""
    patterns = list(itertools.product((1.0, -1.0), repeat=states * ACTIONS))
    return torch.tensor(patterns).reshape(-1, 1, states, ACTIONS)


def by_jacobian(network: StackedNetwork, row: Tensor, x: Tensor) -> Tensor:
    """The formula, from every single derivative."""
    jacobian: Any = torch.autograd.functional.jacobian(lambda w: network(w[None], {"x": x})[0], row)
    result: Tensor = jacobian.square().mean((0, 1)).sqrt()
    return result


# The formula


@given(st.lists(st.floats(-10, 10, width=32), min_size=FEATURES, max_size=FEATURES), st.integers(1, 3))
def test_one_state_of_a_linear_actor_tells_each_weights_sensitivity_exactly(x: list[float], projections: int) -> None:
    """Each weight has a part in one action: |x_j|, over the square root of the number of actions."""
    probe = Probe({"x": torch.tensor(x)[None, None]}, signs(projections, 1))
    found = sensitivity(StackedNetwork(LinearActor()), drawn(ACTIONS * FEATURES), probe)
    expected = torch.tensor(x).abs().repeat(ACTIONS) / math.sqrt(ACTIONS)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-18)


@pytest.mark.parametrize("over_agents", ["vmap", "broadcast", "loop"])
def test_over_all_signs_the_estimate_is_the_formula(over_agents: str) -> None:
    network, x = StackedNetwork(Perceptron(over_agents)), drawn(1, 4, FEATURES)
    row = drawn(network.num_weights, seed=1) / 2
    found = sensitivity(network, row, Probe({"x": x}, every_sign(4)))
    assert network.over_agents == over_agents
    torch.testing.assert_close(found, by_jacobian(network, row, x), rtol=1e-4, atol=1e-7)


def test_opposite_effects_in_two_states_do_not_cancel() -> None:
    x = torch.tensor([[[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]]])
    found = sensitivity(StackedNetwork(LinearActor()), drawn(ACTIONS * FEATURES), Probe({"x": x}, every_sign(2)))
    torch.testing.assert_close(found, torch.tensor([1.0, 2.0, 3.0] * 2) / math.sqrt(2))


@pytest.mark.parametrize("projections", [8, 128])
def test_few_projections_come_near_it(projections: int) -> None:
    network, x = StackedNetwork(Perceptron("broadcast")), drawn(1, 64, FEATURES)
    row = drawn(network.num_weights, seed=1) / 2
    ratio = sensitivity(network, row, Probe({"x": x}, signs(projections, 64))) / by_jacobian(network, row, x)
    assert abs(float(ratio.square().mean()) - 1) < 3 * math.sqrt(2 / projections)
    assert float(ratio.std()) < 1.3 / math.sqrt(2 * projections)


def test_neither_rows_nor_gradients_are_touched() -> None:
    network = StackedNetwork(LinearActor())
    row = nn.Parameter(drawn(ACTIONS * FEATURES))
    before = row.detach().clone()
    with torch.no_grad():
        found = sensitivity(network, row, Probe({"x": drawn(1, 2, FEATURES)}, signs(2, 2)))
    assert same(row.detach(), before)
    assert row.grad is None
    assert not found.requires_grad


# The scale


def test_a_sensitivity_too_small_to_divide_by_counts_as_none() -> None:
    assert proximal_scale(torch.tensor([5e-324], dtype=torch.float64), torch.tensor([True]), 1.0) is None


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=1, max_size=30),
    st.floats(1e-3, 1),
)
def test_the_expected_change_is_one_and_even_above_the_floor(weights: list[tuple[float, bool]], floor: float) -> None:
    sensitive = torch.tensor([weight for weight, _ in weights], dtype=torch.float64)
    chosen = torch.tensor([choice for _, choice in weights])
    scale = proximal_scale(sensitive, chosen, floor)
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
def test_without_a_sensitivity_the_noise_is_the_usual_one(sensitive: list[float]) -> None:
    row, settings = torch.tensor([3.0, 4.0]), Evolution(mutation_fraction=1.0, proximal=Proximal())
    chosen = torch.tensor([True, False])
    assert proximal_scale(torch.tensor(sensitive), chosen, 0.1) is None
    if sensitive[1] == 0 or not math.isfinite(sensitive[0]):
        noises = [
            mutation_noise(row, [2], settings, np.random.default_rng(0), given)
            for given in (torch.tensor(sensitive), None)
        ]
        assert same(*noises)


# What mutants do


def changes(network: StackedNetwork, rows: Tensor, x: Tensor, settings: Evolution) -> Tensor:
    """Root mean square change of the actions of four mutants of each row."""
    found = []
    probe = Probe({"x": x}, signs(settings.proximal.projections, x.shape[1]) if settings.proximal else torch.empty(0))
    for row, seed in itertools.product(rows, range(4)):
        sensitive = sensitivity(network, row, probe) if settings.proximal else None
        change = mutation_noise(row, network.sizes, settings, np.random.default_rng(seed), sensitive)
        difference = network((row + change)[None], probe.inputs) - network(row[None], probe.inputs)
        found.append(difference.detach().square().mean().sqrt())
    return torch.stack(found)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("floor", [1e-4, 1.0])
def test_actions_that_are_linear_in_the_weights_change_by_the_scale(fraction: float, floor: float) -> None:
    network, x = StackedNetwork(LinearActor()), drawn(1, 64, FEATURES) * torch.tensor([0.01, 1.0, 30.0])
    settings = Evolution(mutation_fraction=fraction, mutation_scale=0.2, proximal=Proximal(floor=floor))
    row = drawn(ACTIONS * FEATURES)
    exact, chances = by_jacobian(network, row, x), map(np.random.default_rng, range(300))
    mutants = [mutation_noise(row, network.sizes, settings, chance, exact) for chance in chances]
    mutants = [change for change in mutants if change.any()]
    effect = network(torch.stack(mutants), {"x": x}).square().mean((1, 2)).detach()
    assert float(effect.mean().sqrt()) == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("over_agents", ["vmap", "broadcast"])
def test_with_equal_settings_actions_change_far_more_evenly_than_without(over_agents: str) -> None:
    """Parents whose last layers differ a hundredfold in size: so do their plain mutants' changes."""
    network, x = StackedNetwork(Perceptron(over_agents)), drawn(1, 64, FEATURES)
    rows = drawn(8, network.num_weights, seed=3) / 3
    rows[:, -(16 * ACTIONS + ACTIONS) :] *= torch.logspace(-1, 1, 8)[:, None]
    settings: dict[str, Any] = {"mutation_fraction": 0.3, "mutation_scale": 0.02}
    plain = changes(network, rows, x, Evolution(**settings))
    proximal = changes(network, rows, x, Evolution(**settings, proximal=Proximal()))
    spread = [float(found.std() / found.mean()) for found in (plain, proximal)]
    assert spread[1] < spread[0] / 2
    assert float(plain.max() / plain.min()) > 10
    assert float(proximal.max() / proximal.min()) < 4
    assert float(proximal.mean()) == pytest.approx(0.02, rel=0.3)


def test_through_a_run_mutants_are_those_of_probes_drawn_from_the_buffer() -> None:
    recorder, settings = Recorder(), Proximal(probes=16, projections=3)
    evolution = Evolution(0.5, 0.0, proximal=settings)
    module = fit(AIM, recorder, population_size=6, evolution=evolution)
    chance = generator(SEED, Role.SENSITIVITY, 0)
    slots = chance.integers(len(module.data.buffer), size=(1, 16))
    x = module.data.buffer["x"][torch.from_numpy(slots)]
    probe = Probe({"x": x}, torch.from_numpy(2.0 * chance.integers(2, size=(3, 1, 16, 1), dtype=np.int8) - 1).float())
    network = StackedNetwork(ProbeActor())
    before, after = recorder.states[0, "train"], recorder.states[0, "evolve"]
    children = plan(recorder.fitness[0].numpy(), evolution, generator(SEED, Role.SELECTION, 0))
    assert len(children) == 3
    for child in children:
        parent = before["actor"][child.parents[0]]
        chance = generator(SEED, Role.MUTATION, 0, child.row)
        change = mutation_noise(parent, network.sizes, evolution, chance, sensitivity(network, parent, probe))
        assert change.any()
        torch.testing.assert_close(after["actor"][child.row], parent + change)
        target = before["actor_target"][child.parents[0]]
        torch.testing.assert_close(after["actor_target"][child.row], target + change)
        for name in ("critic", "critic_target"):
            assert same(after[name][child.row], before[name][child.parents[0]])


@pytest.mark.parametrize("after", [1, 4])
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(after: int, tmp_path: Path) -> None:
    resumed(tmp_path, after, evolution=Evolution(0.5, 0.25, proximal=Proximal(probes=16)))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("probes", 0), ("probes", 10_001), ("projections", 0), ("projections", 10_001)]
    + [("floor", value) for value in (0.0, 1.1, math.nan)],
)
def test_settings_out_of_range_are_named_with_their_value(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UserError, match=rf"^model\.evolution\.proximal\.{setting} is {value};"):
        Proximal(**settings)
