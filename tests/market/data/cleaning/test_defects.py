"""Each defect is found where it is, and nowhere else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eigen2.errors import UserError
from eigen2.market.data.cleaning.blocks import Calendar
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import DEFECTS, Limits
from eigen2.market.data.source import PRICE_COLUMNS, VALUES, read_prices
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.data.cleaning.rows import as_block, business_days, calendar_of, defects, fillers, flat, series, table

DATA = Path(__file__).resolve().parents[4].parent / "shared" / "data"
NONE: set[str] = set()
ROUND = [100.0, 101.0, 102.0, 101.0, 103.0, 104.0]


def with_rows(closes: list[float], changes: dict[int, dict[str, float]], ticker: str = "A") -> pd.DataFrame:
    """Ordinary bars, some values of some rows changed."""
    block = series(closes, ticker)
    for row, values in changes.items():
        for name, value in values.items():
            block.loc[row, name] = value
    return block


def only(rows: dict[int, set[str]], count: int) -> list[set[str]]:
    return [rows.get(row, NONE) for row in range(count)]


def test_clean_rows_have_no_defect() -> None:
    market = SyntheticMarket(days=300, columns=12, seed=3, volatility=0.03, missing=0.05).generate()
    found = find(market, calendar_of(market), Limits())
    assert tuple(found.rows) == DEFECTS
    assert all(mask.dtype == np.bool_ and mask.shape == (len(market),) for mask in found.rows.values())
    assert not any(mask.any() for mask in found.rows.values())
    assert not any(cells.any() for cells in found.cells.values())
    assert (found.factor == 1).all()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"low": np.nan}, {"missing_price"}),
        ({"close": np.nan}, {"missing_price"}),
        ({"high": np.inf}, {"infinite_price"}),
        ({"high": 1e39}, {"infinite_price"}),
        ({"low": -np.inf}, {"infinite_price", "nonpositive_price"}),
        ({"high": 1.7e308, "close": 1.6e308}, {"infinite_price"}),
        ({"low": 0.0}, {"nonpositive_price"}),
        ({"open": -0.01}, {"nonpositive_price"}),
        ({"low": 1e-39}, {"nonpositive_price"}),
        ({"high": 99.0, "low": 101.0}, {"high_below_low"}),
        ({"open": 0.0, "high": 4.0, "low": 4.1}, {"nonpositive_price", "high_below_low"}),
        # the bar is 100.98 to 103.02; 10 basis points of 103.02 are 0.103
        ({"close": 103.12}, NONE),
        ({"close": 103.13}, {"outside_bar"}),
        ({"open": 100.88}, NONE),
        ({"open": 100.87}, {"outside_bar"}),
        # the outer of open and close are 102.102 and 102, three times and a third of which are 306.3 and 34
        ({"high": 306.3}, NONE),
        ({"high": 306.4}, {"wick"}),
        ({"low": 34.1}, NONE),
        ({"low": 33.9}, {"wick"}),
        # a close outside the bar does not hide a wick
        ({"close": 950.0, "low": 30.0}, {"outside_bar", "wick"}),
        ({"volume": np.nan}, {"unknown_volume"}),
        ({"volume": -1.0}, {"unknown_volume"}),
        ({"volume": np.inf}, {"unknown_volume"}),
        ({"volume": 0.0}, {"unknown_volume"}),
        ({"volume": 0.0, "open": 102.0, "high": 102.0, "low": 102.0}, {"zero_volume"}),
        ({"open": 102.0, "high": 102.0, "low": 102.0}, NONE),
    ],
)
def test_defects_of_a_single_row(change: dict[str, float], expected: set[str]) -> None:
    assert defects(with_rows(ROUND, {2: change})) == only({2: expected}, 6)


def test_the_tolerance_is_a_limit() -> None:
    block = with_rows(ROUND, {2: {"close": 103.5}})
    assert defects(block, Limits(tolerance_bps=40)) == only({2: {"outside_bar"}}, 6)
    assert defects(block, Limits(tolerance_bps=50)) == only({}, 6)


def test_zero_volume_means_something_where_there_is_volume_on_other_days() -> None:
    index = table(flat("I", [5.0, 6.0, 7.0], volume=0.0) + flat("S", [5.0, 6.0], volume=0.0) + flat("S", [7.0]))
    assert defects(index)[:3] == only({}, 3)
    close_alone = table(flat("S", [7.0], 10.0) + flat("S", [7.0, 8.0], 0.0, "2020-01-07"))
    close_alone.loc[1:, ["open", "high", "low"]] = np.nan
    assert defects(close_alone) == only({1: {"missing_price", "zero_volume"}, 2: {"missing_price"}}, 3)
    stock = table(flat("S", [5.0, 6.0], volume=0.0) + flat("S", [7.0], 10.0, "2020-01-08"))
    stock.loc[2, "high"] = 7.1
    assert defects(stock) == only({0: {"zero_volume"}, 1: {"zero_volume"}}, 3)


def test_a_close_that_moved_without_volume_counts_in_a_table_of_closes() -> None:
    closes = table(flat("F", [5.0, 6.0], volume=0.0) + flat("F", [7.0, 7.0], 10.0, "2020-01-08"))
    closes.loc[3, "volume"] = 0.0
    assert defects(closes) == only({3: {"zero_volume"}}, 4)


def test_close_on_another_basis_than_the_rest() -> None:
    block = series([100.0] * 20)
    for outside, expected in ((5, {"outside_bar"}), (6, {"close_basis"})):  # a quarter of the rows is not enough
        changed = block.assign(close=100 * np.where(np.arange(20) < outside, 0.95, 0.995))
        assert defects(changed) == only({row: expected for row in range(20 if outside == 6 else 5)}, 20)
    # 4 of 5, but at least 5 rows must
    few = changed[2:7].reset_index(drop=True)
    assert defects(few) == only({row: {"outside_bar"} for row in range(4)}, 5)
    # a ticker's own
    adjusted = series([100.0] * 10, "B").assign(close=93.0)
    block = as_block(pd.concat([series(ROUND, "A"), adjusted, series(ROUND, "C")]))
    assert defects(block) == [NONE] * 6 + [{"close_basis"}] * 10 + [NONE] * 6


def test_closes_on_another_basis_are_compared_with_each_other() -> None:
    """Before the split 100, after it 50; the close alone is adjusted for it."""
    block = series([100.0] * 10 + [50.0] * 10)
    block["close"] = 50.0 + np.arange(20) / 10
    assert defects(block) == [{"close_basis"}] * 20


def reference_duplicates(block: pd.DataFrame, tolerance: float) -> list[set[str]]:
    """The same, group by group."""
    result: list[set[str]] = [set() for _ in range(len(block))]
    for _, group in block.groupby(["ticker", "date"]):
        if len(group) < 2:
            continue
        prices = {row: {name: group.loc[row, name] for name in PRICE_COLUMNS} for row in group.index}
        for row, usable in prices.items():
            crossed = usable["high"] < usable["low"]
            apart = min(usable["open"], usable["close"]) > 0 and abs(np.log(usable["open"] / usable["close"])) > np.log(
                1.2
            )
            bad = {*PRICE_COLUMNS} if crossed and apart else {"high", "low"} if crossed else set()
            prices[row] = {name: price for name, price in usable.items() if price > 0 and name not in bad}
        spread = {name: [usable[name] for usable in prices.values() if name in usable] for name in PRICE_COLUMNS}
        if any(each and max(each) - min(each) > max(each) * tolerance for each in spread.values()):
            for row, usable in prices.items():
                result[row].add("conflicting_duplicate" if usable else "duplicate")
            continue
        volume = group["volume"].fillna(-1)
        best = max(group.index, key=lambda row: (len(prices[row]), volume[row], row))
        for row in set(group.index) - {best}:
            result[row].add("duplicate")
    return result


@pytest.mark.parametrize("tolerance_bps", [0, 10])
def test_duplicates_as_group_by_group(tolerance_bps: float) -> None:
    rng = np.random.default_rng(11)
    price = rng.choice([0.0, 10.0, 10.001, 11.0, np.nan], (200, 4), p=[0.05, 0.63, 0.2, 0.1, 0.02])
    frame = pd.DataFrame(price, columns=list(PRICE_COLUMNS))
    frame["date"], frame["ticker"] = rng.choice(business_days("2020-01-06", 4), 200), rng.integers(0, 20, 200)
    block = as_block(frame.assign(volume=rng.choice([1.0, 2.0, np.nan], 200)))
    wanted = {"duplicate", "conflicting_duplicate"}
    expected = reference_duplicates(block, tolerance_bps / 10_000)
    assert [names & wanted for names in defects(block, Limits(tolerance_bps=tolerance_bps))] == expected
    # the draws reach every branch
    assert {*map(frozenset, expected)} == {frozenset(), *(frozenset({name}) for name in wanted)}


def among(days: np.ndarray, block: pd.DataFrame) -> Calendar:
    """The calendar of the block among 12 other tickers, which trade on the given days and the block's last one."""
    days = np.union1d(days, block["date"].iloc[-1:].to_numpy("datetime64[D]"))
    return calendar_of(as_block(pd.concat([block, fillers(days, 12)])))


