"""The panel: known answers and causality."""

import logging
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data.cache import load_panel
from eigen2.market.data.panel import MarketPanel, build_panel
from eigen2.market.data.panel_rows import select_rows
from eigen2.market.data.source import LISTED_DAYS, PRICE_COLUMNS
from eigen2.market.data.splits import Splits
from eigen2.market.features.indicators import FEATURES, indicator_features, ticker_features
from eigen2.market.synthetic.generator import SyntheticMarket

SHARED_DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
DAYS, COLUMNS, TRAIN = 200, 4, 140


def market() -> pd.DataFrame:
    """Four columns: S0000 complete, S0001 with a hole, S0002 late and with a hole, S0003 gone at the end."""
    complete = SyntheticMarket(days=DAYS, columns=COLUMNS, seed=5).generate()
    days = complete["ticker"].str[1:].astype(int) * DAYS + complete.groupby("ticker").cumcount()
    gone = [DAYS + 20, *range(2 * DAYS, 2 * DAYS + 10), 2 * DAYS + 160, *range(4 * DAYS - 10, 4 * DAYS)]
    return complete[~days.isin(gone)].reset_index(drop=True)


PRICES = market()
SIZES = {"validation_days": 40, "holdout_days": 20}
FEW = {"validation_days": 5, "holdout_days": 5}


def wide(prices: pd.DataFrame) -> np.ndarray:
    """(days, columns, 4) float64 prices, by pandas' own pivot."""
    pivots = [prices.pivot(index="date", columns="ticker", values=name).to_numpy() for name in PRICE_COLUMNS]
    return np.stack(pivots, axis=2)


def raw_features(prices: pd.DataFrame) -> np.ndarray:
    values = wide(prices)
    return np.stack([ticker_features(values[:, column]) for column in range(values.shape[1])], axis=1)


def standardised(raw: np.ndarray) -> np.ndarray:
    """An indicator's features as they should be: by its own mean and deviation on the training days."""
    sample = raw[:TRAIN]
    return np.nan_to_num(np.clip((raw - np.nanmean(sample, axis=0)) / np.nanstd(sample, axis=0), -10, 10))


def expected_features(raw: np.ndarray) -> np.ndarray:
    """Tickers' features as they should be: in units of a ticker's volatility, by mean and deviation of all tickers."""
    moves = raw[:TRAIN, :, FEATURES.index("close")]
    enough = (~np.isnan(moves)).sum(0) >= 60
    within = [column - np.nanmean(column) for column in moves.T if not np.isnan(column).all()]
    volatility = np.full(len(enough), np.sqrt(np.nanmean(np.square(within))))
    volatility[enough] = np.nanstd(moves[:, enough], axis=0)
    units = np.where(np.array(FEATURES) == "rsi", 1, volatility[:, None])
    scaled = raw / units
    sample = scaled[:TRAIN]
    return np.nan_to_num(np.clip((scaled - np.nanmean(sample, (0, 1))) / np.nanstd(sample, (0, 1)), -10, 10))


def assert_near(features: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-4)


def listed_from(day: int) -> pd.DataFrame:
    """The market whose S0003 is listed on that day."""
    return PRICES[(PRICES["ticker"] != "S0003") | (PRICES["date"] >= PRICES["date"].unique()[day])]


def with_spread(series: pd.DataFrame) -> MarketPanel:
    return build_panel(pd.concat([PRICES, series]), **SIZES, indicators=["SPREAD"])


def assert_same(left: MarketPanel, right: MarketPanel, days: slice = slice(None)) -> None:
    """Bit for bit, NaN equal to NaN."""
    for name in ("dates", "features", "valid", "prices"):
        np.testing.assert_array_equal(getattr(left, name)[days], getattr(right, name)[days], err_msg=name)
    np.testing.assert_array_equal(left.traded_value, right.traded_value)
    assert (left.tickers, left.indicators) == (right.tickers, right.indicators)


@pytest.mark.parametrize(("validation", "holdout"), [(252, 252), (0, 0), (0, 5), (998, 1)])
def test_splits_cover_all_days_in_order(validation, holdout):
    splits = Splits.from_days(1000, validation, holdout)
    assert [*splits.train[0], *splits.validation[0], *splits.holdout] == list(range(1000))
    assert (len(splits.validation[0]), len(splits.holdout)) == (validation, holdout)
    assert splits.train_days.tolist() == list(splits.train[0])


