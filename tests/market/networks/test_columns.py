"""The default networks: shared weights for all columns, and populations that equal each network alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eigen2.core.networks import Inputs, StackedNetwork
from eigen2.core.replay import rounded_action
from eigen2.erl.heads import Heads
from eigen2.market.networks.columns import (
    DRAWS,
    PORTFOLIO,
    ROOM,
    TAKE_PROFIT_BIAS,
    ColumnActor,
    ColumnCritic,
    DayColumnActor,
    MarketSizes,
    TradeModel,
)
from eigen2.market.simulation.rules import TradingRules
from tests.erl.reference import with_weights

WIDTH, MARKET, COLUMNS, BATCH, AGENTS = 20, 41, 7, 5, 4


PARTS = {
    "columns": (COLUMNS, WIDTH),
    "portfolio": (COLUMNS, len(PORTFOLIO["orders"])),
    DRAWS: (COLUMNS,),
    "market": (MARKET,),
}
SIZES = MarketSizes(inputs=PARTS, action=(COLUMNS, 2))
WAYS = ["broadcast", "vmap", "loop"]


actor, critic = partial(ColumnActor, SIZES), partial(ColumnCritic, SIZES)
day_actor = partial(DayColumnActor, SIZES)


def random_networks(make: Callable[[], nn.Module], count: int = AGENTS, seed: int = 0) -> list[nn.Module]:
    """Build networks whose weights are all random and of a size that matters; initialisers leave some small or 0."""
    chance = torch.Generator().manual_seed(seed)
    networks = [make() for _ in range(count)]
    with torch.no_grad():
        for network in networks:
            for weight in network.parameters():
                weight.copy_(torch.randn(weight.shape, generator=chance) * 0.3)
    return networks


def random_inputs(agents: dict[str, int], seed: int = 1, batch: int = BATCH) -> Inputs:
    """Make inputs whose leading axis has the given size, by name."""
    chance = torch.Generator().manual_seed(seed)
    agents = {DRAWS: agents["columns"], **agents}
    inputs = {name: torch.randn(agents[name], batch, *shape, generator=chance) for name, shape in SIZES.inputs.items()}
    inputs["portfolio"][..., 0] = (inputs["portfolio"][..., 0] > -0.5).float()  # orderable
    inputs[DRAWS] = (inputs[DRAWS].abs() * 1000).to(torch.int16)
    return inputs


def uniform(outputs: int = 2, seed: int = 3) -> Tensor:
    """Return numbers from 0 to 1."""
    return torch.rand(BATCH, COLUMNS, outputs, generator=torch.Generator().manual_seed(seed))


def random_action(agents: int, seed: int = 2) -> Tensor:
    return torch.rand(agents, BATCH, COLUMNS, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def rows(networks: list[nn.Module]) -> Tensor:
    return torch.stack([nn.utils.parameters_to_vector(network.parameters()) for network in networks]).detach()


def of_agent(inputs: Inputs, agent: int) -> Inputs:
    return {name: value[agent if len(value) > 1 else 0] for name, value in inputs.items()}


AXES = {
    "own": {"columns": AGENTS, "portfolio": AGENTS, "market": AGENTS},
    "as the environment": {"columns": 1, "portfolio": AGENTS, "market": 1},
    "shared": {"columns": 1, "portfolio": 1, "market": 1},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize(("make", "action_agents"), [(actor, 0), (day_actor, 0), (critic, 1), (critic, AGENTS)])
def test_a_population_is_each_network_alone(
    make: Callable[[], nn.Module], action_agents: int, axes: str, way: Any
) -> None:
    networks, inputs = random_networks(make), random_inputs(AXES[axes])
    asked = (random_action(action_agents),) if action_agents else ()
    stacked = StackedNetwork(make())
    assert stacked.over_agents == "broadcast"
    stacked.over_agents = way
    results = stacked(rows(networks), inputs, *asked)
    assert stacked.over_agents == way
    assert results.shape == ((AGENTS, BATCH) if asked else (AGENTS, BATCH, COLUMNS, 2))
    for agent, network in enumerate(networks):
        own = [action[agent if action_agents > 1 else 0] for action in asked]
        torch.testing.assert_close(results[agent], network(of_agent(inputs, agent), *own), atol=1e-5, rtol=1e-5)
    assert (results[0] - results[1]).abs().max() > 0.1, "agents differ"


@pytest.mark.parametrize("axes", AXES)
def test_a_critic_that_describes_once_gives_the_same_values_and_gradients(axes: str) -> None:
    inputs, action = random_inputs(AXES[axes]), random_action(AGENTS)
    stacked = StackedNetwork(critic())
    results = []
    for describe in (False, True):
        weights = rows(random_networks(critic)).requires_grad_()
        seen = stacked.described(weights, inputs) if describe else inputs
        assert ("described" in seen) is describe
        values = stacked(weights, seen, action) + 2 * stacked(weights, seen, -action)
        results.append((values, torch.autograd.grad(values.square().sum(), weights)[0]))
    for at_once, apart in zip(*results, strict=True):
        torch.testing.assert_close(at_once, apart, atol=1e-3, rtol=1e-4)


def test_gradients_of_a_population_are_each_agents_own() -> None:
    networks, inputs, action = random_networks(critic), random_inputs(AXES["shared"]), random_action(AGENTS)
    weights = rows(networks).requires_grad_()
    (gradients,) = torch.autograd.grad(StackedNetwork(critic())(weights, inputs, action).sum(), weights)
    for agent, network in enumerate(networks):
        value = network(of_agent(inputs, agent), action[agent]).sum()
        own = nn.utils.parameters_to_vector(torch.autograd.grad(value, list(network.parameters())))
        torch.testing.assert_close(gradients[agent], own, atol=1e-4, rtol=1e-4)


def test_sizes_start_near_the_middle_and_take_profits_near_the_top_and_both_reach_the_ends() -> None:
    inputs = of_agent(random_inputs(AXES["shared"]), 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size, take_profit = actor()(inputs).unbind(-1)
    assert 0 < size.abs().max() < 0.5
    assert 0.4 < take_profit.min() < np.tanh(TAKE_PROFIT_BIAS) < take_profit.max() < 0.95
    network = random_networks(actor, count=1)[0]
    actions = network({name: 100 * value for name, value in inputs.items()})
    assert 0.9 < actions.abs().max() <= 1


def test_agents_of_one_trunk_share_all_that_depends_on_the_day_alone() -> None:
    network = StackedNetwork(day_actor())
    heads, seen = Heads(network, rows(random_networks(day_actor, count=1))), {}
    for name, module in network.network.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *call, name=name: seen.update({name: len(call[-1])}))
    own = heads.cut(rows(random_networks(day_actor)))
    actions = heads(own, random_inputs(AXES["as the environment"]))
    day = ("trunk.column", "trunk.market", "trunk.mix", "trunk.context")
    assert seen == {**dict.fromkeys(day, 1), **dict.fromkeys(("position", "head"), AGENTS)}
    for agent, row in enumerate(heads.join(own)):
        alone = with_weights(day_actor(), row)(of_agent(random_inputs(AXES["as the environment"]), agent))
        torch.testing.assert_close(actions[agent], alone, atol=1e-5, rtol=1e-5)


def permuted(inputs: Inputs, order: Tensor) -> Inputs:
    return {name: value if name == "market" else value[:, order] for name, value in inputs.items()}


ORDER = torch.tensor([3, 0, 6, 1, 5, 2, 4])


@pytest.mark.parametrize("make", [actor, day_actor])
def test_a_permutation_of_columns_permutes_actions_and_leaves_values(make: Callable[[], nn.Module]) -> None:
    actor_, critic_ = random_networks(make, count=1)[0], random_networks(critic, count=1)[0]
    inputs, action = of_agent(random_inputs(AXES["shared"]), 0), random_action(1)[0]
    expected, value, turned = actor_(inputs)[:, ORDER], critic_(inputs, action), permuted(inputs, ORDER)
    torch.testing.assert_close(actor_(turned), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(critic_(turned, action[:, ORDER]), value, atol=1e-5, rtol=1e-5)
    # but columns differ, and it counts which action is which column's
    assert not torch.allclose(expected, actor_(inputs), atol=0.1)
    assert not torch.allclose(critic_(inputs, action[:, ORDER]), value, atol=1e-2)


@pytest.mark.parametrize("make", [actor, day_actor])
def test_every_input_counts_and_rows_of_a_batch_do_not_mix(make: Callable[[], nn.Module]) -> None:
    inputs, action = of_agent(random_inputs(AXES["shared"]), 0), random_action(1)[0]
    actor_, critic_ = random_networks(make, count=1)[0], random_networks(critic, count=1)[0]
    for part in set(inputs) - {DRAWS}:  # which decide between equal orders alone
        other = {**inputs, part: inputs[part] + 1}
        assert not torch.allclose(actor_(inputs), actor_(other), atol=1e-2), part
        assert not torch.allclose(critic_(inputs, action), critic_(other, action), atol=1e-2), part
    last = {name: value[-1:] for name, value in inputs.items()}
    torch.testing.assert_close(actor_(last), actor_(inputs)[-1:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(critic_(last, action[-1:]), critic_(inputs, action)[-1:], atol=1e-5, rtol=1e-5)


def test_the_gradient_of_the_critic_raises_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient reaches coefficient and target of every column, and a small step along it raises the value."""
    # the gradient of the choice is none of small steps
    monkeypatch.setattr("eigen2.market.networks.columns.preactivation", torch.zeros_like)
    model = TradeModel(TradingRules(early_close=False))
    network = random_networks(lambda: ColumnCritic(replace(SIZES, trade_model=model)), count=1)[0]
    inputs = of_agent(random_inputs(AXES["shared"]), 0)
    action = random_action(1)[0].requires_grad_()
    value = network(inputs, action)
    (gradient,) = torch.autograd.grad(value.sum(), action)
    assert gradient.ne(0).all()
    with torch.no_grad():
        step = 1e-3 * gradient / gradient.norm(dim=(1, 2), keepdim=True)
        assert (network(inputs, action + step) > value).all()


