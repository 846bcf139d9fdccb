"""What is done about each defect, and that the log tells all of it."""

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
from eigen2.market.data.cleaning.policy import ACTIONS, DEFECTS, Action, CleaningPolicy, Limits
from eigen2.market.data.panel import build_panel
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.data.cleaning.rows import as_block, business_days, calendar_of, fillers, series, table

NOTHING = [np.nan] * 5
KEEP = CleaningPolicy(**{name: "keep" if "keep" in ACTIONS[name] else "drop" for name in DEFECTS})


def cleaned(block: pd.DataFrame, policy: CleaningPolicy | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    return clean(block, find(block, calendar_of(block), Limits()), policy or CleaningPolicy(), Limits())


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
    repairable = {"conflicting_duplicate", "close_basis", "split_like"}
    assert {name for name in DEFECTS if "repair" not in refused[name]} == repairable
    assert {name for name in DEFECTS if "mask" in refused[name]} == {"duplicate", "missing_price", "reused_ticker"}
    policy = CleaningPolicy()
    object.__setattr__(policy, "infinite_price", "keep")  # as where types are not checked
    with pytest.raises(UserError, match=r"^policy.infinite_price is keep; it must be mask or drop or fail$"):
        policy.__post_init__()
    strict = CleaningPolicy(**dict.fromkeys(DEFECTS, "fail"))
    assert strict.lenient() == CleaningPolicy()
    assert replace(strict, jump="drop").lenient() == CleaningPolicy(jump="drop")


def test_clean_rows_stay_as_they_are() -> None:
    market = SyntheticMarket(days=200, columns=12, seed=1, missing=0.05).generate()
    for policy in (CleaningPolicy(), KEEP, CleaningPolicy(**dict.fromkeys(DEFECTS, "fail"))):
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
    ("defect", "change", "masked"),
    [
        ("missing_price", {"open": np.nan}, ""),
        ("infinite_price", {"high": np.inf}, "high"),
        ("nonpositive_price", {"low": 0.0}, "low"),
        ("nonpositive_price", {"open": -1.0, "low": 0.0}, "open low"),
        ("high_below_low", {"high": 90.0}, "high low"),
        # open 102.102 and close 12: one of the two is wrong as well
        ("high_below_low", {"high": 11.0, "close": 12.0}, "open high low close"),
        ("outside_bar", {"open": 200.0}, "open"),
        # the next open is 101.1
        ("outside_bar", {"close": 200.0}, "close"),
        ("outside_bar", {"open": 300.0, "close": 200.0}, "open close"),
        ("outside_bar", {"open": 120.0, "high": 121.0, "low": 119.0}, "open high low"),
        ("wick", {"high": 900.0}, "high"),
        ("wick", {"low": 1.0}, "low"),
        ("unknown_volume", {"volume": -5.0}, "volume"),
        ("zero_volume", {"volume": 0.0, "open": 102.0, "high": 102.0, "low": 102.0}, "open high low close volume"),
    ],
)
def test_the_actions_on_one_row(defect: str, change: dict[str, float], masked: str) -> None:
    block = one_bad_row(change)
    before = block.copy(deep=True)
    expected = {"mask": block.copy(), "drop": block.drop(2).reset_index(drop=True), "keep": block}
    expected["mask"].loc[2, masked.split()] = np.nan
    for action in ACTIONS[defect]:
        if action not in expected:
            continue
        out, log = cleaned(block, replace(KEEP, **{defect: action}))
        pd.testing.assert_frame_equal(out, expected[action])
        entries = list(log.itertuples(index=False, name=None))
        if action != "keep":
            assert entries[0][:4] == (pd.Timestamp("2020-01-08"), "A", defect, action)
            after = NOTHING if action == "drop" else values(expected["mask"])[2]
            np.testing.assert_array_equal(entries[0][4:], values(block)[2] + after)
        assert len(entries) == (action != "keep")
    with pytest.raises(UserError) as error:
        cleaned(block, replace(KEEP, **{defect: "fail"}))
    shown = ", ".join(f"{name} {block.loc[2, name]:g}" for name in VALUES)
    remedy = f"correct them, or set --policy.{defect} {getattr(CleaningPolicy(), defect)}"
    assert str(error.value) == f"1 rows are {defect}, first 'A' on 2020-01-08 ({shown}): {remedy}"
    pd.testing.assert_frame_equal(block, before)


def test_a_close_outside_its_bar_is_judged_by_the_next_price() -> None:
    """Or by the last close, where no price follows."""
    for change, column in (({"close": 200.0}, "close"), ({"close": 150.0}, "close")):
        out, _ = cleaned(one_bad_row(change).iloc[:3])
        assert out.loc[2].isna().to_dict() == {name: name == column for name in COLUMNS}
    fell = series([100.0, 101.0, 102.0, 90.0])
    fell.loc[2, "close"] = 91.0
    out, _ = cleaned(fell)
    assert out.loc[2].isna().to_dict() == {name: name in ("open", "high", "low") for name in COLUMNS}
    alone = series([100.0]).assign(close=50.0)
    assert cleaned(alone)[0][list(PRICE_COLUMNS)].isna().all(axis=None)


