"""The panel: known answers, causality, and a cache that is whole or not there."""

import json
import logging
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market import panel as panel_module
from eigen2.market.indicators import ticker_features
from eigen2.market.panel import FEATURES, MarketPanel, Splits, build_panel, load_panel
from eigen2.market.source import PRICE_COLUMNS, read_prices
from eigen2.market.synthetic import SyntheticMarket

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
DAYS, COLUMNS, TRAIN = 200, 4, 140


def market() -> pd.DataFrame:
    """Four columns: S0000 complete, S0001 with a hole, S0002 late and with a hole, S0003 gone at the end."""
    complete = SyntheticMarket(days=DAYS, columns=COLUMNS, seed=5).generate()
    days = complete["ticker"].str[1:].astype(int) * DAYS + complete.groupby("ticker").cumcount()
    gone = [DAYS + 20, *range(2 * DAYS, 2 * DAYS + 10), 2 * DAYS + 160, *range(4 * DAYS - 10, 4 * DAYS)]
    return complete[~days.isin(gone)].reset_index(drop=True)


PRICES = market()
SIZES = {"validation_days": 40, "holdout_days": 20}


def wide(prices: pd.DataFrame) -> np.ndarray:
    """(days, columns, 4) float64 prices, by pandas' own pivot."""
    pivots = [prices.pivot(index="date", columns="ticker", values=name).to_numpy() for name in PRICE_COLUMNS]
    return np.stack(pivots, axis=2)


def raw_features(prices: pd.DataFrame) -> np.ndarray:
    values = wide(prices)
    return np.stack([ticker_features(values[:, column]) for column in range(values.shape[1])], axis=1)


def assert_same(left: MarketPanel, right: MarketPanel, days: slice = slice(None)) -> None:
    """Bit for bit, NaN equal to NaN."""
    for name in ("dates", "features", "valid", "prices"):
        np.testing.assert_array_equal(getattr(left, name)[days], getattr(right, name)[days], err_msg=name)
    assert left.tickers == right.tickers


# splits


@pytest.mark.parametrize(("validation", "holdout"), [(252, 252), (0, 0), (0, 5), (998, 1)])
def test_splits_cover_all_days_in_order(validation, holdout):
    splits = Splits.from_days(1000, validation, holdout)
    assert [*splits.train, *splits.validation, *splits.holdout] == list(range(1000))
    assert (len(splits.validation), len(splits.holdout)) == (validation, holdout)


@pytest.mark.parametrize(
    ("days", "validation", "holdout"), [(504, 252, 252), (10, 252, 252), (10, -1, 2), (10, 2, -1), (0, 0, 0)]
)
def test_splits_that_do_not_fit(days, validation, holdout):
    with pytest.raises(UserError) as error:
        Splits.from_days(days, validation, holdout)
    message = str(error.value)
    assert "\n" not in message
    assert str(validation) in message
    assert str(holdout) in message


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
    assert panel.nbytes == DAYS * 8 + DAYS * COLUMNS * (9 * 4 + 9 + 4 * 4)
    assert panel.splits == Splits(range(140), range(140, 180), range(180, 200))


def test_description_says_what_is_there():
    panel = build_panel(PRICES, validation_days=40, holdout_days=0)
    assert panel.describe() == {
        "days": 200,
        "columns": 4,
        "features": "open, close, high, low, rsi, macd, macd_signal, trix, ma20_distance",
        "train": "2000-01-03 to 2000-08-11 (160 days)",
        "validation": "2000-08-14 to 2000-10-06 (40 days)",
        "holdout": "no days",
        "nbytes": panel.nbytes,
    }


