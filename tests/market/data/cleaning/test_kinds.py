"""Each kind of bad row that was seen in public data sets, made up: found, called by its name, and cleaned."""

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.cleaning.clean import clean
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import CleaningPolicy, Limits
from eigen2.market.data.source import PRICE_COLUMNS, VALUES
from tests.market.data.cleaning.rows import (
    DATA,
    as_block,
    business_days,
    by_row,
    calendar_of,
    fillers,
    flat,
    series,
    table,
)

NAN = np.nan
LEVEL = [100.0, 101.0, 102.0, 101.0, 103.0, 104.0]


def with_row(**values: float) -> pd.DataFrame:
    """Six ordinary days: the close of the third is 102, its open 102.1, its high 103.02 and its low 100.98."""
    block = series(LEVEL)
    for name, value in values.items():
        block.loc[2, name] = value
    return block


def with_bar(price: float, volume: float = 100.0) -> pd.DataFrame:
    return with_row(**dict.fromkeys(PRICE_COLUMNS, price), volume=volume)


def joined(*parts: pd.DataFrame) -> pd.DataFrame:
    return as_block(pd.concat(parts))


def crash(closes: list[float], high: float, low: float) -> pd.DataFrame:
    """The third day has a wide range."""
    block = series(closes)
    block.loc[2, ["high", "low"]] = high, low
    return block


def named(ticker: str) -> pd.DataFrame:
    return series(LEVEL, ticker)


def basis() -> pd.DataFrame:
    return series([100.0] * 8).assign(close=90.0)


