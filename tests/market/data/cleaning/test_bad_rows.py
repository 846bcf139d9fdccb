"""Rows that were found bad in public data sets: each kind is found, called by its name, and kept out of the panel."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.cleaning.clean import clean
from eigen2.market.data.cleaning.defects import find, holes
from eigen2.market.data.cleaning.policy import Limits, Policy
from eigen2.market.data.source import PRICE_COLUMNS
from tests.market.data.cleaning.rows import Row, as_block, by_row, calendar_of, fillers, flat

DATA = Path(__file__).resolve().parents[4].parent / "shared" / "data"
BAD_ROWS = DATA / "bad_rows.csv"
pytestmark = pytest.mark.skipif(not BAD_ROWS.exists(), reason="no shared data")

ALL = "all rows"
STALE_QUOTE = "stale_run zero_volume"


@dataclass
class Kind:
    """What is expected of a kind of bad rows."""

    wrong: dict[str, str] = field(default_factory=dict)
    """The defects of a day, or of a day and ticker, or of all rows; rows that are not named have none. A day with two
    rows gives those of the first and the second, with a bar between them."""
    holes: list[tuple[str, int]] | None = field(default_factory=list)
    """First missing day and length; None: the excerpt itself leaves days out, and they are not compared."""
    context: list[Row] = field(default_factory=list)
    """Rows that the excerpt lacks and that show the defect."""
    name_by_year: bool = False
    """The excerpt leaves out years: each year's rows are given their own name."""
    closed: tuple[str, ...] = ()
    """Days on which the whole market was closed."""


