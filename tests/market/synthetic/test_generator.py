"""The synthetic market has the statistics its settings promise."""

import math
import os
import tracemalloc
from dataclasses import fields, replace
from pathlib import Path
from unittest import mock

import jaxtyping
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data.source import PRICE_COLUMNS, read_prices
from eigen2.market.synthetic import generator
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet

MARKET = SyntheticMarket(days=2000, columns=50, seed=3, signal=0.5, half_life_days=10.0, market_share=0.2)
PLAIN = SyntheticMarket(days=120, columns=11, seed=4)
EVERYTHING = replace(PLAIN, missing=0.05, sectors=3, late_listings=0.3, delistings=0.3)


def slope(x: np.ndarray, y: np.ndarray) -> float:
    return float((x * y).sum() / (x * x).sum())


def log_prices(market: SyntheticMarket) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of opens and closes, (days, columns)."""
    prices = np.log(market.prices().astype(np.float64))
    return prices[..., 0], prices[..., 3]


def returns_of(market: SyntheticMarket) -> np.ndarray:
    return np.diff(log_prices(market)[1], axis=0)


def test_next_returns_have_slope_one_on_the_drift_and_gaps_none() -> None:
    drift, (open_, close) = MARKET.drift(), log_prices(MARKET)
    # standard error: 1 / (signal sqrt(100,000)) = 0.006
    assert slope(drift[:-1], np.diff(close, axis=0)) == pytest.approx(1, abs=0.03)
    assert slope(drift[:-1], (close - open_)[1:]) == pytest.approx(1, abs=0.03)
    gap = open_[1:] - close[:-1]
    assert slope(drift[:-1], gap) == pytest.approx(0, abs=0.01)
    assert gap.std() == pytest.approx(MARKET.gap * MARKET.volatility, rel=0.02)
    # autocovariance of the drift over the variance of returns: 0.25 phi / 1.25
    returns = np.diff(close, axis=0)
    assert slope(returns[:-1], returns[1:]) == pytest.approx(0.2 * 0.5 ** (1 / 10), abs=0.03)


def test_drift_has_the_promised_spread_and_half_life() -> None:
    market = replace(MARKET, days=4000)
    drift = market.drift()
    assert drift.shape == (4000, 50)
    assert drift.std() == pytest.approx(market.signal * market.volatility, rel=0.03)
    assert slope(drift[:-1], drift[1:]) == pytest.approx(0.5 ** (1 / 10), abs=0.005)
    assert slope(drift[:-10], drift[10:]) == pytest.approx(0.5, abs=0.02)
    # stationary from the first day on
    assert drift[:20].std() == pytest.approx(drift.std(), rel=0.12)


def test_noise_has_the_promised_spread_and_common_share() -> None:
    market = replace(MARKET, gap=0.6)
    noise = returns_of(market) - market.drift()[:-1]
    assert noise.std() == pytest.approx(market.volatility, rel=0.02)
    correlation = np.corrcoef(noise.T)
    others = correlation[~np.eye(len(correlation), dtype=bool)]
    # the gap, 0.36 of the variance, is each column's own
    assert others.mean() == pytest.approx(0.2 * 0.64, abs=0.02)


def test_sectors_share_noise() -> None:
    market = SyntheticMarket(days=4000, columns=12, signal=0, gap=0, sectors=3, market_share=0.2, sector_share=0.3)
    returns = returns_of(market)
    assert returns.std() == pytest.approx(market.volatility, rel=0.03)
    correlation, sector = np.corrcoef(returns.T), np.arange(12) % 3
    same = sector[:, None] == sector
    np.fill_diagonal(correlation, np.nan)
    assert np.nanmean(correlation[same]) == pytest.approx(0.5, abs=0.03)
    assert np.nanmean(correlation[~same]) == pytest.approx(0.2, abs=0.03)
    pd.testing.assert_frame_equal(replace(PLAIN, sectors=1).generate(), PLAIN.generate())


def there(market: SyntheticMarket) -> np.ndarray:
    """Return whether there is a row, (days, columns) of every column but the first."""
    return np.isfinite(market.prices()[:, 1:, 0])


def lifetimes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last day with a row."""
    return rows.argmax(axis=0), len(rows) - 1 - rows[::-1].argmax(axis=0)