def blind_critic(model: TradeModel) -> nn.Module:
    """Build a critic that sees actions only through the columns they choose."""
    network = random_networks(lambda: ColumnCritic(replace(SIZES, trade_model=model)), 1)[0]
    with torch.no_grad():
        network.get_parameter("trunk.position.weight")[:, len(PORTFOLIO["orders"]) :] = 0
    return network


def free_inputs(held: Tensor | None = None) -> Inputs:
    """Make inputs in which every column that is not held can be ordered."""
    inputs = of_agent(random_inputs(AXES["shared"]), 0)
    inputs["portfolio"][..., 0] = 1 if held is None else 1 - held
    inputs["portfolio"][..., ROOM] = 1
    return inputs


def test_the_critic_judges_the_columns_that_would_be_ordered() -> None:
    network, inputs = blind_critic(TradeModel(TradingRules(max_opens_per_day=2))), free_inputs()
    action = uniform()
    value = network(inputs, action)
    best = action[..., 0].topk(2).indices
    others = action.clone()
    others[..., 0] -= 0.5  # the same two lead, by more
    others[..., 0].scatter_(1, best, action[..., 0].gather(1, best))
    torch.testing.assert_close(network(inputs, others), value)
    others[torch.arange(BATCH), best[:, 1], 0] = -1.0  # the second gives way to the third
    assert (network(inputs, others) - value).abs().min() > 1e-4