def test_closes_on_another_basis_are_taken_alone() -> None:
    block = series([100.0] * 8).assign(close=90.0)
    out, log = cleaned(block)
    pd.testing.assert_frame_equal(out, block.assign(**dict.fromkeys(PRICE_COLUMNS, 90.0)))
    assert changes(log) == ["close_basis repair"] * 8


def test_unknown_volumes_are_masked_and_infinite_ones_always() -> None:
    block = series([100.0, 101.0, 102.0, 101.0, 100.0, 101.0])
    block["volume"] = [-1.0, np.inf, 0.0, np.nan, -np.inf, 5.0]
    block.loc[4, "open"] = np.nan  # also where nothing is compared
    for action, expected in (("mask", [np.nan] * 5 + [5.0]), ("keep", [-1.0, np.nan, 0.0, np.nan, np.nan, 5.0])):
        out, log = cleaned(block, CleaningPolicy(unknown_volume=action))
        np.testing.assert_array_equal(out["volume"], expected)
        pd.testing.assert_frame_equal(out[[*PRICE_COLUMNS]], block[[*PRICE_COLUMNS]])
        # the one that was empty already is no change
        assert changes(log) == ["unknown_volume mask"] * (4 if action == "mask" else 2)


def test_a_split_is_taken_out_of_earlier_prices() -> None:
    """Two for one, then three for one: before the first by 6, between them by 3, after it as they are."""
    closes = [600.0, 606.0, 300.0, 303.0, 306.0, 101.0, 102.0, 103.0]
    other = series([60.0, 61.0], "B")
    block = as_block(pd.concat([series(closes), other]))
    out, log = cleaned(block)
    np.testing.assert_allclose(out["close"], [100.0, 101.0, 100.0, 101.0, 102.0, 101.0, 102.0, 103.0, 60.0, 61.0])
    np.testing.assert_allclose(out["high"], out["close"] * 1.01)
    np.testing.assert_allclose(out["volume"], [600.0, 600.0, 300.0, 300.0, 300.0, 100.0, 100.0, 100.0, 100.0, 100.0])
    assert changes(log) == ["split_like repair"] * 5
    pd.testing.assert_frame_equal(taken_back(out, log), block)
    assert cleaned(out)[1].empty


def test_prices_that_splits_would_take_beyond_float32_are_masked() -> None:
    found = find(block := series([1e30] * 6 + [2.0] * 6), calendar_of(block), Limits())
    found.rows["split_like"][6], found.factor[6] = True, 1e10
    out, _ = clean(block, found, CleaningPolicy(), Limits())
    assert out["close"].isna().sum() == 6 > out["close"].isna()[6:].sum() == 0


def test_each_company_of_a_ticker_has_its_own_levels_and_splits() -> None:
    days = business_days("2020-01-06", 400)
    first = series([50.0 + day % 3 for day in range(40)])
    first.loc[20, list(PRICE_COLUMNS)] *= 100
    second = series([80.0] * 15 + [40.0] * 15, first=str(days[340]))
    block = as_block(pd.concat([first, second]))
    calendar = calendar_of(as_block(pd.concat([block, fillers(days, 1)])))
    kept = CleaningPolicy(reused_ticker="keep")
    out, log = clean(block, find(block, calendar, Limits()), kept, Limits())
    assert changes(log) == ["spike mask"] + ["split_like repair"] * 15
    assert log["date"].min() == first["date"][20]
    assert out["close"].max() < 53


def test_a_split_is_taken_out_over_spikes_and_unusable_rows() -> None:
    block = series([100.0, 101.0, 900.0, 100.0, 101.0, 50.0, 50.5, 51.0])
    block.loc[4, "close"] = 500.0
    block["volume"] = -3.0
    out, log = cleaned(block, CleaningPolicy(unknown_volume="mask"))
    np.testing.assert_allclose(out["close"], [50.0, 50.5, np.nan, 50.0, np.nan, 50.0, 50.5, 51.0])
    np.testing.assert_allclose(out["open"], [50.05, 50.5505, np.nan, 50.05, 50.5505, 50.05, 50.5505, 51.051])
    # a row has an entry for each defect that changes it
    both, volume = ["unknown_volume mask", "split_like repair"], ["unknown_volume mask"]
    assert changes(log) == [*both, *both, "spike mask", *both, "outside_bar mask", *both, *volume * 3]
    pd.testing.assert_frame_equal(taken_back(out, log), block)


