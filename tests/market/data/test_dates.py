"""Dates: formats are guessed or given, ambiguous ones refused, epochs and other zones' midnights understood."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data.dates import FORMATS, ISO, DateFormat, guess_dates, times_of_day

DAYS = pd.bdate_range("2020-01-06", periods=60)


def guess(*batches: object, given: str | None = None) -> DateFormat:
    """The format of a column that comes in batches."""
    return guess_dates(lambda: (pa.array(list(batch)) for batch in batches), given, "'p.csv'")


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_guessed_and_read(form):
    text = DAYS.strftime(form)
    found = guess(text)
    assert found.parse(pa.array(text)).tolist() == DAYS.tolist()
    # times are kept, and do not disturb
    later = found.parse(pa.array([f"{one} 4:05 PM" for one in text]))
    assert later.tolist() == (DAYS + pd.Timedelta(hours=16, minutes=5)).tolist()


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from(FORMATS),
    days=st.lists(st.integers(0, 20_000), min_size=1, max_size=30),
)
def test_a_guess_is_right_or_refused(form, days):
    dates = pd.Series(np.datetime64("1970-01-01") + np.array(days))
    try:
        found = guess(dates.dt.strftime(form))
    except UserError:
        assert (dates.dt.day <= 12).all()
        assert "%m" in form
        return
    expected = dates.dt.day if "%y" not in form else dates.dt.strftime(form)
    parsed = found.parse(pa.array(dates.dt.strftime(form)))
    assert (parsed.dt.day if "%y" not in form else parsed.dt.strftime(form)).tolist() == expected.tolist()


def test_later_batches_tell_day_and_month_apart():
    assert guess(["01/02/2020"], ["03/04/2020", "25/12/2020"]).text == "%d/%m/%Y"
    assert guess(["01/02/2020"], ["12/25/2020"]).text == "%m/%d/%Y"
    with pytest.raises(UserError) as error:
        guess(["01/02/2020", "05/05/2020"], ["12/11/2020"])
    line = str(error.value)
    assert line.startswith("'p.csv' has dates such as '01/02/2020', whose day and month cannot be told apart: ")
    assert "--csv.date_format %d/%m/%Y or %m/%d/%Y" in line
    # either way the same day
    assert guess(["05/05/2020"]).parse(pa.array(["05/05/2020"])).tolist() == [pd.Timestamp("2020-05-05")]


def test_of_several_formats_an_ambiguous_date_is_named():
    with pytest.raises(UserError, match="dates such as '01/02/2020', whose day and month cannot be told apart"):
        guess(["2020-01-01", "01/02/2020"])


def test_a_given_format_counts_for_what_is_not_iso():
    assert guess(["01/02/2020"], given="%m/%d/%Y").text == "%m/%d/%Y"
    assert guess(["2020-01-13"], given="%m/%d/%Y").text == ISO
    assert guess(["2020-02-01"], given="%Y-%d-%m").text == "%Y-%d-%m"
    assert guess([pd.Timestamp("2020-01-01")], given="%m/%d/%Y").text == ISO


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("as_text", [False, True])
def test_seconds_since_1970(unit, as_text):
    stamps = pd.to_datetime(["1990-02-03 09:30", "2020-01-01", "2024-02-29 16:00"], format="mixed").astype(
        "datetime64[s]"
    )
    numbers = stamps.astype("int64") * unit
    cells = numbers.astype(str) if as_text else numbers
    found = guess(cells)
    assert found.text == "epoch"
    assert found.parse(pa.array(cells)).tolist() == stamps.tolist()
    assert guess([20200131, 20200203]).text == guess(["20200131"]).text == ISO


def test_texts_of_digits_are_dates_before_they_are_seconds():
    assert guess(["202001060930"]).parse(pa.array(["202001060930"])).tolist() == [pd.Timestamp("2020-01-06 09:30")]
    found = guess(["20200106 093000", "2020-01-06T16:00:05Z", "2020-01-06"]).parse
    times = found(pa.array(["20200106 093000", "2020-01-06T16:00:05Z", "2020-01-06"])) - pd.Timestamp("2020-01-06")
    assert times.dt.total_seconds().tolist() == [34200, 57605, 0]


@pytest.mark.parametrize(
    ("zone", "hours"),
    [
        *(("Asia/Kolkata", 5.5), ("Asia/Tokyo", 9), ("Asia/Riyadh", 3)),
        *(("Europe/Berlin", 2), ("Europe/London", 1), ("Australia/Sydney", 11), ("America/New_York", 0)),
    ],
)
def test_midnight_of_another_zone(zone, hours):
    sundays = pd.offsets.CustomBusinessDay(
        weekmask="Sun Mon Tue Wed Thu" if zone == "Asia/Riyadh" else "Mon Tue Wed Thu Fri"
    )
    days = pd.date_range("2020-01-06", periods=150, freq=sundays)
    stamps = days.tz_localize(zone).tz_convert("UTC")
    for cells in (
        stamps.tz_localize(None),
        stamps.strftime("%Y-%m-%dT%H:%M:%SZ"),
        stamps.as_unit("ms").astype("int64"),
    ):
        found = guess(cells)
        assert found.shift_hours == hours
        assert found.parse(pa.array(cells)).dt.normalize().tolist() == days.tolist()
    assert ("UTC+5.5" in str(guess(stamps.tz_localize(None)))) == (hours == 5.5)


@pytest.mark.parametrize("hour", [0, 15, 22])
def test_the_local_date_of_a_zone_stays(hour):
    days = pd.date_range("2020-01-05", periods=60, freq=pd.offsets.CustomBusinessDay(weekmask="Sun Mon Tue Wed Thu"))
    stamps = (days + pd.Timedelta(hours=hour)).tz_localize("Asia/Riyadh")
    for cells in (stamps, stamps.map(str), stamps.strftime("%Y-%m-%dT%H:%M:%S%z")):
        assert guess(cells).parse(pa.array(cells)).dt.normalize().tolist() == days.tolist()


def test_what_is_no_midnight_of_another_zone():
    # the close of New York, markets of all days from a Sunday to a Monday, few bars, and bars of all hours
    for stamps in (
        DAYS + pd.Timedelta(hours=16),
        pd.date_range("2020-01-01 22:00", periods=60),
        *(pd.date_range(f"2020-01-05 {time}", periods=16) for time in ("16:00", "23:59:59")),
        pd.date_range("2020-01-05 16:00", periods=4),
        pd.date_range("2020-01-05", periods=99, freq="h"),
        # foreign exchange in New York's time, from a Sunday evening to a Friday
        pd.DatetimeIndex(
            [
                each
                for week in range(9)
                for each in pd.date_range("2020-01-05 17:00", periods=30, freq="4h") + pd.Timedelta(weeks=week)
            ]
        ),
    ):
        assert guess(stamps) == DateFormat()


def test_the_first_midnights_of_a_summer():
    days = pd.bdate_range("2023-11-01", "2024-04-03")  # summer time began on Sunday, 31 March
    stamps = days.tz_localize("Europe/London").tz_convert("UTC").tz_localize(None)
    assert guess(stamps).parse(pa.array(stamps)).dt.normalize().tolist() == days.tolist()


def test_midnights_of_several_zones_in_one_file():
    days = pd.bdate_range("2020-01-06", periods=150)
    zones = ["Asia/Tokyo", "Europe/London", "America/New_York"]
    stamps = [days.tz_localize(zone).tz_convert("UTC").tz_localize(None) for zone in zones]
    together = stamps[0].append(stamps[1:])
    assert guess(together).parse(pa.array(together)).dt.normalize().tolist() == 3 * days.tolist()
    # by ticker, each zone in a batch of its own
    assert guess(*reversed(stamps)).shift_hours == 9
    closes = stamps[0].append(days + pd.Timedelta(hours=21))
    with pytest.raises(UserError, match="has bars of 15:00, a midnight of another zone, and of 21:00, which is none"):
        guess(closes)


def test_times_of_day_in_a_column_of_their_own():
    for cells in (
        ["093000", "0", "", "bad"],
        [93000, 0, 1, 2],
        ["09:30", "00:00:00", "", "x"],
        [93000.0, 0.0, None, None],
    ):
        times = times_of_day(pa.array(cells)).astype(int)
        assert times[:2].tolist() == [34200, 0]


def test_a_column_without_dates():
    assert guess() == guess([None]) == guess([""]) == guess(["soon", "later"]) == DateFormat()
