"""Lines about a table at each build of a panel."""

import logging

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.cache import load_panel
from eigen2.market.data.checks import survivors_line
from eigen2.market.data.cleaning.blocks import Calendar
from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.panel import build_panel
from eigen2.market.data.sample import sample_path
from eigen2.market.data.source import PRICE_COLUMNS, VALUES, read_prices
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.command import eigen2
from tests.market.data.test_files import table, write

MARKET = SyntheticMarket(days=300, columns=40, missing=0.005, seed=4)
SIZES = {"validation_days": 40, "holdout_days": 20}


def with_splits(ratios: dict[str, float], first: int = 150) -> pd.DataFrame:
    """The market whose tickers have prices divided by a ratio from a day on."""
    prices = MARKET.generate()
    for ticker, ratio in ratios.items():
        later = (prices["ticker"] == ticker) & (prices["date"] >= prices["date"].unique()[first])
        # on that day the open is exactly the last close over the ratio
        row = prices.index[later][0]
        scale = prices.loc[row - 1, "close"] / ratio / prices.loc[row, "open"]
        prices.loc[later, [*PRICE_COLUMNS]] *= scale
        prices.loc[later, "volume"] /= scale
    return prices


def test_splits_are_counted_and_the_first_is_named(caplog: pytest.LogCaptureFixture) -> None:
    prices = with_splits({"S0035": 2.0, "S0002": 10.0, "S0007": 0.5, "S0011": 1.2})
    with caplog.at_level(logging.WARNING):
        build_panel(prices, **SIZES)
    (line,) = [record.getMessage() for record in caplog.records if "split" in record.getMessage()]
    own = prices[prices["ticker"] == "S0002"]
    day = own.loc[own["date"] >= prices["date"].unique()[150], "date"].iloc[0]
    assert line.startswith(f"prices do not seem to be adjusted for 3 splits, first S0002 on {day:%Y-%m-%d}: ")
    assert line.endswith("eigen2.cli data prepare PRICES OUT.parquet repairs them")
    # as inspect finds them
    counts = prices.groupby("date").size()
    days = counts.index.to_numpy().astype("datetime64[D]")
    found = find(prices, Calendar(days, counts.to_numpy(), np.full(len(days), 40)), Limits()).rows["split_like"]
    assert found.sum() == 3


def test_a_price_that_comes_back_or_a_crash_is_no_split(caplog: pytest.LogCaptureFixture) -> None:
    prices = with_splits({"S0007": 2.0})
    rows = prices.index[prices["ticker"] == "S0005"][100:108]  # back after 8 days
    prices.loc[rows, [*PRICE_COLUMNS]] *= prices.loc[rows[0] - 1, "close"] / 4 / prices.loc[rows[0], "open"]
    crash = prices.index[(prices["ticker"] == "S0007") & (prices["date"] >= prices["date"].unique()[150])][0]
    prices.loc[crash, "volume"] *= 10
    build_panel(prices, **SIZES)
    assert caplog.messages == []


def test_closes_that_are_adjusted_alone_are_named_and_are_no_splits(caplog: pytest.LogCaptureFixture) -> None:
    prices = MARKET.generate()
    prices.loc[prices["ticker"] > "S0036", "close"] /= 2
    build_panel(prices, **SIZES)
    assert caplog.messages == [
        "closes of 3 of 40 tickers, first S0037, are adjusted, and their open, high and low are not: "
        "python -m eigen2.cli data prepare PRICES OUT.parquet repairs them"
    ]


def test_prepared_prices_are_not_sent_back(caplog: pytest.LogCaptureFixture) -> None:
    prices = with_splits({"S0002": 10.0})
    first = prices.index[(prices["ticker"] == "S0002") & (prices["date"] >= prices["date"].unique()[150])][0]
    prices.loc[first, list(VALUES)] = np.nan  # a jump that was masked
    build_panel(prices, **SIZES)
    assert not any("split" in message for message in caplog.messages)


def test_copied_rows_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    prices = MARKET.generate()
    rows = prices.index[prices["ticker"] == "S0002"][100:102]
    prices.loc[rows[1], list(VALUES)] = prices.loc[rows[0], list(VALUES)]
    build_panel(prices, **SIZES)
    assert caplog.messages == [
        f"1 row copied from the day before, first S0002 on {prices.loc[rows[1], 'date']:%Y-%m-%d}: "
        "python -m eigen2.cli data prepare PRICES OUT.parquet masks them"
    ]


