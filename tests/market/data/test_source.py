"""The long table: its columns, order and duplicates, and which of its rows are usable."""

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.source import read_prices, usable_prices, wrong_prices
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


@pytest.mark.parametrize("name", ["({[]: 1}, 2)", "(" + 100_000 * "-" + "1, 2)"])
def test_a_further_column_of_parquet_may_have_any_name(tmp_path, name):
    frame = table()
    assert read_prices(write(frame.assign(**{name: 1.0}), tmp_path / "p.parquet")).equals(frame)


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
        (
            lambda frame: frame.assign(date=frame["date"].replace(frame["date"].max(), pd.Timestamp("2120-01-03"))),
            "has the date 2120-01-03, after today",
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


def test_a_layout_that_only_prepare_knows(tmp_path):
    wide = table().pivot(index="date", columns="ticker", values="close")
    remedy = r"run python -m eigen2\.cli data prepare '?\S*my p\.csv'? OUT\.parquet"
    assert_refused(write(wide, tmp_path / "my p.csv", index=True), remedy)


def test_a_shift_to_another_zone_s_days_is_said(tmp_path, caplog):
    days = pd.bdate_range("2020-01-06", periods=60)
    utc = pd.DataFrame({"date": days, "ticker": "A", **dict.fromkeys(("open", "high", "low", "close", "volume"), 1.0)})
    utc["date"] = days.tz_localize("Asia/Tokyo").tz_convert("UTC")
    read = read_prices(write(utc, tmp_path / "p.csv"))
    assert read["date"].tolist() == days.tolist()
    assert [message.split(" has ")[1] for message in caplog.messages] == [
        "midnights of UTC+9 written in UTC: they count as days there"
    ]


def test_usable_prices_known_answer():
    prices = np.array([[10.0, 12.0, 9.0, 11.0]] * 10)
    prices[0, 0] = np.nan
    prices[1, [1, 2]] = np.nan
    prices[2, 2] = 0.0
    prices[3, 3] = -5.0
    prices[4, 1] = 8.0
    prices[5, [0, 3]] = np.nan, -1.0
    # outside [low, high], which is tolerated; and a number that float32 would round to 0
    prices[6, 3] = 99.0
    prices[7] = 1e-46
    prices[8, 2] = 1e-46
    gone = {0: [0], 1: [1, 2], 2: [2], 3: [3], 4: [1, 2], 5: range(4), 6: [], 7: range(4), 8: [2], 9: []}
    expected = prices.copy()
    for row, columns in gone.items():
        expected[row, list(columns)] = np.nan
    np.testing.assert_array_equal(usable_prices(prices), expected)
    wrong = {reason: np.argwhere(cells).tolist() for reason, cells in wrong_prices(prices).items()}
    assert wrong["high below low"] == [[4, 1], [4, 2]]
    assert wrong["price not positive"] == [[2, 2], [3, 3], [5, 3], *([7, column] for column in range(4)), [8, 2]]
