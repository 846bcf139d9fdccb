"""What is done about each defect, and the log of what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from eigen2.errors import UserError
from eigen2.market.data.cleaning.defects import DEFECTS
from eigen2.market.data.cleaning.levels import compared_rows, gather_bars, split_ratio
from eigen2.market.data.cleaning.limits import Limits
from eigen2.market.data.source import PRICE_COLUMNS, TEXT

Action = Literal["keep", "repair", "mask", "drop", "fail"]
VALUES = (*PRICE_COLUMNS, "volume")
LOG_COLUMNS = (*TEXT, "defect", "action", *VALUES, *(f"{name}_after" for name in VALUES))
OPEN, HIGH, LOW, CLOSE, VOLUME = range(5)
# in the order in which they are made: volumes are settled before a split divides them
REPAIRS = ("close_basis", "wick", "unknown_volume", "split_like")
CANNOT_REPAIR = "the row does not tell what its prices should be"
ONE_A_DAY = "only one row of each date and ticker can stay"


@dataclass(frozen=True)
class Policy:
    """What is done about each defect.

    keep leaves the row as it is. repair corrects it, where that is possible. mask empties its prices and its volume: a
    day without trading, over which no return and no indicator is computed. drop removes the row. fail refuses the
    files.
    """

    duplicate: Action = "drop"
    """A further row of the same date and ticker whose prices are the same or unusable. Of such rows the one stays that
    is usable, then has the larger volume, then comes last. drop or fail."""
    conflicting_duplicate: Action = "mask"
    """Rows of the same date and ticker with different prices. mask leaves one empty row; repair keeps the last as it
    is, not compared with the days around it. repair, mask, drop or fail."""
    weekend: Action = "drop"
    """A Saturday or Sunday row although the market does not trade then: less than 7 percent of all rows lie on that day
    of the week, or more than 35 percent. Rows that stay are not compared with the days around them. keep, mask, drop or
    fail."""
    stray_day: Action = "drop"
    """A day on which few of the listed tickers have a row: it would be a hole for all the others, whose indicators
    start anew after it. Rows that stay are not compared with the days around them. keep, mask, drop or fail."""
    missing_price: Action = "mask"
    """One of the four prices is empty, or the close of an indicator series. keep, mask, drop or fail."""
    infinite_price: Action = "mask"
    """A price is infinite or too large for float32; a file that has one cannot be read. mask, drop or fail."""
    nonpositive_price: Action = "mask"
    """A price is zero, negative or too small for float32. keep, mask, drop or fail."""
    high_below_low: Action = "mask"
    """The high is below the low. keep, mask, drop or fail."""
    close_basis: Action = "repair"
    """A ticker's close is adjusted for dividends or splits and its other prices are not: its close lies outside the bar
    on many rows. Applies to all of its rows. repair sets open, high and low to the close, the one price whose changes
    are right; mask and drop leave nothing of the ticker. keep, repair, mask, drop or fail."""
    outside_bar: Action = "mask"
    """Open or close lies outside the bar from low to high. keep, mask, drop or fail."""
    spike: Action = "mask"
    """The price leaves its level from one day to the next and comes back in the same way: a placeholder, a shifted
    decimal point, rows of another day or instrument. All rows of the excursion. keep, mask, drop or fail."""
    split_like: Action = "mask"
    """The price changes overnight by the ratio of a split and stays there. repair multiplies the ticker's earlier
    prices by the ratio and divides its volumes; it is not the default because a real fall by half looks the same, and
    repair would erase the loss. mask keeps features clean, but a position held across the row still sees the change:
    repair where it is known to be a split. Nothing is masked right after an empty row. keep, repair, mask, drop or
    fail."""
    jump: Action = "mask"
    """Open or close is far from the last close, and the price does not come back: a crash, a takeover, a spin-off,
    another company under a used name. mask empties the first row at the new level, so that no feature sees the change;
    a position held across it still does. Nothing is masked right after an empty row. keep, mask, drop or fail."""
    wick: Action = "mask"
    """High or low lies far beyond both open and close; a wrong high would fill sale targets. repair sets high and low
    to the outer of open and close. keep, repair, mask, drop or fail."""
    stale_run: Action = "mask"
    """One price all day, the last close again, many rows in a row: a halted or delisted name quoted on. keep, mask,
    drop or fail."""
    zero_volume: Action = "mask"
    """One price all day and a volume of 0, on a ticker that has volume on other days: nothing was traded. keep, mask,
    drop or fail."""
    unknown_volume: Action = "keep"
    """The volume is empty, negative or infinite, or 0 although the price moved. repair empties it; keep empties the
    infinite ones, as a file that has one cannot be read. keep, repair, mask, drop or fail."""

    def __post_init__(self) -> None:
        for name in DEFECTS:
            action = getattr(self, name)
            allowed, why = allowed_actions(name)
            if action not in allowed:
                reason = f" ({why})" if action in get_args(Action) else ""
                raise UserError(f"policy.{name} is {action}; it must be {' or '.join(allowed)}{reason}")

    def lenient(self) -> Policy:
        """Return the policy with the default action in place of every fail."""
        actions: dict[str, Any] = asdict(self)
        defaults = asdict(Policy())
        return Policy(**{name: defaults[name] if action == "fail" else action for name, action in actions.items()})


def allowed_actions(defect: str) -> tuple[tuple[Action, ...], str]:
    """Say what can be done about a defect, and why not more."""
    if defect == "duplicate":
        return ("drop", "fail"), ONE_A_DAY
    if defect == "conflicting_duplicate":
        return ("repair", "mask", "drop", "fail"), ONE_A_DAY
    if defect == "infinite_price":
        return ("mask", "drop", "fail"), "a file with such a price cannot be read"
    if defect in REPAIRS:
        return get_args(Action), ""
    return ("keep", "mask", "drop", "fail"), CANNOT_REPAIR


def clean(
    block: pd.DataFrame, found: Mapping[str, Bool[np.ndarray, " rows"]], policy: Policy, limits: Limits
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Carry out a policy.

    First rows are dropped, then rows that stay are masked, then those that are not are repaired, in the order of
    `REPAIRS`. So a row has one entry in the log where it is dropped or masked, named by the first such defect in the
    order of `Policy`, and one for each repair that changes it otherwise. Taken back from the last entry to the first,
    the log turns the cleaned rows into those of the block.

    Args:
        block: as `find` took it; it is not changed.
        found: what `find` gave for it.
        policy: what to do.
        limits: those that `find` used.

    Returns:
        The cleaned block, sorted, with at most one row of each (date, ticker); and the log with the columns of
        `LOG_COLUMNS`: the row before and after, NaN where it is masked or gone.

    Raises:
        UserError: the block has a defect that the policy refuses.
    """
    _refuse(block, found, policy)
    work = _Work(block)
    for name in DEFECTS:
        if getattr(policy, name) == "drop":
            work.drop(found[name], name)
    if policy.conflicting_duplicate != "drop":
        # masked or kept, one row stays
        rows = found["conflicting_duplicate"] & ~work.gone
        work.drop(_all_but_last(block, rows), "conflicting_duplicate")
    for name in DEFECTS:
        if getattr(policy, name) == "mask":
            rows = found[name]
            if name in ("split_like", "jump") and rows.any():
                rows = rows & ~work.after_empty()
            work.mask(rows, name)
    for name in REPAIRS:
        if getattr(policy, name) == "repair" and found[name].any():
            _repair(work, name, found, limits)
    # a file with an infinite volume cannot be read, whatever is to be kept
    work.repair(np.isinf(work.values[:, VOLUME]), "unknown_volume", _without_volume)
    return work.cleaned(), work.log()


