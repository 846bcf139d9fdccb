"""The nine features against plain NumPy versions of the textbook formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigen2.market.features.indicators import FEATURES, TRIX_DAYS, indicator_features, ticker_features


def random_prices(days: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, days)))
    open_ = close * np.exp(rng.normal(0, 0.01, days))
    return np.stack([open_, np.maximum(open_, close) * 1.01, np.minimum(open_, close) / 1.01, close], axis=1)


def ema(values: np.ndarray, period: int, first: int) -> np.ndarray:
    """Exponential average that starts on day `first` as the mean of the `period` days up to it."""
    out = np.full(len(values), np.nan)
    out[first] = values[first - period + 1 : first + 1].mean()
    for day in range(first + 1, len(values)):
        out[day] = out[day - 1] + (values[day] - out[day - 1]) * 2 / (period + 1)
    return out


def triple_ema(close: np.ndarray) -> np.ndarray:
    for time in (1, 2, 3):
        close = ema(close, TRIX_DAYS, first=time * (TRIX_DAYS - 1))
    return close


def reference(prices: np.ndarray) -> dict[str, np.ndarray]:
    close, days = prices[:, 3], len(prices)
    out = {name: np.full(days, np.nan) for name in FEATURES}
    for name, position in (("open", 0), ("high", 1), ("low", 2), ("close", 3)):
        for day in range(1, days):
            out[name][day] = np.log(prices[day, position] / close[day - 1])
    change = np.append(0, np.diff(close))
    gain, loss = np.maximum(change, 0), np.maximum(-change, 0)
    mean_gain, mean_loss = gain[1:15].mean(), loss[1:15].mean()
    for day in range(14, days):
        if day > 14:
            mean_gain = (13 * mean_gain + gain[day]) / 14
            mean_loss = (13 * mean_loss + loss[day]) / 14
        out["rsi"][day] = 100 - 100 / (1 + mean_gain / mean_loss)
    # TA-Lib starts both averages on the day the slow one can start, and shows the line with its signal
    line = ema(close, 12, first=25) - ema(close, 26, first=25)
    signal = ema(line, 9, first=33)
    out["macd"][33:], out["macd_signal"][33:] = (100 * line / close)[33:], (100 * signal / close)[33:]
    triple = triple_ema(close)
    out["trix"][1:] = 100 * (triple[1:] / triple[:-1] - 1)
    for day in range(19, days):
        mean = close[day - 19 : day + 1].mean()
        out["ma20_distance"][day] = 100 * (close[day] / mean - 1)
    return out


def assert_equal(actual: np.ndarray, expected: dict[str, np.ndarray]) -> None:
    for i, name in enumerate(FEATURES):
        np.testing.assert_allclose(actual[:, i], expected[name], rtol=1e-9, atol=1e-9, err_msg=name)


def test_equals_the_textbook_formulas():
    prices = random_prices(150)
    assert_equal(ticker_features(prices), reference(prices))


# indicator series


def random_values(days: int, seed: int = 0) -> np.ndarray:
    """A spread that crosses zero."""
    rng = np.random.default_rng(seed)
    close = np.cumsum(rng.normal(0, 0.3, days))
    return close[:, None] + np.append(rng.normal(0, 0.1, (days, 3)), np.zeros((days, 1)), axis=1)


def indicator_reference(values: np.ndarray) -> dict[str, np.ndarray]:
    """The formulas of prices with differences in place of logarithms and percent."""
    close, days = values[:, 3], len(values)
    out = {name: np.full(days, np.nan) for name in FEATURES}
    for name, position in (("open", 0), ("high", 1), ("low", 2), ("close", 3)):
        out[name][1:] = values[1:, position] - close[:-1]
    out["rsi"] = reference(values + 1000)["rsi"]
    line = ema(close, 12, first=25) - ema(close, 26, first=25)
    out["macd"][33:], out["macd_signal"][33:] = line[33:], ema(line, 9, first=33)[33:]
    out["trix"][1:] = np.diff(triple_ema(close))
    for day in range(19, days):
        out["ma20_distance"][day] = close[day] - close[day - 19 : day + 1].mean()
    return out


def test_an_indicator_equals_the_formulas_in_differences():
    values = random_values(150)
    assert_equal(indicator_features(values), indicator_reference(values))


@pytest.mark.parametrize("of", [ticker_features, indicator_features])
def test_a_hole_restarts_every_feature(of):
    prices = random_prices(160)
    prices[60, 3] = np.nan
    features = of(prices)
    np.testing.assert_array_equal(features[:60], of(prices[:60]))
    assert np.isnan(features[60]).all()
    np.testing.assert_array_equal(features[61:], of(prices[61:]))
    np.testing.assert_array_equal(np.isnan(features), np.isnan(ticker_features(prices)))


@pytest.mark.parametrize("of", [ticker_features, indicator_features])
def test_a_missing_price_costs_its_own_feature_alone(of):
    prices = random_prices(160)
    partial = prices.copy()
    partial[60, :3] = partial[70, 1] = np.nan
    features, expected = of(partial), of(prices)
    for day, names in ((60, ("open", "high", "low")), (70, ("high",))):
        for name in names:
            expected[day, FEATURES.index(name)] = np.nan
    np.testing.assert_array_equal(features, expected)


@given(shift=st.floats(-1e3, 1e3), scale=st.floats(1e-3, 1e3))
def test_the_level_of_an_indicator_does_not_matter_and_its_unit_is_a_factor(shift, scale):
    values, rsi = random_values(80), FEATURES.index("rsi")
    expected = indicator_features(values)
    np.testing.assert_allclose(indicator_features(values + shift), expected, rtol=1e-6, atol=1e-8)
    scaled = indicator_features(values * scale)
    np.testing.assert_allclose(scaled[:, rsi], expected[:, rsi], rtol=1e-6)
    np.testing.assert_allclose(np.delete(scaled / scale, rsi, 1), np.delete(expected, rsi, 1), rtol=1e-6, atol=1e-8)


# prices


def test_first_defined_day_of_each_feature():
    defined = ~np.isnan(ticker_features(random_prices(100)))
    first = dict(zip(FEATURES, defined.argmax(axis=0).tolist(), strict=True))
    assert list(first.values()) == [1, 1, 1, 1, 14, 33, 33, 43, 19]
    assert all(defined[day:, i].all() for i, day in enumerate(first.values()))


def test_constant_and_missing_prices():
    assert np.isnan(ticker_features(np.full((50, 4), np.nan))).all()
    assert (~np.isnan(ticker_features(random_prices(2)))).sum() == 4
    np.testing.assert_allclose(ticker_features(np.full((60, 4), 7.0))[-1], 0, atol=1e-9)
    for level in (0.0, -3.3):
        np.testing.assert_allclose(indicator_features(np.full((60, 4), level))[-1], 0, atol=1e-9)


@given(
    of=st.sampled_from([ticker_features, indicator_features]),
    day=st.integers(1, 119),
    factor=st.floats(0.01, 100),
    hole=st.integers(0, 119),
)
def test_no_feature_looks_ahead(of, day, factor, hole):
    before = random_prices(120, seed=1)
    before[hole] = np.nan
    after = before.copy()
    after[day:] *= factor
    np.testing.assert_array_equal(of(before)[:day], of(after)[:day])