def test_listings_and_delistings() -> None:
    rows = there(SyntheticMarket(days=21, columns=801, late_listings=0.3, delistings=0.4))
    first, last = lifetimes(rows)
    late, early = first > 0, last < 20
    # standard errors 0.016, 0.017 and 0.011; one column in 67, listed on the last day, cannot be delisted
    assert late.mean() == pytest.approx(0.3, abs=0.05)
    assert early.mean() == pytest.approx(0.4, abs=0.055)
    assert (late & early).mean() == pytest.approx(0.12, abs=0.035)
    # uniform over days 1 to 20 and 0 to 19: standard errors 5.8 / sqrt(240) = 0.37 and 0.39
    assert first[late].mean() == pytest.approx(10.5, abs=1.2)
    assert last[early & ~late].mean() == pytest.approx(9.5, abs=1.2)
    assert (first[late].min(), first.max(), last.min(), last[early].max()) == (1, 20, 0, 19)
    # no other row is missing
    assert rows.sum() == (last - first + 1).sum()


@pytest.mark.parametrize("change", [{"missing": 0.3}, {"late_listings": 1.0}, {"delistings": 1.0}], ids=str)
def test_rows_left_out_leave_the_others_alone(change: dict[str, float]) -> None:
    complete, prices = PLAIN.generate(), replace(PLAIN, **change).generate()
    assert len(prices) < len(complete)
    assert (prices.merge(complete, how="left", indicator=True)["_merge"] == "both").all()
    # the first column has every day; standard error 0.013
    assert (prices["ticker"] == "S0000").sum() == PLAIN.days
    if "missing" in change:
        assert 1 - len(prices) / len(complete) == pytest.approx(0.3 * (1 - 1 / 11), abs=0.05)


def test_the_seed_decides_and_more_columns_or_days_change_nothing() -> None:
    prices, drift = EVERYTHING.prices(), EVERYTHING.drift()
    np.testing.assert_array_equal(replace(EVERYTHING).prices(), prices)
    assert not np.array_equal(replace(EVERYTHING, seed=1).prices(), prices, equal_nan=True)
    fewer = replace(EVERYTHING, columns=4)
    np.testing.assert_array_equal(fewer.prices(), prices[:, :4])
    np.testing.assert_array_equal(fewer.drift(), drift[:, :4])
    longer = replace(PLAIN, days=200, sectors=3)
    np.testing.assert_array_equal(longer.prices()[:120], replace(PLAIN, sectors=3).prices())
    np.testing.assert_array_equal(longer.drift()[:120], drift)


def test_array_and_table_agree() -> None:
    prices, table = EVERYTHING.prices(), EVERYTHING.generate()
    assert prices.dtype == np.float32
    for i, name in enumerate(PRICE_COLUMNS):
        pivot = table.pivot(index="date", columns="ticker", values=name).to_numpy(np.float32)
        np.testing.assert_array_equal(prices[..., i], pivot)
    tickers = next(SyntheticMarket(days=2, columns=10_001).blocks())["ticker"].unique()
    assert tickers.tolist() == [f"S{column:05d}" for column in range(64)]  # so that they sort by number


OUT_OF_RANGE: dict[str, float] = {
    **{"days": 1, "columns": 0, "seed": -1, "volatility": 0.6, "signal": -0.1, "missing": 1.0, "gap": -1.0},
    **{"half_life_days": 0.0, "market_share": 1.5, "sectors": -1, "sector_share": 1.1},
    **{"late_listings": 1.1, "delistings": -0.1},
}