def test_features_are_normalised_by_training_days_alone():
    panel = build_panel(PRICES, **SIZES)
    raw = raw_features(PRICES)
    np.testing.assert_array_equal(panel.valid, ~np.isnan(raw))
    train = raw[:TRAIN]
    expected = (raw - np.nanmean(train, axis=0)) / np.nanstd(train, axis=0)
    np.testing.assert_allclose(panel.features, np.nan_to_num(np.clip(expected, -10, 10)), rtol=1e-4, atol=1e-4)
    known = np.where(panel.valid, panel.features, np.nan)[:TRAIN].astype(float)
    np.testing.assert_allclose(np.nanmean(known, axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(np.nanstd(known, axis=0), 1, atol=1e-4)


def test_features_are_zero_where_not_valid():
    panel = build_panel(PRICES, **SIZES)
    assert (~panel.valid).sum() > 100
    assert not panel.features[~panel.valid].any()
    assert not np.signbit(panel.features[~panel.valid]).any()
    assert np.isfinite(panel.features).all()


def test_few_training_values_take_the_pooled_statistics():
    # 61 training days: 60 values of the price features, 47 of the RSI, 18 of the TRIX
    first = PRICES["date"].unique()[TRAIN - 61]
    young = PRICES[(PRICES["ticker"] != "S0003") | (PRICES["date"] >= first)]
    panel, raw = build_panel(young, **SIZES), raw_features(young)
    assert (~np.isnan(raw[:TRAIN, 3])).sum(axis=0).tolist() == [60, 60, 60, 60, 47, 28, 28, 18, 42]
    for feature, name in enumerate(FEATURES):
        sample = raw[:TRAIN, 3, feature] if name in PRICE_COLUMNS else raw[:TRAIN, :, feature]
        expected = (raw[:, 3, feature] - np.nanmean(sample)) / np.nanstd(sample)
        np.testing.assert_allclose(
            panel.features[:, 3, feature], np.nan_to_num(np.clip(expected, -10, 10)), rtol=1e-4, atol=1e-4
        )


def test_a_column_that_never_moves_stays_small():
    prices = PRICES.copy()
    prices.loc[prices["ticker"] == "S0001", list(PRICE_COLUMNS)] = 100.1
    panel = build_panel(prices, **SIZES)
    assert np.abs(panel.features[:TRAIN, 1]).max() < 1e-3


def test_outliers_are_clipped():
    prices = PRICES.copy()
    last = prices["date"] == prices["date"].max()
    prices.loc[last, list(PRICE_COLUMNS)] *= 1000
    panel = build_panel(prices, **SIZES)
    assert (panel.features[-1, :3, FEATURES.index("close")] == 10).all()
    assert np.abs(panel.features).max() == 10


def test_features_without_training_values_are_left_out(caplog):
    panel = build_panel(PRICES, validation_days=160, holdout_days=20)
    has_value = dict(zip(FEATURES, panel.valid.any(axis=(0, 1)).tolist(), strict=True))
    late = {"macd", "macd_signal", "trix"}
    assert has_value == {name: name not in late for name in FEATURES}
    assert "no training day has a value of macd, macd_signal, trix" in caplog.text


def test_building_needs_less_than_three_times_the_features():
    prices = SyntheticMarket(days=600, columns=600).generate()
    tracemalloc.start()
    try:
        panel = build_panel(prices)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * panel.features.nbytes


def test_row_order_does_not_matter():
    assert_same(build_panel(PRICES.sample(frac=1, random_state=0), **SIZES), build_panel(PRICES, **SIZES))


def test_unusable_rows_are_days_without_trading(caplog):
    prices = PRICES.copy()
    prices.loc[100, "low"], prices.loc[300, "close"], prices.loc[301, "high"] = 0.0, np.nan, 1e-3
    with caplog.at_level(logging.WARNING):
        panel = build_panel(prices, **SIZES)
    assert_same(panel, build_panel(prices.drop([100, 300, 301]), **SIZES))
    assert [record.message for record in caplog.records] == [
        f"3 of {len(prices)} rows left out: 1 price missing, 1 price not positive, 1 high below low"
    ]


def test_days_and_tickers_without_a_usable_row_are_left_out(caplog):
    prices = PRICES.copy()
    dead = (prices["ticker"] == "S0002") | (prices["date"] == prices["date"].iloc[50])
    prices.loc[dead, "open"] = 0.0
    panel = build_panel(prices, **SIZES)
    assert_same(panel, build_panel(prices[~dead], **SIZES))
    assert (panel.num_days, panel.tickers) == (DAYS - 1, ("S0000", "S0001", "S0003"))
    assert "1 of 200 days left out" in caplog.text
    assert "1 of 4 tickers left out" in caplog.text


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda prices: prices.assign(open=0.0), "none of the"),
        (
            lambda prices: prices.assign(high=np.inf),
            "infinite prices, first high = inf of 'S0000' on 2000-01-03",
        ),
        (lambda prices: pd.concat([prices, prices.iloc[[7]]]), "more than one row of 'S0000' on 2000-01-12"),
        (lambda prices: prices[prices["date"] < prices["date"].unique()[60]], "of the 60 days"),
    ],
)
def test_tables_that_make_no_panel(spoil, words):
    with pytest.raises(UserError, match=words) as error:
        build_panel(spoil(PRICES.copy()), **SIZES)
    assert "\n" not in str(error.value)


# causality


