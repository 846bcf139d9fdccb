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
from eigen2.market.data.cleaning.inputs import Inputs
from eigen2.market.data.cleaning.layouts import Input
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS
from tests.market.data.cleaning.rows import DATA
from tests.market.data.test_files import table, write

FIELDS = ["Open", "High", "Low", "Close", "Volume"]
NAN = np.nan
BOTH = pytest.mark.parametrize("name", ["A.csv", "A.parquet"])


def long(tickers: tuple[str, ...] = ("BRK.B", "NAN"), days: int = 3) -> pd.DataFrame:
    """Canonical rows, day after day, each number another one."""
    return in_order(table(tickers, days))


def text(content: str, path: Path) -> Path:
    path.write_text(content)
    return path


def read(path: Path, layout: str | None = None) -> pd.DataFrame:
    """All rows of a file; every batch has the one form."""
    one = Input(path)
    batches = list(one.batches())
    for batch in batches:
        assert len(batch) > 0
        assert list(batch.columns) == list(COLUMNS)
        assert batch.index.equals(pd.RangeIndex(len(batch)))
        assert [str(kind) for kind in batch.dtypes] == ["datetime64[s]", "str", *["float64"] * 5]
        assert (batch["date"] == batch["date"].dt.normalize()).all()
    assert layout is None or one.layout == layout
    assert one.path == path
    return pd.concat(batches, ignore_index=True)


def assert_rows(path: Path, layout: str, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(read(path, layout), expected)


def assert_refused(path: Path, words: str) -> None:
    """Check that the file is refused in one line that names it and contains these words."""
    with pytest.raises(UserError) as error:
        read(path)
    message = str(error.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 900
    assert repr(str(path)) in message


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(["date", "ticker"], kind="stable", ignore_index=True)


def close_only(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(open=frame["close"], high=frame["close"], low=frame["close"], volume=NAN)


def pivoted(
    frame: pd.DataFrame, fields: list[str] = FIELDS, *, tickers_first: bool = False, named: bool = True
) -> pd.DataFrame:
    """The same rows as yfinance returns them, a column for each field and ticker."""
    wide = frame.rename(columns={name.lower(): name for name in fields}).pivot(index="date", columns="ticker")[fields]
    wide.columns = pd.MultiIndex.from_tuples(list(wide.columns), names=["Price", "Ticker"])
    wide.index.name = "Date"
    if tickers_first:
        wide = wide.swaplevel(axis=1)
    if not named:
        wide.columns.names, wide.index.name = [None, None], None
    return wide


# ---- long


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("p.csv", {}),
        ("p.csv.gz", {name: name.upper() for name in COLUMNS}),
        ("p.parquet", {"date": " Date ", "ticker": "tic"}),
        ("P.CSV", {"date": "datetime", "ticker": "Symbol"}),
        ("p.pq", {"date": "timestamp", "ticker": "Name"}),
    ],
)
def test_long_under_all_its_names(tmp_path, name, names):
    messy = long()[list(COLUMNS[::-1])].rename(columns=names)
    assert_rows(write(messy, tmp_path / name), "long", long())


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("stooq.txt", "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>"),
        ("crsp.csv", "PERMNO,date,TICKER,BIDLO,ASKHI,PRC,VOL,OPENPRC,RET"),
        ("quandl.csv", "ticker,date,open,high,low,close,volume,ex-dividend,split_ratio"),
        ("priced.csv", "Symbol,Date,Open,High,Low,Price,Vol"),
        ("both.csv", "symbol,date,open,high,low,close,price,volume,vol"),
    ],
)
def test_long_as_vendors_export_it(tmp_path, name, header):
    frame = long()
    spelled = {
        **{column: column for column in COLUMNS},
        **{"symbol": "ticker", "vol": "volume", "prc": "close", "bidlo": "low", "askhi": "high", "openprc": "open"},
        **({} if name == "both.csv" else {"price": "close"}),
    }
    if name == "crsp.csv":  # a permno stays where tickers change hands
        spelled = {**spelled, "ticker": None, "permno": "ticker"}
    columns = [spelled.get(column.strip("<>").lower()) for column in header.split(",")]
    if name == "both.csv":
        columns[-1] = None
    values = {i: frame[column] if column else 0 for i, column in enumerate(columns)}
    written = pd.DataFrame(values, index=frame.index)
    written.columns = header.split(",")
    assert_rows(write(written, tmp_path / name), "long", frame)


