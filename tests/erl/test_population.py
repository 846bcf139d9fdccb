"""A population as a batch against the same networks one by one."""

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from eigen2.core.networks import Inputs, Linear, StackedNetwork
from eigen2.distributed.communicator import Communicator
from eigen2.erl.population import Population
from eigen2.errors import UserError
from tests.erl.probe import ProbeActor, ProbeCritic
from tests.erl.reference import with_weights

AGENTS, BATCH = 3, 5

FIVE = torch.tensor([5.0], dtype=torch.float64)


class Mixed(nn.Module):
    """Two named inputs and an action, layer normalisation and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(torch.cat([inputs["market"], inputs["own"], action], -1))))
        return (hidden * self.scale).sum(-1)


class Layer(Linear):
    over_agents = "broadcast"


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.9), nn.Linear(9, 2))

    def forward(self, series: Tensor) -> Tensor:
        return self.layers(series)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.lstm(series)[0][:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def mixed_inputs(market: int, own: int, action: int) -> tuple[Any, ...]:
    """With the given leading sizes: 1 where shared."""
    inputs = {"market": normal(market, BATCH, 2), "own": normal(own, BATCH, 1, seed=1)}
    return inputs, normal(action, BATCH, 1, seed=2)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "each its own": (Mixed, mixed_inputs(AGENTS, AGENTS, AGENTS)),
    "one shared": (Mixed, mixed_inputs(1, AGENTS, AGENTS)),
    "all shared": (Mixed, mixed_inputs(1, 1, 1)),
    "convolution": (Convolution, (normal(AGENTS, BATCH, 2, 4),)),
    "LSTM": (Recurrent, (normal(1, BATCH, 6, 2),)),
    "tied weights": (Tied, (normal(AGENTS, BATCH, 4),)),
}


def own_part(value: Any, agent: int) -> Any:
    if isinstance(value, dict):
        return {name: own_part(part, agent) for name, part in value.items()}
    return value[agent] if len(value) > 1 else value[0]


def one_by_one(make: Callable[[], nn.Module], rows: Tensor, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Values and gradients of plain modules, agent by agent; agent i's value weighs i + 1 in what is differentiated."""
    values, gradients = [], []
    for agent, row in enumerate(rows):
        network = with_weights(make(), row).eval()
        value = network(*(own_part(each, agent) for each in inputs))
        gradient = torch.autograd.grad(((agent + 1) * value.square()).sum(), list(network.parameters()))
        values.append(value.detach())
        gradients.append(nn.utils.parameters_to_vector(gradient))
    return torch.stack(values), torch.stack(gradients)


def together(stacked: StackedNetwork, rows: Tensor, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    leaf = rows.clone().requires_grad_()
    values = stacked(leaf, *inputs)
    weights = torch.arange(1, len(rows) + 1).reshape(-1, *[1] * (values.dim() - 1))
    return values.detach(), torch.autograd.grad((weights * values.square()).sum(), leaf)[0]


def test_tied_weights_are_tied_in_rows_too() -> None:
    population = Population(Communicator(2), Tied, lambda: nn.Linear(1, 1), seed=0, noise=0.0)
    plain = with_weights(Tied(), population.actor_of(1)[0])
    x = normal(BATCH, 4)
    torch.testing.assert_close(plain(x), population.actor_network(population.actor.detach(), x[None])[1])


def test_before_the_first_champion_all_processes_hold_the_first_agent() -> None:
    whole, second = (
        Population(communicator, ProbeActor, ProbeCritic, seed=3, noise=0.0)
        for communicator in (Communicator(4), Communicator(4, 1, 2))
    )
    assert torch.equal(whole.champion_actor, whole.actor[:1])
    assert torch.equal(whole.champion_actor, second.champion_actor)


def test_an_unknown_way_over_agents_is_refused() -> None:
    class Odd(nn.Linear):
        over_agents = "each"

    with pytest.raises(UserError, match=r"^network Odd has over_agents 'each'; set vmap, broadcast or loop$"):
        StackedNetwork(Odd(1, 1))


@pytest.mark.parametrize("agents", [AGENTS, 1])
@pytest.mark.parametrize("case", CASES)
def test_vectorised_and_looped_equal_plain_modules_in_values_and_gradients(case: str, agents: int) -> None:
    make, inputs = CASES[case]
    if agents == 1:
        inputs = tuple({k: v[:1] for k, v in each.items()} if isinstance(each, dict) else each[:1] for each in inputs)
    stacked = StackedNetwork(make())
    rows = normal(agents, stacked.num_weights, seed=3) / 2
    expected = one_by_one(make, rows, inputs)
    for over_agents in ("vmap", "loop", "lone")[: 3 if agents == 1 else 2]:
        if over_agents == "lone":
            stacked.single_agent, stacked.over_agents = True, "broadcast"  # which these modules cannot
        else:
            stacked.over_agents = over_agents
        for got, right in zip(together(stacked, rows, inputs), expected, strict=True):
            assert got.shape == right.shape
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)
    # what a mean over agents would hide: every agent has its own value
    assert agents == 1 or len({round(float(v), 6) for v in expected[0].flatten(1).sum(1)}) == agents


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 70), features=st.integers(1, 70), width=st.integers(1, 40), bias=st.booleans())
def test_a_layer_has_the_same_bits_for_an_agent_beside_any_others(
    batch: int, features: int, width: int, bias: bool
) -> None:
    stacked = StackedNetwork(Layer(features, width, bias))
    weights, x = normal(AGENTS, stacked.num_weights, seed=1), normal(AGENTS, batch, features, seed=2)

    def run(agents: slice) -> tuple[Tensor, ...]:
        leaves = weights[agents].clone().requires_grad_(), x[agents].clone().requires_grad_()
        out = stacked(*leaves)
        return out.detach(), *torch.autograd.grad(out.square().sum(), leaves)

    whole = run(slice(AGENTS))
    for agents in (slice(0, 1), slice(1, 2), slice(1, 3)):
        assert all(torch.equal(own, every[agents]) for own, every in zip(run(agents), whole, strict=True))


