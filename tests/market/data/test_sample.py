"""The sample that ships with the package."""

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.cache import load_panel
from eigen2.market.data.sample import adjust, sample_path
from eigen2.market.data.sample.__main__ import main
from eigen2.market.data.source import read_prices, unusable_rows


@pytest.fixture(scope="module")
def sample() -> pd.DataFrame:
    return read_prices(sample_path())


def raw_rows() -> pd.DataFrame:
    """Two tickers as traded, later one first: B splits 2:1 between its two days, A pays no attention."""
    return pd.DataFrame(
        {
            "Ticker": ["B", "B", "A"],
            "Date": ["2000-06-20", "2000-06-21", "2000-06-20"],
            "Open": [100.0, 50.0, 10.0],
            "High": [104.0, 52.0, 11.0],
            "Low": [98.0, 49.0, 9.0],
            "Close": [102.0, 51.0, 10.0],
            "Volume": [10, 20, 30],
            "Adj Close": [51.0, 51.0, 10.0],
        }
    )


def test_size_and_names(sample):
    assert sample.groupby("ticker").size().to_dict() == {
        "AAPL": 3270,
        "FB": 196,
        "GOOG": 2148,
        "IBM": 3270,
        "MSFT": 3270,
    }
    assert sample["date"].min() == pd.Timestamp("2000-03-01")
    assert sample["date"].max() == pd.Timestamp("2013-03-01")
    assert sample_path().stat().st_size < 400_000


def test_every_row_is_clean(sample):
    assert not any(mask.any() for mask in unusable_rows(sample).values())
    assert (sample["low"] <= sample[["open", "close"]].min(axis=1)).all()
    assert (sample["high"] >= sample[["open", "close"]].max(axis=1)).all()
    assert (sample["volume"] > 0).all()


@pytest.mark.parametrize(("ticker", "day"), [("AAPL", "2000-06-21"), ("AAPL", "2005-02-28"), ("MSFT", "2003-02-18")])
def test_splits_leave_no_jump(sample, ticker, day):
    rows = sample[sample["ticker"] == ticker].set_index("date")
    jump = rows["close"].pct_change()[day]
    assert abs(jump) < 0.2
    assert abs(rows["open"][day] / rows["close"].shift()[day] - 1) < 0.2


def test_all_four_prices_are_adjusted_to_known_closes(sample):
    first = sample.iloc[0]
    # 118.56, 132.06, 118.50 and 130.31 as traded, with an adjusted close of 4.186663
    expected = np.array([118.56, 132.06, 118.50, 130.31]) * (4.186663 / 130.31)
    np.testing.assert_allclose(first[["open", "high", "low", "close"]].to_numpy(float), expected, rtol=1e-6)
    assert first["volume"] == 9616100


def test_adjust_known_answer():
    raw = raw_rows()
    adjusted = adjust(raw)
    assert adjusted["ticker"].tolist() == ["A", "B", "B"]
    assert adjusted["open"].tolist() == [10, 50, 50]
    assert adjusted["high"].tolist() == [11, 52, 52]
    assert adjusted["low"].tolist() == [9, 49, 49]
    assert adjusted["close"].tolist() == [10, 51, 51]
    assert adjusted["volume"].tolist() == [30, 10, 20]
    pd.testing.assert_frame_equal(raw, raw_rows())


def test_command_rebuilds_a_readable_file(tmp_path):
    raw_rows().to_csv(tmp_path / "stocks.csv.gz", index=False)
    main([str(tmp_path / "stocks.csv.gz"), str(tmp_path / "out.parquet")])
    prices = read_prices(tmp_path / "out.parquet")
    assert prices["close"].tolist() == [10, 51, 51]


def test_loads_as_a_panel(tmp_path):
    panel = load_panel(sample_path(), cache_dir=tmp_path)
    assert panel.tickers == ("AAPL", "FB", "GOOG", "IBM", "MSFT")
    assert (panel.num_days, panel.num_columns) == (3270, 5)
    # FB has no training day: pooled statistics make its features ones of ordinary size
    fb = panel.features[panel.valid[:, 1].all(axis=1), 1]
    assert len(fb) == 196 - 43
    assert 0.1 < np.abs(fb).mean() < 2