@pytest.mark.parametrize("orders", [1, 2])
def test_what_is_held_cannot_be_ordered_and_draws_decide_between_equal_columns(orders: int) -> None:
    held = torch.zeros(BATCH, COLUMNS)
    held[:, 2] = 1
    network, inputs = (
        blind_critic(TradeModel(TradingRules(max_opens_per_day=orders, early_close=False))),
        free_inputs(held),
    )
    inputs[DRAWS] = torch.tensor([1, 5, 9, 3, 7, 0, 2], dtype=torch.int16).expand(BATCH, COLUMNS)
    value = network(inputs, torch.ones(BATCH, COLUMNS, 2))
    leading = torch.full((BATCH, COLUMNS, 2), -1.0)
    leading[:, [4, 1][:orders]] = 1.0
    torch.testing.assert_close(network(inputs, leading), value)
    leading[:, 2] = 1.0
    torch.testing.assert_close(network(inputs, leading), value)


@pytest.mark.parametrize("short", [False, True])
def test_orders_below_the_least_size_are_none(short: bool) -> None:
    model = TradeModel(TradingRules(allow_short=short, max_opens_per_day=3))
    least = 1 / 5 if short else 2 / 5 - 1  # of coefficients up to 5
    size = torch.tensor([0.999, 0.0, least + 1e-3, least - 1e-3, -1.0])
    coefficient = model.coefficient(size[:, None].expand(5, 2))
    ordered = model.ordered(coefficient, torch.ones(5, dtype=torch.bool), torch.arange(5))
    assert ordered.tolist() == [True, False, True, False, True] if short else [True, True, True, False, False]