@pytest.mark.parametrize(
    ("name", "ticker", "header"),
    [
        ("aapl.us.txt", "aapl", "Date,Open,High,Low,Close,Volume,OpenInt"),
        ("BRK-B Historical Data.csv", "BRK-B", "Date,Price,Open,High,Low,Vol.,Change %"),
        ("AAPL.tsv", "AAPL", "time,open,high,low,close,Volume"),
        ("A.txt.gz", "A", "timestamp,open,high,low,close,volume"),
        ("B.csv", "B", "Date,Price"),
        ("C.csv", "C", "date,time,close"),
    ],
)
def test_one_ticker_as_vendors_export_it(tmp_path, name, ticker, header):
    frame = long((ticker,))
    first = header.split(",")[0]
    spelled = {**{column: column for column in COLUMNS}, first.lower(): "date", "price": "close"}
    spelled |= {"vol.": "volume"} | ({} if first == "time" else {"time": None})
    written = pd.DataFrame({column: frame.get(spelled.get(column.lower()), "00:00") for column in header.split(",")})
    written.to_csv(tmp_path / name, index=False, sep="\t" if name.endswith("tsv") else ",")
    full = "high" in header.lower()
    layout = "one ticker a file" + " (close only)" * (not full)
    layout += ", sep tab, decimal '.', dates %Y-%m-%d" * name.endswith("tsv")
    assert_rows(tmp_path / name, layout, frame if full else close_only(frame))


@BOTH
def test_long_with_further_or_fewer_columns(tmp_path, name):
    finrl = long().rename(columns={"ticker": "tic"}).assign(day=3, macd="x", vix=1.0)
    finrl.index = pd.Index([7, 5, 3, 2, 1, 0])
    assert_rows(write(finrl, tmp_path / name, index=True), "long", long())
    company = long().rename(columns={"ticker": "symbol"}).assign(name="Some Company", timestamp="never")
    assert_rows(write(company, tmp_path / name), "long", long())
    assert_rows(write(long().drop(columns="volume"), tmp_path / name), "long", long().assign(volume=NAN))
    closes = long()[["date", "ticker", "close"]].rename(columns={"close": "CLOSE"})
    assert_rows(write(closes, tmp_path / name), "long (close only)", close_only(long()))
    closes = closes.assign(volume=long()["volume"], note="x")
    expected = close_only(long()).assign(volume=long()["volume"])
    assert_rows(write(closes, tmp_path / name), "long (close only)", expected)


@BOTH
def test_values_are_as_the_file_has_them(tmp_path, name):
    frame = long(days=4)
    frame.loc[0, "open"], frame.loc[1, "close"], frame.loc[2, "high"] = np.inf, -np.inf, -1.0
    frame.loc[3, ["open", "high", "low", "close", "volume"]] = NAN
    assert_rows(write(frame, tmp_path / name), "long", frame)


# ---- one ticker a file


@pytest.mark.parametrize(
    ("name", "ticker"), [("AAPL.csv", "AAPL"), ("brk.b.csv.gz", "brk.b"), ("NA.parquet", "NA"), ("1.pq", "1")]
)
def test_the_files_name_is_the_ticker(tmp_path, name, ticker):
    frame = long(("x",)).drop(columns="ticker").assign(Dividends=0.0)
    assert_rows(write(frame, tmp_path / name), "one ticker a file", long((ticker,)))


@pytest.mark.parametrize("label", ["Date", None, "Datetime"])
@BOTH
def test_the_date_as_index(tmp_path, name, label):
    frame = long(("A",)).drop(columns="ticker").set_index("date").rename_axis(label)
    assert_rows(write(frame, tmp_path / name, index=True), "one ticker a file", long(("A",)))


def test_one_ticker_of_closes_and_empty_days(tmp_path):
    for volume in ("", ",volume"):
        path = text(f"Date,Close{volume}\n2020-01-01,5{',7' * bool(volume)}\n", tmp_path / "VIX.csv")
        rows = read(path, "one ticker a file (close only)")
        assert rows["ticker"].tolist() == ["VIX"]
        np.testing.assert_array_equal(rows.iloc[0, 2:].tolist(), [5, 5, 5, 5, 7 if volume else NAN])
    path = text("date,open,high,low,close,volume\n2020-01-01,,,,,\n2020-01-02,1,1,1,1,1\n", tmp_path / "A.csv")
    assert read(path)["close"].isna().tolist() == [True, False]