def test_weekends_of_a_market_that_rests() -> None:
    week = np.arange(np.datetime64("2020-01-06"), np.datetime64("2020-03-06"))
    weekday = (week.astype(np.int64) + 3) % 7
    block = as_block(pd.DataFrame({"date": week, "ticker": "A", **dict.fromkeys(PRICE_COLUMNS, 10.0), "volume": 5.0}))
    block["close"] = block["high"] = 10 + np.arange(len(block)) / 1000
    rests = among(week[weekday < 5], block)
    stray = {"stray_day"}
    assert defects(block, calendar=rests) == [{"weekend"} | stray if day >= 5 else NONE for day in weekday]
    # every day, Sunday to Thursday, Monday to Saturday
    assert defects(block, calendar=among(week, block)) == only({}, len(week))
    arabian = defects(block, calendar=among(week[(weekday < 4) | (weekday == 6)], block))
    assert arabian == [{"weekend"} | stray if day == 5 else stray if day == 4 else NONE for day in weekday]
    six = defects(block, calendar=among(week[weekday < 6], block))
    assert six == [{"weekend"} | stray if day == 6 else NONE for day in weekday]
    # nothing but Saturdays is no market that trades on Saturdays
    saturdays = block[weekday == 5].reset_index(drop=True)
    assert defects(saturdays) == [{"weekend"}] * len(saturdays)


