"""Layouts: each is recognised by its header and gives the same rows; what fits none is refused in one clear line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data import files
from eigen2.market.data.cleaning import layouts
from eigen2.market.data.cleaning.layouts import Input, open_inputs
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS

DATA = Path(__file__).resolve().parents[4].parent / "shared" / "data"
FIELDS = ["Open", "High", "Low", "Close", "Volume"]
NAN = np.nan
BOTH = pytest.mark.parametrize("name", ["A.csv", "A.parquet"])


def long(tickers: tuple[str, ...] = ("BRK.B", "NAN"), days: int = 3) -> pd.DataFrame:
    """Canonical rows, day after day, each number another one."""
    dates = pd.date_range("2020-01-01", periods=days).astype("datetime64[s]")
    frame = pd.DataFrame([(date, ticker) for date in dates for ticker in tickers], columns=["date", "ticker"])
    for i, column in enumerate(COLUMNS[2:]):
        frame[column] = np.arange(len(frame)) + 100.0 * (i + 1)
    return frame.astype({"ticker": "str", "date": "datetime64[s]"})


def write(frame: pd.DataFrame, path: Path, *, index: bool = False) -> Path:
    if path.name.endswith(("parquet", "pq")):
        frame.to_parquet(path, index=index)
    else:
        frame.to_csv(path, index=index)
    return path


def text(content: str, path: Path) -> Path:
    path.write_text(content)
    return path


def read(path: Path, layout: str | None = None, **options: bool) -> pd.DataFrame:
    """All rows of a file; every batch has the one form."""
    (one,) = open_inputs([path], **options)
    batches = list(one.batches())
    for batch in batches:
        assert len(batch) > 0
        assert list(batch.columns) == list(COLUMNS)
        assert batch.index.equals(pd.RangeIndex(len(batch)))
        assert [str(kind) for kind in batch.dtypes] == ["datetime64[s]", "str", *["float64"] * 5]
        assert (batch["date"] == batch["date"].dt.normalize()).all()
    if layout is not None:
        assert one.layout == layout
    assert one.path == path
    return pd.concat(batches, ignore_index=True)


def check(path: Path, layout: str, expected: pd.DataFrame, **options: bool) -> None:
    pd.testing.assert_frame_equal(read(path, layout, **options), expected)


def failure(path: Path) -> str:
    """The message of the one error, which is one line and names the file."""
    with pytest.raises(UserError) as error:
        read(path)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 900
    assert repr(str(path)) in message
    return message


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["date", "ticker"], kind="stable").reset_index(drop=True)


def close_only(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(open=frame["close"], high=frame["close"], low=frame["close"], volume=NAN)


def pivoted(frame: pd.DataFrame, fields: list[str], *, tickers_first: bool, named: bool) -> pd.DataFrame:
    """The same rows as yfinance returns them, a column for each field and ticker."""
    table = frame.rename(columns={name.lower(): name for name in fields}).pivot(index="date", columns="ticker")[fields]
    table.columns = pd.MultiIndex.from_tuples(list(table.columns), names=["Price", "Ticker"])
    table.index.name = "Date"
    if tickers_first:
        table = table.swaplevel(axis=1)
    if not named:
        table.columns.names, table.index.name = [None, None], None
    return table


# ---- long


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.parquet", "P.CSV"])
@pytest.mark.parametrize(
    "names",
    [
        {},
        {name: name.upper() for name in COLUMNS},
        {"date": " Date ", "ticker": "tic"},
        {"date": "datetime", "ticker": "Symbol"},
        {"date": "timestamp", "ticker": "Name"},
    ],
)
def test_long_under_all_its_names(tmp_path, name, names):
    messy = long()[list(COLUMNS[::-1])].rename(columns=names)
    check(write(messy, tmp_path / name), "long", long())


@BOTH
def test_long_with_further_columns(tmp_path, name):
    finrl = long().rename(columns={"ticker": "tic"}).assign(day=3, macd="x", vix=1.0)
    finrl.index = pd.Index([7, 5, 3, 2, 1, 0])
    check(write(finrl, tmp_path / name, index=True), "long", long())
    company = long().rename(columns={"ticker": "symbol"}).assign(name="Some Company", timestamp="never")
    check(write(company, tmp_path / name), "long", long())


@BOTH
def test_long_without_volume_or_of_closes(tmp_path, name):
    check(write(long().drop(columns="volume"), tmp_path / name), "long", long().assign(volume=NAN))
    for close in ("close", "Value", "CLOSE"):
        frame = long()[["date", "ticker", "close"]].rename(columns={"close": close})
        check(write(frame, tmp_path / name), "long (close only)", close_only(long()))
        frame = frame.assign(volume=long()["volume"], note="x")
        expected = close_only(long()).assign(volume=long()["volume"])
        check(write(frame, tmp_path / name), "long (close only)", expected)


@BOTH
def test_values_are_as_the_file_has_them(tmp_path, name):
    frame = long(days=4)
    frame.loc[0, "open"], frame.loc[1, "close"], frame.loc[2, "high"] = np.inf, -np.inf, -1.0
    frame.loc[3, ["open", "high", "low", "close", "volume"]] = NAN
    check(write(frame, tmp_path / name), "long", frame)


# ---- one ticker a file


@pytest.mark.parametrize(
    ("name", "ticker"),
    [("AAPL.csv", "AAPL"), ("AAPL.csv.gz", "AAPL"), ("brk.b.CSV", "brk.b"), ("NA.parquet", "NA"), ("1.pq", "1")],
)
def test_the_files_name_is_the_ticker(tmp_path, name, ticker):
    frame = long(("x",)).drop(columns="ticker").assign(Dividends=0.0)
    check(write(frame, tmp_path / name), "one ticker a file", long((ticker,)))


@pytest.mark.parametrize("label", ["Date", None, "Datetime"])
@BOTH
def test_the_date_as_index(tmp_path, name, label):
    frame = long(("A",)).drop(columns="ticker").set_index("date").rename_axis(label)
    check(write(frame, tmp_path / name, index=True), "one ticker a file", long(("A",)))


@pytest.mark.parametrize("header", ["date,close", "Date,Value", "date,close,volume"])
def test_one_ticker_of_closes(tmp_path, header):
    path = text(f"{header}\n2020-01-01,5{',7' if 'volume' in header else ''}\n", tmp_path / "VIX.csv")
    rows = read(path, "one ticker a file (close only)")
    volume = 7.0 if "volume" in header else NAN
    expected = pd.DataFrame([[pd.Timestamp("2020-01-01"), "VIX", 5.0, 5.0, 5.0, 5.0, volume]], columns=list(COLUMNS))
    pd.testing.assert_frame_equal(rows, expected, check_dtype=False)


def test_an_empty_day_of_one_ticker_is_a_row(tmp_path):
    path = text("date,open,high,low,close,volume\n2020-01-01,,,,,\n2020-01-02,1,1,1,1,1\n", tmp_path / "A.csv")
    assert read(path)["close"].isna().tolist() == [True, False]


def test_many_rows_a_day_need_a_ticker(tmp_path):
    frame = long(("A", "B", "C"), 4).rename(columns={"ticker": "tkr"})
    assert "has 12 rows on 4 days but no column of tickers" in failure(write(frame, tmp_path / "p.csv"))
    # two rows a day may be duplicates, which cleaning removes
    frame = long(("A", "B"), 4).rename(columns={"ticker": "tkr"})
    assert set(read(write(frame, tmp_path / "p.csv"), "one ticker a file")["ticker"]) == {"p"}


# ---- adjusted close

ADJUSTED = """date,ticker,open,high,low,close,{name},volume
2020-01-01,A,10,12,8,10,5,100
2020-01-02,A,10,12,8,9,9,100
2020-01-03,A,1,2,3,4,,100
2020-01-04,A,1,2,3,,4,100
2020-01-05,A,1,2,3,0,4,100
2020-01-06,A,1,2,3,4,0,100
2020-01-07,A,1,2,3,0,0,100
2020-01-08,A,1,2,3,4,inf,100
2020-01-09,A,1,2,3,inf,4,100
2020-01-10,A,1,inf,,2,-1,100
"""


@pytest.mark.parametrize("name", ["adj close", "Adj Close", "adj_close", "adjclose", "Adj. Close", "adjusted_close"])
def test_adjusted_close_known_answer(tmp_path, name):
    path = text(ADJUSTED.format(name=name), tmp_path / "p.csv")
    rows = read(path, "long (prices times adj close / close)")
    expected = [[5, 6, 4, 5], [10, 12, 8, 9], *[[NAN] * 4] * 7, [-0.5, -np.inf, NAN, -1]]
    np.testing.assert_array_equal(rows[list(PRICE_COLUMNS)].to_numpy(), np.array(expected))
    assert (rows["volume"] == 100).all()


def test_adjusted_close_ignored(tmp_path):
    path = text(ADJUSTED.format(name="adj close"), tmp_path / "p.csv")
    rows = read(path, "long (adj close ignored)", adjust=False)
    plain = text(ADJUSTED.format(name="other"), tmp_path / "q.csv")
    pd.testing.assert_frame_equal(rows, read(plain, "long"))
    # then nobody reads it
    text(path.read_text().replace("10,5,100", "10,five,100"), path)
    pd.testing.assert_frame_equal(read(path, adjust=False), rows)
    assert "at least 1 values in column 'adj close' that are no numbers, first 'five' in data row 1" in failure(path)


def test_adjusting_keeps_the_order_of_prices(tmp_path):
    rng = np.random.default_rng(0)
    close = rng.uniform(1, 500, 5000).round(2)
    frame = pd.DataFrame({"date": pd.date_range("2000-01-01", periods=5000), "ticker": "A", "open": close})
    frame = frame.assign(high=close, low=close, close=close, adj_close=rng.uniform(0.01, 500, 5000))
    rows = read(write(frame, tmp_path / "p.parquet"))
    assert (rows["close"] == rows["high"]).all()
    assert (rows["close"] == rows["low"]).all()
    np.testing.assert_allclose(rows["close"], frame["adj_close"], rtol=1e-15)


def test_an_unadjusted_close_alone(tmp_path):
    path = text("date,ticker,close,adj close\n2020-01-01,A,10,5\n", tmp_path / "p.csv")
    rows = read(path, "long (close only, prices times adj close / close)")
    assert rows[list(PRICE_COLUMNS)].to_numpy().tolist() == [[5.0] * 4]
    path = text("date,open,high,low,close,adj close\n2020-01-01,1,2,3,4,2\n", tmp_path / "A.csv")
    rows = read(path, "one ticker a file (prices times adj close / close)")
    assert rows[list(PRICE_COLUMNS)].to_numpy().tolist() == [[0.5, 1, 1.5, 2]]


# ---- wide


@pytest.mark.parametrize(("label", "index"), [("date", True), ("Date", False), ("TimeStamp", True), (None, True)])
@BOTH
def test_wide(tmp_path, name, label, index):
    tickers = ("AAPL", "BRK", "BRK.B", "LOW", "NAN", "OPEN")
    frame = long(tickers).pivot(index="date", columns="ticker", values="close").rename_axis(label)
    path = write(frame if index else frame.reset_index(), tmp_path / name, index=index)
    check(path, "wide (close only)", close_only(long(tickers)))


def test_wide_with_the_range_index_pandas_wrote(tmp_path):
    frame = long().pivot(index="date", columns="ticker", values="close").reset_index()
    for written in (frame.to_csv(), frame.to_csv().replace(",date", "Unnamed: 0,date", 1)):
        check(text(written, tmp_path / "p.csv"), "wide (close only)", close_only(long()))


def test_days_without_a_value_are_no_rows(tmp_path):
    path = text("date,A,B\n2020-01-01,1,\n2020-01-02,,\n2020-01-03,nan,0\n", tmp_path / "p.csv")
    rows = read(path, "wide (close only)")
    assert rows["ticker"].tolist() == ["A", "B"]
    assert rows["close"].tolist() == [1, 0]
    assert rows["date"].dt.day.tolist() == [1, 3]


@BOTH
def test_many_tickers_are_read_in_parts(tmp_path, name, monkeypatch):
    monkeypatch.setattr(layouts, "BATCH_ROWS", 600)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(1, 9, (7, 301)).round(3), columns=[f"TICKER.{i}" for i in range(301)])
    table[table < 2] = NAN
    table.insert(0, "date", pd.date_range("2020-01-01", periods=7))
    path = write(table, tmp_path / name)
    rows = in_order(read(path, "wide (close only)"))[["date", "ticker", "close"]]
    assert max(map(len, Input(path).batches())) <= 600
    if name == "A.parquet":
        assert {batch["ticker"].nunique() for batch in Input(path).batches()} == {64, 301 % 64}
    expected = in_order(table.melt("date", var_name="ticker", value_name="close").dropna())
    assert len(rows) == len(expected)
    assert (rows == expected[["date", "ticker", "close"]]).all(axis=None)


# ---- yfinance


@pytest.mark.parametrize(("tickers_first", "named"), [(False, True), (True, False)])
@pytest.mark.parametrize("zone", [None, "America/New_York"])
@BOTH
def test_yfinance(tmp_path, name, tickers_first, named, zone):
    tickers = ("AAPL", "BRK-B", "O'R", "^GSPC")
    table = pivoted(long(tickers), FIELDS, tickers_first=tickers_first, named=named)
    table.index = table.index.tz_localize(zone)
    rows = read(write(table, tmp_path / name, index=True), "yfinance")
    pd.testing.assert_frame_equal(in_order(rows), long(tickers))


@pytest.mark.parametrize(("named", "index"), [(True, True), (False, True), (False, False)])
@BOTH
def test_yfinance_after_reset_index(tmp_path, name, named, index):
    table = pivoted(long(), FIELDS, tickers_first=False, named=named).rename_axis("Date").reset_index()
    check(write(table, tmp_path / name, index=index), "yfinance", long())


@BOTH
def test_yfinance_of_one_ticker(tmp_path, name):
    table = pivoted(long(("AAPL",)), FIELDS[::-1], tickers_first=False, named=True)
    path = write(table, tmp_path / name, index=True)
    if name == "A.csv":
        assert path.read_text().startswith("Price,Volume,Close,Low,High,Open\nTicker,AAPL,AAPL,")
        assert "\nDate,,,,,\n" in path.read_text()
        text("\n\n" + path.read_text().replace("\n", "\n\n"), path)
    check(path, "yfinance", long(("AAPL",)))


@BOTH
def test_yfinance_with_adjusted_close_and_dividends(tmp_path, name):
    frame = long()
    frame["adj close"], frame["dividends"] = frame["close"] / 2, 1.0
    fields = ["Adj Close", *FIELDS, "Dividends"]
    path = write(pivoted(frame, fields, tickers_first=False, named=True), tmp_path / name, index=True)
    halved = long()
    halved[list(PRICE_COLUMNS)] /= 2
    check(path, "yfinance (prices times adj close / close)", halved)
    check(path, "yfinance (adj close ignored)", long(), adjust=False)


@BOTH
def test_yfinance_of_closes_and_before_a_listing(tmp_path, name):
    table = pivoted(long(), ["Close"], tickers_first=False, named=True)
    check(write(table, tmp_path / name, index=True), "yfinance (close only)", close_only(long()))
    table = pivoted(long(), FIELDS, tickers_first=False, named=True)
    listed_late = table.columns.get_level_values("Ticker") == "NAN"
    table.iloc[0, listed_late] = NAN
    # a volume alone is a value
    table.iloc[1, listed_late & (table.columns.get_level_values("Price") != "Volume")] = NAN
    expected = long()
    expected.loc[3, list(PRICE_COLUMNS)] = NAN
    check(write(table, tmp_path / name, index=True), "yfinance", expected.drop(1).reset_index(drop=True))


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), days=st.integers(1, 6), count=st.sampled_from([1, 2, 5, 66]), first=st.booleans()
)
def test_every_layout_gives_the_same_rows(tmp_path_factory, seed, days, count, first):
    folder = tmp_path_factory.mktemp("layouts")
    rng = np.random.default_rng(seed)
    frame = long(tuple(sorted(f"T{i}.{i % 3}" for i in range(count))), days)
    frame[list(COLUMNS[2:])] = rng.normal(0, 1e5, (len(frame), 5)).round(4)
    frame = frame[rng.random(len(frame)) < 0.8].reset_index(drop=True)
    if frame.empty:
        return
    table = pivoted(frame, FIELDS, tickers_first=first, named=bool(seed % 2))
    wide = frame.pivot(index="date", columns="ticker", values="close")
    for suffix in ("csv", "parquet"):
        pd.testing.assert_frame_equal(read(write(frame, folder / f"l.{suffix}"), "long"), frame)
        rows = read(write(table, folder / f"y.{suffix}", index=True), "yfinance")
        pd.testing.assert_frame_equal(in_order(rows), frame)
        rows = read(write(wide, folder / f"w.{suffix}", index=True), "wide (close only)")
        pd.testing.assert_frame_equal(in_order(rows), close_only(frame))
        for ticker, own in list(frame.groupby("ticker"))[:2]:
            path = write(own.drop(columns="ticker"), folder / f"{ticker}.{suffix}")
            pd.testing.assert_frame_equal(read(path, "one ticker a file"), own.reset_index(drop=True))
            path.unlink()


# ---- what fits no layout


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("date,ticker,opn,high,low,close,volume", "open"),
        ("date,ticker,open,close", "high, low"),
        ("date,ticker,last,volume", "open, high, low, close"),
        ("date,opn,high,low,close,volume", "open"),
        ("date,open,high,low,last", "close"),
        ("date,tkr,close", "ticker, open, high, low"),
        ("date,price,volume", "open, high, low, close"),
        ("day,ticker,open,high,low,close", "date"),
        ("AAPL,MSFT,date", "ticker, open, high, low, close"),
        ("date", "ticker, open, high, low, close"),
        ("date;ticker;open;high;low;close", "date"),
    ],
)
@BOTH
def test_missing_columns(tmp_path, name, header, missing):
    names = header.split(",")
    path = write(pd.DataFrame([["2020-01-01"] * len(names)], columns=names), tmp_path / name)
    assert f"lacks the columns {missing!r}; it has {', '.join(names)!r}: rename" in failure(path)


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("date,ticker,close,Close", "close"),
        ("date,Date,ticker,close", "date"),
        ("date,ticker,tic,TICKER,close", "ticker"),
        ("date,ticker,close,adj close,adjusted_close", "adj close"),
        ("date,open,high,low,close,low", "low"),
        ("date,AAPL,MSFT,AAPL", "AAPL"),
        ("date,AAPL,DATE", "date"),
        (",close,Close\n,A,A", "close of A"),
    ],
)
def test_a_column_twice(tmp_path, header, column):
    assert f"has more than one column {column!r}: keep one" in failure(text(f"{header}\n", tmp_path / "p.csv"))


def test_the_same_name_twice_in_parquet(tmp_path):
    for names, double in ((["date", "ticker", "close", "close"], "close"), (["date", "A", "A"], "A")):
        table = pa.Table.from_arrays([pa.array(["2020-01-01"])] * len(names), names=names)
        pq.write_table(table, tmp_path / "p.parquet")
        assert f"more than one column {double!r}" in failure(tmp_path / "p.parquet")


def test_a_wide_column_without_a_name(tmp_path):
    assert "column 3 has no name" in failure(text("date,A,\n2020-01-01,1,\n", tmp_path / "p.csv"))


def test_a_ticker_of_yfinance_that_lacks_a_price(tmp_path):
    table = pivoted(long(), FIELDS, tickers_first=False, named=True)
    for name in ("p.csv", "p.parquet"):
        path = write(table.drop(columns=[("Low", "NAN"), ("Volume", "BRK.B")]), tmp_path / name, index=True)
        assert "lacks the columns 'volume of BRK.B, low of NAN'; it has " in failure(path)
        path = write(table[["Close", "Open"]], tmp_path / name, index=True)
        assert "lacks the columns 'high of BRK.B, low of BRK.B, high of NAN, low of NAN';" in failure(path)


def test_a_first_row_with_gaps_is_no_second_header(tmp_path):
    path = text("Date,Open,High,Low,Close\n,1,2,3,4\n2020-01-02,1,2,3,4\n", tmp_path / "A.csv")
    assert "at least 1 dates that cannot be read, first '' in data row 1" in failure(path)
    path = text("ticker,open,high,low,close,date\nPRICE,1,2,3,4,2020-01-02\n", tmp_path / "p.csv")
    assert read(path, "long")["ticker"].tolist() == ["PRICE"]
    path = text("Date,Close\n2020-01-01,\n", tmp_path / "B.csv")
    assert read(path, "one ticker a file (close only)")["close"].isna().all()
    # the first day may have no value; it is no header either
    table = pivoted(long(), FIELDS, tickers_first=False, named=False)
    table.iloc[0] = NAN
    path = write(table, tmp_path / "y.csv", index=True)
    pd.testing.assert_frame_equal(read(path, "yfinance"), long().iloc[2:].reset_index(drop=True))
    text(path.read_text().replace("2020-01-03", "late"), path)
    assert "first 'late' in data row 3" in failure(path)


@pytest.mark.parametrize("name", ["('Close', 'A'", "(1 + 1)", "('Close', 'A', 'B')", "('Close', __import__('os'))"])
def test_odd_names_are_names(tmp_path, name):
    frame = pd.DataFrame({"date": ["2020-01-01"], name: [1.0]})
    assert read(write(frame, tmp_path / "p.parquet"), "wide (close only)")["ticker"].tolist() == [name]


# ---- what cannot be read


@pytest.mark.parametrize("kind", ["wide", "yfinance"])
@BOTH
def test_the_row_of_a_word_in_a_table(tmp_path, monkeypatch, name, kind):
    monkeypatch.setattr(files, "CSV_BLOCK_BYTES", 300)
    monkeypatch.setattr(layouts, "BATCH_ROWS", 7)
    frame = long(days=40)
    if kind == "wide":
        table = frame.pivot(index="date", columns="ticker", values="close").reset_index()
        column, shown = "NAN", "'NAN'"
    else:
        table = pivoted(frame, FIELDS, tickers_first=False, named=False).rename_axis("Date").reset_index()
        column, shown = ("Low", "NAN"), "\"('Low', 'NAN')\""
    table[column] = table[column].astype("str")
    table.loc[33, column] = "x"
    message = failure(write(table, tmp_path / name))
    assert f"(read as {kind}" in message
    assert f"at least 1 values in column {shown} that are no numbers, first 'x' in data row 34" in message


@BOTH
def test_no_rows(tmp_path, name):
    assert "no rows of prices" in failure(write(long().iloc[:0], tmp_path / name))
    table = pd.DataFrame({"date": ["2020-01-01"], "A": [NAN]})
    assert "no rows of prices" in failure(write(table, tmp_path / name))


def test_messages_stay_one_line_whatever_the_file_says(tmp_path):
    assert r"a\nb" in failure(write(pd.DataFrame({"a\nb" * 500: [1]}), tmp_path / "p\nq.csv"))
    failure(write(pd.DataFrame({"date": ["2020-01-01"], "a\nb" * 500: ["x\ny" * 500]}), tmp_path / "p.csv"))
    names = [f"T\n{i}" for i in range(2000)]
    table = pd.DataFrame(np.ones((1, 4000)), columns=pd.MultiIndex.from_product([["Close", "Open"], names]))
    failure(write(table, tmp_path / "q.csv", index=True))


# ---- files and folders


def test_a_folder_stands_for_its_price_files(tmp_path):
    for name in ("B.csv", "A.csv.gz", "C.PARQUET", "D.pq", ".hidden.csv", "README.md", "E.txt"):
        frame = long((name.split(".")[0],), 1).drop(columns="ticker")
        frame.to_parquet(tmp_path / name) if name.endswith("PARQUET") else write(frame, tmp_path / name)
    (tmp_path / "F.csv").mkdir()
    inputs = open_inputs([tmp_path])
    assert [one.path.name for one in inputs] == ["A.csv.gz", "B.csv", "C.PARQUET", "D.pq"]
    assert [next(one.batches())["ticker"].item() for one in inputs] == ["A", "B", "C", "D"]
    assert [one.path.name for one in open_inputs([tmp_path / "D.pq", str(tmp_path / "B.csv")])] == ["D.pq", "B.csv"]


def test_inputs_that_are_refused(tmp_path):
    text("x", tmp_path / "README.md")
    with pytest.raises(UserError, match=r"has no \.csv"):
        open_inputs([tmp_path])
    with pytest.raises(UserError, match="no price files are named"):
        open_inputs([])
    path = write(long(), tmp_path / "p.csv")
    (tmp_path / "x").mkdir()
    for paths in ([path, path], [path, tmp_path / "x" / ".." / "p.csv"], [tmp_path, path]):
        with pytest.raises(UserError, match="named twice"):
            open_inputs(paths)


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not here")
def test_real_bad_rows():
    rows = read(DATA / "bad_rows.csv", "long")
    raw = pd.read_csv(DATA / "bad_rows.csv", dtype={"ticker": "str"}, keep_default_na=False, na_values={"open": [""]})
    assert rows["ticker"].tolist() == raw["ticker"].tolist()
    assert {"NAN", "TRUE"} <= set(rows["ticker"])
    assert rows["date"].dt.strftime("%Y-%m-%d").tolist() == raw["date"].tolist()
    np.testing.assert_array_equal(rows["close"], pd.to_numeric(raw["close"]))
