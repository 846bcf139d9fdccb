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
from eigen2.market.data.panel import MarketPanel, Splits, build_panel
from eigen2.market.data.source import PRICE_COLUMNS, read_prices
from eigen2.market.data.universe import Universe, read_tickers, resolve
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.panels import plain_scale

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
NAMES = ("600000", "AAPL", "BRK.B", "NAN", "TRUE", "VIX", "ZM")
# what each column's close x volume is at the median; the indicator's is 0
VALUE = (3.0, 7.0, 2.0, 7.0, 0.5, 0.0, 7.0)


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


def refusal(universe: Universe, panel: MarketPanel | None = None) -> str:
    with pytest.raises(UserError) as error:
        resolve(universe, panel or a_panel())
    assert "\n" not in str(error.value)
    return str(error.value)


# What is chosen


def test_every_ticker_but_no_indicator_by_default() -> None:
    assert chosen(Universe()) == ["600000", "AAPL", "BRK.B", "NAN", "TRUE", "ZM"]
    assert chosen(Universe(), a_panel(indicators=())) == list(NAMES)


def test_named_tickers_come_in_the_order_of_the_panel() -> None:
    assert chosen(Universe(tickers=["TRUE", "AAPL", "600000", "AAPL"])) == ["600000", "AAPL", "TRUE"]


@pytest.mark.parametrize("top", range(1, 7))
def test_top_by_traded_value_then_by_name(top: int) -> None:
    assert chosen(Universe(top=top)) == sorted(["AAPL", "NAN", "ZM", "600000", "BRK.B", "TRUE"][:top])


def test_an_indicator_is_not_among_the_top_whatever_its_value() -> None:
    assert chosen(Universe(top=1), a_panel(value=[1, 1, 1, 1, 1, 99, 1])) == ["600000"]


def test_columns_that_hardly_trade_go_by_name_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    panel = a_panel(value=[0, 0, 0, 5, 0, 0, 0])
    with caplog.at_level(logging.WARNING):
        assert chosen(Universe(top=3), panel) == ["600000", "AAPL", "NAN"]
        assert chosen(Universe(top=1), panel) == ["NAN"]
    assert len(caplog.messages) == 1
    assert "data.investable.top is 3, but only 1 tickers traded on half of the training days" in caplog.text


# Files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("names.txt", "NAN\nAAPL\n"),
        ("names.txt", "\ufeff# ours\n\n  AAPL \t# apple\r\nNAN\n"),
        ("names", "NAN\nNAN\nAAPL"),
        ("names.csv", "ticker\nAAPL\nNAN\n"),
        ("names.CSV", '# ours\nname, Ticker ,weight\nApple,"AAPL",0.5\n\nNaN, NAN ,0.5 # half\n,,1\nshort\n'),
        ("prices.csv", "date,ticker,close\n2020-01-01,AAPL,1\n2020-01-02,AAPL,2\n2020-01-01,NAN,1\n"),
    ],
)
def test_files_of_tickers(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert sorted(read_tickers(path)) == ["AAPL", "NAN"]
    assert chosen(Universe(file=str(path))) == ["AAPL", "NAN"]


def test_names_in_a_file_are_text(tmp_path: Path) -> None:
    for name, head in (("names.txt", ""), ("names.csv", "ticker\n")):
        (tmp_path / name).write_text(head + "600000\nTRUE\nNAN\nA#B\n")
        assert read_tickers(tmp_path / name) == ["600000", "TRUE", "NAN", "A#B"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("names.txt", b"", "names no ticker"),
        ("names.txt", b"# nothing\n\n", "names no ticker"),
        ("names.csv", b"ticker\n", "names no ticker"),
        ("names.csv", b"symbol,name\nAAPL,Apple\n", "has the columns symbol, name"),
        ("names.txt", b"\xff\xfe\x00", "is not text"),
        ("names.txt", b"APPL\n", "which the prices do not have: did you mean 'AAPL'?"),
        ("names.txt", b"VIX\n", "has 'VIX', which data.indicators declares an indicator"),
    ],
)
def test_files_that_choose_nothing(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    message = refusal(Universe(file=str(tmp_path / name)))
    assert words in message
    assert f"data.investable.file {str(tmp_path / name)!r}" in message


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.txt", tmp_path):
        assert f"data.investable.file {str(path)!r} cannot be read" in refusal(Universe(file=str(path)))


# What is refused


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"tickers": ["A"], "top": 1}, "data.investable has tickers and top"),
        ({"tickers": ["A"], "file": "x", "top": 1}, "data.investable has tickers and file and top"),
        ({"top": 0}, "data.investable.top is 0"),
        ({"top": -1}, "data.investable.top is -1"),
        ({"tickers": []}, "data.investable.tickers is empty"),
    ],
)
def test_settings_that_make_no_universe(given_: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        Universe(**given_)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [True, 600000, None])
def test_names_that_are_no_text_are_refused(name: Any) -> None:
    universe = Universe(tickers=["A"])
    # not by the constructor, whose types are checked in tests
    universe.tickers = ["A", name]
    with pytest.raises(UserError, match=f"^data.investable.tickers has {name}, which is not text: write it in quotes$"):
        universe.__post_init__()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["AAPL", "APPL"], "has 'APPL', which the prices do not have: did you mean 'AAPL'?"),
        (["aapl", "brk-b"], "has 'aapl', 'brk-b', which the prices do not have: did you mean 'AAPL', 'BRK.B'?"),
        (["Q"], "has 'Q', which the prices do not have: the 7 they have go from '600000' to 'ZM'"),
        ([f"Q{i}" for i in range(9)], "'Q0', 'Q1', 'Q2', 'Q3', 'Q4' and 4 more, which"),
        (["AAPL", "VIX"], "has 'VIX', which data.indicators declares an indicator"),
    ],
)
def test_names_that_cannot_be_bought(names: list[str], words: str) -> None:
    message = refusal(Universe(tickers=names))
    assert words in message
    assert message.startswith("data.investable.tickers has ")