def test_a_network_without_a_rule_is_found_out_once_and_another_error_is_not_taken_for_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lstm, convolution = StackedNetwork(Recurrent()), StackedNetwork(Convolution())
    with caplog.at_level(logging.INFO, "eigen2"):
        for _ in range(3):
            lstm(normal(AGENTS, lstm.num_weights), *CASES["LSTM"][1])
    assert lstm.over_agents == "loop"
    assert [("Recurrent" in record.message, "\n" in record.message) for record in caplog.records] == [(True, False)]
    with pytest.raises(RuntimeError, match="channels"):
        convolution(normal(AGENTS, convolution.num_weights), normal(AGENTS, BATCH, 7, 4))
    assert convolution.over_agents == "vmap"


class Attention(nn.Module):
    """A transformer's layer over the steps of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, steps: Tensor) -> Tensor:
        return self.layer(steps).sum((1, 2))


class Branching(nn.Module):
    """Reads a number of a tensor, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, steps: Tensor) -> Tensor:
        return steps.sum(1) @ self.weight * (2.0 if self.weight.sum() > 0 else 1.0)


@pytest.mark.parametrize("make", [Attention, Branching])
def test_networks_of_other_kinds_train_as_they_do_alone(make: Callable[[], nn.Module]) -> None:
    stacked, inputs = StackedNetwork(make()), (normal(AGENTS, BATCH, 3, 4),)
    rows = normal(AGENTS, stacked.num_weights, seed=3) / 2
    for got, right in zip(together(stacked, rows, inputs), one_by_one(make, rows, inputs), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)
    assert torch.backends.mha.get_fastpath_enabled()


class Random(nn.Module):
    """Draws random numbers, which a resume would not repeat."""

    def forward(self, steps: Tensor) -> Tensor:
        return (steps + torch.rand(4)).sum((1, 2))


def test_a_network_that_draws_random_numbers_is_refused() -> None:
    stacked = StackedNetwork(Random())
    with pytest.raises(RuntimeError, match="random"):
        stacked({"unused": torch.zeros(AGENTS, 1)}, normal(AGENTS, BATCH, 3, 4))


