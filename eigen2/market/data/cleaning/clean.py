"""Clean a block of prices by a policy, with a log of every change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial

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

    Rows are first dropped, then the remaining ones masked, then the rest repaired, splits last. So a row has one entry
    in the log if it is dropped or masked, named by the first such defect in the order of `Policy`, else one for each
    repair that changes it. Undoing the entries from last to first restores the block.

    Returns:
        The cleaned block, sorted, with at most one row of each (date, ticker); and the log with `LOG_COLUMNS`: the row
        before and after, NaN where it is masked or gone.

    Raises:
        UserError: the block has a defect that the policy refuses.
    """
    actions: dict[str, str] = asdict(policy)
    _check_failures(block, found, actions)
    values = block[list(VALUES)].to_numpy(copy=True)
    gone = np.zeros(len(block), dtype=np.bool_)
    log: list[pd.DataFrame] = []

    def change(rows: Mask, defect: str, action: str, corrected: Callable[[Rows], Rows] = _emptied) -> None:
        """Change rows that are still there; those that already have the new values are not logged."""
        at = np.flatnonzero(rows & ~gone)
        before, after = values[at], corrected(values[at])
        changed = ~((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1) | (action == "drop")
        entry = block[KEYS].take(at[changed]).assign(defect=defect, action=action)
        entry[list(VALUES)], entry[list(AFTER)] = before[changed], after[changed]
        log.append(entry)
        values[at] = after
        gone[at] = action == "drop"

    for name in actions:
        if actions[name] == "drop":
            change(found[name], name, "drop")
    if actions["conflicting_duplicate"] != "drop":
        # masked or kept, the last row stays
        rows = found["conflicting_duplicate"] & ~gone
        rows[rows] = block.loc[rows, KEYS].duplicated(keep="last").to_numpy()
        change(rows, "conflicting_duplicate", "drop")
    for name in actions:
        if actions[name] == "mask":
            after_level = name in ("split_like", "jump")
            change(found[name] & ~_after_empty(block, gone) if after_level else found[name], name, "mask")
    for name, repair in REPAIRS.items():
        if actions[name] == "repair":
            change(found[name], name, "repair", partial(repair, limits=limits))
    if actions["split_like"] == "repair" and found["split_like"].any():
        factor = _split_factors(block, found, limits)
        scaled = (factor != 1) & ~gone
        each = np.stack([*[factor[scaled]] * 4, 1 / factor[scaled]], axis=1)
        change(scaled, "split_like", "repair", lambda rows: rows * each)
    # read_prices refuses infinite volumes, so no policy keeps them
    change(np.isinf(values[:, VOLUME]), "unknown_volume", "repair", _without_volume)
    cleaned = block[KEYS].assign(**dict(zip(VALUES, values.T, strict=True)))[~gone].reset_index(drop=True)
    changes = pd.concat(log).sort_index(kind="stable").reset_index(drop=True)
    return cleaned, changes.astype({"defect": "str", "action": "str"})[list(LOG_COLUMNS)]


def _check_failures(block: pd.DataFrame, found: Mapping[str, Mask], actions: Mapping[str, str]) -> None:
    """Raise a UserError for the first defect that the policy refuses."""
    for name, action in actions.items():
        if action == "fail" and found[name].any():
            first = block.iloc[int(found[name].argmax())]
            values = ", ".join(f"{value} {first[value]:g}" for value in VALUES)
            raise UserError(
                f"{found[name].sum()} rows are {name}, first {str(first['ticker'])!r} on {first['date']:%Y-%m-%d}"
                f" ({values}): correct them, or set --policy.{name} {'drop' if name == 'duplicate' else 'mask'}"
            )


def _after_empty(block: pd.DataFrame, gone: Mask) -> Mask:
    """Return which of the remaining rows follow a row without any price in the files."""
    kept = np.flatnonzero(~gone)
    empty = block[list(PRICE_COLUMNS)].isna().all(axis=1).to_numpy()
    after = np.zeros(len(block), dtype=np.bool_)
    after[kept[1:]] = empty[kept[:-1]]
    return after


def _emptied(rows: Rows) -> Rows:
    return np.full_like(rows, np.nan)


def _without_volume(rows: Rows, limits: Limits | None = None) -> Rows:
    return np.where(np.arange(5) == VOLUME, np.nan, rows)


def _with_close_alone(rows: Rows, limits: Limits) -> Rows:
    return rows[:, [CLOSE] * 4 + [VOLUME]]


def _without_wick(rows: Rows, limits: Limits) -> Rows:
    """Set high or low, where it is a wick, to the outer of open and close."""
    rows = rows.copy()
    most, least = rows[:, [OPEN, CLOSE]].max(axis=1), rows[:, [OPEN, CLOSE]].min(axis=1)
    rows[:, HIGH] = np.where(rows[:, HIGH] > most * limits.wick, most, rows[:, HIGH])
    rows[:, LOW] = np.where(rows[:, LOW] * limits.wick < least, least, rows[:, LOW])
    return rows


# in this order: a split divides the volume that is left
REPAIRS = {"close_basis": _with_close_alone, "wick": _without_wick, "unknown_volume": _without_volume}


def _split_factors(block: pd.DataFrame, found: Mapping[str, Mask], limits: Limits) -> Float[np.ndarray, " rows"]:
    """Return the factor on each price: the product of the ratios of all later splits of its ticker."""
    rows, split = Bars.of(block), found["split_like"]
    ticker = rows.ticker
    bars = rows.comparable(compared_rows(found) & np.isin(ticker, ticker[split]), found["close_basis"])
    ratios = split_ratio(bars.open, bars.last_close, limits)
    factor = np.ones(len(block))
    for bar in np.flatnonzero(split[bars.row]):
        row = bars.row[bar]
        factor[np.searchsorted(ticker, ticker[row]) : row] *= ratios[bar]
    return factor