@given(st.integers(1, 6), st.integers(0, 30), st.integers(0, 50), st.integers(0, 400))
def test_spans_of_validation_are_spread_evenly(spans, validation, holdout, more):
    splits = Splits.from_days((spans + 1) * (validation + 1) + holdout + more, validation, holdout, spans)
    pairs = zip(splits.train, splits.validation, strict=True)
    days = [day for pair in pairs for span in pair for day in span]
    assert [*days, *splits.holdout] == list(range(len(days) + holdout))
    assert [len(span) for span in splits.validation] == [validation] * spans
    first, *others = np.diff([0, *(span.stop for span in splits.validation)])
    assert not others or (max(others) - min(others) <= 1 and abs(first - 2 * others[0]) <= 2)


def test_statistics_leave_out_all_validation_days():
    panel = build_panel(PRICES, validation_days=20, holdout_days=20, validation_spans=3)
    assert panel.splits.validation == (range(70, 90), range(115, 135), range(160, 180))
    day = np.searchsorted(panel.dates, PRICES["date"].to_numpy().astype("datetime64[D]"))
    changed = PRICES.copy()
    changed.loc[~np.isin(day, panel.splits.train_days), "volume"] *= 100
    np.testing.assert_array_equal(
        build_panel(changed, validation_days=20, holdout_days=20, validation_spans=3).traded_value, panel.traded_value
    )
    rsi = FEATURES.index("rsi")
    raw = raw_features(PRICES)[panel.splits.train_days, :, rsi]
    np.testing.assert_allclose(panel.scale.means[:, rsi], np.nanmean(raw), rtol=1e-6)


@pytest.mark.parametrize(("days", "validation", "holdout"), [(504, 252, 252), (10, 252, 252), (0, 0, 0)])
def test_splits_that_do_not_fit(days, validation, holdout):
    with pytest.raises(UserError, match=rf"^validation_days.*{validation}.*holdout_days {holdout}.*$"):
        Splits.from_days(days, validation, holdout)


# building


def test_shapes_types_and_prices():
    panel = build_panel(PRICES, **SIZES)
    assert panel.features.shape == panel.valid.shape == (DAYS, COLUMNS, len(FEATURES))
    assert (panel.features.dtype, panel.valid.dtype, panel.prices.dtype) == (np.float32, np.bool_, np.float32)
    assert panel.dates.dtype == np.dtype("datetime64[D]")
    assert panel.dates.tolist() == sorted(set(PRICES["date"].dt.date))
    assert panel.tickers == ("S0000", "S0001", "S0002", "S0003")
    np.testing.assert_array_equal(panel.prices, wide(PRICES).astype(np.float32))
    assert (panel.num_days, panel.num_columns) == (DAYS, COLUMNS)
    assert panel.nbytes == DAYS * 8 + DAYS * COLUMNS * (9 * 4 + 9 + 4 * 4) + COLUMNS * 8 * (1 + 1 + 2 * 9)
    assert panel.splits == Splits((range(140),), (range(140, 180),), range(180, 200))


def test_features_are_standardised_by_training_days_alone():
    panel = build_panel(PRICES, **SIZES)
    raw = raw_features(PRICES)
    np.testing.assert_array_equal(panel.valid, ~np.isnan(raw))
    assert (~panel.valid).sum() > 100
    assert not np.signbit(panel.features[~panel.valid]).any()
    assert_near(panel.features, expected_features(raw))


@pytest.mark.parametrize("values", [59, 60])
def test_few_moves_on_training_days_take_the_volatility_of_all_tickers(values):
    prices = PRICES.copy()
    quiet = prices["ticker"] == "S0003"
    prices.loc[quiet, list(PRICE_COLUMNS)] = 100 * (prices.loc[quiet, list(PRICE_COLUMNS)] / 100) ** 0.1
    young = prices[~quiet | (prices["date"] >= np.unique(prices["date"])[TRAIN - values - 1])]
    panel, raw = build_panel(young, **SIZES), raw_features(young)
    assert (~np.isnan(raw[:TRAIN, 3, FEATURES.index("close")])).sum() == values
    assert_near(panel.features, expected_features(raw))
    deviation = panel.features[panel.valid[:, 3, 1], 3, FEATURES.index("close")].std()
    assert deviation == pytest.approx(1.0 if values == 60 else 0.1, rel=0.4)


