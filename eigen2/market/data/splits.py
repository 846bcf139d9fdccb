"""Split the days of a table into training, validation and holdout, by numbers of days or by dates."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date
from itertools import chain

import numpy as np
from jaxtyping import Int, Shaped

from eigen2.errors import UserError, require_range

SHORT_DAYS = 300  # days that can be shared out with the default run-off of 20
ENOUGH_DAYS = 1152  # days that the defaults need with that run-off
DEFAULT_DAYS = {
    "context_days": (504, 10),
    "trading_days": (125, 8),
    "validation_days": (252, 5),
    "holdout_days": (252, 5),
}
"""Default of each number of days, and the part of a table of fewer than `ENOUGH_DAYS` that is its most there."""


def default_days(name: str, days: int) -> int:
    """Return the default of a setting in `DEFAULT_DAYS` for a table of `days`."""
    default, part = DEFAULT_DAYS[name]
    return default if days >= ENOUGH_DAYS else min(default, days // part)


@dataclass(frozen=True)
class Splits:
    """Day indices for training, validation and holdout, which cover all days.

    Each span of training days is followed by one of validation days; the holdout is last.
    """

    train: tuple[range, ...]
    validation: tuple[range, ...]
    holdout: range

    @staticmethod
    def from_days(
        days: int, validation_days: int, holdout_days: int, validation_spans: int = 1, dated: Collection[str] = ()
    ) -> Splits:
        """Split off the last `holdout_days`, then spans of `validation_days`; what is between them is for training.

        The last span ends where the holdout starts, the others where equal parts of the days before it do; the first
        part has none, as training and the context of validation need days before. `dated` has the settings that gave
        dates in place of these numbers, for messages.

        Raises:
            UserError: when a count is too small or no day is left for training before a span.
        """
        require_range("data.validation_days", validation_days, least=0)
        require_range("data.validation_spans", validation_spans, least=1)
        require_range("data.holdout_days", holdout_days, least=0)
        holdout = days - holdout_days
        stops = [holdout * (part + 2) // (validation_spans + 1) for part in range(validation_spans)]
        starts = [stop - validation_days for stop in stops]
        train = tuple(map(range, [0, *stops], starts))
        if not all(train):
            raise UserError(
                f"validation_days {validation_days} x validation_spans {validation_spans} + holdout_days "
                f"{holdout_days} leave no training days of the {days} days of prices: {_remedy(days, dated)}"
            )
        return Splits(train, tuple(map(range, starts, stops)), range(holdout, days))

    @staticmethod
    def from_dates(
        dates: Shaped[np.ndarray, " days"],
        validation_days: int | None = None,
        holdout_days: int | None = None,
        validation_spans: int = 1,
        validation_from: str | None = None,
        holdout_from: str | None = None,
    ) -> Splits:
        """Split as `from_days`, or where validation and holdout start on dates given as YYYY-MM-DD.

        A number of None is the default, see `default_days`. A date replaces a number; one that is no day of the table
        means the next day that is.

        Raises:
            UserError: when a date cannot be read or is outside the table, or the validation does not start before the
                holdout; as `from_days`; and for `validation_from` with more than one span.
        """
        if validation_from is not None and validation_spans > 1:
            raise UserError(
                f"data.validation_from starts one span, but data.validation_spans is {validation_spans}: set it to 1, "
                "or give data.validation_days"
            )
        if validation_days is None:
            validation_days = default_days("validation_days", len(dates))
        if holdout_days is None:
            holdout_days = default_days("holdout_days", len(dates))
        holdout = len(dates) - holdout_days
        if holdout_from is not None:
            holdout = _day_of("data.holdout_from", holdout_from, dates)
        if validation_from is not None:
            start = _day_of("data.validation_from", validation_from, dates)
            if start >= holdout:
                last = f"the holdout starts on {dates[holdout]}" if holdout < len(dates) else "there is no day after it"
                raise UserError(f"data.validation_from is {validation_from}, but {last}: give an earlier date")
            if start == 0:
                raise UserError(
                    f"data.validation_from is {validation_from}, the first day of prices, which leaves none to train "
                    "on: give a later date"
                )
            validation_days = holdout - start
        given = {"validation_from": validation_from, "holdout_from": holdout_from}
        dated = [name for name, text in given.items() if text is not None]
        return Splits.from_days(len(dates), validation_days, len(dates) - holdout, validation_spans, dated)

    @property
    def stops(self) -> list[int]:
        """Return the days, ascending, on which spans of training and validation days have ended."""
        return sorted(span.stop for span in (*self.train, *self.validation))

    @property
    def train_days(self) -> Int[np.ndarray, " days"]:
        """Return the training days, ascending."""
        return np.concatenate([np.arange(span.start, span.stop) for span in self.train])


def _day_of(key: str, text: str, dates: Shaped[np.ndarray, " days"]) -> int:
    """Return the index of the first day from a date on; `key` is the setting that has the date."""
    try:
        day = np.datetime64(date.fromisoformat(text))
    except (TypeError, ValueError):
        raise UserError(f"{key} is {text!r}; give a date as YYYY-MM-DD") from None
    if not dates[0] <= day <= dates[-1]:
        raise UserError(f"{key} is {text}, but the prices go from {dates[0]} to {dates[-1]}: give a date between them")
    return int(np.searchsorted(dates, day))


def _remedy(days: int, dated: Collection[str] = ()) -> str:
    """Return what to do about too few days: settings that share them out, if they are enough for the run-off days.

    `dated` has the settings, validation_from or holdout_from, whose dates replace numbers of days.
    """
    if days < SHORT_DAYS and not dated:
        return "lower one or bring more days"
    free = {name: part for name, (_, part) in DEFAULT_DAYS.items() if name.replace("days", "from") not in dated}
    later = "".join(f", give a later data.{name}" for name in dated)
    return f"bring more days{later}, or set " + " ".join(f"--data.{name} {days // part}" for name, part in free.items())


def require_window(
    splits: Splits, context_days: int, trading_days: int, settlement_days: int, dated: Collection[str] = ()
) -> None:
    """Raise a UserError unless a window fits into the first training days, with its context, and into the validation.

    The window's first day is the last of its context. `dated` has the settings, validation_from or holdout_from, that
    made the splits in place of numbers of days.
    """
    window, days = f"trading_days {trading_days} + settlement_days {settlement_days}", trading_days + settlement_days
    train, validation, holdout = len(splits.train[0]), len(splits.validation[0]), len(splits.holdout)
    if train < (needed := context_days - 1 + days):
        spans = f"{len(splits.validation)} x " if len(splits.validation) > 1 else ""
        raise UserError(
            f"{splits.holdout.stop} days leave {train} to train on before {spans}{validation} validation and {holdout} "
            f"holdout days, but context_days {context_days}, ending with the first of {window}, need {needed}: "
            f"{_remedy(splits.holdout.stop, dated)}"
        )
    if validation < days:
        more = "give an earlier data.validation_from" if "validation_from" in dated else "raise data.validation_days"
        raise UserError(
            f"there are {validation} validation days, but a window takes {window} = {days}: {more}, or shorten the "
            "window"
        )


def require_unused(holdout: Shaped[np.ndarray, " days"], first: str, last: str, holdout_from: str | None) -> None:
    """Raise UserError if dates of the holdout lie between the first and the last that a fit has used."""
    shared = holdout[(holdout >= np.datetime64(first)) & (holdout <= np.datetime64(last))]
    if len(shared):
        remedy = f"lower data.holdout_days to {len(holdout) - len(shared)}"
        if holdout_from is not None:
            remedy = f"set data.holdout_from to a date after {shared[-1]}"
        raise UserError(
            f"the test would play {len(shared)} days that the fit has trained or validated on, {shared[0]} to "
            f"{shared[-1]}; {remedy} or bring later prices"
        )


def describe_days(spans: Iterable[range], dates: Shaped[np.ndarray, " days"]) -> str:
    """Describe spans of days by the first and the last date and the number of days."""
    spans = list(spans)
    days = [*chain(*spans)]
    parts = f" in {len(spans)} spans" if len(spans) > 1 else ""
    return f"{dates[days[0]]} to {dates[days[-1]]} ({len(days)} days{parts})" if days else "none"