@st.composite
def perturbations(draw: st.DrawFn, first: int) -> tuple[int, pd.DataFrame]:
    """A day from `first` on, and the prices with some later rows changed, emptied or left out."""
    day = draw(st.integers(first, DAYS - 1))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    prices = PRICES.copy()
    later = (prices["date"] >= prices["date"].unique()[day]).to_numpy()
    first_column = (prices["ticker"] == "S0000").to_numpy()
    touched = later & (first_column | (rng.random(len(prices)) < draw(st.floats(0, 1))))
    prices.loc[touched, list(PRICE_COLUMNS)] *= rng.uniform(0.1, 10, (touched.sum(), 1))
    # the first column keeps its rows, so that no day goes
    others = touched & ~first_column
    prices.loc[others & (rng.random(len(prices)) < 0.2), "close"] = np.nan
    return day, prices[~(others & (rng.random(len(prices)) < 0.2))]


@settings(max_examples=25, deadline=None)
@given(perturbations(first=TRAIN))
def test_days_after_training_change_nothing_before_them(perturbation):
    day, prices = perturbation
    original, changed = build_panel(PRICES, **SIZES), build_panel(prices, **SIZES)
    assert_same(original, changed, slice(0, day))
    assert original.splits == changed.splits
    assert not np.array_equal(original.prices, changed.prices, equal_nan=True)


@settings(max_examples=20, deadline=None)
@given(perturbations(first=1))
def test_training_days_reach_earlier_rows_through_the_statistics_alone(perturbation):
    day, prices = perturbation
    original, changed = build_panel(PRICES, **SIZES), build_panel(prices, **SIZES)
    np.testing.assert_array_equal(original.valid[:day], changed.valid[:day])
    np.testing.assert_array_equal(original.prices[:day], changed.prices[:day])
    np.testing.assert_array_equal(raw_features(PRICES)[:day], raw_features(prices)[:day])


# cache


@pytest.fixture
def source(tmp_path: Path) -> Path:
    PRICES.to_parquet(tmp_path / "prices.parquet")
    return tmp_path / "prices.parquet"


@pytest.fixture
def load(source, tmp_path):
    return lambda **changes: load_panel(source, **{**SIZES, "cache_dir": tmp_path / "cache", **changes})


