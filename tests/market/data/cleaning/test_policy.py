"""What is done about each defect, and that the log tells all of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data.cleaning.clean import LOG_COLUMNS, VALUES, clean
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import ACTIONS, DEFECTS, Action, Limits, Policy
from eigen2.market.data.panel import build_panel
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.data.cleaning.rows import as_block, calendar_of, fillers, series, table

NOTHING = [np.nan] * 5
KEEP = Policy(**{name: "keep" if "keep" in ACTIONS[name] else "drop" for name in DEFECTS})  # type: ignore[arg-type]


def cleaned(block: pd.DataFrame, policy: Policy | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    return clean(block, find(block, calendar_of(block), Limits()), policy or Policy(), Limits())


def values(frame: pd.DataFrame) -> list[list[float]]:
    return frame[list(VALUES)].to_numpy().tolist()


def taken_back(block: pd.DataFrame, log: pd.DataFrame) -> pd.DataFrame:
    """Undo a log, from its last entry to its first, as its description says."""
    rows = {(row.date, row.ticker): [list(row)[3:]] for row in block.itertuples()}
    for entry in reversed(list(log.itertuples(index=False))):
        before, after = list(entry)[4:9], list(entry)[9:]
        same_day = rows.setdefault((entry.date, entry.ticker), [])
        if entry.action != "drop":
            np.testing.assert_array_equal(same_day[0], after)
            same_day.pop(0)
            # duplicates that were dropped stand behind the row that stayed
            same_day.insert(0, before)
        else:
            same_day.append(before)
    flat = [(date, ticker, *row) for (date, ticker), same_day in rows.items() for row in same_day]
    return as_block(pd.DataFrame(flat, columns=list(COLUMNS)))


def changes(log: pd.DataFrame) -> list[str]:
    return (log["defect"] + " " + log["action"]).tolist()


def test_what_cannot_be_done_is_refused() -> None:
    refused = {name: set(get_args(Action)) - set(ACTIONS[name]) for name in DEFECTS}
    assert refused["duplicate"] == {"keep", "mask", "repair"}
    assert refused["conflicting_duplicate"] == refused["infinite_price"] - {"repair"} == {"keep"}
    repairable = {"conflicting_duplicate", "close_basis", "split_like", "wick", "unknown_volume"}
    assert {name for name in DEFECTS if "repair" not in refused[name]} == repairable
    policy = Policy()
    object.__setattr__(policy, "infinite_price", "keep")  # as where types are not checked
    with pytest.raises(UserError, match=r"^policy.infinite_price is keep; it must be mask or drop or fail$"):
        policy.__post_init__()
    strict = Policy(**dict.fromkeys(DEFECTS, "fail"))  # type: ignore[arg-type]
    assert strict.lenient() == Policy()
    assert replace(strict, jump="drop").lenient() == Policy(jump="drop")


def test_clean_rows_stay_as_they_are() -> None:
    market = SyntheticMarket(days=200, columns=12, seed=1, missing=0.05).generate()
    for policy in (Policy(), KEEP, Policy(**dict.fromkeys(DEFECTS, "fail"))):  # type: ignore[arg-type]
        out, log = cleaned(market, policy)
        pd.testing.assert_frame_equal(out, market)
        assert log.empty
        assert tuple(log.columns) == LOG_COLUMNS


def one_bad_row(change: dict[str, float]) -> pd.DataFrame:
    block = series([100.0, 101.0, 102.0, 101.0])
    for name, value in change.items():
        block.loc[2, name] = value
    return block


@pytest.mark.parametrize(
    ("defect", "change"),
    [
        ("missing_price", {"open": np.nan}),
        ("infinite_price", {"high": np.inf}),
        ("nonpositive_price", {"low": 0.0}),
        ("high_below_low", {"high": 90.0}),
        ("outside_bar", {"close": 200.0}),
        ("wick", {"high": 900.0}),
        ("unknown_volume", {"volume": -5.0}),
        ("zero_volume", {"volume": 0.0, "open": 102.0, "high": 102.0, "low": 102.0}),
    ],
)
def test_the_actions_on_one_row(defect: str, change: dict[str, float]) -> None:
    block = one_bad_row(change)
    before = block.copy(deep=True)
    expected = {"mask": block.copy(), "drop": block.drop(2).reset_index(drop=True), "keep": block}
    expected["mask"].loc[2, list(VALUES)] = np.nan
    for action in ACTIONS[defect]:
        if action not in expected:
            continue
        out, log = cleaned(block, replace(KEEP, **{defect: action}))
        pd.testing.assert_frame_equal(out, expected[action])
        entries = list(log.itertuples(index=False, name=None))
        if action != "keep":
            assert entries[0][:4] == (pd.Timestamp("2020-01-08"), "A", defect, action)
            np.testing.assert_array_equal(entries[0][4:], values(block)[2] + NOTHING)
        assert len(entries) == (action != "keep")
    with pytest.raises(UserError) as error:
        cleaned(block, replace(KEEP, **{defect: "fail"}))
    shown = ", ".join(f"{name} {block.loc[2, name]:g}" for name in VALUES)
    remedy = f"correct them, or set --policy.{defect} mask"
    assert str(error.value) == f"1 rows are {defect}, first 'A' on 2020-01-08 ({shown}): {remedy}"
    pd.testing.assert_frame_equal(block, before)


def test_wicks_are_cut_and_closes_taken_alone() -> None:
    # open 102.102, high 103.02, low 100.98, close 102
    for change, expected in (({"high": 900.0}, [102.102, 102.102, 100.98]), ({"low": 1.0}, [102.102, 103.02, 102.0])):
        out, log = cleaned(one_bad_row(change), Policy(wick="repair"))
        assert values(out)[2] == pytest.approx([*expected, 102.0, 100.0])
        assert changes(log) == ["wick repair"]
    block = series([100.0] * 8).assign(close=90.0)
    out, log = cleaned(block)
    pd.testing.assert_frame_equal(out, block.assign(**dict.fromkeys(PRICE_COLUMNS, 90.0)))
    assert changes(log) == ["close_basis repair"] * 8


def test_unknown_volumes_are_emptied_and_infinite_ones_always() -> None:
    block = series([100.0, 101.0, 102.0, 101.0, 100.0, 101.0])
    block["volume"] = [-1.0, np.inf, 0.0, np.nan, -np.inf, 5.0]
    block.loc[4, "open"] = np.nan  # also where nothing is compared
    for action, expected in (("repair", [np.nan] * 5 + [5.0]), ("keep", [-1.0, np.nan, 0.0, np.nan, np.nan, 5.0])):
        out, log = cleaned(block, Policy(unknown_volume=action, missing_price="keep"))  # type: ignore[arg-type]
        np.testing.assert_array_equal(out["volume"], expected)
        pd.testing.assert_frame_equal(out[[*PRICE_COLUMNS]], block[[*PRICE_COLUMNS]])
        # the one that was empty already is no change
        assert changes(log) == ["unknown_volume repair"] * (4 if action == "repair" else 2)


def test_a_split_is_taken_out_of_earlier_prices() -> None:
    """Two for one, then three for one: before the first by 6, between them by 3, after it as they are."""
    closes = [600.0, 606.0, 300.0, 303.0, 306.0, 101.0, 102.0, 103.0]
    other = series([60.0, 61.0], "B")
    block = as_block(pd.concat([series(closes), other]))
    out, log = cleaned(block, Policy(split_like="repair"))
    np.testing.assert_allclose(out["close"], [100.0, 101.0, 100.0, 101.0, 102.0, 101.0, 102.0, 103.0, 60.0, 61.0])
    np.testing.assert_allclose(out["high"], out["close"] * 1.01)
    np.testing.assert_allclose(out["volume"], [600.0, 600.0, 300.0, 300.0, 300.0, 100.0, 100.0, 100.0, 100.0, 100.0])
    assert changes(log) == ["split_like repair"] * 5
    pd.testing.assert_frame_equal(taken_back(out, log), block)
    assert cleaned(out)[1].empty


def test_a_split_is_taken_out_over_spikes_and_unusable_rows() -> None:
    block = series([100.0, 101.0, 900.0, 100.0, 101.0, 50.0, 50.5, 51.0])
    block.loc[4, "close"] = 500.0
    block["volume"] = -3.0
    out, log = cleaned(block, Policy(split_like="repair", unknown_volume="repair"))
    np.testing.assert_allclose(out["close"], [50.0, 50.5, np.nan, 50.0, np.nan, 50.0, 50.5, 51.0])
    # entries of a row stand in the order of the repairs
    both, volume = ["unknown_volume repair", "split_like repair"], ["unknown_volume repair"]
    assert changes(log) == [*both, *both, "spike mask", *both, "outside_bar mask", *volume * 3]
    pd.testing.assert_frame_equal(taken_back(out, log), block)


def test_of_duplicates_one_row_stays() -> None:
    good, other = (100.0, 102.0, 99.0, 101.0, 50.0), (100.0, 102.0, 99.0, 100.0, 50.0)
    day = "2020-01-07"
    rows = [("2020-01-06", "A", *good), (day, "A", *other), (day, "A", *good), (day, "A", 0.0, 0.0, 0.0, 0.0, 0.0)]
    block = table([*rows, ("2020-01-08", "A", *good)])
    out, log = cleaned(block)
    np.testing.assert_array_equal(values(out), [list(good), NOTHING, list(good)])
    assert changes(log) == ["conflicting_duplicate drop", "conflicting_duplicate mask", "duplicate drop"]
    out, log = cleaned(block, Policy(conflicting_duplicate="repair"))
    assert values(out) == [list(good)] * 3
    assert list(log["action"]) == ["drop", "drop"]
    out, _ = cleaned(block, Policy(conflicting_duplicate="drop"))
    assert values(out) == [list(good)] * 2
    # the last of those that are not dropped for another reason
    outside = table([*rows[:3], (day, "A", 100.0, 102.0, 99.0, 300.0, 50.0)])
    out, log = cleaned(outside, Policy(conflicting_duplicate="repair", outside_bar="drop"))
    assert values(out) == [list(good)] * 2
    assert list(log["defect"]) == ["conflicting_duplicate", "outside_bar"]


def test_a_row_that_is_dropped_for_one_reason_is_not_masked_for_another() -> None:
    block = series([100.0, 101.0, 102.0, 101.0])
    block.loc[2, "open"] = np.nan
    block.loc[2, "date"] = pd.Timestamp("2020-01-11")
    block = as_block(pd.concat([block, fillers(np.arange("2020-01-06", "2020-01-11", dtype="datetime64[D]"), 9)]))
    out, log = cleaned(block)
    assert changes(log) == ["weekend drop"]
    assert len(out) == len(block) - 1
    # of two reasons to mask, the first gives its name
    both = one_bad_row({"open": 0.0, "high": 90.0})
    assert list(cleaned(both)[1]["defect"]) == ["nonpositive_price"]


def test_cleaning_again_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    bad = series([100.0, 101.0, 9.0, 100.0, 30.0, 31.0, 14.0, 14.5, 14.0, 14.0, 15.0, 70.0, 71.0], "BAD")
    bad.loc[1, "close"] = 500.0
    stale = series([5.0] * 9, "STALE")
    stale[["open", "high", "low"]] = 5.0
    days = np.busday_offset(np.datetime64("2020-01-06"), np.arange(13))
    basis = series([100.0 + rng.normal() for _ in range(13)], "BASIS")
    basis["close"] *= 0.8
    split = series([100.0] * 6 + [50.0] * 7, "SPLIT")
    block = as_block(pd.concat([bad, bad.iloc[[5]], stale, basis, split, fillers(days, 12)]))
    first, log = cleaned(block)
    assert set(log["defect"]) >= {"outside_bar", "spike", "split_like", "jump", "stale_run", "close_basis", "duplicate"}
    again, more = cleaned(first)
    assert more.empty
    pd.testing.assert_frame_equal(again, first)


@cache
def good_tickers(count: int) -> pd.DataFrame:
    return fillers(np.busday_offset(np.datetime64("2020-01-06"), np.arange(count)), 9)


def dirty_block(rng: np.random.Generator) -> pd.DataFrame:
    """Three tickers with faults of all kinds, among nine without."""
    count = int(rng.integers(12, 40))
    parts = [good_tickers(count)]
    for ticker in "ABC":
        part = series(
            list(100 * np.cumprod(rng.choice([1.0, 1.01, 0.5, 0.1, 8.0], count, p=[0.5, 0.3, 0.1, 0.05, 0.05]))), ticker
        )
        for _ in range(int(rng.integers(0, 8))):
            row, name = rng.integers(count), rng.choice(VALUES)
            part.loc[row, name] = rng.choice([np.nan, 0.0, -1.0, np.inf, 1e5, float(part.loc[row, name]) * 0.4])
        if rng.random() < 0.4:
            part["close"] *= 0.9
        if rng.random() < 0.5:
            quote = slice(int(rng.integers(count)), count)
            part.loc[quote, list(PRICE_COLUMNS)] = 7.0
            part.loc[quote, "volume"] = float(rng.integers(2))
        # some days are given twice, with other prices, and some lie on a weekend
        part.loc[rng.random(count) < 0.05, "date"] += pd.Timedelta(days=int(rng.integers(1, 4)))
        parts += [part, part.sample(frac=0.1, random_state=int(rng.integers(100)))]
    return as_block(pd.concat(parts))


TAKEN = {name: st.sampled_from([action for action in ACTIONS[name] if action != "fail"]) for name in DEFECTS}


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.fixed_dictionaries(TAKEN))
def test_the_log_takes_the_block_to_the_output_and_back(seed: int, actions: dict[str, str]) -> None:
    policy = Policy(**actions)  # type: ignore[arg-type]
    block = dirty_block(np.random.default_rng(seed))
    limits = Limits()
    found = find(block, calendar_of(block), limits)
    out, log = clean(block, found, policy, limits)
    assert tuple(log.columns) == LOG_COLUMNS
    assert out.equals(out.sort_values(["ticker", "date"], kind="stable", ignore_index=True))
    assert not out.duplicated(["date", "ticker"]).any()
    back = taken_back(out, log)
    pd.testing.assert_frame_equal(*(frame.sort_values(list(COLUMNS), ignore_index=True) for frame in (back, block)))
    # one entry where a row is dropped or masked, and one a repair that changes it
    assert len(out) == len(block) - (log["action"] == "drop").sum()
    assert not log[log["action"] == "mask"].duplicated(["date", "ticker"]).any()
    assert not log[log["action"] == "repair"].duplicated(["date", "ticker", "defect"]).any()
    masked = set(log[log["action"] == "mask"][["date", "ticker"]].itertuples(index=False, name=None))
    repaired = set(log[log["action"] == "repair"][["date", "ticker"]].itertuples(index=False, name=None))
    assert not masked & repaired
    changed = log[log["action"] != "drop"]
    before, after = (changed[[f"{name}{end}" for name in VALUES]].to_numpy() for end in ("", "_after"))
    assert not ((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1).any()
    assert not np.isinf(out["volume"]).any()
    for entry in log.itertuples():
        emptied = entry.defect == "unknown_volume" and np.isinf(entry.volume) and np.isnan(entry.volume_after)
        assert entry.action in (actions[entry.defect], "drop") or (emptied and entry.action == "repair")
    # nothing is done to rows without a defect, but by a split that comes later
    touched = {(row.date, row.ticker) for row in log.itertuples() if row.defect != "split_like"}
    defective = np.any([found[name] for name in DEFECTS], axis=0)
    assert touched <= set(block[defective][["date", "ticker"]].itertuples(index=False, name=None))


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_default_policy_leaves_nothing_that_the_panel_refuses(seed: int) -> None:
    out, _ = cleaned(dirty_block(np.random.default_rng(seed)))
    prices = out[list(PRICE_COLUMNS)].to_numpy()
    usable = ~np.isnan(prices).any(axis=1)
    assert np.isnan(prices[~usable]).all()
    open_, high, low, close = prices[usable].T
    assert (low > 0).all()
    assert (high <= np.finfo(np.float32).max).all()
    assert (np.maximum(open_, close) <= high * 1.001).all()
    assert (np.minimum(open_, close) >= low * 0.999).all()
    panel = build_panel(out, validation_days=1, holdout_days=1)
    assert len(panel.tickers) >= 9
