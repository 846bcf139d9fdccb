"""Blocks: all rows of the inputs, whole tickers in order, however they came and wherever they are cut."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data.cleaning import blocks
from eigen2.market.data.cleaning.blocks import SortedRows
from eigen2.market.data.cleaning.layouts import Input, open_inputs
from eigen2.market.data.source import COLUMNS


class Batches(Input):
    """An input that is no file."""

    def __init__(self, *batches: pd.DataFrame) -> None:
        self._batches = batches

    def batches(self) -> Iterator[pd.DataFrame]:
        yield from self._batches


def rows(text: str) -> pd.DataFrame:
    """Canonical rows from "A 2020-01-02, B 2020-01-03": each with a close of its own, in order."""
    pairs = [pair.split() for pair in text.split(",")]
    return canonical([(day, ticker, 1.0, 2.0, 3.0, float(i), 5.0) for i, (ticker, day) in enumerate(pairs)])


def canonical(records: Sequence[tuple[object, ...]]) -> pd.DataFrame:
    frame = pd.DataFrame(records, columns=list(COLUMNS))
    return frame.astype({"date": "datetime64[s]", "ticker": "str"} | dict.fromkeys(COLUMNS[2:], "float64"))


def random_rows(rng: np.random.Generator, count: int, tickers: int, days: int) -> pd.DataFrame:
    """Rows in no order, with duplicates, days before 1970, empty and infinite values."""
    names = np.array([f"T{i}" for i in range(tickers)], object)
    values = rng.normal(size=(count, 5))
    values[rng.random((count, 5)) < 0.1] = np.nan
    values[rng.random((count, 5)) < 0.05] = np.inf
    frame = pd.DataFrame(values, columns=list(COLUMNS[2:]))
    day = np.datetime64("1969-12-20", "s") + rng.integers(0, days, count) * np.timedelta64(86400, "s")
    frame.insert(0, "date", day.astype("datetime64[s]"))
    frame.insert(1, "ticker", pd.Series(names[rng.integers(0, tickers, count)], dtype="str"))
    return frame


def cut(frame: pd.DataFrame, rng: np.random.Generator) -> list[pd.DataFrame]:
    """The rows as batches of random sizes."""
    ends = np.unique([0, len(frame), *rng.integers(0, len(frame) + 1, 4)])
    return [frame.iloc[start:end].reset_index(drop=True) for start, end in pairwise(ends.tolist())]


def expected(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["ticker", "date"], kind="stable").reset_index(drop=True)


def check(collected: SortedRows, frame: pd.DataFrame, block_rows: int) -> None:
    """The blocks are the frame, sorted, and hold as many whole tickers as fit."""
    found = list(collected.blocks())
    pd.testing.assert_frame_equal(pd.concat(found, ignore_index=True), expected(frame))
    for block in found:
        assert block.index.equals(pd.RangeIndex(len(block)))
        assert [str(kind) for kind in block.dtypes] == ["datetime64[s]", "str", *["float64"] * 5]
        assert len(block) <= block_rows or block["ticker"].nunique() == 1
    for block, following in pairwise(found):
        first = following["ticker"].iloc[0]
        assert block["ticker"].iloc[-1] < first
        assert len(block) + (following["ticker"] == first).sum() > block_rows
    assert collected.rows == len(frame)
    assert collected.tickers == tuple(sorted(set(frame["ticker"])))


@pytest.mark.parametrize("run_rows", [1, 2, 3, 100])
def test_known_answer(tmp_path, monkeypatch, run_rows):
    monkeypatch.setattr(blocks, "RUN_ROWS", run_rows)
    one = Batches(rows("B 2020-01-02, A 2020-01-03, A 2020-01-01"), rows("C 2020-01-01, B 2020-01-02"))
    two = Batches(rows("NAN 1960-02-29, A 2020-01-03, B 2020-01-01"))
    collected = SortedRows([one, two], tmp_path, block_rows=4)
    found = list(collected.blocks())
    # two of B are on one day: the first input's come first, in its order
    closes = [" ".join(block["close"].astype(int).astype(str)) for block in found]
    assert [block["ticker"].str.cat() for block in found] == ["AAA", "BBBC", "NAN"]
    assert closes == ["2 1 1", "2 0 1 0", "0"]
    assert found[2]["date"].tolist() == [pd.Timestamp("1960-02-29")]
    assert (collected.rows, collected.tickers) == (8, ("A", "B", "C", "NAN"))
    calendar = collected.calendar
    days = ["1960-02-29", "2020-01-01", "2020-01-02", "2020-01-03"]
    assert calendar.days.dtype == "datetime64[D]"
    assert calendar.days.astype(str).tolist() == days
    assert calendar.rows.tolist() == [1, 3, 2, 2]
    # A from 1 to 3 January, B from 1 to 2, C on the first, NAN on a day in 1960
    assert calendar.listed.tolist() == [1, 3, 2, 1]
    assert calendar.rows.dtype == calendar.listed.dtype == np.int64


def test_indicators_are_not_counted(tmp_path):
    batch = rows("VIX 2020-01-01, A 2020-01-02, VIX 2020-01-02, VIX 2020-01-03, A 2020-01-04, TNX 2020-01-05")
    collected = SortedRows([Batches(batch)], tmp_path, indicators=["VIX", "TNX", "UNKNOWN"])
    assert collected.calendar.days.astype(str).tolist() == [f"2020-01-0{day}" for day in range(1, 6)]
    assert collected.calendar.rows.tolist() == [0, 1, 0, 1, 0]
    assert collected.calendar.listed.tolist() == [0, 1, 1, 1, 0]
    check(collected, batch, 2_000_000)
    # with nothing but indicators there are days, and nothing on them
    collected = SortedRows([Batches(batch)], tmp_path, indicators=["VIX", "TNX", "A"])
    assert collected.calendar.rows.tolist() == collected.calendar.listed.tolist() == [0] * 5


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 400),
    tickers=st.integers(1, 30),
    days=st.integers(1, 40),
    run_rows=st.sampled_from([7, 64, 1000]),
    block_rows=st.sampled_from([1, 10, 100, 10_000]),
)
def test_any_rows_however_cut(tmp_path_factory, seed, count, tickers, days, run_rows, block_rows):
    rng = np.random.default_rng(seed)
    frame = random_rows(rng, count, tickers, days)
    batches = cut(frame, rng)
    inputs = [Batches(*batches[:2]), Batches(*batches[2:])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "RUN_ROWS", run_rows)
        collected = SortedRows(inputs, tmp_path_factory.mktemp("spill"), block_rows, indicators=["T0", "T3"])
    check(collected, frame, block_rows)
    counted = frame[~frame["ticker"].isin(["T0", "T3"])]
    life = counted.groupby("ticker")["date"].agg(["min", "max"])
    every_day = np.unique(frame["date"].to_numpy("datetime64[D]"))
    np.testing.assert_array_equal(collected.calendar.days, every_day)
    for day, found, listed in zip(every_day, collected.calendar.rows, collected.calendar.listed, strict=True):
        assert found == (counted["date"] == pd.Timestamp(day)).sum()
        assert listed == ((life["min"] <= pd.Timestamp(day)) & (life["max"] >= pd.Timestamp(day))).sum()


def test_blocks_can_be_read_again(tmp_path):
    frame = random_rows(np.random.default_rng(1), 500, 9, 30)
    collected = SortedRows([Batches(frame)], tmp_path, block_rows=100)
    started = collected.blocks()
    next(started)
    check(collected, frame, 100)
    check(collected, frame, 100)
    assert len(next(started)) > 0


def test_a_ticker_larger_than_a_block_stays_whole(tmp_path):
    batch = rows("A 2020-01-01, " + ", ".join(f"B 2020-01-{day:02}" for day in range(1, 11)) + ", C 2020-01-01")
    collected = SortedRows([Batches(batch)], tmp_path, block_rows=5)
    assert [block["ticker"].str.cat() for block in collected.blocks()] == ["A", "B" * 10, "C"]


def test_the_spill_file_is_what_is_said_of_it(tmp_path):
    frame = random_rows(np.random.default_rng(1), 500, 9, 30)
    collected = SortedRows([Batches(frame)], tmp_path)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [500 * 48]
    (tmp_path / "rows.bin").write_bytes(bytes(499 * 48))
    with pytest.raises(OSError, match="shorter than what was written"):
        list(collected.blocks())


def test_what_cannot_be_collected(tmp_path):
    with pytest.raises(UserError, match="no price files"):
        SortedRows([], tmp_path)
    with pytest.raises(UserError, match="block_rows is 0"):
        SortedRows([Batches(rows("A 2020-01-01"))], tmp_path, block_rows=0)
    (tmp_path / "p.csv").write_text("date,A\nnever,1\n")
    with pytest.raises(UserError, match=r"p\.csv.*'never' in data row 1"):
        SortedRows(open_inputs([tmp_path]), tmp_path)