def test_a_network_with_buffers_is_refused_in_one_line() -> None:
    with pytest.raises(
        UserError, match=r"^network Sequential has buffers \(1.running_mean, 1.running_var.*LayerNorm.*$"
    ):
        StackedNetwork(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lazy = nn.LazyLinear(2)


class Frozen(ProbeActor):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("actor", "words"),
    [
        (
            Lazy,
            r"^network Lazy has weights without a shape \(lazy.weight, lazy.bias\); give its lazy modules their sizes$",
        ),
        (Frozen, r"^network Frozen has frozen weights \(encoder.weight, encoder.bias\), which evolution would change"),
    ],
)
def test_a_network_that_cannot_train_and_evolve_is_refused(actor: type[nn.Module], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Population(Communicator(2), actor, ProbeCritic, seed=0, noise=0.3)


def make_population(size: int = 4, seed: int = 5) -> Population:
    return Population(Communicator(size), ProbeActor, ProbeCritic, seed, noise=0.3)


def test_initial_rows_depend_on_seed_and_agent_alone() -> None:
    small, large, other = make_population(3), make_population(7), make_population(3, seed=6)
    for name in ("actor", "critic", "actor_target", "critic_target"):
        rows = getattr(large, name)
        assert torch.equal(rows[:3], getattr(small, name))
        assert len(torch.unique(rows, dim=0)) == 7
        assert not torch.isin(getattr(other, name)[:, 0], rows[:, 0]).any()


def test_building_leaves_the_global_generators_alone_even_if_it_fails() -> None:
    def broken() -> nn.Module:
        torch.rand(3)
        raise ValueError("broken")

    def states() -> list[Any]:
        return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # noqa: NPY002

    before = states()
    make_population()
    with pytest.raises(ValueError, match="broken"):
        Population(Communicator(2), broken, ProbeCritic, 0, 0.1)
    assert states() == before


def test_a_reset_population_is_a_new_one_in_the_same_memory() -> None:
    population, new = make_population(), make_population().state_dict()
    assert all(torch.equal(new[name], new[f"{name}_target"]) for name in ("actor", "critic"))
    assert new["noise"].tolist() == pytest.approx([0.3] * 4)
    assert (float(new["champion_fitness"]), int(new["champion_generation"])) == (-torch.inf, -1)
    held = {name: value.data_ptr() for name, value in population.state_dict().items()}
    population.set_champion(2, FIVE, 3, Communicator(4))
    for rows in population.rows().values():
        rows.add_(1)
    population.reset_parameters(ProbeActor, ProbeCritic, 5, noise=0.3)
    state = population.state_dict()
    assert all(torch.equal(value.nan_to_num(-1), new[name].nan_to_num(-1)) for name, value in state.items())
    assert {name: value.data_ptr() for name, value in state.items()} == held


def test_the_mean_of_elites_moves_a_twelfth_of_the_way() -> None:
    population = make_population()
    actor = population.rows()["actor"]
    population.average([3, 1], Communicator(4))
    first = (actor[1] + actor[3]) / 2
    assert torch.allclose(population.mean_actor, first)
    population.average([0], Communicator(4))
    assert torch.allclose(population.mean_actor[0], 11 / 12 * first + 1 / 12 * actor[0], atol=1e-6)
    population.set_champion(None, FIVE, 3, Communicator(4))
    assert torch.equal(population.champion_actor, population.mean_actor)


def test_counts_are_those_of_the_weights() -> None:
    population = make_population(4)
    actor, critic = 8 + 8 + 8 + 1, 2 * 16 + 16 + 16 * 16 + 16 + 16 + 1
    assert (population.weights_per_agent, population.size) == (actor + critic, 4)
    state = population.state_dict()
    assert len({value.data_ptr() for value in state.values()}) == len(state)
    rows = population.rows()
    assert rows.keys() == {"actor", "critic", "actor_target", "critic_target", "noise"}
    assert all(len(each) == 4 and not each.requires_grad for each in rows.values())
    assert all(each.data_ptr() == getattr(population, name).data_ptr() for name, each in rows.items())


@pytest.mark.parametrize("leading", [1, 4])
def test_an_agent_is_a_view_that_acts_as_its_row_and_as_the_plain_network(leading: int) -> None:
    population = make_population()
    views = [population.actor_of(row) for row in range(4)]
    population.actor.detach().mul_(2)
    inputs = {"x": normal(leading, BATCH, 1)}
    actions = population.act(inputs)
    assert actions.shape == (4, BATCH, 1)
    for row, actor in enumerate(views):
        assert torch.equal(actor[0], population.actor[row])
        own = own_part(inputs, row)
        torch.testing.assert_close(population.policy(row)({"x": own["x"][None]})[0], actions[row])
        torch.testing.assert_close(with_weights(ProbeActor(), population.actor_of(row)[0])(own), actions[row])


def test_the_champion_is_a_copy() -> None:
    population, inputs = make_population(), {"x": normal(1, BATCH, 1)}
    pointer = population.champion_actor.data_ptr()
    population.set_champion(2, torch.tensor([1 + 2**-40], dtype=torch.float64), 9, Communicator(4))
    row = population.actor.detach()[2:3].clone()
    expected = population.policy(2)(inputs)
    population.actor.detach().zero_()
    assert torch.equal(population.champion_actor, row)
    assert torch.equal(population.policy("champion")(inputs), expected)
    assert float(population.champion_fitness) == 1 + 2**-40, "in double precision"
    assert int(population.champion_generation) == 9
    assert population.champion_actor.data_ptr() == pointer
