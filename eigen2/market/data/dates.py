"""Dates of price files: their format, the times of day, and the day of another zone's midnight."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Int64, Shaped

from eigen2.errors import UserError

ISO, EPOCH = "%Y-%m-%d", "epoch"
COMPACT = {"%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14}
FORMATS = (
    *(sep.join(order) for sep in "/.-" for year in ("%Y", "%y") for order in (("%d", "%m", year), ("%m", "%d", year))),
    *("%Y/%m/%d", "%Y.%m.%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d%b%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
ISO_DATE = r"^(\d{4})-?(\d{2})-?(\d{2})(?:\.0|[T ].*)?$"
TIME = r"[T ]+(\d{1,2}):(\d{2})(?::(\d{2}))?(?:\.\d+)? ?([AP])?.*$"
TIME_MARK = r":|[T ]\d{6}$"
OFFSET = r":\d\d(?:\.\d+)? ?[+-](?!00:?00$)\d\d:?\d\d$"  # of local time from UTC, at the end of a text
UTC = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
# dates outside these years come from a wrong unit of time
FIRST_DAY, END_DAY = np.datetime64("0001-01-01", "s"), np.datetime64("10000-01-01", "s")
HOUR_SECONDS, DAY_SECONDS = 3600, 24 * 3600
# no zone is further east: its midnight is 11:00 UTC of the day before
EARLIEST_MIDNIGHT = 11 * HOUR_SECONDS
FRIDAY, SUNDAY = 4, 6
LONDON_SUMMER = 23 * HOUR_SECONDS  # its midnight, in UTC
ZONE_SECONDS = 900  # zones differ by quarters of an hour
MOST_TIMES, MOST_A_DAY = 8, 3  # times of day of daily bars, in all and on a day, of a few zones; more are intraday
FEW_BARS = 5  # whose weekdays tell nothing

Stamps = Shaped[np.ndarray, " rows"]


@dataclass(frozen=True)
class DateFormat:
    """How a column writes its dates.

    `text` is a strftime format, or "epoch" for seconds, or a thousandth, millionth or billionth of them, since 1970.
    Timestamps have none. `shift_hours` is added to them: they are in UTC and mean midnight in a zone to the east.
    """

    text: str = ISO
    shift_hours: float = 0.0

    def __str__(self) -> str:
        zone = f", midnight of UTC+{self.shift_hours:g} written in UTC" if self.shift_hours else ""
        return f"dates {self.text}{zone}"

    def parse(self, column: pa.Array) -> pd.Series:
        """Return local times, datetime64[s], without their zone; NaT where a cell is no date of this format."""
        raw, shift = column.to_pandas(), np.timedelta64(round(self.shift_hours * HOUR_SECONDS), "s")
        if pd.api.types.is_datetime64_any_dtype(raw):
            return pd.Series(raw.dt.tz_localize(None).astype("datetime64[s]") + shift)
        # millions of rows hold a few thousand distinct dates
        codes, distinct = pd.factorize(raw)
        parsed = _parse(pd.Series(distinct).astype(str).str.strip(), self.text) + shift
        return pd.Series(np.append(parsed, np.datetime64("NaT", "s"))[codes])


def guess_dates(columns: Callable[[], Iterator[pa.Array]], given: str | None, where: str) -> DateFormat:
    """Guess how a column writes its dates: of text from as much as that takes, of times of day from all of it.

    A given format is used for text that is not in ISO 8601. Bars of a time of day from 11:00 that fall on more than
    twice as many Sundays as Fridays are midnights of a zone to the east, written in UTC, unless a zone is given.

    Args:
        columns: reads the column from its start, in batches.
        given: the format of text, as in strftime, if it is known.
        where: the name of the file, for messages.

    Raises:
        UserError: day and month cannot be told apart, or only some times of day are midnights of a zone to the east.
    """
    start = columns()
    head = [*islice(start, 1)]
    plain = DateFormat(_guess_text(chain(head, start), given, where))
    if not head or not _has_times(head[0], plain.text):
        return plain
    stamps = np.array([], np.int64)
    for column in chain(head, islice(columns(), 1, None)):
        if _is_local(column):
            return plain
        stamps = np.union1d(stamps, plain.parse(column).dropna().to_numpy("datetime64[s]").astype(np.int64))
        if len(np.unique(stamps % DAY_SECONDS)) > MOST_TIMES:
            return plain
    return DateFormat(plain.text, _eastern_hours(stamps, where))


def _has_times(column: pa.Array, text: str) -> bool:
    """Return whether dates of a column may have times of day."""
    if pa.types.is_temporal(column.type):
        return not pa.types.is_date(column.type)
    texts = pd.Series(column.to_pandas().dropna().unique()).astype(str)
    return text in (EPOCH, *COMPACT) or "%H" in text or bool(texts.str.contains(TIME_MARK).any())


def _is_local(column: pa.Array) -> bool:
    """Return whether a column has a time zone, or texts with an offset, other than UTC."""
    if pa.types.is_temporal(column.type):
        return getattr(column.type, "tz", None) not in (None, *UTC)
    return bool(pd.Series(column.to_pandas().dropna().unique()).astype(str).str.contains(OFFSET).any())


def _eastern_hours(stamps: Int64[np.ndarray, " stamps"], where: str) -> float:
    """Return the hours to add to times of which some are midnights of zones to the east; 0 if none is."""
    times = stamps % DAY_SECONDS
    if len(stamps) > MOST_A_DAY * len(np.unique(stamps // DAY_SECONDS)):
        return 0.0
    late = np.unique(times[times >= EARLIEST_MIDNIGHT]).tolist()
    # 1970-01-01 was a Thursday
    weekdays = {time: np.bincount((stamps[times == time] // DAY_SECONDS + 3) % 7, minlength=7) for time in late}
    known = {time: counts for time, counts in weekdays.items() if counts.sum() >= FEW_BARS}
    if late == [LONDON_SUMMER] and not weekdays[LONDON_SUMMER][FRIDAY : FRIDAY + 2].any() and (times == 0).any():
        return 1.0  # however few its bars of summer are
    midnights = [
        time for time, counts in known.items() if time % ZONE_SECONDS == 0 and 2 * counts[FRIDAY] < counts[SUNDAY]
    ]
    if not midnights:
        return 0.0
    if others := [time for time in known if time not in midnights]:
        clock = [f"{time // HOUR_SECONDS:02}:{time % HOUR_SECONDS // 60:02}" for time in (midnights[0], others[0])]
        raise UserError(
            f"{where} has bars of {clock[0]}, a midnight of another zone, and of {clock[1]}, which is none: write the "
            "local date of every market"
        )
    return (DAY_SECONDS - min(midnights)) / HOUR_SECONDS


def times_of_day(column: pa.Array) -> Stamps:
    """Return times of day, written as 093000 or 09:30, as timedelta64[s]; 0 where a cell is none."""
    codes, distinct = pd.factorize(column.to_pandas())
    text = pd.Series(distinct).astype(str).str.strip().str.replace(r"\.0$", "", regex=True)
    text = text.where(~text.str.fullmatch(r"\d{1,6}"), text.str.zfill(6))
    return np.append(_times(" " + text), np.timedelta64(0, "s"))[codes]


def _guess_text(columns: Iterator[pa.Array], given: str | None, where: str) -> str:
    left: Sequence[str] = (ISO, *COMPACT, EPOCH, *FORMATS) if given is None else (given, ISO)
    unclear = ""
    for column in columns:
        if pa.types.is_temporal(column.type):
            return ISO
        text = pd.Series(column.to_pandas().dropna().unique()).astype(str).str.strip()
        text = text[text != ""]
        if text.empty:
            continue
        parsed = _best(text, left)
        left = [*parsed]
        if given is not None or len(left) == 1:
            return left[0]
        stamps = np.stack([*parsed.values()])
        differ = ((stamps != stamps[0]) & ~np.isnat(stamps)).any(axis=0)
        unclear = unclear or "".join(text[differ].iloc[:1])
    if unclear:
        raise UserError(
            f"{where} has dates such as {unclear!r}, whose day and month cannot be told apart: say which comes first "
            f"with --csv.date_format {' or '.join(left)} of data prepare"
        )
    return left[0]


def _best(text: pd.Series, formats: Sequence[str]) -> dict[str, Stamps]:
    """Return what each of the formats that read the most texts makes of them."""
    parsed: dict[str, Stamps] = {}
    letters = {*"".join(text.iloc[:100])}
    # a format whose separators do not occur reads nothing; ISO dates may have none
    possible = [one for one in formats if one in (ISO, EPOCH) or letters.issuperset(re.sub("%.", "", one))]
    for one in possible:
        parsed[one] = _parse(text, one)
        if one in (ISO, *COMPACT) and not np.isnat(parsed[one]).any():
            break
    counts = {one: int((~np.isnat(stamps)).sum()) for one, stamps in parsed.items()}
    most = max(counts.values())
    best = [one for one, count in counts.items() if count == most > 0] or [ISO]
    return {one: parsed[one] for one in best}


def _parse(text: pd.Series, form: str) -> Stamps:
    """Return the times, datetime64[s], that distinct texts stand for, NaT where one is not of this format."""
    if form == EPOCH:
        digits = text.str.extract(r"^(\d{9,19})(?:\.\d+)?$")[0]
        number = pd.to_numeric(digits).fillna(-1).to_numpy(np.int64)
        # 9 or 10 digits are seconds, 12 or 13 milliseconds, and so on
        unit = 1000 ** np.maximum(digits.str.len().fillna(9).to_numpy(np.int64) // 3 - 3, 0)
        stamps: Stamps = (number // unit).astype("datetime64[s]")
        stamps[number < 0] = np.datetime64("NaT")
        return stamps
    if form == ISO:
        # most files; the rest of this branch takes ten times as long
        days = _days(text, ISO)
        if not np.isnat(days).any():
            return days
        parts = text.str.extract(ISO_DATE)
        days = _days(parts[0] + "-" + parts[1] + "-" + parts[2], ISO)
        return np.asarray(days + _times(text)) if text.str.contains(TIME_MARK).any() else days
    if form in COMPACT:
        return _days(text.where(text.str.len() == COMPACT[form]), form)
    if "%H" in form or "%I" in form or not text.str.contains(TIME_MARK).any():
        return _days(text, form)
    stamps = _days(text.str.replace(TIME, "", regex=True), form) + _times(text)
    return np.asarray(stamps)


def _days(text: pd.Series, form: str) -> Stamps:
    return pd.to_datetime(text, format=form, errors="coerce").to_numpy("datetime64[s]")


def _times(text: pd.Series) -> Stamps:
    """Return the times of day at the end of texts as timedelta64[s], 0 where there is none."""
    text = text.str.replace(r"[T ](\d{2})(\d{2})(\d{2})$", r" \1:\2:\3", regex=True).str.upper()
    parts = text.str.extract(TIME)
    hours, minutes, seconds = (pd.to_numeric(parts[part]).fillna(0).to_numpy(np.int64) for part in range(3))
    half = parts[3].to_numpy(object)
    hours = np.where(half == "P", hours % 12 + 12, np.where(half == "A", hours % 12, hours))
    return ((hours * 60 + minutes) * 60 + seconds).astype("timedelta64[s]")
