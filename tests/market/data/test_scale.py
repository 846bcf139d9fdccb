"""Prices that come later, or from another file, made into the numbers that agents were trained on."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from eigen2.errors import UserError
from eigen2.market.data.cache import load_panel
from eigen2.market.data.panel import FeatureScale, MarketPanel, build_panel
from eigen2.market.features.encoding import AverageEncoder, MarketEncoder
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket

DAYS, SHORT = 420, 300
SIZES = {"validation_days": 40, "holdout_days": 20}
EPISODE = EpisodeSettings(TradingRules(), AccountRules(), trading_days=6, settlement_days=4)


def long_prices() -> pd.DataFrame:
    """Four tickers, one of which begins late, and an indicator that takes both signs."""
    prices = SyntheticMarket(days=DAYS, columns=4, seed=7).generate()
    dates = np.sort(prices["date"].unique())
    prices = prices[(prices["ticker"] != "S0003") | (prices["date"] >= dates[200])]
    walk = np.random.default_rng(3).normal(0, 40, DAYS).cumsum()
    spread = pd.DataFrame({"date": dates, "ticker": "SPREAD", "close": walk})
    return pd.concat([prices, spread], ignore_index=True)


LONG = long_prices()
EARLY = LONG[LONG["date"] <= np.sort(LONG["date"].unique())[SHORT - 1]].reset_index(drop=True)
FITTED = build_panel(EARLY, **SIZES, indicators=["SPREAD"])


def assert_same_days(panel: MarketPanel, days: int = SHORT) -> None:
    for name in ("dates", "features", "valid", "prices"):
        np.testing.assert_array_equal(getattr(panel, name)[:days], getattr(FITTED, name)[:days], err_msg=name)


def test_days_that_came_later_change_no_number_of_the_days_before() -> None:
    panel = build_panel(LONG, **SIZES, scale=FITTED.scale)
    assert (panel.num_days, panel.scale, panel.indicators) == (DAYS, FITTED.scale, ("SPREAD",))
    assert_same_days(panel)
    own = build_panel(LONG, **SIZES, indicators=["SPREAD"])
    assert own.scale != FITTED.scale
    assert not np.array_equal(own.features[:SHORT], FITTED.features)


def test_averages_are_standardised_as_they_were() -> None:
    days = torch.arange(30, SHORT)[None]
    panel = build_panel(LONG, **SIZES, scale=FITTED.scale)
    for investable in ([0, 1], [0, 1, 2, 3]):
        settings = (16, EPISODE)
        fitted = AverageEncoder(FITTED, investable, *settings)
        saved = json.loads(json.dumps({"encoding": "averages", "context_days": 16, **fitted.state_dict()}))
        assert FeatureScale.from_dict(saved["scale"]) == FITTED.scale
        again = MarketEncoder.restore(saved, panel, EPISODE)
        assert again.state_dict() == fitted.state_dict()
        for ours, right in zip(again.describe(days), fitted.describe(days), strict=True):
            assert torch.equal(ours, right)
        own = AverageEncoder(panel, investable, *settings)
        assert not torch.equal(own.describe(days)[0], fitted.describe(days)[0])


def test_a_scale_is_plain_values_and_back() -> None:
    scale = FITTED.scale
    # the late ticker has features with fewer than 60 training values, and an indicator has none in their place
    back = FeatureScale.from_dict(json.loads(json.dumps(scale.to_dict(), allow_nan=False)))
    assert back == scale
    for name in ("units", "means", "stds"):
        np.testing.assert_array_equal(getattr(back, name), getattr(scale, name), err_msg=name)
    assert scale.units[:4].tolist() == [1, 1, 1, 1] != scale.units[4:].tolist()
    assert FeatureScale(scale.tickers, scale.indicators, scale.units, scale.means, scale.stds * (1 + 1e-15)) != scale


def test_missing_tickers_never_trade_and_unknown_ones_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    changed = LONG[~LONG["ticker"].isin(["S0001", "SPREAD"])]
    stranger = LONG[LONG["ticker"] == "S0000"].assign(ticker="NEW")
    with caplog.at_level(logging.WARNING):
        panel = build_panel(pd.concat([changed, stranger]), **SIZES, scale=FITTED.scale)
    assert caplog.messages == [
        "no prices of 2 of the agents' 5 tickers: 'S0001', 'SPREAD'",
        "1 of 4 tickers left out, not known to the agents: 'NEW'",
    ]
    assert panel.tickers == ("S0000", "S0001", "S0002", "S0003", "SPREAD")
    gone, there = [1, 4], [0, 2, 3]
    assert np.isnan(panel.prices[:, gone]).all()
    assert not panel.valid[:, gone].any()
    assert not panel.features[:, gone].any()
    np.testing.assert_array_equal(panel.features[:SHORT, there], FITTED.features[:, there])
    with pytest.raises(UserError, match=r"none of the agents' 5 tickers \('S0000', 'S0001', 'S00"):
        build_panel(LONG.assign(ticker="X" + LONG["ticker"]), **SIZES, scale=FITTED.scale)


def test_a_cache_is_of_one_scale(tmp_path: Path) -> None:
    LONG.to_parquet(tmp_path / "prices.parquet", index=False)
    own, theirs, again = (
        load_panel(
            tmp_path / "prices.parquet", **SIZES, indicators=["SPREAD"], scale=scale, cache_dir=tmp_path / "cache"
        )
        for scale in (None, FITTED.scale, FITTED.scale)
    )
    assert own.folder != theirs.folder == again.folder
    assert theirs.scale == again.scale == FITTED.scale
    assert_same_days(again)
