"""Where a test can be wrong: other costs, decisions a day later, a look into the future (`test --checks`)."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Shaped
from torch import Tensor

from eigen2.market.data.panel import MarketPanel
from eigen2.market.features.encoding import MarketEncoder
from eigen2.market.performance import annualised_return
from eigen2.market.simulation.account import AccountRules, Capacity
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.portfolio import make_environment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, Simulation, play_days
from eigen2.market.simulation.windows import window_options

COSTS_BPS = (0.0, 10.0, 30.0)  # commission per side, without slippage
CUTS = (0.25, 0.5, 0.75)  # parts of the tested days after which the future is shuffled


@runtime_checkable
class SeesByEncoder(Protocol):
    """What acts by the market as an encoder, which can be exchanged, shows it."""

    encoder: MarketEncoder

    @property
    def episode(self) -> EpisodeSettings:
        """Return rules, money and days of the windows."""


class Contender(NamedTuple):
    """A policy, and the rules and money with which it is played."""

    policy: Policy
    rules: TradingRules
    account: AccountRules


@dataclass(frozen=True)
class Leak:
    """Whether decisions depend on later prices."""

    days: tuple[str, ...]  # after each of which later prices were shuffled
    decision: str | None = None  # first day whose decision changed with the prices after the day `after`
    after: str | None = None

    @property
    def text(self) -> str:
        """Return what was found, in a sentence."""
        if self.decision is not None:
            return (
                f"the champion sees the future: its decision of {self.decision} changes when prices after {self.after} "
                "are shuffled, so none of its results counts"
            )
        *others, last = self.days
        days = f"{', '.join(others)} and {last}" if others else last
        return f"no decision of the champion up to {days} changes when later prices are shuffled"


@dataclass(frozen=True)
class Robustness:
    """What becomes of the test with other costs and a day later, and whether the champion sees the future."""

    costs: dict[str, dict[str, float]]
    """Annual return of each policy by commission per side in basis points, without slippage or least commission."""
    lagged: dict[str, float]
    """Annual return of each policy that decides by the prices of the day before, at the costs of the rules."""
    leak: Leak

    def summary(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        leak = {"days": list(self.leak.days), "decision": self.leak.decision, "text": self.leak.text}
        return {"costs": self.costs, "lagged": self.lagged, "leak": leak}


def robustness(contenders: Mapping[str, Contender], play: Callable[[Contender], Simulation], leak: Leak) -> Robustness:
    """Play each contender, see `Robustness`."""

    def annual(contender: Contender) -> float:
        return float(annualised_return(play(contender).equity[0]))

    def at_cost(contender: Contender, cost_bps: float) -> Contender:
        rules = replace(contender.rules, cost_bps=cost_bps, slippage_bps=0.0)
        return contender._replace(rules=rules, account=replace(contender.account, min_commission=0.0))

    costs = {
        name: {f"{cost:g}": annual(at_cost(contender, cost)) for cost in COSTS_BPS}
        for name, contender in contenders.items()
    }
    late = {name: annual(each._replace(policy=lagged(each.policy))) for name, each in contenders.items()}
    return Robustness(costs, late, leak)


def lagged(policy: Policy) -> Policy:
    """Return the policy that decides with today's account by the market of the day before: its orders are a day late.

    A profit that is gone then comes from prices at which nobody could have traded in time, or from news of a day.
    """
    return lambda seen: policy({**seen, "day": (seen["day"] - 1).clamp(min=0)})


def shuffle_after(prices: pd.DataFrame, day: np.datetime64, rng: np.random.Generator) -> pd.DataFrame:
    """Return a long table in which the rows of each ticker after a day are dealt to its later days at random."""
    later = np.flatnonzero(prices["date"].to_numpy() > day)
    ticker, _ = pd.factorize(prices["ticker"].to_numpy()[later])
    places, drawn = later[np.lexsort((later, ticker))], later[np.lexsort((rng.random(len(later)), ticker))]
    values = prices.columns.difference(["date", "ticker"])
    shuffled = prices.copy()
    shuffled.loc[prices.index[places], values] = prices[values].to_numpy()[drawn]
    return shuffled


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Log no warnings below a logger until the block ends."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def find_leak(
    policy: Policy,
    owner: SeesByEncoder,
    panel: MarketPanel,
    rebuilt: Callable[[Callable[[pd.DataFrame], pd.DataFrame]], MarketPanel],
    days: range,
    capacity: Capacity,
    rng: np.random.Generator,
    device: torch.device,
) -> Leak:
    """Look for decisions of a policy that change with prices of later days.

    It plays the first of `days`, up to the last decision at or before each of `CUTS`, on `panel` and on one `rebuilt`
    from a table that `shuffle_after` has changed; the market of its account ends on the day after, and marks no
    delistings, which only later days without prices tell. The policy sees the market by the encoder of its `owner`.
    """
    episode, own_encoder = owner.episode, owner.encoder
    every = episode.rules.rebalance_days if episode.rules.mode == "weights" else 1  # days from one decision to the next
    rules = replace(episode.rules, delisting_return=0.0)
    cuts = sorted({days[int(part * (len(days) - 2)) // every * every] for part in CUTS})
    restored = partial(type(own_encoder), context_days=own_encoder.context_days, episode=episode, device=device)
    tested = tuple(str(panel.dates[cut])[:10] for cut in cuts)

    def decisions(market: MarketPanel, last: int) -> list[Tensor]:
        """Return the policy's actions from the first day to `last`, by a market's prices and features alone."""
        prices = market.prices[: last + 2, own_encoder.investable]
        env = make_environment(prices, rules, 1, account=episode.account, capacity=capacity)
        options = window_options([days.start], last + 1 - days.start, last + 2 - days.start)
        owner.encoder = restored(market, own_encoder.investable, saved=own_encoder.state_dict())
        try:
            return [day.action for day in play_days(env, policy, options)]
        finally:
            owner.encoder = own_encoder

    for cut in cuts:
        date: Shaped[np.datetime64, ""] = panel.dates[cut]
        with _silent("eigen2.market.data"):  # shuffled prices jump as unadjusted splits do
            changed = rebuilt(lambda table, date=date: shuffle_after(table, date, rng))  # type: ignore[misc]
        pairs = zip(decisions(panel, cut), decisions(changed, cut), strict=True)
        for step, (own, other) in enumerate(pairs):
            if not torch.equal(own, other):
                return Leak(tested, str(panel.dates[days.start + step * every])[:10], str(date)[:10])
    return Leak(tested)
