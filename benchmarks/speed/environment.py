"""Agent-days a second of the trading environment: one agent in one window lives one day."""

from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from jaxtyping import Float32

from benchmarks.timing import Row, median_ratio, seconds_of
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.simulation.reference import ReferenceAccount

DAYS, COLUMNS = 3781, 108
TRADING_DAYS, WINDOW_DAYS = 125, 145
MANY, FEW = 256, 16
"""Agents, each in one window."""
BOUND = 400_000.0
"""Agent-days a second of `MANY` agents."""

Prices = Float32[np.ndarray, "days columns 4"]


def rows(runs: int) -> list[Row]:
    """Agent-days a second of many agents against a bound, and of few against the plain one-agent reference.

    The first figure is of the fastest window, as other processes only add to a time; the second are medians of
    windows in turns.
    """
    prices = np.ascontiguousarray(SyntheticMarket(days=DAYS, columns=COLUMNS, missing=0.01).prices())
    steps = WINDOW_DAYS - 1
    window = batched(prices, MANY)
    window()
    many = MANY * steps / min(seconds_of(window) for _ in range(runs))
    few, slow, ratio = median_ratio(batched(prices, FEW), single(prices), runs)
    return [
        Row(
            "environment_256",
            f"environment, {MANY} agents x {COLUMNS} columns, agent-days/s",
            many,
            BOUND,
            many / BOUND,
        ),
        Row(
            "environment_16",
            f"environment, {FEW} agents x {COLUMNS} columns, agent-days/s",
            FEW * steps / few,
            steps / slow,
            FEW * ratio,
        ),
    ]


def actions(env: TradingEnvironment, seed: int = 0) -> list[torch.Tensor]:
    """A few days of actions as networks give them, in native units."""
    generator = torch.Generator().manual_seed(seed)
    shape = (env.agents, 1, *env.action_shape)
    return [env.native_action(torch.rand(shape, generator=generator) * 2 - 1) for _ in range(8)]


def batched(prices: Prices, agents: int) -> Callable[[], None]:
    """One window of all agents at once, each time another."""
    env, windows = TradingEnvironment(prices, TradingRules(), agents), count()
    acts = actions(env)

    def run() -> None:
        start = _start(next(windows))
        env.reset(options=window_options([start], TRADING_DAYS, WINDOW_DAYS))
        for step in range(WINDOW_DAYS - 1):
            env.step(acts[step % len(acts)])

    return run


def single(prices: Prices) -> Callable[[], None]:
    """The same windows of one agent of the reference."""
    account, windows = ReferenceAccount(prices, TradingRules()), count()
    acts = [action[0, 0].numpy() for action in actions(TradingEnvironment(prices, TradingRules(), agents=1))]

    def run() -> None:
        start = _start(next(windows))
        account.reset(start, start + TRADING_DAYS, start + WINDOW_DAYS)
        for step in range(WINDOW_DAYS - 1):
            account.step(acts[step % len(acts)])

    return run


def _start(window: int) -> int:
    """Days that lie all over the panel."""
    return window * 997 % (DAYS - WINDOW_DAYS)