def test_closes_alone_are_judged_by_whole_rows_as_inspect_does(caplog: pytest.LogCaptureFixture) -> None:
    prices = MARKET.generate()
    rows = prices.index[prices["ticker"] == "S0039"]
    prices.loc[rows[:200], ["open", "high", "low"]] = np.nan
    prices.loc[rows[200:230], "close"] *= 0.8  # of fewer than 100 whole rows
    build_panel(prices, **SIZES)
    assert any("closes of 1 of 40 tickers, first S0039, are adjusted" in message for message in caplog.messages)


@pytest.mark.parametrize("ratio", [2.37, 1 / 12])
def test_a_spin_off_and_a_reverse_split_count_as_splits(ratio: float, caplog: pytest.LogCaptureFixture) -> None:
    build_panel(with_splits({"S0003": ratio}), **SIZES)
    assert ["1 split, first S0003" in message for message in caplog.messages] == [True]


def test_a_fit_prints_what_is_said_whether_or_not_its_panel_is_cached(tmp_path) -> None:
    file = tmp_path / "prices.parquet"
    with_splits({"S0035": 2.0}).to_parquet(file)
    options = ["--config", "tests/small.yaml", "--data.synthetic", "null", "--data.path", file]
    options += ["--trainer.max_epochs", 1, "--trainer.callbacks=[]", "--trainer.default_root_dir", tmp_path / "run"]
    options += ["--model.population_size", 2, "--data.windows_per_generation", 1]
    for _ in range(2):
        done = eigen2("fit", *options)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(f"data prepare {file} OUT.parquet repairs them") == 1


def test_a_loaded_table_is_named_by_its_file(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / "my prices.parquet", tmp_path / "copy.parquet"]
    for file in files:
        with_splits({"S0035": 2.0}).to_parquet(file)
        load_panel(file, **SIZES, cache_dir=tmp_path / "cache")
    named = [f"data prepare '{files[0]}' OUT.parquet repairs them", f"data prepare {files[1]} OUT.parquet repairs them"]
    assert [message.endswith(name) for message, name in zip(caplog.messages, named, strict=True)] == [True, True]


def test_the_sample_is_adjusted_and_holds_survivors(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        panel = build_panel(read_prices(sample_path()))
    assert caplog.messages == []
    assert survivors_line(panel.prices, -0.3) == (
        "all 20 tickers trade to the last day: the table holds survivors only, so results are too good "
        "(data.membership takes an index's past tickers)"
    )


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        (0, "all 40 tickers trade to the last day: the table holds survivors only"),
        (2, "38 of 40 tickers trade to the last day: the table holds hardly any but survivors"),
        (3, "37 of 40 tickers trade to the last day; positions in the others end 30 % below their last close, deals"),
    ],
)
@pytest.mark.parametrize("last", [21, 20, 19])
def test_who_has_died_is_counted(gone: int, expected: str, last: int) -> None:
    prices = MARKET.prices().copy()
    prices[-last:, :gone] = np.nan
    prices[:-last, 0] = 1.0
    line = survivors_line(prices, -0.3)
    if last == 19:
        expected = "all 40 tickers trade to the last day"
    assert line is not None
    assert line.startswith(expected)
    unchanged = survivors_line(prices, 0.0)
    assert unchanged is not None
    assert unchanged == line or unchanged.endswith("positions in the others end at their last close")


def test_one_ticker_or_indicators_alone_say_nothing() -> None:
    prices = MARKET.prices().copy()
    assert survivors_line(prices[:, :1], -0.3) is None
    prices[:, 1:] = np.nan
    assert survivors_line(prices, -0.3) is None


@pytest.mark.parametrize("name", ["Adj Close", "adj_close", "AdjustedClose"])
def test_adjusted_closes_that_are_ignored_are_named(name: str, tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(table().assign(**{name: 1.0}), tmp_path / "p.csv")
    with caplog.at_level(logging.WARNING):
        read_prices(path)
        (line,) = caplog.messages
        assert "has adjusted closes, which are ignored; python -m eigen2.cli data prepare" in line
        caplog.clear()
        read_prices(path, [name])
        read_prices(write(table(), path))
    assert caplog.messages == []