def test_a_column_that_never_moves_stays_the_same_and_outliers_are_clipped():
    prices = PRICES.copy()
    prices.loc[prices["date"] == prices["date"].max(), list(PRICE_COLUMNS)] *= 1000
    prices.loc[prices["ticker"] == "S0001", list(PRICE_COLUMNS)] = 100.1
    panel = build_panel(prices, **SIZES)
    settled = panel.features[80:, 1]
    assert np.ptp(settled, axis=0).max() < 1e-3
    assert np.abs(np.delete(settled, FEATURES.index("rsi"), axis=1)).max() < 1
    assert (panel.features[-1, [0, 2], FEATURES.index("close")] == 10).all()
    assert np.abs(panel.features).max() == 10


def test_features_without_training_values_are_left_out(caplog):
    panel = build_panel(PRICES, validation_days=160, holdout_days=20)
    has_value = dict(zip(FEATURES, panel.valid.any(axis=(0, 1)).tolist(), strict=True))
    late = {"macd", "macd_signal", "trix"}
    assert has_value == {name: name not in late for name in FEATURES}
    assert "left out on all days: 'S0000', 'S0001', 'S0002', 'S0003'" in caplog.text


def test_building_needs_less_than_three_times_the_features():
    prices = SyntheticMarket(days=600, columns=250).generate()
    tracemalloc.start()
    try:
        panel = build_panel(prices, **SIZES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * panel.features.nbytes


def test_tickers_of_two_calendars_are_named(caplog):
    """Stocks beside one that trades at weekends: every weekend ends the stretch from which a MACD is known."""
    build_panel(PRICES, **SIZES)
    assert "slow features" not in caplog.text
    week = pd.date_range("2020-01-01", periods=280)
    closes = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, (280, 2)).cumsum(0))
    daily, weekdays = (pd.DataFrame({"date": week, "close": each}) for each in closes.T)
    weekdays = weekdays[weekdays["date"].dt.weekday < 5]
    table = pd.concat([daily.assign(ticker="BTC"), weekdays.assign(ticker="IBM")])
    for name in ("open", "high", "low"):
        table[name] = table["close"]
    build_panel(table.assign(volume=1e6), **SIZES)
    assert "features of 1 of 2 tickers, such as MACD, have no value on most of their days ('IBM')" in caplog.text


def test_rows_that_are_not_daily_are_said(caplog):
    days = PRICES["date"].unique()
    build_panel(PRICES, **SIZES)
    assert not caplog.messages
    build_panel(PRICES[~PRICES["date"].isin(days[100:115])], **SIZES)
    last, following = (str(days[day])[:10] for day in (99, 115))
    expected = f"no prices between {last} and {following}: these days count as neighbours; bring the rest"
    assert caplog.messages == [expected]
    caplog.clear()
    build_panel(PRICES.assign(date=days[0] + 7 * (PRICES["date"] - days[0])), **SIZES)
    assert caplog.messages == ["rows are 7 days apart: each counts as a trading day, of 252 a year; bring daily prices"]


def test_unusable_rows_are_days_without_trading(caplog):
    prices = PRICES.copy()
    prices.loc[100, ["open", "close"]], prices.loc[300, ["open", "close"]] = [0.0, -1.0], np.nan
    with caplog.at_level(logging.WARNING):
        panel = build_panel(prices, **SIZES)
    # in any order
    assert_same(panel, build_panel(prices.drop([100, 300]).sample(frac=1, random_state=0), **SIZES))
    assert [record.message for record in caplog.records] == [
        f"2 of {len(prices)} rows left out: no usable open or close"
    ]


def test_a_row_counts_for_what_it_has(caplog):
    """Without a close the day is a hole; without another price only its feature is missing."""
    prices = PRICES.copy()
    prices.loc[60, "low"], prices.loc[70, ["open", "high", "low"]], prices.loc[80, "high"] = 0.0, np.nan, 1e-3
    prices.loc[100, "close"] = np.nan
    with caplog.at_level(logging.WARNING):
        panel = build_panel(prices, **SIZES)
    assert caplog.messages[0] == (
        f"4 of {len(prices)} rows count for some of their prices: the others are missing, not above 0, or a high below "
        "a low"
    )
    whole = build_panel(PRICES, **SIZES)
    lost = {60: {"low"}, 70: {"open", "high", "low"}, 80: {"high", "low"}, 100: {"close"}}
    for day, names in lost.items():
        here = ~np.isnan(panel.prices[day, 0])
        assert here.tolist() == [name not in names for name in PRICE_COLUMNS]
        np.testing.assert_array_equal(panel.prices[day, 0, here], whole.prices[day, 0, here])
        assert panel.valid[day, 0].tolist() == [name not in names and day != 100 for name in FEATURES]
    np.testing.assert_array_equal(panel.valid[60:100, 0, 4:], True)
    assert not panel.valid[101, 0].any()
    assert panel.valid[102, 0].tolist() == [name in PRICE_COLUMNS for name in FEATURES]
    np.testing.assert_array_equal(panel.prices[:, 1:], whole.prices[:, 1:])