@pytest.mark.parametrize(
    ("present", "names"), [(20, NONE), (11, NONE), (10, {"weekend"}), (2, {"weekend"}), (1, {"weekend", "stray_day"})]
)
def test_a_session_at_a_weekend(present: int, names: set[str]) -> None:
    """More than half of the tickers of the Friday before trade on one Saturday, as on a day of the budget in India."""
    days = business_days("2020-01-06", 40)
    saturday = np.datetime64("2020-02-01")
    late = fillers(np.sort(np.append(days, saturday)), 20)
    market = late[(late["date"] != saturday) | (late["ticker"] < f"FILL{present:02d}")]
    block = as_block(market)
    on_it = (block["date"] == pd.Timestamp(saturday)).to_numpy()
    assert on_it.sum() == present
    found = defects(block)
    assert [found[row] for row in np.flatnonzero(on_it)] == [names] * present
    assert [found[row] for row in np.flatnonzero(~on_it)] == only({}, int((~on_it).sum()))
    # a stray Friday before is no day to compare with
    friday = pd.Timestamp(saturday) - pd.Timedelta(days=1)
    holiday = as_block(market[(market["date"] != friday.to_datetime64()) | (market["ticker"] == "FILL00")])
    assert [
        found for found, day in zip(defects(holiday), holiday["date"], strict=True) if day == pd.Timestamp(saturday)
    ] == [names] * present


def test_stray_days() -> None:
    holiday = np.datetime64("2020-01-20")

    def found(tickers: int, present: int) -> list[int]:
        """Rows of stray days in a market of so many tickers, of which few trade on a holiday."""
        market = as_block(fillers(business_days("2020-01-06", 30), tickers))
        market = market[(market["date"] != holiday) | (market["ticker"] < f"FILL{present:02d}")].reset_index(drop=True)
        return [row for row, names in enumerate(defects(market)) if names == {"stray_day"}]

    # 1 of 20 listed; 2 of 20 are a tenth; 1 of 9 says nothing
    assert (found(20, 1), found(20, 2), found(9, 1)) == ([10], [], [])
    # neither does the first day of the only one listed
    late = [series([5.0] * 3, "EARLY", "2019-06-03"), as_block(fillers(business_days("2020-01-06", 30), 20))]
    assert not any(defects(as_block(pd.concat(late))))


