"""Use a champion without Lightning or the run it came from: daily prices in, orders out."""

import logging
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from eigen2.core.export import ExportedChampion, load
from eigen2.core.saved_run import altered_as_user_error
from eigen2.errors import UserError, require_range
from eigen2.market.data.frames import frame_prices
from eigen2.market.data.panel import FeatureScale, build_panel
from eigen2.market.data.source import read_prices
from eigen2.market.data.splits import Splits
from eigen2.market.data.universe import read_membership
from eigen2.market.features.encoding import MarketEncoder
from eigen2.market.serving.orders import write_orders
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import hide_window_end

log = logging.getLogger(__name__)

MOST_DAYS = 1_000_000  # of a window or its context
WARM_UP_DAYS = 100  # before a context, for indicators and exponential averages that agree with those of longer prices


class Trader:
    """Champion that turns prices into orders; raises UserError if it is of another workload or cannot be built.

    `trusted` is the class of its actor, needed if that is not one of eigen2: loading it runs the code of its module.
    """

    def __init__(self, champion: ExportedChampion, trusted: str | None = None) -> None:
        with altered_as_user_error("the champion"):
            if (workload := champion.config["workload"]) != "market":
                raise UserError(f"the champion is of the workload {workload}; only those of the market trade")
            self._spec = spec = champion.config["inference"]
            for name in ("context_days", "trading_days", "settlement_days"):
                require_range(name, spec[name], least=1, most=MOST_DAYS)
            days = int(spec["trading_days"]), int(spec["settlement_days"])
            # that a column has gone for good is known later only, and no decision may change when later prices come
            rules = TradingRules(**{**spec["rules"], "delisting_return": 0.0})
            self.episode = EpisodeSettings(rules, AccountRules(**spec["account"]), *days)
            self.investable = [str(ticker) for ticker in spec["investable"]]
            if not self.investable:
                raise ValueError("no ticker to trade")
            used = [champion.config["data_used"][end] for end in ("first", "last")]
            self.first_seen, self.last_seen = map(date.fromisoformat, used)
            self._scale = FeatureScale.from_dict(spec["scale"])
            self._actor = champion.actor(trusted)

    @classmethod
    def load(cls, path: str | Path, trusted: str | None = None) -> "Trader":
        """Load the champion of an exported folder or of a checkpoint; raise UserError if it cannot be read."""
        return cls(load(path), trusted)

    def orders(
        self,
        prices: pd.DataFrame | str | Path,
        first: date | None = None,
        membership: str | Path | None = None,
    ) -> pd.DataFrame:
        """Return the champion's decisions at the close of each day, see `write_orders`; it starts without positions.

        Args:
            prices: a DataFrame, see `frame_prices`, or a file; with the fit's features and the context of `first`.
            first: day of the first decision; None is the last day that the fit used, whose orders fill on later days.
            membership: file of the days on which tickers may be bought, see `read_membership`; None for all days.

        Raises:
            UserError: the prices have no day to decide on, too few before it, none of the champion's tickers, or lack a
                feature, or a file cannot be read.
        """
        spec = self._spec
        features = self._scale.own_features
        table = frame_prices(prices, features) if isinstance(prices, pd.DataFrame) else read_prices(prices, features)
        spans = None if membership is None else read_membership(membership)
        if membership is None and spec.get("members"):
            log.warning(
                "data.membership is null, but the fit bought tickers on their days of membership alone: orders buy "
                "them on any day; give its file with the new days"
            )
        with altered_as_user_error("the champion"):  # the table is checked
            panel = build_panel(table, validation_days=0, holdout_days=0, scale=self._scale, membership=spans)
        begin = self._begin(panel.dates, first)
        # features need all earlier prices, averages only those of the context
        context_start = begin - spec["context_days"] + 1
        arrays = {name: getattr(panel, name)[context_start:] for name in ("dates", "features", "valid", "prices")}
        panel = replace(panel, splits=Splits.from_days(panel.num_days - context_start, 0, 0), **arrays)
        with altered_as_user_error("the champion"):
            encoder = MarketEncoder.restore(spec, panel, self.episode)
            capacity = self.episode.account.capacity(np.array(spec["traded_value"], np.float64))

        @torch.inference_mode()
        def policy(seen: dict[str, Tensor]) -> Tensor:
            inputs = {name: part[0] for name, part in encoder(seen).items()}  # without the agent axis
            return self.episode.rules.native_action(self._actor(inputs).float()[None])

        return write_orders(
            panel.prices[:, encoder.investable],
            *(panel.dates, self.investable, self.episode.rules, self.episode.account),
            policy=hide_window_end(policy, self.episode.window_days),
            start=begin - context_start,
            capacity=capacity,
        )

    def _begin(self, dates: np.ndarray, first: date | None) -> int:
        """Return the index of the first decision's day."""
        seen, needed = np.datetime64(self.last_seen), self._spec["context_days"]
        day = seen if first is None else np.datetime64(first)
        if day < seen:
            log.warning("the fit has seen days up to %s: orders from %s on do not tell how good it is", seen, day)
        if dates[-1] < day:
            what = "the last day used in fit" if first is None else "--first"
            raise UserError(
                f"prices end on {dates[-1]}, before {day}, {what}; bring later prices or give an earlier --first"
            )
        begin = int(np.searchsorted(dates, day))
        if begin + 1 < needed:
            raise UserError(
                f"the first decision, on {dates[begin]}, needs {needed - 1} days of prices before it and has {begin}; "
                "bring earlier prices or a later first day"
            )
        if begin + 1 < needed + WARM_UP_DAYS and dates[0] > np.datetime64(self.first_seen):
            log.warning(
                "%d days of prices before %s: indicators need up to %d more than context_days %d to be those of the "
                "fit, so orders may differ from a test's; bring earlier prices",
                *(begin, dates[begin], WARM_UP_DAYS, needed),
            )
        return begin