def test_days_and_tickers_without_a_usable_row_are_left_out(caplog):
    prices = PRICES.copy()
    dead = (prices["ticker"] == "S0002") | (prices["date"] == prices["date"].iloc[50])
    prices.loc[dead, ["open", "close"]] = 0.0
    panel = build_panel(prices, **SIZES)
    assert_same(panel, build_panel(prices[~dead], **SIZES))
    assert (panel.num_days, panel.tickers) == (DAYS - 1, ("S0000", "S0001", "S0003"))
    assert "1 of 200 days left out" in caplog.text
    assert "1 of 4 tickers left out" in caplog.text


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda prices: prices.assign(open=0.0, close=np.nan), "none of the"),
        (
            lambda prices: prices.assign(high=np.inf),
            "infinite values in column high, first inf of 'S0000' on 2000-01-03",
        ),
        (
            lambda prices: prices.assign(close=0.01 * (-1.0) ** np.arange(len(prices))),
            "the price table has negative closes in 389 of 778 rows, like a table of returns: give prices, or name",
        ),
        (lambda prices: pd.concat([prices, prices.iloc[[7]]]), "more than one row of 'S0000' on 2000-01-12"),
        (lambda prices: prices[prices["date"] < prices["date"].unique()[60]], "of the 60 days"),
    ],
)
def test_tables_that_make_no_panel(spoil, words):
    with pytest.raises(UserError, match=words) as error:
        build_panel(spoil(PRICES.copy()), **SIZES)
    assert "\n" not in str(error.value)


def test_indicators_may_be_negative_on_most_rows():
    spreads = [f"Z{number}" for number in range(8)]
    rows = [PRICES[PRICES["ticker"] == "S0000"].assign(ticker=name, close=-1.0) for name in spreads]
    panel = build_panel(pd.concat([PRICES, *rows]), indicators=spreads, **SIZES)
    assert {*spreads} < {*panel.tickers}


# columns that come, go and pause


def test_a_column_listed_after_training_takes_the_volatility_of_all_tickers():
    late = listed_from(TRAIN + 5)
    panel, raw = build_panel(late, **SIZES), raw_features(late)
    assert np.isnan(raw[: TRAIN + 6, 3]).all()
    assert_near(panel.features, expected_features(raw))
    assert panel.valid[TRAIN + 6, 3].tolist() == [name in PRICE_COLUMNS for name in FEATURES]
    assert panel.valid[TRAIN + 5 + 42, 3].tolist() == [name != "trix" for name in FEATURES]
    assert panel.valid[TRAIN + 5 + 43, 3].all()
    assert panel.traded_value[3] == 0
    # and leaves the others as they are without it
    rest = build_panel(PRICES[PRICES["ticker"] != "S0003"], **SIZES)
    np.testing.assert_array_equal(panel.features[:, :3], rest.features)


def test_a_column_that_delists_or_halts_has_neither_price_nor_feature():
    days = PRICES["date"].unique()
    gone = (PRICES["ticker"] == "S0000") & (PRICES["date"] >= days[100])
    halted = (PRICES["ticker"] == "S0001") & PRICES["date"].between(days[60], days[69])
    panel = build_panel(PRICES[~gone & ~halted], **SIZES)
    for column, absent in ((0, slice(100, DAYS)), (1, slice(60, 70))):
        assert np.isnan(panel.prices[absent, column]).all()
        assert not panel.valid[absent, column].any()
        assert not panel.features[absent, column].any()
    assert panel.valid[99, 0].all()
    # back from the halt the column starts anew: its first day has a price and no feature yet
    assert not np.isnan(panel.prices[70, 1]).any()
    assert not panel.valid[70, 1].any()
    assert panel.valid[71, 1].tolist() == [name in PRICE_COLUMNS for name in FEATURES]