@pytest.mark.parametrize(
    ("closes", "expected", "limits"),
    [
        # half and double are no jump yet; a ratio of 2 is near, but the price does not stay there
        ([100, 51.5, 70, 138, 100, 51.5], {}, {}),
        ([46, 100, 103, 101], {1: "split_like"}, {}),
        ([46, 100, 103, 101], {}, {"jump": 0.6}),
        ([100, 130, 131, 100], {1: "jump", 3: "jump"}, {"jump": 0.2}),
        # no usual ratio: a spin-off lowers the price, shares are joined by any number
        ([100, 38, 38, 38], {1: "split_like"}, {}),
        ([38, 100, 100, 100], {1: "split_like"}, {}),
        # no split if the price drifts back towards the old level, or nothing comes after it
        ([100, 49.9, 60, 75], {1: "jump"}, {}),
        ([100, 101, 100, 49.9], {3: "jump"}, {}),
        # a ratio near the limit that is no jump is nothing at all
        ([100, 50.6, 75, 76], {}, {}),
        # shares are not joined two for three: 66.7 -> 100 is the market's, also where such a rise is a jump
        ([66.7, 100, 99, 100], {1: "jump"}, {"jump": 0.3}),
        # a lower limit knows more ratios
        ([100, 66.7, 66, 67], {}, {}),
        ([100, 66.7, 66, 67], {1: "split_like"}, {"jump": 0.3}),
        ([51.5, 100, 99, 101], {1: "jump"}, {"jump": 0.4, "split_tolerance": 0.02}),
        ([51.5, 100, 99, 101], {1: "split_like"}, {"jump": 0.4}),
        # the level survives a spike
        ([62, 61, 62, 19, 62.5, 19.1, 19.2, 61, 160, 162], {3: "spike", 5: "spike", 6: "spike", 8: "split_like"}, {}),
        # a single row is off by less: the prices of another day, as in a real file; two in a row may be the market's
        ([40, 40.14, 50.62, 40.43, 40.2], {2: "spike"}, {}),
        ([40, 40.14, 50.62, 40.43, 40.2], {}, {"one_day_spike": 1.3}),
        ([40, 40.14, 50.62, 50.7, 40.43, 40.2], {}, {}),
        # at most a third of the way may be left, in logarithms: 100 -> 30 -> 70 and 100 -> 30 -> 65
        ([100, 101, 30, 70, 71], {2: "spike"}, {"one_day_spike": 1000}),
        ([100, 101, 30, 65, 64], {2: "jump"}, {"one_day_spike": 1000}),
        # longer than the history before it
        ([19, 62, 61, 62, 19.1, 62], {1: "split_like", 4: "spike"}, {}),
        # back in time, too late, and not far enough
        ([100] * 8 + [30, 31, 30] + [101] * 3, {8: "spike", 9: "spike", 10: "spike"}, {"spike_days": 3}),
        ([100] * 8 + [30, 31, 30] + [101] * 3, {8: "jump", 11: "split_like"}, {"spike_days": 2}),
        ([100, 101, 30, 101], {2: "jump"}, {"spike": 4, "one_day_spike": 1000}),
    ],
)
def test_levels(closes: list[float], expected: dict[int, str], limits: dict[str, Any]) -> None:
    found = defects(series(closes), Limits(**limits))
    assert found == only({row: {name} for row, name in expected.items()}, len(closes))


def test_a_day_unlike_others_is_no_split() -> None:
    """It is a jump, of the market if it was traded."""
    day = {"open": 50.0, "high": 58.0, "low": 44.0}
    assert defects(with_rows([100, 46, 48, 49], {1: day})) == only({}, 4)
    untraded = with_rows([100, 46, 48, 49], {1: day | {"volume": 0.0}})
    assert defects(untraded) == only({1: {"jump", "unknown_volume"}}, 4)
    back = with_rows([100, 46, 80, 84], {1: day})
    assert defects(back) == only({1: {"jump"}}, 4)


@pytest.mark.parametrize(
    ("ratio", "volume", "expected"),
    [
        # with the volume of a crash there is no split and no spin-off: 0.5 x 790 is 3.95 times the usual money
        (0.5, 790.0, {"split_like"}),
        (0.5, 810.0, NONE),
        (0.38, 1040.0, {"split_like"}),
        (0.38, 1060.0, NONE),
        # a rise is real with 4 times the usual shares
        (2.0, 390.0, {"split_like"}),
        (2.0, 400.0, NONE),
        (2.6, 390.0, {"jump"}),
        (2.6, 400.0, NONE),
        # without volume a ratio is believed, and nothing else
        (0.5, np.nan, {"split_like", "unknown_volume"}),
        (0.38, np.nan, {"jump", "unknown_volume"}),
    ],
)
def test_volume_tells_a_crash_from_a_split(ratio: float, volume: float, expected: set[str]) -> None:
    # an outlier among the days before does not change their median, and what is older than 20 days has no weight
    before = {row: {"volume": 5000.0 + row} for row in (*range(9), 15)}
    block = with_rows([100.0] * 30 + [100 * ratio] * 4, before | {30: {"volume": volume}})
    assert defects(block) == only({30: expected}, 34)


