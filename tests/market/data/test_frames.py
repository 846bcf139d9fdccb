"""Prices as a DataFrame: each form is the same prices."""

import numpy as np
import pandas as pd
import pytest

from eigen2.errors import UserError
from eigen2.market.data.frames import frame_prices
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS, VALUES
from eigen2.market.synthetic.generator import SyntheticMarket

LONG = SyntheticMarket(days=30, columns=3, missing=0.1, seed=2).generate()
CLOSES = LONG.assign(**{name: LONG["close"] for name in PRICE_COLUMNS}, volume=np.nan)


def yfinance(level: int = 0) -> pd.DataFrame:
    """As `yfinance.download` returns several tickers: prices on the first level, or on the second (group_by)."""
    frame = LONG.rename(columns=str.title).pivot(index="Date", columns="Ticker", values=[v.title() for v in VALUES])
    return frame.rename_axis(columns=["Price", "Ticker"]).swaplevel(0, level, axis=1)


ZONED = LONG.pivot(index="date", columns="ticker", values="close").rename(
    index=lambda day: f"{day:%Y-%m-%d} 00:00:00-0{4 + (day.day > 3)}:00"
)
"""As written by `to_csv` across a change of the clocks, and read back without dates."""


TWO_ZONES = pd.concat(
    part.assign(date=part["date"].dt.tz_localize(zone))
    for (_, part), zone in zip(LONG.groupby("ticker"), ("America/New_York", "Europe/Berlin"), strict=False)
)
"""As several exchanges' `yfinance.Ticker(...).history()`, one after the other: dates are Python objects."""


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (LONG, LONG),
        (TWO_ZONES, LONG[LONG["ticker"].isin(TWO_ZONES["ticker"])].reset_index(drop=True)),
        (LONG.sample(frac=1, random_state=0).rename(columns=str.upper).assign(NOTE="text"), LONG),
        (LONG.set_index("date"), LONG),
        (LONG.set_index("date").rename_axis(None), LONG),
        (LONG.set_index(["ticker", "date"]), LONG),
        (LONG.set_index("date", drop=False), LONG),
        (LONG.assign(price=1.0, vol=2.0), LONG),
        (LONG.drop(columns="volume").assign(vol=LONG["volume"]), LONG),
        (LONG.set_index(["ticker", "date"], drop=False), LONG),
        (LONG.assign(date=LONG["date"].dt.strftime("%Y-%m-%d")), LONG),
        (LONG.assign(date=LONG["date"].dt.date, volume=LONG["volume"].astype(int)), LONG),
        (LONG.assign(date=LONG["date"].dt.tz_localize("America/New_York") + pd.Timedelta(hours=16)), LONG),
        (yfinance(), LONG),
        (yfinance(1), LONG),
        (yfinance().reset_index(), LONG),
        (yfinance()[["Close"]], CLOSES),
        (LONG.pivot(index="date", columns="ticker", values="close"), CLOSES),
        (LONG.pivot(index="date", columns="ticker", values="close").rename(index="{:%Y-%m-%d}".format), CLOSES),
        (LONG.pivot(index="date", columns="ticker", values="close").rename(index=pd.Timestamp.date), CLOSES),
        (ZONED, CLOSES),
        (LONG[["date", "ticker", "close"]], CLOSES),
    ],
)
def test_every_form_is_the_same_prices(frame: pd.DataFrame, expected: pd.DataFrame) -> None:
    before = frame.copy(deep=True)
    pd.testing.assert_frame_equal(frame_prices(frame), expected)
    pd.testing.assert_frame_equal(frame, before)


def test_midnights_of_another_zone_are_its_days(caplog: pytest.LogCaptureFixture) -> None:
    weekdays = LONG[LONG["date"].dt.weekday < 5]
    utc = weekdays.assign(date=weekdays["date"] - pd.Timedelta(hours=5.5))
    pd.testing.assert_frame_equal(frame_prices(utc), weekdays.reset_index(drop=True))
    assert caplog.messages == ["the DataFrame has midnights of UTC+5.5 written in UTC: they count as days there"]