def test_a_spin_off_is_taken_out_by_its_own_factor() -> None:
    closes = [100.0, 100.0, 38.0, 38.5, 38.2]
    out, log = cleaned(series(closes))
    np.testing.assert_allclose(out["close"], [38.038, 38.038, 38.0, 38.5, 38.2])
    np.testing.assert_allclose(out["volume"], [100 / 0.38038] * 2 + [100.0] * 3)
    assert changes(log) == ["split_like repair"] * 2


def test_of_duplicates_one_row_stays() -> None:
    good, other = (100.0, 102.0, 99.0, 101.0, 50.0), (100.0, 102.0, 99.0, 100.0, 50.0)
    day = "2020-01-07"
    rows = [("2020-01-06", "A", *good), (day, "A", *other), (day, "A", *good), (day, "A", 0.0, 0.0, 0.0, 0.0, 0.0)]
    after = (*good[:4], 51.0)
    block = table([*rows, ("2020-01-08", "A", *after)])
    out, log = cleaned(block)
    np.testing.assert_array_equal(values(out), [list(good), NOTHING, list(after)])
    assert changes(log) == ["conflicting_duplicate drop", "conflicting_duplicate mask", "duplicate drop"]
    out, log = cleaned(block, CleaningPolicy(conflicting_duplicate="repair"))
    assert values(out) == [list(good), list(good), list(after)]
    assert list(log["action"]) == ["drop", "drop"]
    out, _ = cleaned(block, CleaningPolicy(conflicting_duplicate="drop"))
    assert values(out) == [list(good), list(after)]
    # the last of those that are not dropped for another reason
    outside = table([*rows[:3], (day, "A", 100.0, 102.0, 99.0, 300.0, 50.0)])
    out, log = cleaned(outside, CleaningPolicy(conflicting_duplicate="repair", outside_bar="drop"))
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
    # of two reasons to mask, each masks its own
    both = one_bad_row({"open": 0.0, "high": 90.0})
    out, log = cleaned(both)
    assert changes(log) == ["nonpositive_price mask", "high_below_low mask"]
    np.testing.assert_array_equal(values(out)[2], [np.nan] * 3 + [102.0, both.loc[2, "volume"]])
    pd.testing.assert_frame_equal(taken_back(out, log), both)


def test_cleaning_again_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    bad = series([100.0, 101.0, 9.0, 100.0, 30.0, 31.0, 14.0, 14.5, 14.0, 14.0, 15.0, 70.0, 71.0], "BAD")
    bad.loc[1, "close"] = 500.0
    stale = series([5.0] * 9, "STALE")
    stale[["open", "high", "low"]] = 5.0
    stale["volume"] = 0.0
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
    policy = CleaningPolicy(**actions)
    block = dirty_block(np.random.default_rng(seed))
    limits = Limits()
    found = find(block, calendar_of(block), limits)
    out, log = clean(block, found, policy, limits)
    assert tuple(log.columns) == LOG_COLUMNS
    assert out.equals(out.sort_values(["ticker", "date"], kind="stable", ignore_index=True))
    assert not out.duplicated(["date", "ticker"]).any()
    back = taken_back(out, log)
    pd.testing.assert_frame_equal(*(frame.sort_values(list(COLUMNS), ignore_index=True) for frame in (back, block)))
    # one entry for each defect that changes a row
    assert len(out) == len(block) - (log["action"] == "drop").sum()
    assert not log[log["action"] != "drop"].duplicated(["date", "ticker", "defect"]).any()
    changed = log[log["action"] != "drop"]
    before, after = (changed[[f"{name}{end}" for name in VALUES]].to_numpy() for end in ("", "_after"))
    assert not ((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1).any()
    assert not np.isinf(out["volume"]).any()
    for entry in log.itertuples():
        emptied = entry.defect == "unknown_volume" and np.isinf(entry.volume) and np.isnan(entry.volume_after)
        assert entry.action in (actions[entry.defect], "drop") or (emptied and entry.action == "mask")
    # nothing is done to rows without a defect, but by a split that comes later
    touched = {(row.date, row.ticker) for row in log.itertuples() if row.defect != "split_like"}
    defective = np.any([found.rows[name] for name in DEFECTS], axis=0)
    assert touched <= set(block[defective][["date", "ticker"]].itertuples(index=False, name=None))


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_default_policy_leaves_nothing_that_the_panel_refuses(seed: int) -> None:
    out, _ = cleaned(dirty_block(np.random.default_rng(seed)))
    prices = out[list(PRICE_COLUMNS)].to_numpy()
    np.testing.assert_array_equal(prices, np.where(prices > 0, prices, np.nan))
    assert not (prices > np.finfo(np.float32).max).any()
    open_, high, low, close = prices.T
    assert not (high < low).any()
    assert not (np.fmax(open_, close) > high * 1.0011).any()
    assert not (np.fmin(open_, close) < low * 0.9989).any()
    panel = build_panel(out, validation_days=1, holdout_days=1)
    assert len(panel.tickers) >= 9
