"""Which columns agents may buy: known answers, names that look like numbers, and nothing of the future."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentError, ArgumentParser

from eigen2.errors import UserError
from eigen2.market.data.panel import MarketPanel, build_panel
from eigen2.market.data.source import PRICE_COLUMNS, read_prices
from eigen2.market.data.splits import Splits
from eigen2.market.data.universe import Universe, resolve
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.panels import plain_scale

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
NAMES = ("600000", "AAPL", "BRK.B", "NAN", "TRUE", "VIX", "ZM")
# what each column's close x volume is at the median; the indicator's is 0
VALUE = (3.0, 7.0, 2.0, 7.0, 0.5, 0.0, 7.0)
DAYS, TRAIN = 80, 50
PRICES = SyntheticMarket(days=DAYS, columns=6, seed=8).generate()
SIZES = {"validation_days": 20, "holdout_days": DAYS - TRAIN - 20}


def a_panel(names: tuple[str, ...] = NAMES, value: Any = VALUE, indicators: tuple[str, ...] = ("VIX",)) -> MarketPanel:
    shape = (10, len(names))
    return MarketPanel(
        dates=np.datetime64("2000-01-03") + np.arange(10),
        scale=plain_scale(names, indicators),
        features=np.zeros((*shape, 9), np.float32),
        valid=np.zeros((*shape, 9), np.bool_),
        prices=np.ones((*shape, 4), np.float32),
        traded_value=np.array(value, dtype=np.float64),
        splits=Splits.from_days(10, 2, 2),
    )


def chosen(universe: Universe, panel: MarketPanel | None = None) -> list[str]:
    panel = panel or a_panel()
    columns = resolve(universe, panel)
    assert columns == sorted(set(columns))
    return [panel.tickers[column] for column in columns]


def test_all_or_named_tickers_in_the_order_of_the_panel() -> None:
    assert chosen(Universe()) == ["600000", "AAPL", "BRK.B", "NAN", "TRUE", "ZM"]
    assert chosen(Universe(), a_panel(indicators=())) == list(NAMES)
    assert chosen(Universe(tickers=["TRUE", "AAPL", "600000", "AAPL"])) == ["600000", "AAPL", "TRUE"]
    for name in ("AAPL", "aapl"):
        assert chosen(Universe(tickers=[name]), a_panel(("AAPL", "aapl"), (1, 1), ())) == [name]
    assert Universe().describe() == "every ticker"
    assert Universe(tickers=["A"]).describe() == "named by data.investable.tickers"
    assert Universe(top=3).describe() == "top 3 by median traded value of the training days"


def test_top_by_traded_value_then_by_name(caplog: pytest.LogCaptureFixture) -> None:
    for top in range(1, 7):
        assert chosen(Universe(top=top)) == sorted(["AAPL", "NAN", "ZM", "600000", "BRK.B", "TRUE"][:top])
    # never an indicator, whatever its value
    assert chosen(Universe(top=1), a_panel(value=[1, 1, 1, 1, 1, 99, 1])) == ["600000"]
    assert not caplog.messages
    hardly = a_panel(value=[0, 0, 0, 5, 0, 0, 0])
    with caplog.at_level(logging.WARNING):
        assert chosen(Universe(top=3), hardly) == ["600000", "AAPL", "NAN"]
        assert chosen(Universe(top=1), hardly) == ["NAN"]
    assert len(caplog.messages) == 1
    assert "data.investable.top is 3, but only 1 tickers traded on half of the training days" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tickers": ["A"], "top": 1}, "has tickers and top"),
        ({"top": 0}, "top is 0"),
        ({"tickers": []}, "tickers is empty"),
        ({"top": 7}, "top is 7, but there are 6 tickers to choose from"),
        ({"tickers": ["AAPL", "APPL"]}, "tickers has 'APPL', which the prices do not have: did you mean 'AAPL'?"),
        (
            {"tickers": ["aapl", "brk-b"]},
            "'aapl', 'brk-b', which the prices do not have: did you mean 'AAPL', 'BRK.B'?",
        ),
        ({"tickers": ["Q"]}, "'Q', which the prices do not have: the 7 they have go from '600000' to 'ZM'"),
        ({"tickers": [f"Q{i}" for i in range(9)]}, "'Q0', 'Q1', 'Q2', 'Q3', 'Q4' and 4 more, which"),
        ({"tickers": ["AAPL", "VIX"]}, "has 'VIX', which data.indicators declares an indicator"),
        ({"tickers": ["A", 600000]}, "tickers has 600000, which is not text: write it in quotes"),
        ({"tickers": ["A", True]}, "tickers has True, which is not text: write it in quotes"),
    ],
)
def test_refused_choices(settings: dict[str, Any], words: str) -> None:
    def choose() -> None:
        universe = Universe()
        # not by the constructor, whose types are checked in tests
        vars(universe).update(settings)
        universe.__post_init__()
        resolve(universe, a_panel())

    with pytest.raises(UserError) as error:
        choose()
    assert words in str(error.value)
    assert str(error.value).startswith("data.investable")
    assert "\n" not in str(error.value)


def test_prices_without_volume_have_no_top() -> None:
    for volume in (np.nan, 0.0):
        with pytest.raises(UserError, match="none has any volume on half of the 50 training days: bring a file with"):
            resolve(Universe(top=2), build_panel(PRICES.assign(volume=volume), **SIZES))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_nothing_after_the_training_days_changes_the_top(seed: int, top: int) -> None:
    rng = np.random.default_rng(seed)
    changed = PRICES.copy()
    dates = np.sort(PRICES["date"].unique())
    later = ((changed["date"] >= dates[TRAIN]) & (rng.random(len(changed)) < 0.7)).to_numpy()
    factors = 10 ** rng.uniform(-4, 4, (later.sum(), 2))
    changed.loc[later, list(PRICE_COLUMNS)] *= factors[:, :1]
    changed.loc[later, "volume"] *= factors[:, 1]
    gone = later & (rng.random(len(changed)) < 0.2)
    changed.loc[gone, "volume"] = np.nan
    # the first column keeps its rows, so that no day goes
    changed.loc[gone & (changed["ticker"] != "S0000").to_numpy(), "close"] = np.nan
    ours, theirs = build_panel(PRICES, **SIZES), build_panel(changed, **SIZES)
    assert resolve(Universe(top=top), ours) == resolve(Universe(top=top), theirs)
    np.testing.assert_array_equal(ours.traded_value, theirs.traded_value)


def test_the_top_of_a_reference_implementation() -> None:
    prices = SyntheticMarket(days=DAYS, columns=30, missing=0.3, seed=1).generate()
    panel = build_panel(prices, **SIZES)
    train = np.sort(prices["date"].unique())[:TRAIN]
    value = {}
    for ticker, rows in prices.groupby("ticker"):
        traded = dict(zip(rows["date"], rows["close"] * rows["volume"], strict=True))
        value[ticker] = float(np.median([traded.get(pd.Timestamp(date), 0.0) for date in train]))
    for top in (1, 7, 29, 30):
        expected = sorted(sorted(value, key=lambda ticker: (-value[ticker], ticker))[:top])
        assert chosen(Universe(top=top), panel) == expected


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not here")
def test_the_top_of_real_prices() -> None:
    panel = build_panel(read_prices(DATA / "dow30.parquet"))
    assert chosen(Universe(top=1), panel) == ["AAPL"]
    # listed in 2019, too late to trade on half of the training days from 2009 to 2021
    assert set(panel.tickers) - set(chosen(Universe(top=29), panel)) == {"DOW"}


def parsed(*options: str) -> MarketDataModule:
    """What the command line makes of options, after a round through the YAML file that a run keeps."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(MarketDataModule, "data")
    config = parser.parse_args(list(options))
    again = parser.parse_string(parser.dump(config))
    assert again == config
    data = parser.instantiate(again).data
    assert isinstance(data, MarketDataModule)
    return data


