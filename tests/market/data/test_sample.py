"""The sample that ships with the package."""

from hashlib import sha256

import pandas as pd
import pytest

from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.sample import sample_path
from eigen2.market.data.source import PRICE_COLUMNS, read_prices
from tests.market.data.cleaning.rows import calendar_of


@pytest.fixture(scope="module")
def sample() -> pd.DataFrame:
    return read_prices(sample_path())


def test_every_ticker_has_a_close_on_every_day(sample: pd.DataFrame) -> None:
    note = sample_path().with_name("README.md").read_text()
    assert f"{len(sample):,} rows, {sample['ticker'].nunique()} tickers on each of 3,775" in note
    assert f"Tickers: {', '.join(sample['ticker'].unique())}." in note
    assert sample.groupby("ticker").size().eq(3775).all()
    assert [str(day)[:10] for day in sample["date"].agg(["min", "max"])] == ["2008-01-02", "2022-12-28"]
    assert (sample[list(PRICE_COLUMNS)] > 0).all(axis=None)
    assert all(sample[name].equals(sample["close"].rename(name)) for name in ("open", "high", "low"))
    assert sample["volume"].isna().all()  # unknown, as in the source
    assert sample_path().stat().st_size < 600_000
    assert sha256(sample_path().read_bytes()).hexdigest() in note


def test_prepare_changes_nothing(sample: pd.DataFrame) -> None:
    """The days of 2008 and 2009 on which banks fell or rose by a fifth and turned are real."""
    found = find(sample, calendar_of(sample), Limits())
    assert {name for name, mask in found.rows.items() if mask.any()} == {"unknown_volume"}


def test_prices_are_adjusted(sample: pd.DataFrame) -> None:
    for ticker, day in (("AAPL", "2014-06-09"), ("AAPL", "2020-08-31"), ("GE", "2021-08-02")):  # 7:1, 4:1, 1:8
        close = sample[sample["ticker"] == ticker].set_index("date")["close"]
        assert abs(close.pct_change()[day]) < 0.1
