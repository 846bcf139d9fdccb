"""Columns that a user brings: read when asked for, standardised on the training days, and known to a champion."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.errors import UserError
from eigen2.market.data.cache import load_panel
from eigen2.market.data.panel import FeatureScale, MarketPanel, build_panel
from eigen2.market.data.source import COLUMNS, read_prices
from eigen2.market.features.indicators import FEATURES
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.data.test_files import write

DAYS, TRAIN = 160, 100
SIZES = {"validation_days": 40, "holdout_days": 20}
OWN = ["sentiment", "Book Value"]
RNG = np.random.default_rng(0)
PRICES = SyntheticMarket(days=DAYS, columns=3, seed=1).generate()
PRICES = PRICES.assign(sentiment=RNG.normal(3, 2, len(PRICES)), **{"Book Value": RNG.lognormal(20, 1, len(PRICES))})
# S0000 has 10 values in training, S0001 one gap, S0002 all
PRICES.loc[(PRICES["ticker"] == "S0000") & (PRICES.groupby("ticker").cumcount() < 90), "sentiment"] = np.nan
PRICES.loc[(PRICES["ticker"] == "S0001") & (PRICES.groupby("ticker").cumcount() == 7), "sentiment"] = np.nan


def own(panel: MarketPanel) -> np.ndarray:
    return panel.features[..., len(FEATURES) :]


def by_day(name: str) -> np.ndarray:
    return PRICES.pivot(index="date", columns="ticker", values=name).to_numpy()


def test_own_features_are_standardised_over_all_tickers_on_the_training_days() -> None:
    panel = build_panel(PRICES, **SIZES, features=OWN)
    assert panel.features.shape == panel.valid.shape == (DAYS, 3, 11)
    assert (panel.num_features, panel.channels) == (11, 12)
    for position, name in enumerate(OWN):
        raw = by_day(name)
        train = raw[:TRAIN]
        expected = np.nan_to_num(np.clip((raw - np.nanmean(train)) / np.nanstd(train), -10, 10))
        np.testing.assert_allclose(own(panel)[..., position], expected, atol=1e-4)
        np.testing.assert_array_equal(panel.valid[..., len(FEATURES) + position], ~np.isnan(raw))
    plain = build_panel(PRICES, **SIZES)
    np.testing.assert_array_equal(panel.features[..., : len(FEATURES)], plain.features)
    assert plain.num_features == len(FEATURES)


def test_own_features_of_later_days_change_none_before() -> None:
    later = PRICES.assign(sentiment=PRICES["sentiment"].where(PRICES["date"] < PRICES["date"].unique()[120], 99.0))
    before, after = (own(build_panel(prices, **SIZES, features=OWN)) for prices in (PRICES, later))
    np.testing.assert_array_equal(before[:120], after[:120])
    assert not np.array_equal(before, after)


def test_own_features_may_be_of_any_unit() -> None:
    """Illiquidity by Amihud is about 1e-10."""
    small = PRICES.assign(sentiment=1e-10 * PRICES["sentiment"])
    panels = [build_panel(prices, **SIZES, features=["sentiment"]) for prices in (PRICES, small)]
    np.testing.assert_allclose(own(panels[1]), own(panels[0]), atol=1e-4)


@pytest.mark.parametrize("size", [0.0, 0.1, 1e6 + 0.1, 1e12])
def test_a_constant_says_nothing(size: float) -> None:
    panel = build_panel(PRICES.assign(sentiment=size), **SIZES, features=["sentiment"])
    assert np.abs(own(panel)).max() < 0.1


def test_a_day_without_a_price_has_no_own_feature() -> None:
    unpriced = PRICES.copy()
    unpriced.loc[5, ["open", "close"]] = np.nan
    assert not build_panel(unpriced, **SIZES, features=OWN).valid[5, 0].any()


def test_a_scale_brings_its_features() -> None:
    panel = build_panel(PRICES, **SIZES, features=OWN)
    scale = FeatureScale.from_dict(panel.scale.to_dict())
    assert scale == panel.scale
    again = build_panel(PRICES, **SIZES, scale=scale)
    np.testing.assert_array_equal(again.features, panel.features)
    with pytest.raises(UserError, match="the prices lack the feature 'sentiment': add that column"):
        build_panel(PRICES.drop(columns="sentiment"), **SIZES, scale=scale)


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_columns_are_read_only_when_they_are_asked_for(name: str, tmp_path: Path) -> None:
    path = write(PRICES.rename(columns={"sentiment": " SENTIMENT"}).assign(note="text"), tmp_path / name)
    assert [*read_prices(path)] == [*COLUMNS]
    read = read_prices(path, OWN)
    assert [*read] == [*COLUMNS, *OWN]
    pd.testing.assert_frame_equal(read[OWN], PRICES[OWN])
    with pytest.raises(UserError, match=r"p\.\w+' lacks the columns mood; it has 'date, ticker"):
        read_prices(path, ["mood"])
    with pytest.raises(UserError, match="values in column 'note' that are no numbers"):
        read_prices(path, ["note"])


def test_the_cache_knows_the_features(tmp_path: Path) -> None:
    path = write(PRICES, tmp_path / "p.parquet")
    folders = tmp_path / "cache"
    first, second, again = (
        load_panel(path, **SIZES, features=features, cache_dir=folders) for features in ([], OWN, OWN)
    )
    assert first.folder != second.folder == again.folder
    assert again.scale.own_features == tuple(OWN)
    np.testing.assert_array_equal(again.features, build_panel(PRICES, **SIZES, features=OWN).features)
    in_memory = [build_panel(PRICES.assign(sentiment=x), **SIZES, features=["sentiment"]) for x in (RNG.random(480), 1)]
    assert len({panel.content_hash for panel in in_memory}) == 2
    series = PRICES[PRICES["ticker"] == PRICES["ticker"].iloc[0]].assign(ticker="VIX")
    others = [series, series.assign(close=series["close"] * RNG.uniform(1, 2, len(series)))]
    with_series = [build_panel(pd.concat([PRICES, each]), **SIZES, indicators=["VIX"]) for each in others]
    assert len({panel.content_hash for panel in with_series}) == 2, "indicators have no prices"


@pytest.mark.parametrize(
    ("prices", "features", "words"),
    [
        (PRICES, ["Close"], "data.features has 'Close', which every table of prices has: leave it out"),
        (PRICES, ["sentiment", "sentiment"], "data.features has 'sentiment' 2 times: name it once"),
        (PRICES, ["mood"], "the prices lack the feature 'mood'"),
        (PRICES.assign(sentiment=np.inf), ["sentiment"], "480 infinite values in column sentiment"),
        (PRICES.assign(sentiment=np.nan), ["sentiment"], "'sentiment', which has no value on the training days"),
    ],
)
def test_features_that_cannot_be_used(prices: pd.DataFrame, features: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_panel(prices, **SIZES, features=features)