def test_a_tick_of_a_penny_stock_is_nothing() -> None:
    for closes in ([0.03, 0.03, 0.01, 0.03, 0.03], [0.01, 0.01, 0.03, 0.03, 0.03], [0.02, 0.02, 0.01, 0.01, 0.01]):
        assert defects(table(flat("A", closes))) == only({}, 5)
    assert defects(table(flat("A", [0.05, 0.05, 0.01, 0.05, 0.05]))) == only({2: {"spike"}}, 5)


@pytest.mark.parametrize("unit", [1e-5, 1e-3, 1.0])
def test_prices_far_below_a_cent_have_smaller_ticks(unit: float) -> None:
    rng = np.random.default_rng(0)
    calm = unit * np.exp(np.cumsum(rng.normal(0, 0.01, 40)))
    spike, split = calm.copy(), calm.copy()
    spike[20] *= 100
    split[20:] *= 10
    assert defects(table(flat("A", spike.tolist()))) == only({20: {"spike"}}, 40)
    assert defects(table(flat("A", split.tolist()))) == only({20: {"split_like"}}, 40)


def test_rounding_is_no_tick() -> None:
    closes = np.where(np.arange(40) % 3 == 1, 0.03, 0.02) * (1 + 1e-15 * np.random.default_rng(0).normal(size=40))
    assert defects(table(flat("A", closes.tolist()))) == only({}, 40)


def test_a_spike_of_a_single_day_has_no_more_volume_than_usual() -> None:
    closes = [40, 40.14, 50.62, 40.43, 40.2]
    for volume, expected in ((399.0, {"spike"}), (401.0, NONE), (np.nan, {"unknown_volume"})):
        assert defects(with_rows(closes, {2: {"volume": volume}})) == only({2: expected}, 5)


def test_a_ticker_is_used_again() -> None:
    """After a year, or after a month at a price ten times higher."""
    days = business_days("2020-01-06", 400)

    def found(gap: int, price: float) -> list[set[str]]:
        first, later = series([5.0, 5.1]), series([price, price], first=str(days[1 + gap]))
        block = as_block(pd.concat([first, later]))
        return defects(block, calendar=calendar_of(as_block(pd.concat([block, fillers(days, 1)]))))

    assert found(251, 5.0) == only({0: {"reused_ticker"}, 1: {"reused_ticker"}}, 4)
    assert found(250, 52.0) == found(21, 52.0) == only({0: {"reused_ticker"}, 1: {"reused_ticker"}}, 4)
    assert found(250, 5.0) == found(23, 50.0) == found(250, 0.2) == only({}, 4)
    assert found(20, 58.0) == only({2: {"jump"}}, 4)


@pytest.mark.parametrize("first", [19, 20, 60])
@pytest.mark.parametrize(("last", "volume"), [(1, 100.0), (19, 100.0), (20, 100.0), (1, 0.0)])
def test_few_rows_after_a_long_gap_are_stray(first: int, last: int, volume: float) -> None:
    days = business_days("2020-01-06", 400)
    stray = series([5.0 + day % 2 for day in range(last)], first=str(days[340]), volume=volume)
    if not volume:
        stray[["open", "high", "low"]] = 5.0  # nothing was traded
    history = as_block(pd.concat([series([5.0 + day % 2 for day in range(first)]), stray]))
    later = range(first, first + last)

    def reused(days_of_market: int) -> list[int]:
        calendar = calendar_of(as_block(pd.concat([history, fillers(days[:days_of_market], 1)])))
        return [row for row, names in enumerate(defects(history, calendar=calendar)) if "reused_ticker" in names]

    stays = volume == 0 or (last < 20 <= first)
    assert reused(400) == ([] if not volume else [*later] if stays else [*range(first)])
    # where the market has not had as many days since, they may be a new company's
    assert reused(340 + 19) == ([] if not volume else [*range(first)])


