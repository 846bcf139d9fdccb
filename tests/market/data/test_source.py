"""The long table: its columns, order and duplicates, and which of its rows are usable."""

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.source import PRICE_COLUMNS, read_prices, unusable_rows
from tests.market.data.test_files import assert_refused, table, write

BOTH = pytest.mark.parametrize("name", ["p.parquet", "p.csv"])


@BOTH
def test_sorts_renames_and_ignores_further_columns(tmp_path, name):
    messy = table().sample(frac=1, random_state=0).assign(**{"adj close": 5.0})
    messy = messy[messy.columns[::-1]].rename(columns=str.upper).rename(columns={"DATE": " Date "})
    pd.testing.assert_frame_equal(read_prices(write(messy, tmp_path / name)), table())


@BOTH
def test_values_are_as_the_file_has_them(tmp_path, name):
    frame = table()
    frame.loc[0, "low"], frame.loc[1, "close"], frame.loc[2, "high"] = -1.0, np.nan, 1.0
    frame.loc[4, "volume"] = 1e39  # float32 holds prices alone
    assert read_prices(write(frame, tmp_path / name)).equals(frame)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda frame: frame.rename(columns={"ticker": "tic", "volume": "v"}), "columns ticker, volume; it has 'date,"),
        (lambda frame: frame.assign(CLOSE=1.0), "more than one column close"),
        (lambda frame: frame.iloc[:0], "no rows"),
        (
            lambda frame: pd.concat([frame, frame.iloc[[4, 4, 1]]]),
            "3 duplicate rows of one date and ticker, first 2020",
        ),
        *(
            (
                lambda frame, value=value: frame.assign(close=[1, 2, 3, 4, value, value]),
                f"2 infinite.*close, first {value}".replace("+", "[+]"),
            )
            for value in (np.inf, -np.inf, 1e39)
        ),
        (
            lambda frame: frame.assign(volume=[1, np.inf, 3, 4, 5, 6]),
            "in column volume, first inf of 'A' on 2020-01-02",
        ),
    ],
)
@BOTH
def test_refused_tables(tmp_path, name, spoil, words):
    assert_refused(write(spoil(table()), tmp_path / name), words)


@pytest.mark.parametrize("word", ["inf", "Infinity", "-inf"])
def test_infinite_numbers_in_odd_text(tmp_path, word):
    frame = table().astype({"close": str})
    frame.loc[2, "close"], frame.loc[3, "close"] = word, " 100 "
    assert_refused(write(frame, tmp_path / "p.csv"), "1 infinite values in column close")


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