def test_days_without_trading_or_volume_count_as_nothing_in_the_traded_value():
    table = pd.concat(
        pd.DataFrame(
            {"date": pd.bdate_range("2020-01-01", periods=5), "ticker": name, "close": close, "volume": volume}
        )
        for name, close, volume in (
            ("A", [1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 10.0, 10.0, 1e9, 1e9]),
            ("B", [7.0] * 5, [np.nan, 1.0, -5.0, 1.0, 1.0]),
            ("C", [np.nan, 1.0, np.nan, 1.0, 1.0], [1.0] * 5),
            ("D", [1e30] * 5, [np.inf, 1e300, 2.0, 1.0, 1.0]),
            ("E", [7.0] * 5, [0.0, 3.0, 5.0, 1.0, 1.0]),
        )
    )
    for name in ("open", "high", "low"):
        table[name] = table["close"]
    panel = build_panel(table, validation_days=1, holdout_days=1)
    # three training days: 10, 20, 30; 0, 7, 0; 0, 1, 0; what is no number, 2e30; 0, 21, 35
    assert panel.traded_value.tolist() == [20, 0, 0, 0, 21]


# stray days


def daily(tickers: int, days: int = 40) -> pd.DataFrame:
    """Every ticker on every business day."""
    return SyntheticMarket(days=days, columns=tickers, seed=2).generate()


def with_rows(prices: pd.DataFrame, date: str, tickers: list[str]) -> pd.DataFrame:
    rows = prices[prices["ticker"].isin(tickers)].groupby("ticker").head(1)
    return pd.concat([prices, rows.assign(date=np.datetime64(date, "s"))])


def test_stray_days_are_left_out(caplog):
    prices = daily(21)
    # a Saturday of one ticker and a Sunday of two
    strange = with_rows(with_rows(prices, "2000-01-16", ["S0001", "S0020"]), "2000-01-15", ["S0007"])
    with caplog.at_level(logging.WARNING):
        panel = build_panel(strange, **FEW)
    assert_same(panel, build_panel(prices, **FEW))
    assert caplog.messages[0] == (
        "2 stray days left out with 3 rows, first 2000-01-15: fewer than 10 % of at least 10 listed tickers traded"
    )


def test_a_last_day_of_few_tickers_is_stray_before_and_after_the_next_day_comes():
    prices = daily(30)
    *_, before, last, following = np.sort(prices["date"].unique())
    late = prices[(prices["date"] != last) | prices["ticker"].isin(["S0001", "S0002"])]
    for table in (late[late["date"] <= last], late):
        dates = select_rows(table, ()).dates
        assert before in dates
        assert last not in dates
    assert following in dates


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(5, 40))
def test_stray_days_by_counting(seed, tickers):
    """A day is judged by the tickers that had a row in the 20 days up to it, whatever days come later."""
    rng = np.random.default_rng(seed)
    there = rng.random((60, tickers)) < rng.choice([0.0, 0.05, 0.1, 0.2, 0.9], (60, 1))
    there[20:50, rng.random(tickers) < 0.6] = False  # a halt that is longer than that
    there[rng.integers(60), rng.integers(tickers)] = True
    # rows that are not usable count neither for a day nor for the life of a ticker
    rows = there | (rng.random(there.shape) < 0.1)
    rows[:, 0] = True
    day, ticker = np.nonzero(rows)
    order = rng.permutation(len(day))
    day, ticker = day[order], ticker[order]
    dates = np.datetime64("2020-01-01", "s") + np.arange(60) * np.timedelta64(1, "D")
    names = pd.Series([f"T{i:02d}" for i in ticker], dtype="str")
    table = pd.DataFrame({"date": dates[day], "ticker": names, **dict.fromkeys(PRICE_COLUMNS, 1.0)})
    table.loc[~there[day, ticker], ["open", "close"]] = np.nan
    kept = []
    for today in range(60):
        listed = sum(1 for column in there.T if column[max(0, today - LISTED_DAYS) : today + 1].any())
        traded = sum(map(int, there[today]))
        if traded > 0 and not (listed >= 10 and traded / listed < 0.1):
            kept.append(dates[today].astype("datetime64[D]"))
        if there[: today + 1].any() and (today % 7 == 0 or today == 59):
            assert select_rows(table[table["date"] <= dates[today]], ()).dates.tolist() == [day.item() for day in kept]


# indicator series