def test_jumps_are_a_ticker_s_own_and_go_over_holes_and_unusable_rows() -> None:
    block = as_block(pd.concat([series([100.0, 101.0], "A"), series([10.0, 10.1], "B")]))
    assert defects(block) == only({}, 4)
    late = as_block(pd.concat([series([100.0, 101.0]), series([11.0, 11.1], first="2020-06-01")]))
    assert defects(late) == only({}, 4)
    late = as_block(pd.concat([series([100.0, 101.0]), series([11.0, 11.1], first="2020-02-06")]))
    assert defects(late) == only({2: {"split_like"}}, 4)
    broken = with_rows([100.0, 101.0, 100.0, 11.0, 11.0], {2: {"open": np.nan}})
    assert defects(broken) == only({2: {"missing_price"}, 3: {"split_like"}}, 5)
    # the price of an unusable row is no level, and neither is one of two that contradict each other
    twice = as_block(pd.concat([series([100.0, 101.0, 10.0, 101.0]), series([11.0], first="2020-01-08")]))
    assert defects(twice) == only({row: {"conflicting_duplicate"} for row in (2, 3)}, 5)
    wrong = with_rows([100.0, 101.0, 100.0, 101.0, 100.0], {2: {"close": 10.0}})
    assert defects(wrong) == only({2: {"outside_bar"}}, 5)


def test_an_open_counts_where_the_close_is_missing() -> None:
    nan, bar = np.nan, {"open": 350.0, "high": 355.0, "low": 345.0}
    assert defects(with_rows(ROUND, {2: bar | {"close": nan}})) == only({2: {"missing_price", "spike"}}, 6)
    assert defects(with_rows(ROUND, {2: bar | {"close": 0.0}})) == only({2: {"nonpositive_price", "spike"}}, 6)
    assert defects(with_rows(ROUND, {2: {"close": nan}})) == only({2: {"missing_price"}}, 6)
    # but not where closes are on another basis
    adjusted = series([100.0] * 10).assign(close=40.0)
    adjusted.loc[4, "close"] = nan
    expected = [{"close_basis"} | ({"missing_price"} if row == 4 else NONE) for row in range(10)]
    assert defects(adjusted) == expected


def test_after_an_empty_row_there_is_no_jump_and_no_split() -> None:
    """It may have been a jump, of which the rest stayed."""
    for ratio in (0.5, 0.38, 0.1, 3.0):
        block = with_rows([100.0, 101.0, 100.0, *[100 * ratio] * 3], {2: dict.fromkeys(VALUES, np.nan)})
        assert defects(block) == only({2: {"missing_price"}}, 6)


@pytest.mark.parametrize("off", [0.985, 1.0, 1.015])
def test_splits(off: float) -> None:
    """The open is the last close times the ratio, or nearly."""
    for ratio in (1 / 2, 1 / 3, 1 / 7, 1 / 20, 2.0, 5.0, 10.0):
        after = 100 * ratio * off / 1.001
        assert defects(series([99.0, 100.0, after, after * 1.1, after * 0.95])) == only({2: {"split_like"}}, 5)


@pytest.mark.parametrize("ratio", [2.6, 12, 40, 250])
@pytest.mark.parametrize("high", [1.01, 1.3])
def test_shares_are_joined_by_any_number_on_days_of_any_range(ratio: float, high: float) -> None:
    """Fewer of them are traded than before, unlike in a squeeze; and the price stays, unless bars were mixed up."""
    closes = [0.5, 0.51, 0.5, 0.5 * ratio, 0.52 * ratio, 0.51 * ratio]
    bar = {"open": 0.503 * ratio, "high": 0.5 * ratio * high, "low": 0.5 * ratio * 0.99}
    for volume, expected in ((100 / ratio, {"split_like"}), (120.0, NONE if high > 1.25 else {"jump"})):
        assert defects(with_rows(closes, {3: bar | {"volume": volume}})) == only({3: expected}, 6)
    back = with_rows([*closes[:4], 0.7, 0.6], {3: bar | {"volume": 100 / ratio}})
    assert "split_like" not in defects(back)[3]


def test_the_next_ticker_is_no_way_back() -> None:
    block = as_block(pd.concat([series([100.0, 101.0, 30.0]), series([100.0, 101.0], "B")]))
    assert defects(block) == only({2: {"jump"}}, 5)


Bar = tuple[float, float, float, float]


def name_excursions(all_bars: list[Bar], names: list[str], factor: float, longest: int) -> None:
    """Write "spike" at every bar of an excursion, among those that are not one yet."""
    places = [place for place, name in enumerate(names) if not name]
    bars = [all_bars[place] for place in places]
    first = 1
    while first < len(bars):
        level = bars[first - 1][3]
        for side in (1, -1):
            row, nearest = first, np.inf
            while row < len(bars) and row - first <= longest:
                _, high, low, close = bars[row]
                if not (low > level * factor if side > 0 else high * factor < level):
                    break
                nearest = min(nearest, abs(np.log(close / level)))
                row += 1
            length = row - first
            ended = row == len(bars) or length > longest
            if not ended and 0 < length <= first and abs(np.log(bars[row][0] / level)) <= nearest / 3:
                for place in places[first:row]:
                    names[place] = "spike"
                first = row
                break
        first += 1


