"""Files and folders: broken files of a folder are skipped and listed; dates to come and returns are refused."""

import datetime
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.errors import UserError
from eigen2.market.data.cleaning import inputs as inputs_module
from eigen2.market.data.cleaning.inputs import Inputs
from eigen2.market.data.cleaning.prepare import inspect, prepare
from tests.market.data.test_files import table, write

BROKEN = {
    "empty.csv": (b"", "is empty"),
    "notes.txt": (b"Prices of 2020.\n", "lacks the columns 'date'"),
    "cut.csv": (b"date,close\n2020-01-01,1\n2020-01-02\n", "damaged or cut short"),
    "words.csv": (
        b"date,close\n" + b"".join(b"2019-01-%02d,1\n" % day for day in range(1, 29)) + b"never,2\n",
        "dates that cannot be read",
    ),
    "rates.xlsx": (b"PK\x03\x04", "cannot be read as Excel"),
    "slash.csv": (b"date,close\n01/02/2020,1\n", "cannot be told apart"),
    "soon.csv": (b"date,close\n2020-01-01,1\n2020-01-04,1\n", "has the date 2020-01-04, after today (2020-01-03): "),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two good files among broken ones, on 3 January 2020."""
    monkeypatch.setattr("eigen2.market.data.source.latest_today", lambda: datetime.date(2020, 1, 3))
    for name, (content, _) in BROKEN.items():
        (tmp_path / name).write_bytes(content)
    for ticker in ("A", "z"):
        write(table((ticker,)).drop(columns="ticker"), tmp_path / f"{ticker}.csv")
    return tmp_path


def rows(inputs: Inputs) -> pd.DataFrame:
    return pd.concat(inputs.batches(), ignore_index=True)


@pytest.mark.parametrize("block_bytes", [40, 4 << 20])
def test_broken_files_of_a_folder_are_skipped(folder, monkeypatch, block_bytes):
    monkeypatch.setattr("eigen2.market.data.files.CSV_BLOCK_BYTES", block_bytes)
    inputs = Inputs([folder])
    pd.testing.assert_frame_equal(rows(inputs), pd.concat([table(("A",)), table(("z",))], ignore_index=True))
    assert [one.path.name for one in inputs.files] == ["A.csv", "z.csv"]
    assert len(inputs.skipped) == len(BROKEN)
    for name, (_, words) in BROKEN.items():
        (reason,) = (one for one in inputs.skipped if repr(str(folder / name)) in one)
        assert words in reason
        assert "\n" not in reason


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_named_is_refused(folder, name):
    with pytest.raises(UserError, match=re.escape(BROKEN[name][1])):
        rows(Inputs([folder / name, folder / "A.csv"]))


def test_a_folder_where_nothing_can_be_read(folder):
    for good in ("A.csv", "z.csv"):
        (folder / good).unlink()
    with pytest.raises(UserError, match=r"cut\.csv.*damaged.*\(the first of 7 files, none of which can be read\)"):
        rows(Inputs([folder]))


def test_a_long_file_damaged_late_is_refused(tmp_path, monkeypatch):
    """Its first rows were passed on already."""
    monkeypatch.setattr(inputs_module, "HELD_ROWS", 5)
    monkeypatch.setattr("eigen2.market.data.files.CSV_BLOCK_BYTES", 100)
    path = write(table(("A",), 20).drop(columns="ticker"), tmp_path / "A.csv")
    path.write_text(path.read_text() + "2021-01-01\n")
    write(table(("B",), 20).drop(columns="ticker"), tmp_path / "B.csv")
    with pytest.raises(UserError, match="damaged or cut short"):
        rows(Inputs([tmp_path]))


def test_the_report_lists_what_was_skipped(folder):
    report = inspect([folder])
    text = str(report)
    assert "skipped 7 of 9 files:\n" in text
    assert "'" + str(folder / "empty.csv") + "' is empty" in text
    assert len(report.as_dict()["skipped"]) == 7
    assert [Path(one["path"]).name for one in report.as_dict()["inputs"]] == ["A.csv", "z.csv"]


def test_bars_of_today_are_no_bars_to_come(folder):
    bars = "date,close\n2020-01-02,1\n2020-01-03 16:00,1\n"
    (folder / "bars.csv").write_text(bars)
    assert len(rows(Inputs([folder / "bars.csv"]))) == 2


def test_returns_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    days = pd.date_range("2020-01-01", periods=200)
    for scale in (0.01, 1.0):
        frame = pd.DataFrame(rng.normal(0, scale, (200, 3)), days, ["A", "B", "C"]).rename_axis("date")
        path = write(frame, tmp_path / "returns.csv", index=True)
        with pytest.raises(
            UserError, match=r"negative closes in \d+ of 600 rows, like a table of returns: give prices"
        ):
            rows(Inputs([path]))
        assert len(pd.concat(Inputs([path]).batches(["A", "B", "C"]))) == 600
    # CRSP's negative prices are means of bid and ask
    frame = table(("A",), 20).rename(columns={"close": "prc"})
    assert len(rows(Inputs([write(frame.assign(prc=-frame["prc"]), tmp_path / "crsp.csv")]))) == 20
    # a price table with a bad ticker is not one of returns
    frame = table(("A", "B", "C", "D"), 20).assign(close=lambda each: each["close"].where(each["ticker"] != "A", -1))
    assert len(rows(Inputs([write(frame, tmp_path / "prices.csv")]))) == 80


def test_out_in_a_folder_of_inputs(tmp_path):
    write(table(("A",), 20), tmp_path / "A.csv")
    with pytest.raises(UserError, match="in a folder of inputs: name a file elsewhere"):
        prepare([tmp_path], tmp_path / "out.parquet", overwrite=True)