def test_many_rows_a_day_need_a_ticker(tmp_path):
    frame = long(("A", "B", "C"), 4).rename(columns={"ticker": "tkr"})
    assert_refused(write(frame, tmp_path / "p.csv"), "has 12 rows on 4 days but no column of tickers")
    for name in ("p.csv", "p.parquet"):
        frame = long(("A", "B"), 4).rename(columns={"ticker": "tkr"}).iloc[:-3]
        assert_refused(write(frame, tmp_path / name), "has several rows a day, which differ in column 'tkr'")
    unnamed = long(("A", "B"), 4).set_index("ticker").rename_axis(None)
    assert_refused(write(unnamed, tmp_path / "p.csv", index=True), "has several rows a day, which differ in column ''")
    # a day twice, of texts that differ, is a duplicate
    twice = long(("A",), 40).assign(change=[f"{day}%" for day in range(40)], event="").drop(columns="ticker")
    twice = pd.concat([twice, twice.iloc[[7]].assign(change="99%", event="Dividend")])
    assert len(read(write(twice, tmp_path / "p.csv"), "one ticker a file")) == 41
    # two rows a day that name no tickers may be duplicates, which cleaning removes
    frame = long(("A", "B"), 4).drop(columns="ticker").assign(currency="USD", dividends=[0.0, 1.0] * 4)
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
    money, known = rows["close"] * rows["volume"], np.isfinite(rows["close"])
    np.testing.assert_allclose(money[known], 100 * pd.read_csv(path)["close"][known])  # is that of the day


def test_adjusting_keeps_the_order_of_prices(tmp_path):
    close, adjusted = np.random.default_rng(0).uniform(1, 500, (2, 5000)).round(2)
    days = pd.date_range("2000-01-01", periods=5000)
    frame = pd.DataFrame({"date": days, "ticker": "A", **dict.fromkeys(PRICE_COLUMNS, close), "adj_close": adjusted})
    rows = read(write(frame, tmp_path / "p.parquet"))
    assert (rows[["high", "low"]].eq(rows["close"], axis=0)).all(axis=None)
    np.testing.assert_allclose(rows["close"], adjusted, rtol=1e-15)


# ---- wide and yfinance


@pytest.mark.parametrize(("label", "index"), [("date", True), ("Date", False), ("TimeStamp", True), (None, True)])
@BOTH
def test_wide(tmp_path, name, label, index):
    tickers = ("AAPL", "BRK", "BRK.B", "LOW", "NAN", "OPEN")
    frame = long(tickers).pivot(index="date", columns="ticker", values="close").rename_axis(label)
    path = write(frame if index else frame.reset_index(), tmp_path / name, index=index)
    assert_rows(path, "wide (close only)", close_only(long(tickers)))


def test_wide_with_a_range_index_or_empty_cells(tmp_path):
    frame = long().pivot(index="date", columns="ticker", values="close").reset_index()
    for written in (frame.to_csv(), frame.to_csv().replace(",date", "Unnamed: 0,date", 1)):
        assert_rows(text(written, tmp_path / "p.csv"), "wide (close only)", close_only(long()))
    path = text("date,A,B\n2020-01-01,1,\n2020-01-02,,\n2020-01-03,nan,0\n", tmp_path / "p.csv")
    rows = read(path, "wide (close only)")
    days = rows["date"].dt.day
    assert list(zip(rows["ticker"], rows["close"], days, strict=True)) == [("A", 1, 1), ("B", 0, 3)]


@BOTH
def test_many_tickers_are_read_in_parts(tmp_path, name, monkeypatch):
    monkeypatch.setattr(layouts, "BATCH_ROWS", 300)
    frame = pd.DataFrame(np.arange(7 * 101).reshape(7, 101) * 1.5, columns=[f"TICKER.{i}" for i in range(101)])
    frame[frame % 7 == 0] = NAN
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=7))
    path = write(frame, tmp_path / name)
    rows = in_order(read(path, "wide (close only)"))[["date", "ticker", "close"]]
    sizes = [(len(batch), batch["ticker"].nunique()) for batch in Input(path).batches()]
    assert max(size for size, _ in sizes) <= 300
    assert max(tickers for _, tickers in sizes) == (64 if name == "A.parquet" else 101)
    expected = in_order(frame.melt("date", var_name="ticker", value_name="close").dropna())
    assert len(rows) == len(expected)
    assert (rows == expected[["date", "ticker", "close"]]).all(axis=None)