def test_adjusted_closes_that_are_ignored_are_named(caplog: pytest.LogCaptureFixture) -> None:
    frame_prices(LONG.assign(**{"Adj Close": 1.0}))
    assert [message.split(":")[0] for message in caplog.messages] == [
        "the DataFrame has adjusted closes, which are ignored"
    ]
    caplog.clear()
    frame_prices(LONG.assign(**{"Adj Close": 1.0}), ["adj close"])
    assert caplog.messages == []


def test_values_of_several_types_are_read_as_text() -> None:
    plain = LONG.drop(columns=["close", "ticker", "date"]).iloc[:2]
    mixed = plain.assign(close=[2, "NA"], ticker=[600000, "A"], date=[pd.Timestamp("2009-01-30"), "2009-01-31"])
    prices = frame_prices(mixed)
    assert [*prices["ticker"]] == ["600000", "A"]
    np.testing.assert_array_equal(prices["close"], [2, np.nan])


def test_a_feature_that_is_called_as_volume_may_be_is_no_volume() -> None:
    frame = LONG.assign(vol=0.5)
    for given, volume in ((frame, LONG["volume"]), (frame.drop(columns="volume"), np.nan)):
        found = frame_prices(given, ["vol"])
        pd.testing.assert_frame_equal(found, LONG.assign(volume=volume, vol=0.5))


@pytest.mark.parametrize("kind", [object, "str", "category"])
def test_texts_of_any_type_are_numbers_as_in_files(kind: str) -> None:
    texts = LONG.iloc[:4].assign(close=["N/A", "$2", "3", "4"], volume=["0.89M", "-", "1,234", "12"])
    prices = frame_prices(texts.astype({"close": kind, "volume": kind}))
    np.testing.assert_array_equal(prices["close"], [np.nan, 2, 3, 4])
    np.testing.assert_array_equal(prices["volume"], [890_000, np.nan, 1234, 12])


def test_features_come_along() -> None:
    prices = frame_prices(LONG.assign(Mood=1, other=2), ["mood"])
    assert [*prices] == [*COLUMNS, "mood"]
    assert (prices["mood"] == 1).all()


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (LONG.drop(columns="ticker"), "lacks the columns ticker; it has 'date, open"),
        (LONG.drop(columns="high"), "lacks the columns high"),
        (
            yfinance().set_axis(["_".join(name) for name in yfinance().columns], axis=1),
            "has the columns '(Open|Close)_.*, which look like prices of one ticker: .* give two levels",
        ),
        (
            LONG.iloc[:9].set_index("date")[["open", "high", "low", "volume"]].assign(last=1.0),
            "has the columns 'open' and 'high', which look like prices of one ticker: name its columns open, high",
        ),
        (LONG.assign(Close=1.0), "more than one column close"),
        (LONG.iloc[:0], "no rows"),
        (pd.concat([LONG, LONG.iloc[:2]]), "2 duplicate rows"),
        (LONG.assign(close="dear"), r"76 values in column 'close' that are no numbers, first 'dear' in row 0"),
        (
            LONG.iloc[:2].assign(close=[1.0, "dear"]),
            "1 values in column 'close' that are .*, first 'dear' in row 1",
        ),
        (LONG.iloc[:2].assign(close=[1j, 2]), "2 values in column 'close' that are no numbers"),
        (LONG.assign(date="soon"), r"dates that cannot be read, first 'soon' in row 0: write dates as 2009-01-31"),
        (LONG.assign(ticker=None), "rows without a ticker"),
        (LONG.assign(close=np.inf), "infinite values in column close"),
        (yfinance()[["Open", "High"]], "columns of two levels, but none has a close"),
        (pd.concat({"a": yfinance()}, axis=1), "columns of 3 levels"),
        (pd.concat([yfinance(), yfinance()], axis=1), "more than one column '.*': keep one of each"),
        (yfinance().set_index(pd.MultiIndex.from_product([["x"], yfinance().index])), "rows and columns of two levels"),
    ],
)
def test_frames_that_cannot_be_read(frame: pd.DataFrame, words: str) -> None:
    with pytest.raises(UserError, match=f"^the DataFrame .*{words}"):
        frame_prices(frame)


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(UserError, match=r"^the prices are a Series: give a DataFrame$"):
        frame_prices(LONG["close"])
