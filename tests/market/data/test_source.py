"""The long table: its columns, order and duplicates, and which of its rows are usable."""

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.source import PRICE_COLUMNS, read_prices, unusable_rows
from tests.market.data.test_files import failure, table, write

BOTH = pytest.mark.parametrize("name", ["p.parquet", "p.csv"])


@BOTH
def test_sorts_renames_and_ignores_further_columns(tmp_path, name):
    messy = table().sample(frac=1, random_state=0)
    messy["adj close"] = 5.0
    messy = messy[messy.columns[::-1]].rename(columns=str.upper).rename(columns={"DATE": " Date "})
    pd.testing.assert_frame_equal(read_prices(write(messy, tmp_path / name)), table())


@BOTH
def test_values_are_as_the_file_has_them(tmp_path, name):
    frame = table()
    frame.loc[0, "low"], frame.loc[1, "close"], frame.loc[2, "high"] = -1.0, np.nan, 1.0
    assert read_prices(write(frame, tmp_path / name)).equals(frame)


@BOTH
def test_columns_that_are_missing_or_double(tmp_path, name):
    frame = table().rename(columns={"ticker": "tic", "volume": "amount"})
    message = failure(write(frame, tmp_path / name))
    assert "lacks the columns ticker, volume; it has 'date, tic, open, high, low, close, amount'" in message
    assert "more than one column close" in failure(write(table().assign(CLOSE=1.0), tmp_path / name))
    (tmp_path / "q.csv").write_text("date,ticker,open,high,low,close,volume,close\n")
    assert "more than one column close" in failure(tmp_path / "q.csv")


@BOTH
def test_no_rows(tmp_path, name):
    assert "no rows" in failure(write(table().iloc[:0], tmp_path / name))


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39])
@BOTH
def test_infinite_values(tmp_path, name, value):
    frame = table()
    frame.loc[4, ["high", "close"]] = value
    message = failure(write(frame, tmp_path / name))
    assert f"2 infinite values, first high = {value} of 'B' on 2020-01-02" in message
    frame = table()
    frame.loc[[1, 4], "volume"] = value
    if np.isfinite(value):
        assert read_prices(write(frame, tmp_path / name)).equals(frame)
    else:
        message = failure(write(frame, tmp_path / name))
        assert f"2 infinite values, first volume = {value} of 'A' on 2020-01-02" in message


@pytest.mark.parametrize("word", ["inf", "Infinity", "-inf"])
def test_infinite_numbers_in_text_that_is_no_number_elsewhere(tmp_path, word):
    """A file whose cells come as text, because one is no plain number, hides no infinity."""
    frame = table().astype({"close": str, "volume": str})
    frame.loc[2, "close"], frame.loc[3, "volume"] = word, " 100 "
    assert "1 infinite values, first close" in failure(write(frame, tmp_path / "p.csv"))


@BOTH
def test_duplicate_rows(tmp_path, name):
    frame = pd.concat([table(), table().iloc[[4, 4, 1]]])
    message = failure(write(frame, tmp_path / name))
    assert "3 duplicate rows of one date and ticker, first 2020-01-02 'A'" in message


def test_unusable_rows_known_answer():
    frame = table(("A",), days=8).assign(open=10.0, high=12.0, low=9.0, close=11.0)
    frame.loc[0, "open"] = np.nan
    frame.loc[1, ["high", "low"]] = np.nan
    frame.loc[2, "low"] = 0.0
    frame.loc[3, "close"] = -5.0
    frame.loc[4, "high"] = 8.0
    frame.loc[5, ["open", "low"]] = np.nan, -1.0
    # outside [low, high], which is tolerated; and a number that float32 would round to 0
    frame.loc[6, "close"] = 99.0
    frame.loc[7, PRICE_COLUMNS] = 1e-46
    rows = {reason: np.flatnonzero(mask).tolist() for reason, mask in unusable_rows(frame).items()}
    assert rows == {"price missing": [0, 1, 5], "price not positive": [2, 3, 7], "high below low": [4]}