KINDS = {
    "dow31_2006_2017 nan_open_low_one_day_most_tickers": Kind({"2017-07-31": "missing_price"}),
    "dow31_2006_2017 nan_ohl_volume0_close_kept": Kind({"2012-08-01": "missing_price"}),
    "dow31_2006_2017 low_is_zero": Kind({"2009-04-17": "nonpositive_price"}),
    "dow31_2006_2017 close_above_high": Kind({"2007-02-28": "outside_bar"}),
    "dow31_2006_2017 single_day_missing_some_tickers": Kind(holes=[("2010-04-01", 1)], closed=("2010-04-02",)),
    "sp500_5yr high_below_low_and_close_outside": Kind({"2014-05-19": "high_below_low"}),
    "sp500_5yr open_far_outside_bar": Kind({"2014-05-19": "outside_bar"}),
    # the row after it is an ordinary day at the old level
    "sp500_5yr half_adjusted_split_then_x2": Kind({"2016-05-19": "outside_bar"}),
    "sp500_5yr spinoff_not_adjusted_-57pct": Kind({"2015-07-20": "jump"}),
    "sp500_5yr spinoff_not_adjusted_-63pct": Kind({"2015-07-02": "jump"}, closed=("2015-07-03",)),
    "sp500_5yr two_for_one_share_dividend_not_adjusted": Kind({"2014-08-07": "split_like"}),
    "sp500_5yr ten_day_hole_then_nan_row": Kind(holes=[("2015-03-09", 10)]),
    "sp500_5yr nan_row_volume_3_shares": Kind({"2017-07-26": "missing_price"}),
    "sp500_yahoo_2015_2020 duplicate_row_second_all_zero": Kind({"2019-12-04": "| duplicate nonpositive_price"}),
    # the second has the larger volume
    "sp500_yahoo_2015_2020 duplicate_row_slightly_different": Kind({"2019-12-06": "duplicate |"}),
    "sp500_yahoo_2015_2020 ticker_reused_penny_stock_then_ipo": Kind(
        {
            "2015-12-03": "zero_volume",
            **dict.fromkeys(
                ("2015-12-04", "2015-12-07", "2015-12-08", "2015-12-09", "2015-12-10", "2015-12-11"), STALE_QUOTE
            ),
            # a fifth of the last price
            "2015-12-18": "split_like zero_volume",
            **dict.fromkeys(
                ("2015-12-21", "2015-12-22", "2015-12-23", "2015-12-24", "2015-12-28", "2015-12-29"), STALE_QUOTE
            ),
            # another company, and then the one that has the name now
            "2017-07-05": "jump",
            "2017-07-17": "jump",
        },
        holes=None,
    ),
    "sp500_yahoo_2015_2020 two_instruments_interleaved": Kind(
        {
            **dict.fromkeys(("2019-03-21", "2019-04-05", "2019-05-29"), "spike"),
            **dict.fromkeys(("2019-03-15", "2019-03-18", "2019-03-26"), "zero_volume"),
            **dict.fromkeys(("2019-04-01", "2019-04-02", "2019-04-04", "2019-04-10"), "zero_volume"),
            **dict.fromkeys(("2019-04-18", "2019-04-25", "2019-04-26", "2019-05-01"), "zero_volume"),
            **dict.fromkeys(("2019-05-08", "2019-05-09", "2019-05-10", "2019-05-15"), "zero_volume"),
            **dict.fromkeys(("2019-05-16", "2019-05-17", "2019-05-20", "2019-05-22"), "zero_volume"),
            **dict.fromkeys(("2019-05-23", "2019-06-05", "2019-06-06"), "zero_volume"),
        },
        closed=("2019-04-19", "2019-05-27"),
    ),
    "sp500_yahoo_2015_2020 stale_after_delisting_volume0": Kind(
        {
            "2019-03-05": "zero_volume",
            **{
                str(day): STALE_QUOTE
                for day in np.arange(np.datetime64("2019-03-06"), np.datetime64("2019-06-08"))
                if np.is_busday(day, holidays=["2019-04-19", "2019-05-16", "2019-05-27"]) and str(day) != "2019-05-29"
            },
        },
        holes=[("2019-05-16", 1)],
        closed=("2019-04-19", "2019-05-27"),
    ),
    "sp500_yahoo_2015_2020 thirty_nine_day_hole": Kind(
        holes=[("2018-01-05", 39), ("2018-03-06", 5)], closed=("2018-01-15", "2018-02-19")
    ),
    "us500_2004_2023 volume0_flat_bars": Kind(dict.fromkeys(("2006-03-07", "2006-03-08"), "zero_volume")),
    "us500_2004_2023 open_below_low": Kind({"2023-01-24": "outside_bar"}),
    # real days: jumps at most, never spikes
    "us500_2004_2023 real_crash_-65pct": Kind(dict.fromkeys(("2008-09-15", "2008-09-16"), "jump")),
    "us500_2004_2023 real_squeeze_and_crash": Kind(dict.fromkeys(("2021-01-27", "2021-02-02"), "jump")),
    "us_huge_2017 bad_tick_x8000_for_days": Kind(
        {"2015-11-19": "spike"},
        holes=[("2015-11-17", 2), ("2015-11-20", 6), ("2015-12-02", 1)],
        closed=("2015-11-26",),
    ),
    "us_huge_2017 bad_tick_div100_one_day": Kind({"2010-09-16": "outside_bar"}),
    # it comes back at twice the price, and more than doubles again
    "us_huge_2017 bad_tick_0.02_then_back": Kind(
        {"2007-10-10": "spike", "2007-10-11": "jump"}, holes=[("2007-10-08", 2)]
    ),
    # the opens after the first repeat the close of the day before, which is no defect of a row
    "us_yahoo_all open_zero_era": Kind({"1972-06-01": "nonpositive_price"}),
    # the excerpt ends before the price is back; the days before it, and the one after it, are made up
    "us_yahoo_all price_collapse_x5000_and_back": Kind(
        {
            "2015-08-13": "spike",
            **dict.fromkeys(("2015-08-14", "2015-08-17", "2015-08-18", "2015-08-19", "2015-08-20"), "spike stale_run"),
        },
        context=flat("ABVC", [2860.0, 2861.0, 2862.0], 0.0, "2015-08-05") + flat("ABVC", [1750.0], 0.0, "2015-08-21"),
    ),
    # no volume on any day, so that 0 does not mean that nothing was traded
    "us_yahoo_all reverse_split_adjusted_1e7": Kind(
        {
            **dict.fromkeys(("2015-10-15", "2015-10-16"), "jump"),
            "2015-10-19": "jump unknown_volume",
            "2015-10-20": "unknown_volume",
        }
    ),
    "us_yahoo_all placeholder_0.001": Kind(
        {
            "2021-08-31": "zero_volume",
            "2021-09-01": "spike",
            "2021-09-02": "spike zero_volume",
            "2021-09-17": "zero_volume",
        },
        holes=[("2021-09-03", 6)],
        closed=("2021-09-06",),
    ),
    "us_yahoo_all ticker_named_NAN": Kind(),
    "us_yahoo_all ticker_named_TRUE": Kind(),
    "nse_2024 jump_718_to_8.9": Kind({"2020-12-23": "jump"}, closed=("2020-12-25",)),
    # the excerpt begins after the hole: the days before it are made up, at a 446th of its price
    "nse_2024 jump_x446_after_hole": Kind(
        {"2023-09-26": "jump"},
        context=flat("WINSOME", [0.0202, 0.0203, 0.0201], 50.0, "2023-08-01"),
        holes=[("2023-08-04", 37)],
    ),
    "finrl_trade_2020_2021 close_is_adjusted_ohl_are_not": Kind({ALL: "close_basis"}, closed=("2020-07-03",)),
    "bokeh5_2000_2013 unadjusted_2for1_split": Kind(
        {"2000-06-21": "split_like", "2005-02-28": "split_like"}, name_by_year=True
    ),
    "bokeh5_2000_2013 market_closed_4_days": Kind(
        closed=("2001-09-11", "2001-09-12", "2001-09-13", "2001-09-14"),
    ),
    "us_huge_2017 high_below_low": Kind({ALL: "high_below_low"}, holes=None),
    "us_huge_2017 low_zero": Kind({ALL: "nonpositive_price"}, holes=None),
    "us_huge_2017 low_negative": Kind({ALL: "nonpositive_price"}),
    # one of 13 to 15 listed tickers has a row on some of the Saturdays
    "us_huge_2017 weekend_row": Kind(
        {
            ALL: "weekend",
            **dict.fromkeys(("2016-02-27", "2016-03-05", "2016-03-12", "2016-03-19"), "weekend stray_day"),
            **dict.fromkeys(("2016-03-26", "2016-06-25"), "weekend stray_day"),
        },
        holes=None,
    ),
    "us_yahoo_all high_below_low": Kind(
        {
            ALL: "nonpositive_price high_below_low",
            **dict.fromkeys(("2023-11-02 ALKSV", "2023-11-02 MURAV", "2016-08-10 BCV-A"), "nonpositive_price"),
        },
        holes=None,
    ),
}


