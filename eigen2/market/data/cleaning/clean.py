"""Clean a block of prices by a policy, with a log of every change."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from eigen2.errors import UserError
from eigen2.market.data.cleaning.defects import Cells, Found, Mask
from eigen2.market.data.cleaning.levels import company_numbers
from eigen2.market.data.cleaning.policy import CleaningPolicy, Limits
from eigen2.market.data.source import CLOSE, LARGEST_PRICE, VALUES, VOLUME

KEYS = ["date", "ticker"]
AFTER = tuple(f"{name}_after" for name in VALUES)
LOG_COLUMNS = (*KEYS, "defect", "action", *VALUES, *AFTER)

Places = Int[np.ndarray, " some"]
Rows = Float[np.ndarray, "some 5"]


def clean(
    block: pd.DataFrame, found: Found, policy: CleaningPolicy, limits: Limits
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Apply a policy to a block.

    Rows are first dropped, then what is wrong in the remaining ones is masked, then what is left is repaired, splits
    last. A row has an entry in the log for each defect that changes it, in that order, the defects in the order of
    `CleaningPolicy`. Undoing the entries from last to first restores the block.

    Returns:
        The cleaned block, sorted, with at most one row of each (date, ticker); and the log with `LOG_COLUMNS`: the row
        before and after, NaN where it is masked or gone.

    Raises:
        UserError: the block has a defect that the policy refuses.
    """
    actions: dict[str, str] = asdict(policy)
    _check_failures(block, found.rows, actions)
    values = block[list(VALUES)].to_numpy(copy=True)
    gone = np.zeros(len(block), dtype=np.bool_)
    log: list[tuple[str, str, Places, Rows, Rows]] = []

    def change(rows: Mask, defect: str, action: str, corrected: Callable[[Places, Rows], Rows]) -> None:
        """Change rows that are still there; those that already have the new values are not logged."""
        at = np.flatnonzero(rows & ~gone)
        before = values[at]
        after = corrected(at, before)
        changed = ~((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1) | (action == "drop")
        log.append((defect, action, at[changed], before[changed], after[changed]))
        values[at] = after
        gone[at] = action == "drop"

    for name in actions:
        if actions[name] == "drop":
            change(found.rows[name], name, "drop", _all_emptied)
    if actions["conflicting_duplicate"] != "drop":
        # masked or kept, the last row stays
        rows = found.rows["conflicting_duplicate"] & ~gone
        rows[rows] = block.loc[rows, KEYS].duplicated(keep="last").to_numpy()
        change(rows, "conflicting_duplicate", "drop", _all_emptied)
    for name in actions:
        rows, wrong = found.rows[name], found.cells.get(name)
        if actions[name] == "mask":
            change(rows, name, "mask", _all_emptied if wrong is None else partial(_emptied, wrong))
        elif name == "unknown_volume":
            # read_prices refuses infinite volumes, so no policy keeps them
            infinite = np.isinf(values[:, VOLUME])
            change(infinite, name, "mask", lambda at, before: np.where(np.isinf(before), np.nan, before))
    if actions["close_basis"] == "repair":
        change(found.rows["close_basis"], "close_basis", "repair", lambda _, before: before[:, [CLOSE] * 4 + [VOLUME]])
    if actions["split_like"] == "repair" and found.rows["split_like"].any():
        ticker = pd.factorize(block["ticker"])[0]
        factor = _earlier_factors(company_numbers(ticker, found.rows["reused_ticker"]), found.factor)
        change(factor != 1, "split_like", "repair", partial(_scaled, factor))
    cleaned = block[KEYS].assign(**dict(zip(VALUES, values.T, strict=True)))[~gone].reset_index(drop=True)
    places, before, after = (np.concatenate([entry[part] for entry in log]) for part in (2, 3, 4))
    counts = [len(entry[2]) for entry in log]
    names = {
        name: np.repeat(np.array([entry[part] for entry in log], dtype=object), counts)
        for part, name in enumerate(("defect", "action"))
    }
    changes = block[KEYS].take(places).assign(**names)
    changes[list(VALUES)], changes[list(AFTER)] = before, after
    changes = changes.sort_index(kind="stable").reset_index(drop=True)
    return cleaned, changes.astype({"defect": "str", "action": "str"})


def _check_failures(block: pd.DataFrame, found: Mapping[str, Mask], actions: Mapping[str, str]) -> None:
    """Raise a UserError for the first defect that the policy refuses."""
    for name, action in actions.items():
        if action == "fail" and found[name].any():
            first = block.iloc[int(found[name].argmax())]
            values = ", ".join(f"{value} {first[value]:g}" for value in VALUES)
            raise UserError(
                f"{found[name].sum()} rows are {name}, first {str(first['ticker'])!r} on {first['date']:%Y-%m-%d}"
                f" ({values}): correct them, or set --policy.{name} {getattr(CleaningPolicy(), name)}"
            )


def _all_emptied(at: Places, before: Rows) -> Rows:
    return np.full_like(before, np.nan)


def _scaled(factor: Float[np.ndarray, " rows"], at: Places, before: Rows) -> Rows:
    """Return rows adjusted for later splits, without the prices that no float32 can hold."""
    prices = before[:, :VOLUME] * factor[at, None]
    prices[prices > LARGEST_PRICE] = np.nan
    return np.column_stack([prices, before[:, VOLUME] / factor[at]])


def _emptied(wrong: Cells, at: Places, before: Rows) -> Rows:
    return np.where(wrong[at], np.nan, before)


def _earlier_factors(
    company: Int[np.ndarray, " rows"], factor: Float[np.ndarray, " rows"]
) -> Float[np.ndarray, " rows"]:
    """Return the factor on each price: the product of those of all later splits of its company (numbered)."""
    earlier = np.ones(len(factor))
    for row in np.flatnonzero(factor != 1):
        earlier[np.searchsorted(company, company[row]) : row] *= factor[row]
    return earlier