def test_names_that_differ_in_case_alone_are_two() -> None:
    panel = a_panel(("AAPL", "aapl"), (1, 1), ())
    for name in panel.tickers:
        assert chosen(Universe(tickers=[name]), panel) == [name]


def test_more_than_there_are() -> None:
    assert "data.investable.top is 7, but there are 6 tickers to choose from" in refusal(Universe(top=7))


def test_prices_without_volume_have_no_top() -> None:
    prices = SyntheticMarket(days=60, columns=3).generate()
    for volume in (np.nan, 0.0):
        panel = build_panel(prices.assign(volume=volume), validation_days=5, holdout_days=5)
        message = refusal(Universe(top=2), panel)
        assert "none has any volume on half of the 50 training days: bring a file with volumes, or name" in message
        assert "data.investable.tickers" in message


# No look-ahead


DAYS, TRAIN = 80, 50
PRICES = SyntheticMarket(days=DAYS, columns=6, seed=8).generate()
SIZES = {"validation_days": 20, "holdout_days": DAYS - TRAIN - 20}


@settings(max_examples=12, deadline=None, derandomize=True)
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


def test_training_days_do_change_the_top() -> None:
    before = resolve(Universe(top=1), build_panel(PRICES, **SIZES))
    last = f"S{(before[0] + 1) % 6:04d}"
    dates = np.sort(PRICES["date"].unique())
    changed = PRICES.copy()
    # the median over 50 days moves with the 25th
    changed.loc[(changed["ticker"] == last) & (changed["date"] >= dates[20]), "volume"] *= 1e6
    assert resolve(Universe(top=1), build_panel(changed, **SIZES)) == [(before[0] + 1) % 6]


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
def test_the_top_of_real_prices(caplog: pytest.LogCaptureFixture) -> None:
    panel = build_panel(read_prices(DATA / "dow30.parquet"))
    assert chosen(Universe(top=1), panel) == ["AAPL"]
    # listed in 2019, too late to trade on half of the training days from 2009 to 2021
    assert set(panel.tickers) - set(chosen(Universe(top=29), panel)) == {"DOW"}
    assert not caplog.messages
    assert chosen(Universe(top=30), panel) == list(panel.tickers)
    assert "only 29 tickers traded" in caplog.text


# On the command line and in YAML


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


def test_options_of_the_command_line() -> None:
    assert parsed().investable == Universe()
    assert parsed("--data.investable.top", "108").investable == Universe(top=108)
    assert parsed("--data.investable.tickers", "[AAPL, BRK.B]").investable == Universe(tickers=["AAPL", "BRK.B"])
    assert parsed("--data.investable.file", "names.txt").investable == Universe(file="names.txt")
    assert parsed("--data.investable", "{top: 5}").investable == Universe(top=5)
    assert parsed().indicators == []
    assert parsed("--data.indicators", "[VIX, TNX]").indicators == ["VIX", "TNX"]


def test_names_stay_text_on_the_command_line() -> None:
    names = ["TRUE", "NAN", "600000", "000001", "NO", "NULL", "2020-01-01", "~"]
    quoted = "[" + ", ".join(f'"{name}"' for name in names) + "]"
    assert parsed("--data.investable.tickers", quoted).investable.tickers == names
    assert parsed("--data.indicators", quoted).indicators == names
    assert parsed("--data.investable.tickers", "[NAN, BRK.B]").investable.tickers == ["NAN", "BRK.B"]
    each = [f"--data.investable.tickers+={name}" for name in ("AAPL", "TRUE", "000001")]
    assert parsed(*each).investable.tickers == ["AAPL", "TRUE", "000001"]


@pytest.mark.parametrize("name", ["TRUE", "000001", "1e5", "NULL"])
@pytest.mark.parametrize("key", ["investable.tickers", "indicators"])
def test_names_that_yaml_takes_for_something_else_are_refused_without_quotes(name: str, key: str) -> None:
    """Never guessed: 000001 would come back as 1."""
    with pytest.raises(ArgumentError, match=f'"data.{key}"') as error:
        parsed(f"--data.{key}", f"[AAPL, {name}]")
    assert "Expected a <class 'str'>" in str(error.value)


def test_a_universe_says_how_it_chose() -> None:
    assert Universe().describe() == "every ticker"
    assert Universe(tickers=["A"]).describe() == "named by data.investable.tickers"
    assert Universe(file="names.txt").describe() == "named in names.txt"
    assert Universe(top=3).describe() == "top 3 by median traded value of the training days"
