"""Clean a block of prices by a policy, with a log of every change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from eigen2.errors import UserError
from eigen2.market.data.cleaning.levels import Bars, compared_rows, split_ratio
from eigen2.market.data.cleaning.policy import Limits, Policy
from eigen2.market.data.source import PRICE_COLUMNS, VALUES

KEYS = ["date", "ticker"]
AFTER = tuple(f"{name}_after" for name in VALUES)
LOG_COLUMNS = (*KEYS, "defect", "action", *VALUES, *AFTER)
OPEN, HIGH, LOW, CLOSE, VOLUME = range(5)

Mask = Bool[np.ndarray, " rows"]
Rows = Float[np.ndarray, "some 5"]


def clean(
    block: pd.DataFrame, found: Mapping[str, Mask], policy: Policy, limits: Limits
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Apply a policy to a block.

    First rows are dropped, then rows that stay are masked, then those that are not are repaired, splits last. So a row
    has one entry in the log where it is dropped or masked, named by the first such defect in the order of `Policy`, and
    one for each repair that changes it otherwise. Undone from the last entry to the first, the log turns the cleaned
    rows into those of the block.

    Args:
        block: as `find` took it; it is not changed.
        found: what `find` returned for it.
        policy: what to do.
        limits: those that `find` used.

    Returns:
        The cleaned block, sorted, with at most one row of each (date, ticker); and the log with the columns of
        `LOG_COLUMNS`: the row before and after, NaN where it is masked or gone.

    Raises:
        UserError: the block has a defect that the policy refuses.
    """
    _check_failures(block, found, policy)
    cleaner = _Cleaner(block)
    for name, action in asdict(policy).items():
        if action == "drop":
            cleaner.drop(found[name], name)
    if policy.conflicting_duplicate != "drop":
        # masked or kept, the last row stays
        rows = found["conflicting_duplicate"] & ~cleaner.gone
        rows[rows] = block.loc[rows, KEYS].duplicated(keep="last").to_numpy()
        cleaner.drop(rows, "conflicting_duplicate")
    for name, action in asdict(policy).items():
        if action == "mask":
            rows = found[name]
            if name in ("split_like", "jump") and rows.any():
                rows = rows & ~cleaner.after_empty()
            cleaner.change(rows, name, "mask", lambda values: np.full_like(values, np.nan))
    _repair(cleaner, block, found, policy, limits)
    # a file with an infinite volume cannot be read, whatever is to be kept
    cleaner.change(np.isinf(cleaner.values[:, VOLUME]), "unknown_volume", "repair", _without_volume)
    return cleaner.cleaned(), cleaner.log()