def reference_levels(bars: list[Bar], limits: Limits) -> list[str]:
    """Spikes and jumps of one ticker, bar by bar, where all days have the same volume; splits count as jumps."""
    names = [""] * len(bars)
    name_excursions(bars, names, limits.spike, limits.spike_days)
    name_excursions(bars, names, limits.one_day_spike, 1)

    def far(bar: Bar, level: float) -> bool:
        return any(min(price / level, level / price) < 1 - limits.jump for price in (bar[0], bar[3]))

    sure = last = np.nan
    for row, bar in enumerate(bars):
        if names[row] == "spike":
            continue
        following = next((bars[i][0] for i in range(row + 1, len(bars)) if names[i] != "spike"), bar[3])
        away, near = (abs(np.log(following / level)) for level in (last, bar[3]))
        real = bar[1] / bar[2] > 1.25 and near < away
        if far(bar, last) and far(bar, sure) and not real:
            names[row] = "jump"
        else:
            sure = bar[3]
        last = bar[3]
    return names


def random_levels(rng: np.random.Generator) -> pd.DataFrame:
    """A ticker that moves by large steps, and now and then returns to where it was."""
    moves, odds = [0.98, 1.0, 1.03, 0.45, 2.3, 0.2, 5.0, 1.6, 0.6], [0.25, 0.25, 0.2, *[0.05] * 6]
    close = 1e9 * np.cumprod(rng.choice(moves, rng.integers(2, 30), p=odds))
    close[rng.random(len(close)) < 0.3] = 1e9
    close *= np.exp(rng.normal(0, 0.001, len(close)))
    open_ = close * rng.choice([1.0, 0.9, 1.3], len(close), p=[0.6, 0.3, 0.1])
    high = np.maximum(open_, close) * rng.choice([1.0, 1.2], len(close))
    low = np.minimum(open_, close) * 0.99
    # no rise is by fewer shares than usual
    bars = {"open": open_, "high": high, "low": low, "close": close, "volume": 9 + np.arange(len(close)) / 1e6}
    return pd.DataFrame({"date": business_days("2020-01-06", len(close)), **bars})


def test_levels_as_bar_by_bar() -> None:
    rng = np.random.default_rng(5)
    block = as_block(pd.concat([random_levels(rng).assign(ticker=f"T{i:03d}") for i in range(100)]))
    limits = Limits(spike_days=4, split_tolerance=0)
    calendar = calendar_of(block)
    found = find(block, replace(calendar, listed=calendar.rows), limits)  # no day is stray
    counts = {name: int(found.rows[name].sum()) for name in ("spike", "split_like", "jump")}
    assert min(counts.values()) > 10, counts
    jump = found.rows["jump"] | found.rows["split_like"]
    for ticker, rows in block.groupby("ticker").indices.items():
        bars = block.iloc[rows][list(PRICE_COLUMNS)].to_numpy().tolist()
        names = ["spike" if found.rows["spike"][row] else "jump" if jump[row] else "" for row in rows]
        assert names == reference_levels(bars, limits), ticker


def test_a_row_that_copies_the_one_before() -> None:
    block = series([100.0, 101.0, 102.0, 103.0, 104.0])
    block.loc[2:3, list(VALUES)] = block.loc[1, list(VALUES)].tolist()
    assert defects(block) == only({2: {"repeated_row"}, 3: {"repeated_row"}}, 5)
    # not one of another ticker, of one price, of another or unknown volume, or of a row before that is not usable
    other = block.assign(ticker=["A", "A", "B", "C", "C"])
    flat_bar = block.assign(**dict.fromkeys(PRICE_COLUMNS, block["close"]))
    for changed in (other, flat_bar, block.assign(volume=[1.0, 2.0, 3.0, 4.0, 5.0])):
        assert defects(changed) == only({}, 5)
    assert defects(block.assign(volume=np.nan)) == [{"unknown_volume"}] * 5
    assert defects(with_rows([100.0, 101.0, 100.0, 101.0], {2: {"close": np.nan}}).assign(volume=9.0)) == only(
        {2: {"missing_price"}}, 4
    )