def forbid_building(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(panel_module, "_build", fail)


def caches(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


def test_cold_and_warm_loads_equal_building(load, monkeypatch):
    built, cold = build_panel(PRICES, **SIZES), load()
    forbid_building(monkeypatch)
    warm = load()
    for panel in (cold, warm):
        assert_same(panel, built)
        assert panel.splits == built.splits
        assert panel.dates.dtype == built.dates.dtype
        assert panel.describe() == built.describe()
        for name in ("features", "valid", "prices"):
            assert isinstance(getattr(panel, name), np.memmap)
            assert getattr(panel, name).dtype == getattr(built, name).dtype


def test_writing_to_a_mapped_panel_does_not_reach_the_cache(load, monkeypatch):
    built, first = build_panel(PRICES, **SIZES), load()
    first.features[:] = 7
    forbid_building(monkeypatch)
    assert_same(load(), built)


def test_meta_says_how_features_were_normalised(load, tmp_path):
    load()
    (cache,) = caches(tmp_path)
    meta = json.loads((cache / "meta.json").read_text())
    train = raw_features(PRICES)[:TRAIN]
    np.testing.assert_allclose(meta["means"], np.nanmean(train, axis=0), rtol=1e-9)
    np.testing.assert_allclose(meta["stds"], np.nanstd(train, axis=0), rtol=1e-9)
    assert meta["tickers"] == ["S0000", "S0001", "S0002", "S0003"]
    assert meta["dates"][0] == "2000-01-03"
    assert meta["splits"] == [[0, 140], [140, 180], [180, 200]]


def test_a_feature_without_statistics_survives_the_cache(load, monkeypatch):
    few = {"validation_days": 160, "holdout_days": 20}
    built = build_panel(PRICES, **few)
    load(**few)
    forbid_building(monkeypatch)
    assert_same(load(**few), built)


def test_the_key_is_the_content_and_the_settings(load, source, tmp_path, monkeypatch):
    load()
    source.rename(tmp_path / "renamed.parquet")
    load_panel(tmp_path / "renamed.parquet", **SIZES, cache_dir=str(tmp_path / "cache"))
    assert len(caches(tmp_path)) == 1
    (tmp_path / "renamed.parquet").rename(source)
    for number, change in enumerate(({"validation_days": 41}, {"holdout_days": 21}), start=2):
        load(**change)
        assert len(caches(tmp_path)) == number
    monkeypatch.setattr(panel_module, "FORMAT_VERSION", -1)
    load()
    assert len(caches(tmp_path)) == 4
    changed = PRICES.assign(close=PRICES["close"] * 1.5)
    changed.to_parquet(source)
    assert_same(load(), build_panel(changed, **SIZES))
    assert len(caches(tmp_path)) == 5


@pytest.mark.parametrize("file", ["features.npy", "valid.npy", "prices.npy", "meta.json", "sha256.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "empty"])
def test_a_damaged_cache_is_rebuilt(load, tmp_path, monkeypatch, file, damage):
    load()
    (cache,) = caches(tmp_path)
    content = (cache / file).read_bytes()
    middle = len(content) // 2
    if damage == "remove":
        (cache / file).unlink()
    else:
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        (cache / file).write_bytes({"cut": content[:-1], "flip": flipped, "empty": b""}[damage])
    assert_same(load(), build_panel(PRICES, **SIZES))
    assert caches(tmp_path) == [cache]
    assert sorted(path.name for path in cache.iterdir()) == [
        "features.npy",
        "meta.json",
        "prices.npy",
        "sha256.json",
        "valid.npy",
    ]
    forbid_building(monkeypatch)
    load()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("No space left on device")])
@pytest.mark.parametrize("call", ["np.save", "json.dumps", "_file_sha256", "Path.replace"])
def test_an_interrupted_build_leaves_nothing(load, tmp_path, monkeypatch, stop, call):
    load(holdout_days=21)
    before = caches(tmp_path)
    owner, _, name = call.rpartition(".")
    target = getattr(panel_module, owner) if owner else panel_module
    original, calls = getattr(target, name), []

    def interrupt(*args, **kwargs):
        calls.append(args)
        # the first call of these two makes the key
        if len(calls) == 1 and name in ("dumps", "_file_sha256"):
            return original(*args, **kwargs)
        if name == "save":
            args[0].write_bytes(b"half")
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(target, name, interrupt)
        with pytest.raises((KeyboardInterrupt, UserError)) as error:
            load()
    assert calls
    assert "\n" not in str(error.value)
    assert caches(tmp_path) == before
    assert_same(load(), build_panel(PRICES, **SIZES))


def test_a_concurrent_build_that_was_faster_is_kept(load, tmp_path, monkeypatch):
    original = panel_module._build

    def overtaken(*args):
        monkeypatch.setattr(panel_module, "_build", original)
        load()
        return original(*args)

    monkeypatch.setattr(panel_module, "_build", overtaken)
    assert_same(load(), build_panel(PRICES, **SIZES))
    assert len(caches(tmp_path)) == 1


def test_a_cache_folder_that_cannot_be_written(load, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the panel cache to") as error:
        load(cache_dir=tmp_path / "file")
    assert str(tmp_path / "file") in str(error.value)
    assert "\n" not in str(error.value)


def test_source_errors_come_through(tmp_path):
    for name, words in (("no.parquet", "no price file"), (".", "is a directory")):
        with pytest.raises(UserError, match=words):
            load_panel(tmp_path / name, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


# real data


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the real data is not here")
@pytest.mark.parametrize(
    ("name", "days", "columns", "traded", "sizes"),
    [
        ("dow30", 3738, 30, 109_571, {}),
        ("sp500_5yr", 1259, 505, 619_040 - 12, {}),
        ("finrl_trade", 335, 29, 9_715, {"validation_days": 60, "holdout_days": 60}),
    ],
)
def test_real_files_load(tmp_path, name, days, columns, traded, sizes):
    panel = load_panel(SHARED_DATA / f"{name}.parquet", cache_dir=tmp_path, **sizes)
    assert (panel.num_days, panel.num_columns) == (days, columns)
    has_price = ~np.isnan(panel.prices)
    assert has_price.all(axis=2).sum() == has_price.any(axis=2).sum() == traded
    assert np.abs(panel.features).max() <= 10
    assert 0.5 < np.abs(panel.features[panel.valid]).mean() < 1
    rsi = panel.valid[..., FEATURES.index("rsi")]
    assert rsi.sum() > 0.9 * has_price[..., 0].sum()


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the real data is not here")
def test_a_late_column_of_dow30(tmp_path):
    panel = build_panel(read_prices(SHARED_DATA / "dow30.parquet"))
    dow = panel.tickers.index("DOW")
    first = int(panel.valid[:, dow, 0].argmax())
    assert str(panel.dates[first])[:7] == "2019-03"
    assert np.isnan(panel.prices[: first - 1, dow]).all()
    assert not np.isnan(panel.prices[first - 1 :, dow]).any()