def test_short_sales_count_by_their_size_but_for_the_forecast() -> None:
    inputs, action = free_inputs(), torch.full((BATCH, COLUMNS, 2), 0.5)
    lowest = action.clone()
    lowest[:, 3, 0] = -0.9
    highest = action.clone()
    highest[:, 3, 0] = 0.9
    short, long = (
        blind_critic(TradeModel(TradingRules(allow_short=short, early_close=False))) for short in (True, False)
    )
    twice = 2 * 0.9 * short.forecast(inputs)[:, 3]
    torch.testing.assert_close(short(inputs, highest) - short(inputs, lowest), twice, rtol=2e-3, atol=1e-4)
    assert (long(inputs, lowest) - long(inputs, highest)).abs().min() > 1e-4


@pytest.mark.parametrize("early_close", [False, True])
def test_the_gradient_says_what_would_change_if_a_column_were_preferred(early_close: bool) -> None:
    """It is that of stake and softmax over orderable columns, as if that had chosen; the chosen value is no softmax."""
    inputs, tokens = free_inputs(), uniform(3)
    inputs["portfolio"][..., 1:ROOM] = 0
    inputs["portfolio"][:, 5] = torch.tensor([0, 1, 0, 0, 0, 0.5, 0, 1])  # held, with half of the largest coefficient
    action = rounded_action(uniform())
    action[:, 5, 0] = -0.75
    action.requires_grad_()
    model = TradeModel(TradingRules(early_close=early_close))
    weights, _ = model.weights(action, inputs["portfolio"], inputs[DRAWS])
    pooled = (weights[:, None] @ tokens)[:, 0]
    free = torch.where(inputs["portfolio"][..., 0] > 0, action[..., 0], -10)
    chosen = (torch.arange(BATCH), free.argmax(1))
    ordered = tokens[chosen] * (action[chosen][:, :1] + 1) / 2  # by its part of the largest coefficient
    closed = 0.5 * tokens[:, 5] if early_close else 0
    torch.testing.assert_close(pooled, ordered + closed)
    (found,) = torch.autograd.grad(pooled.square().sum() / 2, action)
    preferred = torch.where(inputs["portfolio"][..., 0] > 0, torch.atanh(action[..., 0]), -torch.inf)
    soft = (torch.softmax(preferred, 1)[:, None] @ tokens)[:, 0] + ordered
    if early_close:  # -0.6 is a coefficient of 1
        soft = soft + 0.5 * tokens[:, 5] * torch.sigmoid(2 * (-0.6 - action[:, 5, :1]))
    # of sum(chosen x soft pool): the same outer derivative
    (expected,) = torch.autograd.grad((soft * pooled.detach()).sum(), action)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)
    assert found[:, 5, 0].ne(0).all() == early_close


