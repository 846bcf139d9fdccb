"""Small markets, rules, orders and episodes that the tests of the simulation share."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules
from eigen2.market.simulation.windows import window_options

NAN = float("nan")
EXECUTIONS = ("next_open", "close")
both = pytest.mark.parametrize("execution", EXECUTIONS)
Orders = dict[int, dict[int, tuple[float, float]]]
"""By day of the decision and column: coefficient and take-profit."""


def rules(**changes: Any) -> TradingRules:
    """Return rules without costs, penalties and early closes, with shaped rewards, unless a test asks for others."""
    plain = {"cost_bps": 0.0, "slippage_bps": 0.0, "zero_trade_penalty": 0.0, "reward": "shaped", "early_close": False}
    return TradingRules(**{**plain, **changes})


def flat(days: int, columns: int = 1) -> np.ndarray:
    """Return bars that are all 100, 100, 100, 100."""
    return np.full((days, columns, 4), 100, np.float32)


class Played(NamedTuple):
    """One agent's episode: rewards by day, summary, reasons of closes, and what it saw of its positions by day."""

    env: TradingEnvironment
    earned: dict[int, float]
    summary: dict[str, float]
    closed: list[str]
    seen: dict[int, dict[str, list[float]]]


def play(
    prices: np.ndarray,
    rules: TradingRules,
    orders: Orders,
    money: AccountRules | None = None,
    trading_days: int | None = None,
    days: int | None = None,
) -> Played:
    """Play one agent from day 0, by default to the last and trading for 2 days, and keep its account."""
    env = TradingEnvironment(prices, rules, agents=1, account=money or AccountRules())
    env.record_agent(0)
    observation, _ = env.reset(options=window_options([0], trading_days or 2, days or len(prices)))
    earned, seen, closed, over = {}, {}, [], False
    while True:
        day = int(observation["day"])
        seen[day] = {name: observation[name][0, 0].tolist() for name in ("held_days", "gain")}
        target = observation["target"][0, 0] * (rules.max_target / 255)  # from steps back to percent
        seen[day]["target"] = [round(percent, 1) for percent in target.tolist()]
        if over:
            break
        action = torch.zeros(1, 1, env.num_columns, 2)
        for column, order in orders.get(day, {}).items():
            action[0, 0, column] = torch.tensor(order)
        observation, reward, terminated, truncated, info = env.step(action)
        closed += [CLOSE_REASONS[reason] for reason in info["closes"].reason]
        if reward:
            earned[day + 1] = reward.item()
        over = bool(terminated)
        assert not truncated.any()
    summary = {name: value.item() for name, value in env.get_episode_summary().items()}
    return Played(env, earned, summary, closed, seen)


def random_prices(rng: np.random.Generator, days: int, columns: int, holes: float, coarse: bool) -> np.ndarray:
    """Draw wild prices, so that targets are touched; on a coarse grid, so that they are touched exactly.

    Of the holes, most are whole days, the others single prices.
    """
    shape = (days, columns)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.07, shape), axis=0))
    open_ = close * np.exp(rng.normal(0, 0.05, shape))
    high = np.maximum(open_, close) * np.exp(np.abs(rng.normal(0, 0.04, shape)))
    low = np.minimum(open_, close) * np.exp(-np.abs(rng.normal(0, 0.04, shape)))
    prices = np.stack([open_, high, low, close], axis=2)
    if coarse:
        prices = np.maximum(5, np.round(prices / 5) * 5)
    prices[rng.random(shape) < holes] = NAN
    prices[rng.random(prices.shape) < holes / 4] = NAN
    return prices.astype(np.float32)


def with_delistings(rng: np.random.Generator, prices: np.ndarray) -> np.ndarray:
    """Append 20 days; half of the columns, drawn at random, stop trading on a random day, half of these for cash."""
    longer = np.concatenate([prices, np.repeat(prices[-1:], 20, axis=0)])
    for column in np.flatnonzero(rng.random(prices.shape[1]) < 0.5):
        end = rng.integers(len(prices) + 1)
        if rng.random() < 0.5:  # its price hardly changes any more
            bars = longer[max(end - 14, 0) : end, column]
            bars[:] = np.where(np.isnan(bars), NAN, 50 * rng.uniform(0.997, 1.003, bars.shape))
        longer[end:, column] = NAN
    return longer


def random_actions(rng: np.random.Generator, shape: tuple[int, ...], coarse: bool = False) -> np.ndarray:
    """Draw coefficients and targets in and out of their ranges; coarse ones from few values, so that there are ties."""
    if coarse:
        coefficients = [-9, -4, -2, -1, 0.5, 1, 2, 4, 9]
        actions = [rng.choice(coefficients, shape), rng.choice([0, 10, 20, 50, 80], shape)]
    else:
        actions = [rng.uniform(-7, 7, shape), rng.uniform(0, 60, shape)]
    return np.stack(actions, axis=-1).astype(np.float32)


def random_windows(rng: np.random.Generator, days: int, windows: int) -> dict[str, Any]:
    """Draw the reset options of windows of one length."""
    length = int(rng.integers(2, days + 1))
    starts = rng.integers(0, days - length + 1, windows).tolist()
    return window_options(starts, int(rng.integers(1, length + 1)), length)


random_rules = st.builds(
    TradingRules,
    max_coefficient=st.sampled_from([1.5, 5.0]),
    allow_short=st.booleans(),
    min_target=st.sampled_from([2.0, 10.0]),
    max_target=st.sampled_from([10.0, 20.0, 50.0]),
    max_opens_per_day=st.integers(1, 4),
    max_holding_days=st.integers(1, 8),
    early_close=st.booleans(),
    execution=st.sampled_from(EXECUTIONS),
    cost_bps=st.sampled_from([0.0, 12.0]),
    slippage_bps=st.sampled_from([0.0, 25.0]),
    delisting_return=st.sampled_from([0.0, -0.3, -1.0]),
    reward=st.sampled_from(["account", "shaped"]),
    risk_aversion=st.sampled_from([0.0, 0.5]),
    loss_penalty=st.sampled_from([0.0, 1.0, 1.7]),
    inaction_penalty=st.sampled_from([0.0, 0.25]),
    zero_trade_penalty=st.sampled_from([0.0, 10.0]),
)

random_capacities = st.sampled_from([None, 30.0, 1e5])
"""Most money that an order puts into a column, on average; None is any."""

random_account_rules = st.builds(
    AccountRules,
    initial_cash=st.sampled_from([100.0, 1e6]),
    unit_share=st.sampled_from([0.01, 0.05, 0.3, 1.0]),
    max_leverage=st.sampled_from([0.5, 1.0, 3.0, 20.0]),
    min_order=st.sampled_from([1e-4, 0.01]),
    whole_shares=st.booleans(),
    min_commission=st.sampled_from([0.0, 0.5]),
    cash_rate_pct=st.sampled_from([0.0, 30.0]),
    borrow_fee_pct=st.sampled_from([0.0, 400.0]),
)
