"""The synthetic market has the statistics its settings promise."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from eigen2.errors import UserError
from eigen2.market.panel import build_panel
from eigen2.market.source import PRICE_COLUMNS, read_prices
from eigen2.market.synthetic import SyntheticMarket

MARKET = SyntheticMarket(days=2000, columns=50, seed=3, signal=0.5, half_life_days=10.0, market_share=0.2)


def wide(market: SyntheticMarket, column: str) -> np.ndarray:
    return market.generate().pivot(index="date", columns="ticker", values=column).to_numpy()


def slope(x: np.ndarray, y: np.ndarray) -> float:
    return float((x * y).sum() / (x * x).sum())


def test_next_returns_have_slope_one_on_the_drift():
    drift, returns = MARKET.drift(), np.diff(np.log(wide(MARKET, "close")), axis=0)
    # standard error: 1 / (signal sqrt(100,000)) = 0.006
    assert slope(drift[:-1], returns) == pytest.approx(1, abs=0.03)
    intraday = np.log(wide(MARKET, "close") / wide(MARKET, "open"))
    assert slope(drift[:-1], intraday[1:]) == pytest.approx(1, abs=0.03)


def test_the_gap_to_the_next_open_earns_nothing_of_the_drift():
    close, open_ = wide(MARKET, "close"), wide(MARKET, "open")
    gap = np.log(open_[1:] / close[:-1])
    assert slope(MARKET.drift()[:-1], gap) == pytest.approx(0, abs=0.01)
    assert gap.std() == pytest.approx(MARKET.gap * MARKET.volatility, rel=0.02)


def test_drift_has_the_promised_spread_and_half_life():
    market = replace(MARKET, days=4000, columns=100)
    drift = market.drift()
    assert drift.shape == (4000, 100)
    assert drift.std() == pytest.approx(market.signal * market.volatility, rel=0.02)
    assert slope(drift[:-1], drift[1:]) == pytest.approx(0.5 ** (1 / 10), abs=0.005)
    assert slope(drift[:-10], drift[10:]) == pytest.approx(0.5, abs=0.02)
    # stationary from the first day on
    assert drift[:20].std() == pytest.approx(drift.std(), rel=0.1)


def test_noise_has_the_promised_spread_and_common_share():
    market = replace(MARKET, gap=0.6)
    noise = np.diff(np.log(wide(market, "close")), axis=0) - market.drift()[:-1]
    assert noise.std() == pytest.approx(market.volatility, rel=0.02)
    correlation = np.corrcoef(noise.T)
    others = correlation[~np.eye(len(correlation), dtype=bool)]
    # the gap, 0.36 of the variance, is each column's own
    assert others.mean() == pytest.approx(0.2 * 0.64, abs=0.02)


def test_no_signal_no_predictability():
    market = replace(MARKET, signal=0.0)
    assert not market.drift().any()
    returns = np.diff(np.log(wide(market, "close")), axis=0)
    assert slope(MARKET.drift()[:-1], returns) == pytest.approx(0, abs=0.03)
    assert slope(returns[:-1], returns[1:]) == pytest.approx(0, abs=0.03)


def test_signal_makes_returns_predict_returns():
    returns = np.diff(np.log(wide(MARKET, "close")), axis=0)
    # autocovariance of the drift over the variance of returns: 0.25 phi / 1.25
    assert slope(returns[:-1], returns[1:]) == pytest.approx(0.2 * 0.5 ** (1 / 10), abs=0.03)


def test_the_seed_decides_everything():
    market = SyntheticMarket(days=60, columns=4, missing=0.1)
    pd.testing.assert_frame_equal(market.generate(), replace(market).generate())
    assert not market.generate().equals(replace(market, seed=1).generate())
    np.testing.assert_array_equal(market.drift(), market.drift())


def test_prices_are_consistent():
    prices = replace(MARKET, volatility=0.1, days=500).generate()
    assert (prices[list(PRICE_COLUMNS)] > 0).all(axis=None)
    assert (prices["low"] <= prices[["open", "close"]].min(axis=1)).all()
    assert (prices["high"] >= prices[["open", "close"]].max(axis=1)).all()
    assert prices["date"].dt.day_of_week.max() == 4


def test_looks_as_if_it_had_been_read(tmp_path):
    prices = SyntheticMarket(days=50, columns=3, missing=0.2).generate()
    prices.to_parquet(tmp_path / "prices.parquet")
    pd.testing.assert_frame_equal(read_prices(tmp_path / "prices.parquet"), prices)


@pytest.mark.parametrize("columns", [1, 20])
def test_missing_rows(columns):
    market = SyntheticMarket(days=400, columns=columns, missing=0.3)
    complete = replace(market, missing=0.0).generate()
    prices = market.generate()
    assert len(complete) == 400 * columns
    # one column cannot lose a row without losing the day
    assert 1 - len(prices) / len(complete) == pytest.approx(0.3 if columns > 1 else 0, abs=0.02)
    panel = build_panel(prices, validation_days=0, holdout_days=0)
    assert (panel.num_days, panel.num_columns) == market.drift().shape
    merged = prices.merge(complete, how="left", indicator=True)
    assert (merged["_merge"] == "both").all()


def test_tickers_sort_by_number():
    tickers = SyntheticMarket(days=2, columns=10_001).generate()["ticker"].unique().tolist()
    assert tickers[0] == "S00000"
    assert tickers == sorted(tickers) == [f"S{column:05d}" for column in range(10_001)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("days", 1),
        ("columns", 0),
        ("seed", -1),
        ("volatility", 0.0),
        ("volatility", float("nan")),
        ("signal", -0.1),
        ("half_life_days", 0.0),
        ("half_life_days", float("inf")),
        ("market_share", 1.5),
        ("gap", -1.0),
        ("missing", 1.0),
    ],
)
def test_settings_out_of_range(name, value):
    with pytest.raises(UserError, match=name) as error:
        SyntheticMarket(**{name: value})
    assert str(value) in str(error.value)
    assert "\n" not in str(error.value)


def test_prices_out_of_range():
    with pytest.raises(UserError, match=r"volatility 0\.5"):
        SyntheticMarket(days=3000, columns=3, volatility=0.5, signal=10.0, half_life_days=1000.0).generate()