def spread(days: int = DAYS, seed: int = 3) -> pd.DataFrame:
    """A series without open, high, low and volume that crosses zero."""
    dates = PRICES["date"].unique()[:days]
    value = np.cumsum(np.random.default_rng(seed).normal(0, 0.1, len(dates))) + 0.3
    empty = dict.fromkeys(("open", "high", "low", "volume"), np.nan)
    return pd.DataFrame({"date": dates, "ticker": "SPREAD", **empty, "close": value})[list(PRICES)]


def test_an_indicator_has_features_of_differences_and_no_price():
    series = spread()
    assert series["close"].min() < 0 < series["close"].max()
    panel = with_spread(series)
    assert (panel.tickers[-1], panel.indicators, panel.num_columns) == ("SPREAD", ("SPREAD",), 5)
    raw = indicator_features(np.repeat(series["close"].to_numpy()[:, None], 4, axis=1))
    np.testing.assert_array_equal(panel.valid[:, 4], ~np.isnan(raw))
    assert_near(panel.features[:, 4], standardised(raw))
    assert np.isnan(panel.prices[:, 4]).all()
    assert panel.traded_value[4] == 0


def test_tickers_do_not_notice_an_indicator():
    # not even the one that takes the statistics of all
    late = listed_from(TRAIN - 30)
    large = spread().assign(close=lambda rows: rows["close"] * 1e6)
    panel = build_panel(pd.concat([late, large]), **SIZES, indicators=["SPREAD"])
    alone = build_panel(late, **SIZES)
    for name in ("features", "valid", "prices"):
        np.testing.assert_array_equal(getattr(panel, name)[:, :4], getattr(alone, name))
    np.testing.assert_array_equal(panel.traded_value[:4], alone.traded_value)


def test_an_indicators_own_open_high_and_low_count_where_they_are_there():
    series = spread()
    rng = np.random.default_rng(0)
    whole = {name: series["close"] + rng.normal(0, 0.1, DAYS) for name in ("open", "high", "low")}
    series = series.assign(**whole)
    series.loc[50, ["open", "high", "low"]] = np.nan
    series.loc[60, "high"] = np.nan
    panel = with_spread(series)
    values = series[list(PRICE_COLUMNS)].to_numpy()
    values[50, :3], values[60, 1] = values[50, 3], values[60, 3]
    assert panel.valid[1:, 4, :4].all()
    assert_near(panel.features[:, 4], standardised(indicator_features(values)))


@pytest.mark.parametrize("unit", [1e-9, 1e12, -1.0])
def test_the_unit_of_an_indicator_does_not_matter(unit):
    ours, scaled = (
        with_spread(spread().assign(close=lambda rows, factor=factor: rows["close"] * factor)).features[:, 4]
        for factor in (1.0, unit)
    )
    # upside down, but for the RSI, which is 100 minus what it was: upside down too once it is standardised
    np.testing.assert_allclose(scaled, ours * np.sign(unit), atol=1e-3)
    assert np.abs(ours).max() > 2


def test_an_indicator_that_never_moves_stays_small():
    for level in (0.0, 1e9):
        panel = with_spread(spread().assign(close=level))
        assert panel.valid[50:, 4].all()
        assert np.abs(panel.features[:, 4]).max() < 1e-3


def test_an_indicator_makes_no_day_and_a_missing_close_is_a_hole(caplog):
    series = spread()
    series.loc[20, "close"] = np.nan
    extra = spread(days=2).assign(date=np.array(["2000-01-15", "2031-01-01"], "datetime64[s]"))
    table = pd.concat([PRICES, series, extra])
    with caplog.at_level(logging.WARNING):
        panel = build_panel(table, **SIZES, indicators=["SPREAD"])
    assert caplog.messages == [f"1 of {len(table)} rows left out: no usable open or close"]
    assert panel.dates.tolist() == build_panel(PRICES, **SIZES).dates.tolist()
    assert not panel.valid[20:22, 4].any()
    assert panel.valid[22, 4, :4].all()


def test_indicators_do_not_count_on_stray_days():
    """Nine tickers are too few to judge by, whatever the number of indicators."""
    names = [f"I{i}" for i in range(20)]
    for tickers, days in ((9, 41), (11, 40)):
        many = pd.concat([daily(tickers), *(spread(days=40).assign(ticker=name) for name in names)])
        strange = with_rows(many, "2000-01-15", ["S0001", *names])
        assert build_panel(strange, **FEW, indicators=names).num_days == days