class _Cleaner:
    """Block that is being cleaned: `values` (rows, 5) as they are by now, and which rows are `gone`."""

    def __init__(self, block: pd.DataFrame) -> None:
        self.values = block[list(VALUES)].to_numpy(copy=True)
        self.gone = np.zeros(len(block), dtype=np.bool_)
        self._block = block
        self._log: list[pd.DataFrame] = []

    def after_empty(self) -> Mask:
        """Return which rows follow, among those that stay, one that came without any price."""
        kept = np.flatnonzero(~self.gone)
        empty = self._block[list(PRICE_COLUMNS)].isna().all(axis=1).to_numpy()
        after = np.zeros(len(self._block), dtype=np.bool_)
        after[kept[1:]] = empty[kept[:-1]]
        return after

    def drop(self, rows: Mask, defect: str) -> None:
        """Remove rows that are still there."""
        at = np.flatnonzero(rows & ~self.gone)
        self.gone[at] = True
        self._record(at, defect, "drop", np.full((len(at), len(VALUES)), np.nan))

    def change(self, rows: Mask, defect: str, action: str, corrected: Callable[[Rows], Rows]) -> None:
        """Change rows that are still there; rows that already have the new values are not logged."""
        at = np.flatnonzero(rows & ~self.gone)
        before = self.values[at]
        after = corrected(before)
        changed = ~((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1)
        self._record(at[changed], defect, action, after[changed])
        self.values[at] = after

    def _record(self, at: np.ndarray, defect: str, action: str, after: Rows) -> None:
        entry = self._block[KEYS].take(at).assign(defect=defect, action=action)
        entry[list(VALUES)] = self.values[at]
        entry[list(AFTER)] = after
        self._log.append(entry)

    def cleaned(self) -> pd.DataFrame:
        """Return the rows that stay."""
        cleaned = self._block[KEYS].assign(**dict(zip(VALUES, self.values.T, strict=True)))
        return cleaned[~self.gone].reset_index(drop=True)

    def log(self) -> pd.DataFrame:
        """Return every change, in the order of the rows, then of the changes."""
        log = pd.concat(self._log).sort_index(kind="stable").reset_index(drop=True)
        return log.astype({"defect": "str", "action": "str"})[list(LOG_COLUMNS)]


def _check_failures(block: pd.DataFrame, found: Mapping[str, Mask], policy: Policy) -> None:
    """Raise an error at the first defect that the policy refuses."""
    for name, action in asdict(policy).items():
        if action == "fail" and found[name].any():
            first = block.iloc[int(found[name].argmax())]
            values = ", ".join(f"{value} {first[value]:g}" for value in VALUES)
            raise UserError(
                f"{found[name].sum()} rows are {name}, first {str(first['ticker'])!r} on {first['date']:%Y-%m-%d}"
                f" ({values}): correct them, or set --policy.{name} {'drop' if name == 'duplicate' else 'mask'}"
            )


def _repair(cleaner: _Cleaner, block: pd.DataFrame, found: Mapping[str, Mask], policy: Policy, limits: Limits) -> None:
    if policy.close_basis == "repair":
        cleaner.change(found["close_basis"], "close_basis", "repair", lambda values: values[:, [CLOSE] * 4 + [VOLUME]])
    if policy.wick == "repair":
        cleaner.change(found["wick"], "wick", "repair", lambda values: _without_wick(values, limits))
    if policy.unknown_volume == "repair":
        # before a split divides it
        cleaner.change(found["unknown_volume"], "unknown_volume", "repair", _without_volume)
    if policy.split_like == "repair" and found["split_like"].any():
        factor = _split_factors(block, found, limits)
        scaled = (factor != 1) & ~cleaner.gone
        each = factor[scaled, None]
        cleaner.change(
            scaled, "split_like", "repair", lambda values: values * np.where(np.arange(5) == VOLUME, 1 / each, each)
        )


def _without_volume(values: Rows) -> Rows:
    return np.where(np.arange(5) == VOLUME, np.nan, values)


def _without_wick(values: Rows, limits: Limits) -> Rows:
    """Set high or low, where it is a wick, to the outer of open and close."""
    values = values.copy()
    most, least = values[:, [OPEN, CLOSE]].max(axis=1), values[:, [OPEN, CLOSE]].min(axis=1)
    values[:, HIGH] = np.where(values[:, HIGH] > most * limits.wick, most, values[:, HIGH])
    values[:, LOW] = np.where(values[:, LOW] * limits.wick < least, least, values[:, LOW])
    return values


def _split_factors(block: pd.DataFrame, found: Mapping[str, Mask], limits: Limits) -> Float[np.ndarray, " rows"]:
    """Return what each price is multiplied by: the ratios of all later splits of its ticker."""
    rows, split = Bars.of(block), found["split_like"]
    ticker = rows.ticker
    bars = rows.comparable(compared_rows(found) & np.isin(ticker, ticker[split]), found["close_basis"])
    ratios = split_ratio(bars.open, bars.last_close, limits)
    factor = np.ones(len(block))
    for bar in np.flatnonzero(split[bars.row]):
        row = bars.row[bar]
        factor[np.searchsorted(ticker, ticker[row]) : row] *= ratios[bar]
    return factor