@pytest.mark.parametrize(
    ("tickers_first", "named", "zone"), [(False, True, None), (True, False, "America/New_York"), (True, True, None)]
)
@BOTH
def test_yfinance(tmp_path, name, tickers_first, named, zone):
    tickers = ("AAPL", "BRK-B", "O'R", "^GSPC")
    frame = pivoted(long(tickers), tickers_first=tickers_first, named=named)
    frame.index = frame.index.tz_localize(zone)
    rows = read(write(frame, tmp_path / name, index=True), "yfinance")
    pd.testing.assert_frame_equal(in_order(rows), long(tickers))


@BOTH
def test_yfinance_after_reset_index(tmp_path, name):
    for named, index in ((True, True), (False, True), (False, False)):
        frame = pivoted(long(), named=named).rename_axis("Date").reset_index()
        assert_rows(write(frame, tmp_path / name, index=index), "yfinance", long())


@BOTH
def test_yfinance_of_one_ticker(tmp_path, name):
    path = write(pivoted(long(("AAPL",)), FIELDS[::-1]), tmp_path / name, index=True)
    if name == "A.csv":
        assert path.read_text().startswith("Price,Volume,Close,Low,High,Open\nTicker,AAPL,AAPL,")
        assert "\nDate,,,,,\n" in path.read_text()
        text("\n\n" + path.read_text().replace("\n", "\n\n"), path)
    assert_rows(path, "yfinance", long(("AAPL",)))


def test_yfinance_of_tickers_that_are_numbers(tmp_path):
    for tickers in (("600000",), ("000001", "600000")):
        assert_rows(write(pivoted(long(tickers)), tmp_path / "y.csv", index=True), "yfinance", long(tickers))


@pytest.mark.parametrize("tickers_first", [False, True])
def test_yfinance_with_merged_cells_as_excel_writes_them(tmp_path, tickers_first):
    path = write(pivoted(long(), tickers_first=tickers_first).sort_index(axis=1), tmp_path / "y.csv", index=True)
    first, *lines = path.read_text().splitlines()
    names = first.split(",")
    merged = [name if place < 1 or name != names[place - 1] else "" for place, name in enumerate(names)]
    assert "" in merged
    assert_rows(text("\n".join([",".join(merged), *lines]), path), "yfinance", long())


@BOTH
def test_yfinance_with_other_fields_and_before_a_listing(tmp_path, name):
    frame = long()
    frame["adj close"], frame["dividends"] = frame["close"] / 2, 1.0
    path = write(pivoted(frame, ["Adj Close", *FIELDS, "Dividends"]), tmp_path / name, index=True)
    halved = long()
    halved[list(PRICE_COLUMNS)] /= 2
    halved["volume"] *= 2
    assert_rows(path, "yfinance (prices times adj close / close)", halved)
    assert_rows(write(pivoted(long(), ["Close"]), path, index=True), "yfinance (close only)", close_only(long()))
    frame = pivoted(long())
    listed_late = frame.columns.get_level_values("Ticker") == "NAN"
    frame.iloc[0, listed_late] = NAN
    # a volume alone is a value
    frame.iloc[1, listed_late & (frame.columns.get_level_values("Price") != "Volume")] = NAN
    expected = long()
    expected.loc[3, list(PRICE_COLUMNS)] = NAN
    assert_rows(write(frame, path, index=True), "yfinance", expected.drop(1).reset_index(drop=True))


@settings(max_examples=4, deadline=None)
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
    yfinance = pivoted(frame, tickers_first=first, named=bool(seed % 2))
    wide = frame.pivot(index="date", columns="ticker", values="close")
    for suffix in ("csv", "parquet"):
        assert_rows(write(frame, folder / f"l.{suffix}"), "long", frame)
        rows = read(write(yfinance, folder / f"y.{suffix}", index=True), "yfinance")
        pd.testing.assert_frame_equal(in_order(rows), frame)
        rows = read(write(wide, folder / f"w.{suffix}", index=True), "wide (close only)")
        pd.testing.assert_frame_equal(in_order(rows), close_only(frame))


