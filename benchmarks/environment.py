"""Agent-days a second of the trading environment: one agent in one window lives one day."""

import numpy as np
import torch

from benchmarks.timing import Row, seconds_of
from eigen2.market.environment import TradingEnvironment, TradingRules
from eigen2.market.synthetic import SyntheticMarket
from tests.market.reference import ReferenceAccount

DAYS, COLUMNS = 400, 108
TRADING_DAYS, SETTLEMENT_DAYS = 125, 20
BOUND = 400_000.0
"""Agent-days a second at 256 agents."""


def rows(runs: int) -> list[Row]:
    """Agent-days a second of 256 agents against a bound, and of 16 agents against the one-agent reference."""
    prices = np.ascontiguousarray(SyntheticMarket(days=DAYS, columns=COLUMNS, missing=0.01).prices())
    many = agent_days_a_second(prices, 256, runs)
    few, slow = agent_days_a_second(prices, 16, runs), reference_days_a_second(prices)
    return [
        Row("environment_256", f"environment, 256 agents x {COLUMNS} columns, agent-days/s", many, BOUND, many / BOUND),
        Row("environment_16", f"environment, 16 agents x {COLUMNS} columns, agent-days/s", few, slow, few / slow),
    ]


def actions(agents: int, seed: int = 0) -> list[torch.Tensor]:
    """A few days of actions as networks give them, in native units."""
    env = TradingEnvironment(torch.full((2, COLUMNS, 4), 1.0), TradingRules(), agents)
    generator = torch.Generator().manual_seed(seed)
    shape = (agents, 1, COLUMNS, 2)
    return [env.native_action(torch.rand(shape, generator=generator) * 2 - 1) for _ in range(8)]


def agent_days_a_second(prices: np.ndarray, agents: int, runs: int) -> float:
    """Of the fastest of `runs` windows: other processes only add to a time."""
    env = TradingEnvironment(prices, TradingRules(), agents)
    acts = actions(agents)
    steps = TRADING_DAYS + SETTLEMENT_DAYS - 1

    def window() -> None:
        env.reset(start_idx=100, trading_end_idx=100 + TRADING_DAYS, end_idx=101 + steps)
        for step in range(steps):
            env.step(acts[step % len(acts)])

    return agents * steps / min(seconds_of(window) for _ in range(runs))


def reference_days_a_second(prices: np.ndarray) -> float:
    """Of the plain one-agent environment that the tests compare with."""
    account = ReferenceAccount(prices, TradingRules())
    acts = [action[0, 0].numpy() for action in actions(1)]
    steps = TRADING_DAYS + SETTLEMENT_DAYS - 1

    def window() -> None:
        account.reset(100, 100 + TRADING_DAYS, 101 + steps)
        for step in range(steps):
            account.step(acts[step % len(acts)])

    return steps / min(seconds_of(window) for _ in range(3))