@cache
def bad_rows() -> pd.DataFrame:
    return pd.read_csv(BAD_ROWS, keep_default_na=False, na_values={name: [""] for name in (*PRICE_COLUMNS, "volume")})


def with_market(excerpt: pd.DataFrame, closed: tuple[str, ...]) -> pd.DataFrame:
    """The rows among other tickers, which trade on the business days from 60 days before them to 5 after them."""
    days = np.unique(excerpt["date"].to_numpy().astype("datetime64[D]"))
    near = np.unique(days[:, None] + np.arange(-60, 6))
    return as_block(pd.concat([excerpt, fillers(near[np.is_busday(near, holidays=list(closed))])]))


def expected_of(kind: Kind, block: pd.DataFrame) -> list[set[str]]:
    """The defects of every row of the block, by the table."""
    result: list[set[str]] = []
    made_up = {(row[0], row[1]) for row in kind.context}
    days = [*zip(block["date"].dt.strftime("%Y-%m-%d"), block["ticker"], strict=True)]
    for row, (date, ticker) in enumerate(days):
        words = kind.wrong.get(f"{date} {ticker}", kind.wrong.get(date, kind.wrong.get(ALL, "")))
        if ticker.startswith("FILL") or (date, ticker) in made_up:
            words = ""
        if "|" in words:
            words = words.split("|")[days[row - 1] == (date, ticker)]
        result.append(set(words.split()))
    return result


def test_every_kind_is_expected() -> None:
    rows = bad_rows()
    assert set(rows["source"] + " " + rows["kind"]) == set(KINDS)
    # one kind stands in two sources
    assert (len(rows), rows["kind"].nunique(), len(KINDS)) == (513, 41, 42)


@pytest.mark.parametrize("name", KINDS)
def test_kind(name: str) -> None:
    kind, rows = KINDS[name], bad_rows()
    excerpt = rows[rows["source"] + " " + rows["kind"] == name]
    if kind.name_by_year:
        excerpt = excerpt.assign(ticker=excerpt["ticker"] + excerpt["date"].str[:4])
    block = with_market(pd.concat([excerpt, pd.DataFrame(kind.context, columns=excerpt.columns[2:])]), kind.closed)
    calendar = calendar_of(block)
    found = find(block, calendar, Limits())
    expected = expected_of(kind, block)
    assert by_row(found) == expected
    if kind.holes is not None:
        missing = holes(block, calendar)
        assert list(zip(missing["first"].dt.strftime("%Y-%m-%d"), missing["days"], strict=True)) == kind.holes
        assert set(missing["ticker"]) <= set(excerpt["ticker"])
    # rows with a defect have no prices left, and all others are as they were
    cleaned, _ = clean(block, found, Policy(), Limits())
    prices = {(row.date, row.ticker): row[3:7] for row in cleaned.itertuples() if not np.isnan(row.open)}
    good = {
        (row.date, row.ticker): (row.close,) * 4 if "close_basis" in wrong else row[3:7]
        for row, wrong in zip(block.itertuples(), expected, strict=True)
        if not wrong - {"unknown_volume", "close_basis"}
    }
    assert prices == good
    assert not cleaned.duplicated(["date", "ticker"]).any()