# ---- what fits no layout


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("date,ticker,opn,high,low,close,volume", "open"),
        ("date,ticker,open,close", "high, low"),
        ("date,ticker,last,volume", "open, high, low, close"),
        ("date,open,high,low,last", "close"),
        ("date,tkr,close", "ticker, open, high, low"),
        ("day,ticker,open,high,low,close", "date"),
        ("AAPL,MSFT,date", "ticker, open, high, low, close"),
        ("date", "ticker, open, high, low, close"),
    ],
)
@BOTH
def test_missing_columns(tmp_path, name, header, missing):
    names = header.split(",")
    path = write(pd.DataFrame([["2020-01-01"] * len(names)], columns=names), tmp_path / name)
    assert_refused(path, f"lacks the columns {missing!r}; it has {', '.join(names)!r}: rename")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        *(
            (header, f"has more than one column {column!r}: keep one")
            for header, column in (
                ("date,ticker,close,Close", "close"),
                ("date,Date,ticker,close", "date"),
                ("date,ticker,tic,TICKER,close", "ticker"),
                ("date,ticker,close,adj close,adjusted_close", "adj close"),
                ("date,AAPL,MSFT,AAPL", "AAPL"),
                ("date,AAPL,DATE", "date"),
                (",close,Close\n,A,A", "close of A"),
            )
        ),
        ("date,A,\n2020-01-01,1,", "column 3 has no name"),
        ("date,A_close,A_volume\n2020-01-01,1,2", "has the columns 'A_close' and 'A_volume', which look like"),
        ("Date,PX_OPEN,PX_HIGH,PX_LOW,PX_LAST\n2020-01-01,1,2,1,2", "has the columns 'PX_OPEN' and 'PX_HIGH', which"),
        ("Date,Settle Price,Total Volume,Low Price\n2020-01-01,1,2,1", "the columns 'Total Volume' and 'Low Price'"),
        ("Date,Open,High,Low,Close\n,1,2,3,4\n2020-01-02,1,2,3,4", "dates that cannot be read, first '' in data row 1"),
    ],
)
def test_refused_headers(tmp_path, header, words):
    assert_refused(text(f"{header}\n", tmp_path / "p.csv"), words)


def test_the_same_name_twice_in_parquet(tmp_path):
    for names, double in ((["date", "ticker", "close", "close"], "close"), (["date", "A", "A"], "A")):
        arrays = pa.Table.from_arrays([pa.array(["2020-01-01"])] * len(names), names=names)
        pq.write_table(arrays, tmp_path / "p.parquet")
        assert_refused(tmp_path / "p.parquet", f"more than one column {double!r}")


@BOTH
def test_a_ticker_of_yfinance_that_lacks_a_price(tmp_path, name):
    frame = pivoted(long())
    path = write(frame.drop(columns=[("Low", "NAN"), ("Volume", "BRK.B")]), tmp_path / name, index=True)
    assert_refused(path, "lacks the columns 'volume of BRK.B, low of NAN'; it has ")
    path = write(frame[["Close", "Open"]], tmp_path / name, index=True)
    assert_refused(path, "lacks the columns 'high of BRK.B, low of BRK.B, high of NAN, low of NAN';")


def test_what_is_no_second_header(tmp_path):
    path = text("ticker,open,high,low,close,date\nPRICE,1,2,3,4,2020-01-02\n", tmp_path / "p.csv")
    assert read(path, "long")["ticker"].tolist() == ["PRICE"]
    path = text("Date,Close\n2020-01-01,\n", tmp_path / "B.csv")
    assert read(path, "one ticker a file (close only)")["close"].isna().all()
    # the first day below two header rows may have no value; it is no header either
    frame = pivoted(long(), named=False)
    frame.iloc[0] = NAN
    path = write(frame, tmp_path / "y.csv", index=True)
    assert_rows(path, "yfinance", long().iloc[2:].reset_index(drop=True))
    assert_refused(text(path.read_text().replace("2020-01-03", "late"), path), "first 'late' in data row 3")
    for name in ("('Close', 'A'", "(1 + 1)", "('Close', 'A', 'B')", "('Close', __import__('os'))"):
        path = write(pd.DataFrame({"date": ["2020-01-01"], name: [1.0]}), tmp_path / "p.parquet")
        assert read(path, "wide (close only)")["ticker"].tolist() == [name]