ALL = "open high low close volume"
ROWS = range(20)
# the table, the defects of its rows, and the cells that are emptied: of row 2, or of a row named before a colon
KINDS: dict[str, tuple[pd.DataFrame, dict[int, str], str]] = {
    "nan_open_low_one_day_most_tickers": (with_row(open=NAN, low=NAN), {2: "missing_price"}, ""),
    "nan_ohl_volume0_close_kept": (
        with_row(open=NAN, high=NAN, low=NAN, close=101.0, volume=0.0),
        {2: "missing_price zero_volume"},
        "close volume",
    ),
    "low_is_zero": (with_row(low=0.0), {2: "nonpositive_price"}, "low"),
    "close_above_high": (with_row(close=104.0), {2: "outside_bar"}, "close"),
    "single_day_missing_some_tickers": (series(LEVEL).drop(2), {}, ""),
    "high_below_low_and_close_outside": (with_row(high=100.0, close=104.0), {2: "high_below_low"}, "high low"),
    "open_far_outside_bar": (with_row(open=51.0), {2: "outside_bar"}, "open"),
    "half_adjusted_split_then_x2": (with_row(close=51.0), {2: "outside_bar"}, "close"),
    "spinoff_not_adjusted_-57pct": (series([100, 101, 43, 43.5, 43.2]), {2: "split_like"}, ""),
    "spinoff_not_adjusted_-63pct": (series([100, 101, 37, 37.5, 37.2]), {2: "split_like"}, ""),
    "two_for_one_share_dividend_not_adjusted": (series([100, 101, 50, 50.5, 51]), {2: "split_like"}, ""),
    "ten_day_hole_then_nan_row": (series([100.0 + day for day in ROWS]).drop(index=range(3, 13)), {}, ""),
    "nan_row_volume_3_shares": (
        with_row(open=NAN, high=NAN, low=NAN, close=101.0, volume=3.0),
        {2: "missing_price"},
        "",
    ),
    "duplicate_row_second_all_zero": (
        joined(series(LEVEL), series(LEVEL)[2:3].assign(**dict.fromkeys(VALUES, 0.0))),
        {3: "nonpositive_price duplicate"},
        "",
    ),
    "duplicate_row_slightly_different": (
        joined(series(LEVEL), series(LEVEL)[2:3].assign(low=100.99, volume=101.0)),
        {2: "duplicate"},
        "",
    ),
    "ticker_reused_penny_stock_then_ipo": (
        joined(table(flat("A", [0.1, 0.12, 0.12])), series([12.0, 12.1], first="2020-04-06")),
        dict.fromkeys(range(3), "reused_ticker"),
        "",
    ),
    "two_instruments_interleaved": (with_bar(19.0, 14_200.0), {2: "spike"}, ALL),
    "stale_after_delisting_volume0": (
        joined(series([9.0]), table(flat("A", [10.0] * 7, 0.0, "2020-01-07"))),
        {1: "zero_volume"} | dict.fromkeys(range(2, 8), "stale_run zero_volume"),
        " ".join(f"{row}:{ALL.replace(' ', f' {row}:')}" for row in range(1, 8)),
    ),
    "thirty_nine_day_hole": (joined(series([100.0, 101.0]), series([110.0, 111.0], first="2020-03-02")), {}, ""),
    "volume0_flat_bars": (with_bar(101.0, 0.0), {2: "zero_volume"}, ALL),
    "open_below_low": (with_row(open=90.0), {2: "outside_bar"}, "open"),
    "real_crash_-65pct": (crash([160, 161, 62, 49, 51], 105, 46), {}, ""),
    "real_squeeze_and_crash": (crash([37, 37, 87, 81, 56], 95, 62), {}, ""),
    "bad_tick_x8000_for_days": (with_bar(816_000.0), {2: "spike"}, ALL),
    "bad_tick_div100_one_day": (with_row(close=1.02), {2: "outside_bar"}, "close"),
    "bad_tick_0.02_then_back": (with_bar(0.02), {2: "spike"}, ALL),
    "open_zero_era": (with_row(open=0.0), {2: "nonpositive_price"}, "open"),
    "price_collapse_x5000_and_back": (
        table(flat("A", [2860, 2861, 2862, 0.344, 0.344, 0.344, 2870])),
        dict.fromkeys(range(3, 6), "spike"),
        " ".join(f"{row}:{ALL.replace(' ', f' {row}:')}" for row in range(3, 6)),
    ),
    "reverse_split_adjusted_1e7": (
        table(flat("A", [6.75e7, 6.75e7, 33_750, 33_750, 33_750], 0.0)),
        {2: "jump"},
        ALL,
    ),
    "placeholder_0.001": (with_bar(0.001), {2: "spike"}, ALL),
    "ticker_named_NAN": (named("NAN"), {}, ""),
    "ticker_named_TRUE": (named("TRUE"), {}, ""),
    "jump_718_to_8.9": (table(flat("A", [710, 718, 8.9, 9.3, 9.8])), {2: "jump"}, ALL),
    "jump_x446_after_hole": (
        joined(table(flat("A", [0.02, 0.0202])), series([9.0, 8.5], first="2020-04-06")),
        dict.fromkeys(range(2), "reused_ticker"),
        "",
    ),
    "close_is_adjusted_ohl_are_not": (basis(), dict.fromkeys(range(8), "close_basis"), ""),
    "unadjusted_2for1_split": (series([200, 202, 101, 100, 103]), {2: "split_like"}, ""),
    "market_closed_4_days": (series(LEVEL).drop(index=[2, 3]), {}, ""),
    "high_below_low": (with_row(high=10.3), {2: "high_below_low"}, "high low"),
    "low_zero": (with_row(open=0.0, low=0.0), {2: "nonpositive_price"}, "open low"),
    "low_negative": (with_row(low=-1.0), {2: "nonpositive_price"}, "low"),
    "weekend_row": (
        joined(series(LEVEL), series([104.0], first="2020-01-10").assign(date=pd.Timestamp("2020-01-11"))),
        {5: "weekend"},
        "",
    ),
}
DROPPED = {"duplicate", "reused_ticker", "weekend"}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind: str) -> None:
    excerpt, expected, emptied = KINDS[kind]
    excerpt = excerpt.reset_index(drop=True)
    first = excerpt["ticker"].iloc[0]
    days = business_days("2020-01-06", 90)
    block = joined(excerpt, fillers(days, 9).assign(ticker=lambda rows: f"{first}-" + rows["ticker"]))
    found = find(block, calendar_of(block), Limits())
    names = {row: names for row, names in enumerate(by_row(found.rows)) if names}
    assert names == {row: set(words.split()) for row, words in expected.items()}
    cleaned, _ = clean(block, found, CleaningPolicy(split_like="keep", close_basis="keep"), Limits())
    right = excerpt.copy()
    for word in emptied.split():
        row, _, column = word.rpartition(":")
        right.loc[int(row or 2), column] = np.nan
    gone = [row for row, words in expected.items() if set(words.split()) & DROPPED]
    right = right.drop(index=gone).reset_index(drop=True)
    pd.testing.assert_frame_equal(cleaned[cleaned["ticker"] == first], right)


@pytest.mark.skipif(not (DATA / "bad_rows.csv").exists(), reason="no shared data")
def test_every_kind_seen_is_made_up_here() -> None:
    assert set(pd.read_csv(DATA / "bad_rows.csv")["kind"]) == set(KINDS)
