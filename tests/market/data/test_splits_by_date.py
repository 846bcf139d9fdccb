"""Splits that start on dates, and settings for short tables."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data.splits import (
    DEFAULT_DAYS,
    ENOUGH_DAYS,
    SHORT_DAYS,
    Splits,
    default_days,
    require_window,
)

DATES = np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]")
DATES = DATES[np.is_busday(DATES)]  # 2020-01-01 is a Wednesday
COUNTS = {"validation_days": 10, "holdout_days": 5}


@given(st.integers(1, len(DATES) - 2), st.integers(1, 10))
def test_dates_are_first_days(start: int, length: int) -> None:
    stop = min(start + length, len(DATES) - 1)
    dates = {"validation_from": str(DATES[start]), "holdout_from": str(DATES[stop])}
    splits = Splits.from_dates(DATES, **COUNTS, **dates)
    assert splits == Splits((range(start),), (range(start, stop),), range(stop, len(DATES)))
    assert splits == Splits.from_days(len(DATES), stop - start, len(DATES) - stop)


def test_a_weekend_means_the_monday_after_it() -> None:
    splits = Splits.from_dates(DATES, **COUNTS, validation_from="2020-01-18", holdout_from="2020-02-16")
    assert [str(DATES[days.start]) for days in (*splits.validation, splits.holdout)] == ["2020-01-20", "2020-02-17"]


def test_each_date_replaces_its_number_of_days_alone() -> None:
    assert Splits.from_dates(DATES, **COUNTS) == Splits.from_days(len(DATES), 10, 5)
    (validation,), holdout = (lambda s: (s.validation, s.holdout))(
        Splits.from_dates(DATES, **COUNTS, holdout_from="2020-02-03")
    )
    assert (len(validation), str(DATES[holdout.start])) == (10, "2020-02-03")
    splits = Splits.from_dates(DATES, **COUNTS, validation_from="2020-02-03")
    assert (str(DATES[splits.validation[0].start]), len(splits.holdout)) == ("2020-02-03", 5)


@pytest.mark.parametrize(
    ("dates", "words"),
    [
        ({"validation_from": "2020-02-10", "holdout_from": "2020-02-03"}, "but the holdout starts on 2020-02-03: give"),
        ({"validation_from": "2020-02-03", "holdout_from": "2020-02-03"}, "data.validation_from is 2020-02-03, but"),
        ({"holdout_from": "2021-01-01"}, "data.holdout_from is 2021-01-01, but the prices go from 2020-01-01 to 2020-"),
        ({"validation_from": "2019-12-31"}, "data.validation_from is 2019-12-31, but the prices go from"),
        ({"validation_from": "2020-01-01"}, "the first day of prices, which leaves none to train on: give a later"),
        ({"holdout_from": "2020-01-05"}, "give a later data.holdout_from, or set (?!.*holdout_days)"),
        ({"holdout_from": "02/03/2020"}, "data.holdout_from is '02/03/2020'; give a date as YYYY-MM-DD"),
        ({"validation_from": "2020-02-03", "validation_spans": 2}, "but data.validation_spans is 2: set it to 1"),
    ],
)
def test_dates_that_do_not_fit(dates: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Splits.from_dates(DATES, **COUNTS, **dates)


@pytest.mark.parametrize(("days", "found"), [(300, "leave no training days"), (335, "leave no"), (900, "need 648")])
def test_the_settings_that_a_short_table_is_offered_fit(days: int, found: str) -> None:
    lengths = {"validation_days": 252, "holdout_days": 252, "context_days": 504, "trading_days": 125}

    def split(validation_days: int, holdout_days: int, context_days: int, trading_days: int) -> None:
        require_window(Splits.from_days(days, validation_days, holdout_days), context_days, trading_days, 20)

    with pytest.raises(UserError, match=found) as refused:
        split(**lengths)
    offered = re.findall(r"--data\.(\w+) (\d+)", str(refused.value))
    assert [name for name, _ in offered] == ["context_days", "trading_days", "validation_days", "holdout_days"]
    split(**{name: int(value) for name, value in offered})


@pytest.mark.parametrize(
    ("validation", "holdout", "dated", "words"),
    [
        (120, 60, ["validation_from"], "give a later data.validation_from, or set (?!.*validation_days)"),
        (120, 60, ["validation_from", "holdout_from"], "or set --data.context_days 40 --data.trading_days 50$"),
        (60, 60, ["validation_from"], "= 145: give an earlier data.validation_from, or shorten the window"),
        (60, 60, ["holdout_from"], "= 145: raise data.validation_days, or shorten"),
    ],
)
def test_a_number_that_a_date_replaces_is_no_remedy(
    validation: int, holdout: int, dated: list[str], words: str
) -> None:
    days, context_days = (400, 504) if validation > 60 else (900, 504)
    with pytest.raises(UserError, match=words):
        require_window(Splits.from_days(days, validation, holdout), context_days, 125, 20, dated)


def test_a_table_that_no_settings_fit_wants_more_days() -> None:
    with pytest.raises(UserError, match="leave no training days of the 299 days of prices: lower one or bring more"):
        Splits.from_days(299, 252, 252)


@pytest.mark.parametrize(("name", "value"), [("validation_days", -1), ("holdout_days", -1), ("validation_spans", 0)])
def test_counts_that_are_too_small(name: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"^data\.{name} is {value}; it must be at least"):
        Splits.from_days(10, **{"validation_days": 2, "holdout_days": 2, name: value})


@given(days=st.integers(SHORT_DAYS, 2 * ENOUGH_DAYS))
@example(days=ENOUGH_DAYS)
@example(days=ENOUGH_DAYS - 1)
def test_the_defaults_fit_every_table_from_the_shortest_on(days: int) -> None:
    lengths = {name: default_days(name, days) for name in DEFAULT_DAYS}
    dates = np.datetime64("2020-01-01") + np.arange(days)
    require_window(Splits.from_dates(dates), lengths["context_days"], lengths["trading_days"], 20)
    assert all(lengths[name] <= full for name, (full, _) in DEFAULT_DAYS.items())


def test_defaults_known_answers() -> None:
    assert [default_days(name, 335) for name in DEFAULT_DAYS] == [33, 41, 67, 67]  # the days of FinRL's trading set
    assert [default_days(name, 1152) for name in DEFAULT_DAYS] == [504, 125, 252, 252]
    assert default_days("trading_days", 1151) == 125  # an eighth would be more