def test_every_setting_has_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(OUT_OF_RANGE) == {field.name for field in fields(SyntheticMarket)}
    for name, value in OUT_OF_RANGE.items():
        for refused in (value,) if isinstance(value, int) else (value, math.nan):
            with pytest.raises(UserError, match=f"^{name} of the synthetic market is {refused}; it must be [^\n]*$"):
                SyntheticMarket(**{name: refused})
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would refuse a fraction first
    for name in ("days", "columns", "seed", "sectors"):
        with pytest.raises(UserError, match=rf"^{name} of the synthetic market is 300\.0; it must be a whole number$"):
            SyntheticMarket(**{name: 300.0})
    with pytest.raises(UserError, match=r"market_share 0\.9 and sector_share 0\.2"):
        SyntheticMarket(sectors=2, market_share=0.9, sector_share=0.2)
    SyntheticMarket(sectors=1, market_share=0.9, sector_share=0.2)
    SyntheticMarket(sectors=2, market_share=0.7, sector_share=0.3)


@st.composite
def any_market(draw: st.DrawFn) -> SyntheticMarket:
    share = draw(st.floats(0, 1))
    return SyntheticMarket(
        days=draw(st.integers(2, 60)),
        columns=draw(st.integers(1, 8)),
        seed=draw(st.integers(0, 2**70)),
        volatility=draw(st.floats(1e-6, 0.1)),
        signal=draw(st.floats(0, 3)),
        half_life_days=draw(st.floats(1e-3, 1e9)),
        market_share=share,
        gap=draw(st.floats(0, 1)),
        missing=draw(st.floats(0, 0.999)),
        sectors=draw(st.integers(0, 10)),
        sector_share=draw(st.floats(0, 1)) * (1 - share),
        late_listings=draw(st.floats(0, 1)),
        delistings=draw(st.floats(0, 1)),
    )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(any_market(), st.integers(1, 9))
def test_any_market_is_a_clean_table(market: SyntheticMarket, columns_per_block: int) -> None:
    prices = market.generate()
    values = prices[[*PRICE_COLUMNS, "volume"]].to_numpy()
    assert np.isfinite(values).all()
    assert (values[:, :4] > 0).all()
    assert (prices["volume"] >= 0).all()
    assert (prices["high"] >= prices[["open", "close"]].max(axis=1)).all()
    assert (prices["low"] <= prices[["open", "close"]].min(axis=1)).all()
    keys = list(zip(prices["ticker"], prices["date"], strict=True))
    assert keys == sorted(set(keys))
    assert prices["ticker"].nunique() == market.columns
    assert (prices["ticker"] == "S0000").sum() == market.days == prices["date"].nunique()
    with mock.patch.object(generator, "COLUMNS_PER_BLOCK", columns_per_block):
        blocks = list(market.blocks())
    assert [block["ticker"].nunique() for block in blocks[:-1]] == [columns_per_block] * (len(blocks) - 1)
    pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), prices)


# The file


def test_the_file_is_the_market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "COLUMNS_PER_BLOCK", 3)
    path = tmp_path / "market.parquet"
    path.write_bytes(b"earlier")
    write_parquet(EVERYTHING, path)
    pd.testing.assert_frame_equal(read_prices(path), EVERYTHING.generate())
    assert pq.ParquetFile(path).num_row_groups == 4
    write_parquet(EVERYTHING, tmp_path / "other.parquet")
    assert path.read_bytes() == (tmp_path / "other.parquet").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["market.parquet", "other.parquet"]


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    wild = SyntheticMarket(days=3000, columns=3, volatility=0.5, signal=10.0, half_life_days=1000.0)
    (tmp_path / "folder.parquet").mkdir()
    for market, name, words in (
        (PLAIN, "missing/market.parquet", "name a file in a folder that exists"),
        (PLAIN, "folder.parquet", "a folder"),
        (PLAIN, "market.csv", "ends in .parquet"),
        (wild, "wild.parquet", r"float32 range with volatility 0\.5"),
    ):
        with pytest.raises(UserError, match=words):
            write_parquet(market, tmp_path / name)
    assert os.listdir(tmp_path) == ["folder.parquet"]


def test_memory_does_not_grow_with_the_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "COLUMNS_PER_BLOCK", 4)

    def peak(columns: int) -> int:
        market = replace(PLAIN, days=2000, columns=columns, signal=0.0, missing=0.1)
        tracemalloc.start()
        try:
            write_parquet(market, tmp_path / f"{columns}.parquet")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(4)
    assert peak(24) < 1.2 * peak(8)