def test_names_stay_text_on_the_command_line() -> None:
    assert parsed("--data.investable", "{top: 5}").investable == Universe(top=5)
    names = ["TRUE", "NAN", "600000", "000001", "NO", "NULL", "2020-01-01", "~"]
    quoted = "[" + ", ".join(f'"{name}"' for name in names) + "]"
    data = parsed("--data.investable.tickers", quoted, "--data.indicators", quoted)
    assert data.investable.tickers == data.indicators == names
    assert parsed("--data.investable.tickers", "[NAN, BRK.B]").investable.tickers == ["NAN", "BRK.B"]
    each = [f"--data.investable.tickers+={name}" for name in ("AAPL", "TRUE", "000001")]
    assert parsed(*each).investable.tickers == ["AAPL", "TRUE", "000001"]


@pytest.mark.parametrize(("key", "name"), [("investable.tickers", "TRUE"), ("indicators", "000001")])
def test_names_that_yaml_takes_for_something_else_are_refused_without_quotes(key: str, name: str) -> None:
    """Never guessed: 000001 would come back as 1."""
    with pytest.raises(ArgumentError, match=f'"data.{key}"') as error:
        parsed(f"--data.{key}", f"[AAPL, {name}]")
    assert "Expected a <class 'str'>" in str(error.value)


@pytest.mark.parametrize(
    ("universe", "benchmark", "expected"),
    [(Universe(), "B", ["A", "C"]), (Universe(top=2), "A", ["B", "C"]), (Universe(tickers=["C"]), "A", ["C"])],
)
def test_the_benchmark_is_never_investable(universe: Universe, benchmark: str, expected: list[str]) -> None:
    panel = benchmarked()
    assert [panel.tickers[column] for column in resolve(universe, panel, benchmark)] == expected


@pytest.mark.parametrize(
    ("universe", "benchmark", "words"),
    [
        (Universe(), "SPX", "data.benchmark has 'SPX', which the prices do not have"),
        (Universe(), "V", "data.benchmark is 'V', an indicator without prices"),
        (Universe(tickers=["A", "B"]), "A", r"data.benchmark is 'A', which data.investable.tickers has too"),
    ],
)
def test_benchmarks_that_cannot_be_used(universe: Universe, benchmark: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        resolve(universe, benchmarked(), benchmark)


def benchmarked() -> MarketPanel:
    """Tickers A, B, C of falling volume and an indicator V."""
    market = SyntheticMarket(days=60, columns=4).generate()
    names = dict(zip(sorted(market["ticker"].unique()), "ABCV", strict=True))
    prices = market.assign(ticker=market["ticker"].map(names).astype("str"))
    prices["volume"] = prices["ticker"].map({"A": 3e12, "B": 2e9, "C": 1e6, "V": 0.0})
    return build_panel(prices, validation_days=5, holdout_days=5, indicators=["V"])