def test_the_softmax_tells_columns_apart_where_sizes_are_near_their_bound() -> None:
    """A difference of 1 between pre-activations means weights of e to 1, wherever it lies."""
    inputs = free_inputs()
    numbers = torch.linspace(0, 6, COLUMNS).expand(BATCH, COLUMNS).clone().requires_grad_()
    action = torch.stack([numbers.tanh(), torch.zeros_like(numbers)], -1)
    weights, _ = TradeModel(TradingRules(early_close=False)).weights(action, inputs["portfolio"], inputs[DRAWS])
    found = torch.autograd.grad(weights[..., -2].sum(), numbers)[0]
    soft = torch.softmax(numbers.detach(), 1)
    expected = soft[:, -2:-1] * (torch.eye(COLUMNS)[-2] - soft)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-5)


def test_the_gradient_of_closing_has_the_same_bits_beside_any_others() -> None:
    """Alone an agent's few numbers fill no vector register; torch.sigmoid rounds those otherwise."""
    agents, chance = 300, torch.Generator().manual_seed(0)
    action, portfolio = torch.rand(agents, 3, generator=chance), torch.ones(agents, 3, len(PORTFOLIO["orders"]))

    def gradient(own: slice) -> Tensor:
        leaf = action[own].clone().requires_grad_()
        stakes = TradeModel(TradingRules(early_close=True)).closed_stakes(leaf, portfolio[own], torch.ones(1))
        return torch.autograd.grad(stakes.sum(), leaf)[0]

    apart = [gradient(slice(agent, agent + 1)) for agent in range(agents)]
    assert torch.equal(gradient(slice(agents)), torch.cat(apart))


def test_a_value_holds_the_forecasts_of_what_is_traded() -> None:
    """Raising all forecasts by 1 raises the value by the sum of the weights."""
    inputs, action, model = free_inputs(), rounded_action(uniform()), TradeModel()
    critic = blind_critic(model)
    before, forecast = critic(inputs, action), critic.forecast(inputs)
    with torch.no_grad():
        critic.return_head.bias += 1
    torch.testing.assert_close(critic.forecast(inputs), forecast + 1)
    _, added = model.weights(action, inputs["portfolio"], inputs[DRAWS])
    assert added.sum() > 0
    torch.testing.assert_close(critic(inputs, action), before + added.sum(1))


def test_positions_are_added_by_side_and_closed_ones_taken_away_for_the_days_left() -> None:
    action, portfolio = torch.zeros(5, 2), torch.zeros(5, 8)
    portfolio[:, ROOM] = 1
    portfolio[:2, 0] = 1  # can be ordered
    # held long for a quarter of the days with half of the largest coefficient, short for half of them, long to the end
    portfolio[2:, 1], portfolio[2:, 2] = 1, torch.tensor([0.25, 0.5, 1.0])
    portfolio[2:, 5] = torch.tensor([0.5, -1.0, 1.0])
    action[:2, 0] = torch.tensor([-0.8, 0.4])
    rules = TradingRules(allow_short=True, early_close=True, max_opens_per_day=2)
    weight, added = TradeModel(rules).weights(action, portfolio, torch.arange(5))
    torch.testing.assert_close(added, torch.tensor([-0.4, 0.2, -0.25 * 0.75, 0.5 * 0.5, 0]), rtol=2e-3, atol=1e-6)
    torch.testing.assert_close(weight, torch.tensor([0.4, 0.2, 0.25, 0.5, 0.5]), rtol=2e-3, atol=1e-6)
