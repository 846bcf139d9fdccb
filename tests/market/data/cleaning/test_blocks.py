"""Blocks: all rows of the inputs, whole tickers in order, however they came and wherever they are cut."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.files import Folder
from eigen2.market.data.cleaning import blocks
from eigen2.market.data.cleaning.blocks import SortedRows
from eigen2.market.data.cleaning.inputs import Inputs
from eigen2.market.data.source import COLUMNS, LISTED_DAYS
from tests.market.data.cleaning.rows import typed


def rows(text: str) -> pd.DataFrame:
    """Canonical rows from "A 2020-01-02, B 2020-01-03": each with a close of its own, in order."""
    pairs = [pair.split() for pair in text.split(",")]
    records = [(day, ticker, 1.0, 2.0, 3.0, float(i), 5.0) for i, (ticker, day) in enumerate(pairs)]
    return typed(pd.DataFrame(records, columns=list(COLUMNS)))


def random_rows(rng: np.random.Generator, count: int, tickers: int, days: int) -> pd.DataFrame:
    """Rows in no order, with duplicates, days before 1970, empty and infinite values."""
    values = rng.normal(size=(count, 5))
    values[rng.random((count, 5)) < 0.1] = np.nan
    values[rng.random((count, 5)) < 0.05] = np.inf
    frame = pd.DataFrame(values, columns=list(COLUMNS[2:]))
    frame["date"] = np.datetime64("1969-12-20", "D") + rng.integers(0, days, count)
    frame["ticker"] = [f"T{i}" for i in rng.integers(0, tickers, count)]
    return typed(frame)


def check(collected: SortedRows, frame: pd.DataFrame, block_rows: int) -> None:
    """The blocks are the frame, sorted, and hold as many whole tickers as fit."""
    found = list(collected.blocks())
    expected = frame.sort_values(["ticker", "date"], kind="stable", ignore_index=True)
    pd.testing.assert_frame_equal(pd.concat(found, ignore_index=True), expected)
    for block in found:
        assert block.index.equals(pd.RangeIndex(len(block)))
        assert len(block) <= block_rows or block["ticker"].nunique() == 1
    for block, following in pairwise(found):
        first = following["ticker"].iloc[0]
        assert block["ticker"].iloc[-1] < first
        assert len(block) + (following["ticker"] == first).sum() > block_rows
    assert collected.tickers == tuple(sorted(set(frame["ticker"])))


@pytest.mark.parametrize("run_rows", [1, 3, 100])
def test_known_answer(tmp_path, monkeypatch, run_rows):
    monkeypatch.setattr(blocks, "RUN_ROWS", run_rows)
    one = [rows("B 2020-01-02, A 2020-01-03, A 2020-01-01"), rows("C 2020-01-01, B 2020-01-02")]
    two = [rows("NAN 1960-02-29, A 2020-01-03, B 2020-01-01")]
    collected = SortedRows([*one, *two], Folder(tmp_path), block_rows=4)
    found = list(collected.blocks())
    # two of B are on one day: the first input's come first, in its order
    closes = [" ".join(block["close"].astype(int).astype(str)) for block in found]
    assert [block["ticker"].str.cat() for block in found] == ["AAA", "BBBC", "NAN"]
    assert closes == ["2 1 1", "2 0 1 0", "0"]
    assert found[2]["date"].tolist() == [pd.Timestamp("1960-02-29")]
    calendar = collected.calendar
    assert calendar.days.dtype == "datetime64[D]"
    assert calendar.days.astype(str).tolist() == ["1960-02-29", "2020-01-01", "2020-01-02", "2020-01-03"]
    assert calendar.rows.tolist() == [1, 3, 2, 2]
    # A, B and C from 1 January on, NAN for 20 days from one in 1960
    assert calendar.listed.tolist() == [1, 4, 4, 4]
    assert calendar.rows.dtype == calendar.listed.dtype == np.int64
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [8 * 52]
    (tmp_path / "rows.bin").write_bytes(bytes(7 * 52))
    with pytest.raises(OSError, match="shorter than what was written"):
        list(collected.blocks())


def test_indicators_are_not_counted(tmp_path):
    batch = rows("VIX 2020-01-01, A 2020-01-02, VIX 2020-01-02, VIX 2020-01-03, A 2020-01-04, TNX 2020-01-05")
    collected = SortedRows([batch], Folder(tmp_path), indicators=["VIX", "TNX", "UNKNOWN"])
    assert collected.calendar.days.astype(str).tolist() == [f"2020-01-0{day}" for day in range(1, 6)]
    assert collected.calendar.rows.tolist() == [0, 1, 0, 1, 0]
    assert collected.calendar.listed.tolist() == [0, 1, 1, 1, 1]
    check(collected, batch, 2_000_000)
    # with nothing but indicators there are days, and nothing on them
    collected = SortedRows([batch], Folder(tmp_path), indicators=["VIX", "TNX", "A"])
    assert collected.calendar.rows.tolist() == collected.calendar.listed.tolist() == [0] * 5


@settings(max_examples=12, deadline=None)
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
    ends = np.unique([0, count, *rng.integers(0, count + 1, 4)]).tolist()
    batches = [frame.iloc[start:end].reset_index(drop=True) for start, end in pairwise(ends)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "RUN_ROWS", run_rows)
        collected = SortedRows(batches, Folder(tmp_path_factory.mktemp("spill")), block_rows, indicators=["T0", "T3"])
    next(collected.blocks())
    check(collected, frame, block_rows)
    counted = frame[~frame["ticker"].isin(["T0", "T3"])]
    every_day = np.unique(frame["date"].to_numpy("datetime64[D]"))
    np.testing.assert_array_equal(collected.calendar.days, every_day)
    calendar = collected.calendar
    for place, (found, listed) in enumerate(zip(calendar.rows, calendar.listed, strict=True)):
        since, day = every_day[max(place - LISTED_DAYS, 0)], every_day[place]
        assert found == (counted["date"] == pd.Timestamp(day)).sum()
        assert listed == counted["ticker"][counted["date"].between(since, day)].nunique()


def test_what_cannot_be_collected(tmp_path):
    (tmp_path / "p.csv").write_text("date,A\nnever,1\n")
    with pytest.raises(UserError, match=r"p\.csv.*'never' in data row 1"):
        SortedRows(Inputs([tmp_path]).batches(), Folder(tmp_path))