@pytest.mark.parametrize("kind", ["wide", "yfinance"])
@BOTH
def test_the_row_of_a_word_in_a_table(tmp_path, monkeypatch, name, kind):
    monkeypatch.setattr(files, "CSV_BLOCK_BYTES", 300)
    monkeypatch.setattr(layouts, "BATCH_ROWS", 7)
    frame = pivoted(long(days=40), named=False).rename_axis("Date").reset_index()
    column, shown = ("Low", "NAN"), "\"('Low', 'NAN')\""
    if kind == "wide":
        frame = long(days=40).pivot(index="date", columns="ticker", values="close").reset_index()
        column, shown = "NAN", "'NAN'"
    frame[column] = frame[column].astype("str")
    frame.loc[33, column] = "x"
    close = " (close only)" if kind == "wide" else ""
    words = (
        f"(read as {kind}{close}) has at least 1 values in column {shown} that are no numbers, first 'x' in data row 34"
    )
    assert_refused(write(frame, tmp_path / name), words)


@BOTH
def test_no_rows(tmp_path, name):
    assert_refused(write(long().iloc[:0], tmp_path / name), "no rows of prices")
    assert_refused(write(pd.DataFrame({"date": ["2020-01-01"], "A": [NAN]}), tmp_path / name), "no rows of prices")


def test_messages_stay_one_line_whatever_the_file_says(tmp_path):
    assert_refused(write(pd.DataFrame({"a\nb" * 500: [1]}), tmp_path / "p\nq.csv"), r"a\nb")
    assert_refused(write(pd.DataFrame({"date": ["2020-01-01"], "a\nb" * 500: ["x\ny" * 500]}), tmp_path / "p.csv"), "")
    names = pd.MultiIndex.from_product([["Close", "Open"], [f"T\n{i}" for i in range(500)]])
    assert_refused(write(pd.DataFrame(np.ones((1, 1000)), columns=names), tmp_path / "q.csv", index=True), "")


# ---- files and folders


def test_a_folder_stands_for_its_price_files(tmp_path):
    for name in ("B.csv", "A.csv.gz", "C.PARQUET", "D.pq", ".hidden.csv", "README.md", "E.txt", "F.doc"):
        write(long((name.split(".")[0],), 1).drop(columns="ticker"), tmp_path / name)
    (tmp_path / "F.csv").mkdir()
    inputs = Inputs([tmp_path]).files
    assert [one.path.name for one in inputs] == ["A.csv.gz", "B.csv", "C.PARQUET", "D.pq", "E.txt"]
    assert [next(one.batches())["ticker"].item() for one in inputs] == ["A", "B", "C", "D", "E"]
    assert [one.path.name for one in Inputs([tmp_path / "D.pq", str(tmp_path / "B.csv")]).files] == ["D.pq", "B.csv"]


def test_inputs_that_are_refused(tmp_path):
    text("x", tmp_path / "README.md")
    path, folder = tmp_path / "p.csv", tmp_path / "x"
    folder.mkdir()
    for paths, words in (([tmp_path], r"has no file that ends in \.csv"), ([], "no price files are named")):
        with pytest.raises(UserError, match=words):
            Inputs(paths)
    write(long(), path)
    for paths in ([path, path], [path, folder / ".." / "p.csv"], [tmp_path, path]):
        with pytest.raises(UserError, match="named twice"):
            Inputs(paths)


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not here")
def test_real_bad_rows():
    rows = read(DATA / "bad_rows.csv", "long")
    raw = pd.read_csv(DATA / "bad_rows.csv", dtype={"ticker": "str"}, keep_default_na=False, na_values={"open": [""]})
    assert rows["ticker"].tolist() == raw["ticker"].tolist()
    assert {"NAN", "TRUE"} <= set(rows["ticker"])
    assert rows["date"].dt.strftime("%Y-%m-%d").tolist() == raw["date"].tolist()
    np.testing.assert_array_equal(rows["close"], pd.to_numeric(raw["close"]))
