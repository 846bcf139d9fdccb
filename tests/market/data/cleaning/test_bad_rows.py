"""Rows that were found bad in public data sets: each kind is found and named, and what is wrong is emptied."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.cleaning.clean import clean
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import CleaningPolicy, Limits
from eigen2.market.data.source import PRICE_COLUMNS
from tests.market.data.cleaning.rows import DATA, Row, as_block, by_row, calendar_of, fillers, flat

BAD_ROWS = DATA / "bad_rows.csv"
pytestmark = pytest.mark.skipif(not BAD_ROWS.exists(), reason="no shared data")

# By source and kind, the days of each defect: `/2` is the second row of a day, `/A` that of ticker A; after `all`, the
# days of rows that do not have it.
KINDS: dict[str, dict[str, str]] = {
    "dow31_2006_2017 nan_open_low_one_day_most_tickers": {"missing_price": "2017-07-31"},
    "dow31_2006_2017 nan_ohl_volume0_close_kept": {"missing_price": "2012-08-01", "zero_volume": "2012-08-01"},
    "dow31_2006_2017 low_is_zero": {"nonpositive_price": "2009-04-17"},
    "dow31_2006_2017 close_above_high": {"outside_bar": "2007-02-28"},
    "dow31_2006_2017 single_day_missing_some_tickers": {},
    "sp500_5yr high_below_low_and_close_outside": {"high_below_low": "2014-05-19"},
    "sp500_5yr open_far_outside_bar": {"outside_bar": "2014-05-19"},
    "sp500_5yr half_adjusted_split_then_x2": {"outside_bar": "2016-05-19"},
    "sp500_5yr spinoff_not_adjusted_-57pct": {"split_like": "2015-07-20"},
    "sp500_5yr spinoff_not_adjusted_-63pct": {"split_like": "2015-07-02"},
    "sp500_5yr two_for_one_share_dividend_not_adjusted": {"split_like": "2014-08-07"},
    "sp500_5yr ten_day_hole_then_nan_row": {},
    "sp500_5yr nan_row_volume_3_shares": {"missing_price": "2017-07-26"},
    "sp500_yahoo_2015_2020 duplicate_row_second_all_zero": {
        "duplicate": "2019-12-04/2",
        "nonpositive_price": "2019-12-04/2",
    },
    "sp500_yahoo_2015_2020 duplicate_row_slightly_different": {"duplicate": "2019-12-06/1"},
    "sp500_yahoo_2015_2020 ticker_reused_penny_stock_then_ipo": {
        "zero_volume": (
            "2015-12-03 2015-12-04 2015-12-07 2015-12-08 2015-12-09 2015-12-10 2015-12-11 2015-12-18 2015-12-21 "
            "2015-12-22 2015-12-23 2015-12-24 2015-12-28 2015-12-29 "
        ),
        "stale_run": (
            "2015-12-04 2015-12-07 2015-12-08 2015-12-09 2015-12-10 2015-12-11 2015-12-21 2015-12-22 2015-12-23 "
            "2015-12-24 2015-12-28 2015-12-29 "
        ),
        "split_like": "2017-07-17",
    },
    "sp500_yahoo_2015_2020 two_instruments_interleaved": {
        "spike": "2019-03-21 2019-04-05 2019-05-29",
        "zero_volume": (
            "2019-03-15 2019-03-18 2019-03-26 2019-04-01 2019-04-02 2019-04-04 2019-04-10 2019-04-18 2019-04-25 "
            "2019-04-26 2019-05-01 2019-05-08 2019-05-09 2019-05-10 2019-05-15 2019-05-16 2019-05-17 2019-05-20 "
            "2019-05-22 2019-05-23 2019-06-05 2019-06-06 "
        ),
    },
    "sp500_yahoo_2015_2020 stale_after_delisting_volume0": {
        "zero_volume": "all 2019-05-29",
        "stale_run": "all 2019-03-05 2019-05-29",
    },
    "sp500_yahoo_2015_2020 thirty_nine_day_hole": {},
    "us500_2004_2023 volume0_flat_bars": {"zero_volume": "2006-03-07 2006-03-08"},
    "us500_2004_2023 open_below_low": {"outside_bar": "2023-01-24"},
    "us500_2004_2023 real_crash_-65pct": {},
    "us500_2004_2023 real_squeeze_and_crash": {},
    "us_huge_2017 bad_tick_x8000_for_days": {"spike": "2015-11-19"},
    "us_huge_2017 bad_tick_div100_one_day": {"outside_bar": "2010-09-16"},
    "us_huge_2017 bad_tick_0.02_then_back": {"spike": "2007-10-10"},
    "us_yahoo_all open_zero_era": {"nonpositive_price": "1972-06-01"},
    "us_yahoo_all price_collapse_x5000_and_back": {
        "spike": "2015-08-13 2015-08-14 2015-08-17 2015-08-18 2015-08-19 2015-08-20",
        "stale_run": "2015-08-14 2015-08-17 2015-08-18 2015-08-19 2015-08-20",
    },
    "us_yahoo_all reverse_split_adjusted_1e7": {
        "jump": "2015-10-15 2015-10-16 2015-10-19",
        "unknown_volume": "2015-10-19 2015-10-20",
    },
    "us_yahoo_all placeholder_0.001": {
        "zero_volume": "2021-08-31 2021-09-02 2021-09-17",
        "spike": "2021-09-01 2021-09-02",
    },
    "us_yahoo_all ticker_named_NAN": {},
    "us_yahoo_all ticker_named_TRUE": {},
    "nse_2024 jump_718_to_8.9": {"jump": "2020-12-23"},
    "nse_2024 jump_x446_after_hole": {"reused_ticker": "2023-08-01 2023-08-02 2023-08-03"},
    "finrl_trade_2020_2021 close_is_adjusted_ohl_are_not": {"close_basis": "all"},
    "bokeh5_2000_2013 unadjusted_2for1_split": {"split_like": "2000-06-21 2005-02-28"},
    "bokeh5_2000_2013 market_closed_4_days": {},
    "us_huge_2017 high_below_low": {"high_below_low": "all"},
    "us_huge_2017 low_zero": {"nonpositive_price": "all"},
    "us_huge_2017 low_negative": {"nonpositive_price": "all"},
    "us_huge_2017 weekend_row": {
        "weekend": "all",
        "stray_day": "2016-02-27 2016-03-05 2016-03-12 2016-03-19 2016-03-26 2016-06-25",
    },
    "us_yahoo_all high_below_low": {
        "nonpositive_price": "all",
        "high_below_low": "all 2023-11-02/ALKSV2023 2023-11-02/MURAV2023 2016-08-10/BCV-A2016",
    },
}
# rows that an excerpt lacks and that show its defect: before a hole, or before and after a price that collapsed
CONTEXT = {
    "us_yahoo_all price_collapse_x5000_and_back": flat("ABVC", [2860.0, 2861.0, 2862.0], 0.0, "2015-08-05")
    + flat("ABVC", [1750.0], 0.0, "2015-08-21"),
    "nse_2024 jump_x446_after_hole": flat("WINSOME", [0.0202, 0.0203, 0.0201], 50.0, "2023-08-01"),
}
# excerpts that leave out years: each year's rows are given their own name
BY_YEAR = (
    "bokeh5_2000_2013 unadjusted_2for1_split",
    "us_huge_2017 high_below_low",
    "us_yahoo_all high_below_low",
)
# prices that are wrong in a row of which others are right; where high and low are crossed, both
WRONG = {
    ("2017-07-31", "AXP"): "",
    ("2009-04-17", "HD"): "low",
    ("2007-02-28", "MSFT"): "close",
    ("2014-05-19", "CHD"): "open",
    ("2016-05-19", "LNT"): "close",
    ("2023-01-24", "SHEL"): "open",
    ("2010-09-16", "AVB"): "close",
    ("1972-06-01", "F"): "open",
}
WHOLE_ROW = {"spike", "zero_volume", "stale_run", "jump", "duplicate", "conflicting_duplicate", "weekend", "stray_day"}


def right_prices(row: Any, names: set[str]) -> tuple[float, ...]:
    """What is left of a row with some defects: open, high, low and close."""
    prices = dict(zip(PRICE_COLUMNS, row[3:7], strict=True))
    day = (f"{row.date:%Y-%m-%d}", row.ticker)
    wrong = set(WRONG.get(day, "").split())
    if "nonpositive_price" in names:
        wrong |= {name for name, price in prices.items() if price <= 0}
    if "high_below_low" in names:
        # an open or close a tenth of the other is as wrong as the high
        apart = row.open > 0 and not 0.5 < row.open / row.close < 2
        wrong |= set(PRICE_COLUMNS) if apart else {"high", "low"}
    if names & (WHOLE_ROW | {"reused_ticker"}):
        wrong = set(PRICE_COLUMNS)
    if "close_basis" in names:
        return (row.close,) * 4
    return tuple(np.nan if name in wrong else price for name, price in prices.items())


@cache
def bad_rows() -> pd.DataFrame:
    return pd.read_csv(BAD_ROWS, keep_default_na=False, na_values={name: [""] for name in (*PRICE_COLUMNS, "volume")})


def with_market(excerpt: pd.DataFrame) -> pd.DataFrame:
    """The rows among other tickers, which trade on the business days from 60 days before them to 5 after them."""
    days = np.unique(excerpt["date"].to_numpy().astype("datetime64[D]"))
    near = np.unique(days[:, None] + np.arange(-60, 6))
    return as_block(pd.concat([excerpt, fillers(near[np.is_busday(near)])]))


def expected_of(kind: dict[str, str], block: pd.DataFrame, made_up: list[Row]) -> list[set[str]]:
    """The defects of every row of the block, by the table."""
    result: list[set[str]] = []
    days = [*zip(block["date"].dt.strftime("%Y-%m-%d"), block["ticker"], strict=True)]
    for row, (date, ticker) in enumerate(days):
        number = 1 + (days[row - 1] == (date, ticker))
        tokens = {date, f"{date}/{ticker}", f"{date}/{number}"}
        found = {name for name, words in kind.items() if ("all" in words) != bool(tokens & set(words.split()))}
        made = (date, ticker) in {one[:2] for one in made_up}
        result.append(set() if ticker.startswith("FILL") else found & {"reused_ticker"} if made else found)
    return result


def test_every_kind_is_expected() -> None:
    rows = bad_rows()
    assert set(rows["source"] + " " + rows["kind"]) == set(KINDS)
    # one kind stands in two sources
    assert (len(rows), rows["kind"].nunique(), len(KINDS)) == (513, 41, 42)


@pytest.mark.parametrize("name", KINDS)
def test_kind(name: str) -> None:
    rows, context = bad_rows(), CONTEXT.get(name, [])
    excerpt = rows[rows["source"] + " " + rows["kind"] == name]
    if name in BY_YEAR:
        excerpt = excerpt.assign(ticker=excerpt["ticker"] + excerpt["date"].str[:4])
    block = with_market(pd.concat([excerpt, pd.DataFrame(context, columns=excerpt.columns[2:])]))
    found = find(block, calendar_of(block), Limits())
    expected = expected_of(KINDS[name], block, context)
    assert by_row(found.rows) == expected
    # what is wrong is gone, and all else is as it was, splits apart
    cleaned, _ = clean(block, found, CleaningPolicy(split_like="keep"), Limits())
    prices = {(row.date, row.ticker): row[3:7] for row in cleaned.itertuples()}
    right = {
        (row.date, row.ticker): right_prices(row, wrong)
        for row, wrong in zip(block.itertuples(), expected, strict=True)
        if not wrong & {"duplicate", "weekend", "stray_day", "reused_ticker"}
    }
    assert prices.keys() == right.keys()
    for day, left in prices.items():
        np.testing.assert_array_equal(left, right[day], err_msg=str(day))
    assert not cleaned.duplicated(["date", "ticker"]).any()