Rows = Float[np.ndarray, "some 5"]


class _Entry(NamedTuple):
    """What one step did to some rows."""

    at: Int[np.ndarray, " some"]
    defect: str
    action: str
    before: Rows
    after: Rows


_NO_ENTRY = _Entry(np.empty(0, np.int64), "", "", np.empty((0, 5)), np.empty((0, 5)))


class _Work:
    """A block that is being cleaned."""

    def __init__(self, block: pd.DataFrame) -> None:
        self.block = block
        self.values = block[list(VALUES)].to_numpy(copy=True)
        self.gone = np.zeros(len(block), dtype=np.bool_)
        self._entries: list[_Entry] = []

    def after_empty(self) -> Bool[np.ndarray, " rows"]:
        """Rows that follow, among those that stay, one that came without any price."""
        kept = np.flatnonzero(~self.gone)
        empty: Bool[np.ndarray, " rows"] = np.isnan(self.block[list(PRICE_COLUMNS)].to_numpy()).all(axis=1)
        after = np.zeros(len(self.block), dtype=np.bool_)
        after[kept[1:]] = empty[kept[:-1]]
        return after

    def drop(self, rows: Bool[np.ndarray, " rows"], defect: str) -> None:
        """Remove rows that are still there."""
        at = np.flatnonzero(rows & ~self.gone)
        self.gone[at] = True
        before = self.values[at]
        self._entries.append(_Entry(at, defect, "drop", before, np.full_like(before, np.nan)))

    def mask(self, rows: Bool[np.ndarray, " rows"], defect: str) -> None:
        """Empty rows that are still there."""
        at = np.flatnonzero(rows & ~self.gone)
        self._set(at, np.full((len(at), len(VALUES)), np.nan), defect, "mask")

    def repair(self, rows: Bool[np.ndarray, " rows"], defect: str, corrected: Callable[[Rows], Rows]) -> None:
        """Correct rows that are still there; what is empty must stay so."""
        at = np.flatnonzero(rows & ~self.gone)
        self._set(at, corrected(self.values[at]), defect, "repair")

    def _set(self, at: Int[np.ndarray, " some"], after: Rows, defect: str, action: str) -> None:
        """Give rows other values; rows that have them already are not logged."""
        before = self.values[at]
        changed = ~((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1)
        at, before, after = at[changed], before[changed], after[changed]
        self.values[at] = after
        self._entries.append(_Entry(at, defect, action, before, after))

    def cleaned(self) -> pd.DataFrame:
        """The rows that stay."""
        kept = np.flatnonzero(~self.gone)
        text = {name: self.block[name].take(kept).reset_index(drop=True) for name in TEXT}
        return pd.DataFrame({**text, **{name: self.values[kept, i] for i, name in enumerate(VALUES)}})

    def log(self) -> pd.DataFrame:
        """Every change, in the order of the rows, then of the changes."""
        entries = [entry for entry in self._entries if len(entry.at)] or [_NO_ENTRY]
        sizes = [len(entry.at) for entry in entries]
        at = np.concatenate([entry.at for entry in entries])
        order = np.argsort(at, kind="stable")
        before, after = (
            np.concatenate([getattr(entry, side) for entry in entries])[order] for side in ("before", "after")
        )
        rows = self.block[list(TEXT)].take(at[order]).reset_index(drop=True)
        for name in ("defect", "action"):
            words = np.repeat(np.array([getattr(entry, name) for entry in entries], dtype=object), sizes)[order]
            rows[name] = pd.Series(words, dtype="str")
        for i, name in enumerate(VALUES):
            rows[name], rows[f"{name}_after"] = before[:, i], after[:, i]
        return rows[list(LOG_COLUMNS)]


def _refuse(block: pd.DataFrame, found: Mapping[str, Bool[np.ndarray, " rows"]], policy: Policy) -> None:
    """Stop at the first defect that the policy refuses."""
    for name in DEFECTS:
        if getattr(policy, name) != "fail" or not found[name].any():
            continue
        first = block.iloc[int(found[name].argmax())]
        values = ", ".join(f"{value} {first[value]:g}" for value in VALUES)
        raise UserError(
            f"{int(found[name].sum())} rows are {name}, first {str(first['ticker'])!r} on {first['date']:%Y-%m-%d}"
            f" ({values}): correct them, or set --policy.{name} {'drop' if name == 'duplicate' else 'mask'}"
        )


def _all_but_last(block: pd.DataFrame, rows: Bool[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Of the given rows, those that another one of the same date and ticker follows."""
    earlier = rows.copy()
    earlier[rows] = block.loc[rows, list(TEXT)].duplicated(keep="last").to_numpy()
    return earlier


def _repair(work: _Work, defect: str, found: Mapping[str, Bool[np.ndarray, " rows"]], limits: Limits) -> None:
    if defect == "split_like":
        factor = _split_factors(work.block, found, limits)
        scaled = factor != 1
        per_row = factor[scaled & ~work.gone, None]
        work.repair(scaled, defect, lambda rows: rows * np.where(np.arange(5) == VOLUME, 1 / per_row, per_row))
    elif defect == "wick":
        work.repair(found[defect], defect, lambda rows: _without_wick(rows, limits))
    elif defect == "close_basis":
        work.repair(found[defect], defect, lambda rows: rows[:, [CLOSE, CLOSE, CLOSE, CLOSE, VOLUME]])
    else:
        work.repair(found[defect], defect, _without_volume)


def _without_volume(rows: Rows) -> Rows:
    emptied: Rows = np.where(np.arange(5) == VOLUME, np.nan, rows)
    return emptied


def _without_wick(rows: Rows, limits: Limits) -> Rows:
    """Set high or low, where it is a wick, to the outer of open and close."""
    rows = rows.copy()
    most, least = rows[:, [OPEN, CLOSE]].max(axis=1), rows[:, [OPEN, CLOSE]].min(axis=1)
    rows[:, HIGH] = np.where(rows[:, HIGH] > most * limits.wick, most, rows[:, HIGH])
    rows[:, LOW] = np.where(rows[:, LOW] * limits.wick < least, least, rows[:, LOW])
    return rows


def _split_factors(
    block: pd.DataFrame, found: Mapping[str, Bool[np.ndarray, " rows"]], limits: Limits
) -> Float[np.ndarray, " rows"]:
    """What each price is multiplied by: the ratios of all later splits of its ticker."""
    ticker = pd.factorize(block["ticker"])[0]
    split = found["split_like"]
    concerned = np.isin(ticker, ticker[split])
    bars = gather_bars(block, ticker, compared_rows(found) & concerned, found["close_basis"])
    ratios = split_ratio(bars.open, bars.last_close, limits)
    factor = np.ones(len(block))
    for row, ratio in zip(bars.row.tolist(), ratios.tolist(), strict=True):
        if split[row]:
            factor[np.searchsorted(ticker, ticker[row]) : row] *= ratio
    return factor