def test_stale_runs() -> None:
    five = table(flat("A", [9.0, 10.0] + [10.0] * 5 + [11.0], volume=0.0))
    # the first of the run is the last price that was made
    assert defects(five) == only({row: {"stale_run"} for row in range(2, 7)}, 8)
    four = table(flat("A", [9.0, 10.0] + [10.0] * 4 + [11.0], volume=0.0))
    assert defects(four) == only({}, 7)
    assert defects(four, Limits(stale_days=4)) == only({row: {"stale_run"} for row in range(2, 6)}, 7)
    # a day on which it was traded
    traded = five.assign(volume=[0.0] * 4 + [1.0] + [0.0] * 3)
    assert not any("stale_run" in names for names in defects(traded))
    assert "stale_run" in defects(five.assign(volume=np.nan))[2]
    # the same close, but the price moved during one day
    moved = five.copy()
    moved.loc[4, "high"] = 10.1
    assert defects(moved) == only({4: {"unknown_volume"}}, 8)
    # two tickers, three rows each
    assert defects(table(flat("A", [10.0] * 4, 0.0) + flat("B", [10.0] * 4, 0.0))) == only({}, 8)
    # a run goes on over a row that is dropped, and not over one that is empty
    double = as_block(pd.concat([five, five.iloc[[3]]]))
    assert defects(double) == only({3: {"duplicate"}} | {row: {"stale_run"} for row in (2, 4, 5, 6, 7)}, 9)
    empty = five.copy()
    empty.loc[4, list(PRICE_COLUMNS)] = np.nan
    assert defects(empty) == only({4: {"missing_price"}}, 8)


def test_indicators_may_be_anything_but_empty_or_infinite() -> None:
    day = "2020-01-06", "2020-01-07", "2020-01-08", "2020-01-09", "2020-01-10", "2020-01-11"
    nan = np.nan
    spread = [
        (day[0], "SPREAD", nan, nan, nan, -1.0, nan),
        (day[1], "SPREAD", 0.0, 0.0, 0.0, 0.0, 0.0),
        (day[2], "SPREAD", 5.0, 1.0, 9.0, 70.0, -3.0),
        (day[3], "SPREAD", 1.0, 1.0, 1.0, nan, 1.0),
        (day[4], "SPREAD", 1.0, np.inf, 1.0, 1.0, 1.0),
        (day[4], "SPREAD", -1.0, -1.0, -1.0, -1.0, 1.0),
        (day[4], "SPREAD", -1.0, -1.0, -1.0, -1.0, 1.0),
        (day[5], "SPREAD", 1.0, 1.0, 1.0, 1.0, 1.0),
    ]
    block = as_block(pd.concat([table(spread), series([100.0, 101.0, 102.0, 100.0, 101.0], "STOCK")]))
    assert defects(block, indicators=["SPREAD"]) == [
        NONE,
        NONE,
        NONE,
        {"missing_price"},
        {"infinite_price", "conflicting_duplicate"},
        {"conflicting_duplicate"},
        {"conflicting_duplicate"},
        {"weekend"},
        *[NONE] * 5,
    ]
    # repeated rates are no stale quotes
    rate = table(flat("RATE", [2.0] * 9, volume=0.0))
    assert defects(rate, indicators=["RATE"]) == only({}, 9)
    assert {"stale_run"} in defects(rate)


def test_limits_have_ranges() -> None:
    for name in (
        "tolerance_bps",
        "jump",
        "split_tolerance",
        "spike",
        "one_day_spike",
        "wick",
        "spike_days",
        "stale_days",
    ):
        with pytest.raises(UserError, match=f"limits.{name} is -1; it must be"):
            Limits(**{name: -1})


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "dow30.parquet").exists(), reason="no shared data")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # fourteen years of the thirty Dow names, the crash of 2020 and the flash crash of 2010 among them
        ("dow30", {}),
        # three of its 29 names paid no dividend in those months
        ("finrl_trade", {"close_basis": 8710}),
        (
            "sp500_5yr",
            {
                "missing_price": 11,
                "high_below_low": 1,
                "outside_bar": 11,
                "spike": 4,
                "wick": 1,
                "split_like": 4,
                "repeated_row": 277,
            },
        ),
    ],
)
def test_real_files(name: str, expected: dict[str, int]) -> None:
    block = read_prices(DATA / f"{name}.parquet")
    found = find(block, calendar_of(block), Limits()).rows
    assert {name: mask.sum() for name, mask in found.items() if mask.any()} == expected
    assert name != "sp500_5yr" or set(block["ticker"][found["spike"]]) == {"FLR", "MPC", "MRO", "NWL"}
