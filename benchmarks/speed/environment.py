"""Speed of the trading environment, against one agent in plain Python."""

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import torch
from jaxtyping import Float32

from benchmarks.harness import median_ratio, seconds_of
from benchmarks.speed.comparison import Comparison
from benchmarks.speed.full_scale import FullScale
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.simulation.reference import ReferenceAccount

MANY, FEW = 256, 16  # agents, each in one window
BOUND = 400_000.0  # agent-days a second of `MANY` agents; an agent-day is one agent in one window for one day

Prices = Float32[np.ndarray, "days columns 4"]
Windows = Iterator[int]  # first days of windows that lie all over the panel


def environments(full: FullScale, runs: int) -> list[Comparison]:
    """Compare agent-days a second of many agents with a bound, and of few with the plain one-agent reference.

    The first is of the fastest window, as other processes only add to a time; the second are medians of windows.
    """
    data = full.data
    days, columns = data.panel.num_days, len(data.investable_columns)
    prices = np.ascontiguousarray(SyntheticMarket(days=days, columns=columns, missing=0.01).prices())
    lengths, steps = (data.trading_days, data.window_days), data.window_days - 1

    def windows() -> Windows:
        return (window * 997 % (days - data.window_days) for window in count())

    window = batched(prices, MANY, lengths, windows())
    window()
    many = MANY * steps / min(seconds_of(window) for _ in range(runs))
    few, slow, ratio = median_ratio(batched(prices, FEW, lengths, windows()), single(prices, lengths, windows()), runs)
    what = "environment, {} agents x {} columns, agent-days/s"
    return [
        Comparison("environment_256", what.format(MANY, columns), many, BOUND, many / BOUND),
        Comparison("environment_16", what.format(FEW, columns), FEW * steps / few, steps / slow, FEW * ratio),
    ]


def actions(env: TradingEnvironment, seed: int = 0) -> list[torch.Tensor]:
    """Return a few days of actions as networks give them, in native units."""
    generator = torch.Generator().manual_seed(seed)
    shape = (env.agents, 1, *env.action_shape)
    return [env.native_action(torch.rand(shape, generator=generator) * 2 - 1) for _ in range(8)]


def batched(prices: Prices, agents: int, lengths: tuple[int, int], windows: Windows) -> Callable[[], None]:
    """Return a function that plays the next window with all agents at once."""
    env = TradingEnvironment(prices, TradingRules(), agents)
    acts = actions(env)

    def run() -> None:
        env.reset(options=window_options([next(windows)], *lengths))
        for step in range(lengths[1] - 1):
            env.step(acts[step % len(acts)])

    return run


def single(prices: Prices, lengths: tuple[int, int], windows: Windows) -> Callable[[], None]:
    """Return a function that plays the next window with one agent of the reference."""
    account = ReferenceAccount(prices, TradingRules())
    acts = [action[0, 0].numpy() for action in actions(TradingEnvironment(prices, TradingRules(), agents=1))]

    def run() -> None:
        start = next(windows)
        account.reset(start, start + lengths[0], start + lengths[1])
        for step in range(lengths[1] - 1):
            account.step(acts[step % len(acts)])

    return run
