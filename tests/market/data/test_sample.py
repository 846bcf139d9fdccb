"""The sample that ships with the package."""

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.sample import sample_path
from eigen2.market.data.source import read_prices, unusable_rows


@pytest.fixture(scope="module")
def sample() -> pd.DataFrame:
    return read_prices(sample_path())


def test_every_row_is_clean(sample):
    sizes = {"AAPL": 3270, "FB": 196, "GOOG": 2148, "IBM": 3270, "MSFT": 3270}
    assert sample.groupby("ticker").size().to_dict() == sizes
    assert [str(day)[:10] for day in sample["date"].agg(["min", "max"])] == ["2000-03-01", "2013-03-01"]
    assert sample_path().stat().st_size < 400_000
    assert not any(mask.any() for mask in unusable_rows(sample).values())
    assert (sample["low"] <= sample[["open", "close"]].min(axis=1)).all()
    assert (sample["high"] >= sample[["open", "close"]].max(axis=1)).all()
    assert (sample["volume"] > 0).all()


def test_prices_are_adjusted(sample):
    for ticker, day in (("AAPL", "2000-06-21"), ("AAPL", "2005-02-28"), ("MSFT", "2003-02-18")):  # days of a split
        rows = sample[sample["ticker"] == ticker].set_index("date")
        assert abs(rows["close"].pct_change()[day]) < 0.2
        assert abs(rows["open"][day] / rows["close"].shift()[day] - 1) < 0.2
    # 118.56, 132.06, 118.50 and 130.31 as traded, with an adjusted close of 4.186663
    expected = np.array([118.56, 132.06, 118.50, 130.31]) * (4.186663 / 130.31)
    np.testing.assert_allclose(sample.iloc[0][["open", "high", "low", "close"]].to_numpy(float), expected, rtol=1e-6)
    assert sample["volume"].iloc[0] == 9616100