def test_an_indicator_with_few_training_values_is_left_out():
    # listed 70 days before the end of training: 69 differences, 56 values of the RSI
    panel = with_spread(spread().iloc[TRAIN - 70 :])
    assert panel.valid[-1, 4].tolist() == [name in PRICE_COLUMNS for name in FEATURES]


@pytest.mark.parametrize(
    ("table", "indicators", "words"),
    [
        (PRICES, ["S0O01"], "data.indicators has 'S0O01', which the prices do not have: did you mean 'S0001'"),
        (PRICES, ["S0000", "S0001", "S0002", "S0003"], "none of the 0 rows of prices is usable"),
        (
            pd.concat([PRICES, spread(days=1).assign(date=np.datetime64("2040-01-01", "s"))]),
            ["SPREAD"],
            "'SPREAD', which has no close on any day of prices",
        ),
        (pd.concat([PRICES, spread(), spread(days=1)]), ["SPREAD"], "more than one row of 'SPREAD' on 2000-01-03"),
    ],
)
def test_indicators_that_make_no_panel(table, indicators, words):
    with pytest.raises(UserError, match=words) as error:
        build_panel(table, **SIZES, indicators=indicators)
    assert "\n" not in str(error.value)


# causality


@st.composite
def perturbations(draw: st.DrawFn) -> tuple[int, pd.DataFrame]:
    """A day, and the prices with some later rows changed, emptied or left out."""
    day = draw(st.one_of(st.integers(TRAIN, DAYS - 1), st.integers(1, TRAIN - 1)))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    prices = pd.concat([PRICES, spread()], ignore_index=True)
    later = (prices["date"] >= prices["date"].unique()[day]).to_numpy()
    first_column = (prices["ticker"] == "S0000").to_numpy()
    touched = later & (first_column | (rng.random(len(prices)) < draw(st.floats(0, 1))))
    prices.loc[touched, list(PRICE_COLUMNS)] *= rng.uniform(0.1, 10, (touched.sum(), 1))
    # the first column keeps its rows, so that no day goes
    others = touched & ~first_column
    prices.loc[others & (rng.random(len(prices)) < 0.2), "close"] = np.nan
    return day, prices[~(others & (rng.random(len(prices)) < 0.2))]


@settings(max_examples=10, deadline=None)
@given(perturbations())
def test_later_days_change_nothing_before_them_but_training_days_the_statistics(perturbation):
    day, prices = perturbation
    original, changed = with_spread(spread()), build_panel(prices, **SIZES, indicators=["SPREAD"])
    if day >= TRAIN:
        assert_same(original, changed, slice(0, day))
    # without enough training values an indicator's feature is left out on all days
    for name in ("valid", "prices"):
        np.testing.assert_array_equal(getattr(original, name)[:day, :4], getattr(changed, name)[:day, :4])
    assert original.splits == changed.splits
    assert not np.array_equal(original.prices, changed.prices, equal_nan=True)


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the real data is not here")
@pytest.mark.parametrize(
    ("name", "days", "columns", "traded"),
    [
        ("dow30", 3738, 30, 109_571),
        pytest.param("sp500_5yr", 1259, 505, 619_040, marks=pytest.mark.slow),
    ],
)
def test_real_files_load(tmp_path, name, days, columns, traded):
    panel = load_panel(SHARED_DATA / f"{name}.parquet", cache_dir=tmp_path)
    assert (panel.num_days, panel.num_columns) == (days, columns)
    has_price = ~np.isnan(panel.prices)
    # eleven rows lack a price, one has a high below its low
    assert has_price[..., 3].sum() == has_price.any(axis=2).sum() == traded
    assert traded - has_price.all(axis=2).sum() == (12 if name == "sp500_5yr" else 0)
    assert np.abs(panel.features).max() <= 10
    assert 0.5 < np.abs(panel.features[panel.valid]).mean() < 1
    assert panel.valid[..., FEATURES.index("rsi")].sum() > 0.9 * has_price[..., 0].sum()
    if name == "dow30":
        late = panel.tickers.index("DOW")
        first = int(panel.valid[:, late, 0].argmax())
        assert str(panel.dates[first])[:7] == "2019-03"
        assert np.isnan(panel.prices[: first - 1, late]).all()
        assert not np.isnan(panel.prices[first - 1 :, late]).any()
