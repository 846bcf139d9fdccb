"""Layouts: each is recognised by its header and gives the same rows; what fits none is refused in one clear line."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data.cleaning import columns, layouts
from eigen2.market.data.cleaning.layouts import Input, open_inputs
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS, read_prices

DATA = Path(__file__).resolve().parents[4].parent / "shared" / "data"
FIELDS = ["Open", "High", "Low", "Close", "Volume"]
NAN = np.nan


def long(tickers: tuple[str, ...] = ("BRK.B", "NAN"), days: int = 3) -> pd.DataFrame:
    """Canonical rows, day after day, each number another one."""
    dates = pd.date_range("2020-01-01", periods=days).astype("datetime64[s]")
    frame = pd.DataFrame([(date, ticker) for date in dates for ticker in tickers], columns=["date", "ticker"])
    for i, column in enumerate(COLUMNS[2:]):
        frame[column] = np.arange(len(frame)) + 100.0 * (i + 1)
    return frame.astype({"ticker": "str", "date": "datetime64[s]"})


def write(frame: pd.DataFrame, path: Path, *, index: bool = False) -> Path:
    if path.name.endswith("parquet"):
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
    pd.testing.assert_frame_equal(read(write(messy, tmp_path / name), "long"), long())


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_finrl_with_its_index_and_indicators(tmp_path, name):
    frame = long().rename(columns={"ticker": "tic"}).assign(day=3, macd="x", vix=1.0)
    frame.index = pd.Index([7, 5, 3, 2, 1, 0])
    path = write(frame, tmp_path / name, index=True)
    assert path.suffix != ".csv" or path.read_text().startswith(",date,")
    pd.testing.assert_frame_equal(read(path, "long"), long())


def test_kaggles_name_column_and_a_company_beside_a_symbol(tmp_path):
    kaggle = long().rename(columns={"ticker": "Name"})[["date", *COLUMNS[2:], "Name"]]
    pd.testing.assert_frame_equal(read(write(kaggle, tmp_path / "a.csv"), "long"), long())
    both = long().rename(columns={"ticker": "symbol"}).assign(name="Some Company", timestamp="never")
    pd.testing.assert_frame_equal(read(write(both, tmp_path / "b.csv"), "long"), long())


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_without_volume(tmp_path, name):
    pd.testing.assert_frame_equal(
        read(write(long().drop(columns="volume"), tmp_path / name), "long"), long().assign(volume=NAN)
    )


@pytest.mark.parametrize("close", ["close", "Value", "CLOSE"])
def test_long_of_closes(tmp_path, close):
    frame = long()[["date", "ticker", "close"]].rename(columns={"close": close})
    pd.testing.assert_frame_equal(read(write(frame, tmp_path / "p.csv"), "long (close only)"), close_only(long()))
    frame = frame.assign(volume=long()["volume"], note="x")
    expected = close_only(long()).assign(volume=long()["volume"])
    pd.testing.assert_frame_equal(read(write(frame, tmp_path / "p.csv"), "long (close only)"), expected)


def test_values_are_as_the_file_has_them(tmp_path):
    frame = long(days=4)
    frame.loc[0, "open"], frame.loc[1, "close"], frame.loc[2, "high"] = np.inf, -np.inf, -1.0
    frame.loc[3, ["open", "high", "low", "close", "volume"]] = NAN
    for name in ("p.csv", "p.parquet"):
        pd.testing.assert_frame_equal(read(write(frame, tmp_path / name)), frame)


def test_tickers_are_text(tmp_path):
    names = ("000001", "1E5", "NA", "NAN", "NULL", "TRUE", "BRK.B", "600519")
    for name in ("p.csv", "p.parquet"):
        assert read(write(long(names, 1), tmp_path / name))["ticker"].tolist() == list(names)
    numbers = long(("x", "y"), 1).assign(ticker=[600519, 7])
    assert read(write(numbers, tmp_path / "p.parquet"))["ticker"].tolist() == ["600519", "7"]
    categories = long().astype({"ticker": "category"})
    pd.testing.assert_frame_equal(read(write(categories, tmp_path / "p.parquet")), long())


@pytest.mark.parametrize(
    "date",
    [
        pa.array([18262], pa.date32()),
        pa.array([1577836800000], pa.date64()),
        pa.array([20200101], pa.int64()),
        pa.array(["2020-01-01T16:00:00Z"], pa.string()),
        pa.array(["20200101"], pa.large_string()),
        pa.array(["2020-01-01"]).dictionary_encode(),
        # midnight in New York, which is the same day there
        pa.array([1577854800], pa.timestamp("s", tz="America/New_York")),
        pa.array([1577887200000000000], pa.timestamp("ns")),
    ],
)
def test_date_types(tmp_path, date):
    table = pa.Table.from_pandas(long(("A",), 1)).set_column(0, "date", date)
    pq.write_table(table, tmp_path / "p.parquet")
    assert read(tmp_path / "p.parquet")["date"].tolist() == [pd.Timestamp("2020-01-01")]


def test_number_types(tmp_path):
    table = pa.Table.from_pandas(long(("A",), 2))
    table = table.set_column(2, "open", pa.array([10, None], pa.decimal128(9, 2)))
    table = table.set_column(3, "high", pa.array([10, None], pa.int32()))
    table = table.set_column(4, "low", pa.array(["10", ""]))
    table = table.set_column(5, "close", pa.array([10, None], pa.float32()))
    table = table.set_column(6, "volume", pa.nulls(2))
    pq.write_table(table, tmp_path / "p.parquet")
    rows = read(tmp_path / "p.parquet")
    assert (rows.loc[0, list(PRICE_COLUMNS)] == 10).all()
    assert rows.loc[1, list(PRICE_COLUMNS)].isna().all()
    assert rows["volume"].isna().all()


def test_parquet_without_pandas(tmp_path):
    table = pa.Table.from_pandas(long()).replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=4)
    pd.testing.assert_frame_equal(read(tmp_path / "p.parquet", "long"), long())


def test_text_around_the_rows(tmp_path):
    lines = long().to_csv(index=False).splitlines()
    lines[2] = ",".join(f'"{cell}"' for cell in lines[2].split(","))
    path = tmp_path / "p.csv"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + "\r\n\r\n".join(lines).encode() + b"\r\n\r\n")
    pd.testing.assert_frame_equal(read(path, "long"), long())
    path.write_bytes(gzip.compress(path.read_bytes()))
    pd.testing.assert_frame_equal(read(path, "long"), long())


def test_lines_within_quotes(tmp_path):
    frame = long().assign(**{"a\nnote": "one\ntwo, three"})[["a\nnote", *COLUMNS]]
    pd.testing.assert_frame_equal(read(write(frame, tmp_path / "p.csv"), "long"), long())


def test_only_what_is_read_must_be_text(tmp_path):
    content = long().assign(company="Nestl#").to_csv(index=False).encode().replace(b"#", b"\xe9")
    (tmp_path / "p.csv").write_bytes(content)
    pd.testing.assert_frame_equal(read(tmp_path / "p.csv", "long"), long())


# ---- one ticker a file


@pytest.mark.parametrize(
    ("name", "ticker"),
    [("AAPL.csv", "AAPL"), ("AAPL.csv.gz", "AAPL"), ("brk.b.CSV", "brk.b"), ("NA.parquet", "NA"), ("1.pq", "1")],
)
def test_the_files_name_is_the_ticker(tmp_path, name, ticker):
    frame = long(("x",)).drop(columns="ticker").assign(Dividends=0.0)
    path = tmp_path / name
    frame.to_parquet(path) if name.endswith(("parquet", "pq")) else write(frame, path)
    pd.testing.assert_frame_equal(read(path, "one ticker a file"), long((ticker,)))


@pytest.mark.parametrize("label", ["Date", None, "Datetime"])
@pytest.mark.parametrize("name", ["A.csv", "A.parquet"])
def test_the_date_as_index(tmp_path, name, label):
    frame = long(("A",)).drop(columns="ticker").set_index("date").rename_axis(label)
    pd.testing.assert_frame_equal(read(write(frame, tmp_path / name, index=True), "one ticker a file"), long(("A",)))


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
    message = failure(write(frame, tmp_path / "p.csv"))
    assert "has 12 rows on 4 days but no column of tickers" in message
    # two rows a day may be duplicates, for a later stage to judge
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
    assert "column 'adj close' has at least 1 values that are no numbers, first 'five' in data row 1" in failure(path)


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


@pytest.mark.parametrize("label", ["date", "Date", "TimeStamp", None])
@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
@pytest.mark.parametrize("index", [True, False])
def test_wide(tmp_path, name, label, index):
    tickers = ("AAPL", "BRK", "BRK.B", "LOW", "NAN", "OPEN")
    frame = long(tickers).pivot(index="date", columns="ticker", values="close").rename_axis(label)
    if not index:
        if label is None:
            return
        frame = frame.reset_index()
    path = write(frame, tmp_path / name, index=index)
    pd.testing.assert_frame_equal(read(path, "wide (close only)"), close_only(long(tickers)))


def test_wide_with_the_range_index_pandas_wrote(tmp_path):
    frame = long().pivot(index="date", columns="ticker", values="close").reset_index()
    for written in (frame.to_csv(), frame.to_csv().replace(",date", "Unnamed: 0,date", 1)):
        path = text(written, tmp_path / "p.csv")
        pd.testing.assert_frame_equal(read(path, "wide (close only)"), close_only(long()))


def test_days_without_a_value_are_no_rows(tmp_path):
    path = text("date,A,B\n2020-01-01,1,\n2020-01-02,,\n2020-01-03,nan,0\n", tmp_path / "p.csv")
    rows = read(path, "wide (close only)")
    assert rows["ticker"].tolist() == ["A", "B"]
    assert rows["close"].tolist() == [1, 0]
    assert rows["date"].dt.day.tolist() == [1, 3]
    one = text("date,A\n2020-01-01,\n2020-01-02,1\n", tmp_path / "q.csv")
    assert read(one, "wide (close only)")["date"].dt.day.tolist() == [2]


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_more_than_a_thousand_tickers(tmp_path, name, monkeypatch):
    monkeypatch.setattr(layouts, "BATCH_ROWS", 5000)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(1, 9, (7, 1501)).round(3), columns=[f"TICKER.{i}" for i in range(1501)])
    table[table < 2] = NAN
    table.insert(0, "date", pd.date_range("2020-01-01", periods=7))
    expected = table.melt("date", var_name="ticker", value_name="close").dropna()
    path = write(table, tmp_path / name)
    rows = read(path, "wide (close only)")
    assert len(rows) == len(expected)
    assert max(map(len, Input(path).batches())) <= 5000
    if name == "p.parquet":
        assert {batch["ticker"].nunique() for batch in Input(path).batches()} == {64, 1501 % 64}
    expected = in_order(expected)
    assert (in_order(rows)[["date", "ticker", "close"]] == expected[["date", "ticker", "close"]]).all(axis=None)


# ---- yfinance


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
@pytest.mark.parametrize("tickers_first", [False, True])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("zone", [None, "America/New_York"])
def test_yfinance(tmp_path, name, tickers_first, named, zone):
    tickers = ("AAPL", "BRK-B", "O'R", "^GSPC")
    table = pivoted(long(tickers), FIELDS, tickers_first=tickers_first, named=named)
    table.index = table.index.tz_localize(zone)
    path = write(table, tmp_path / name, index=True)
    pd.testing.assert_frame_equal(in_order(read(path, "yfinance")), long(tickers))


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("index", [True, False])
def test_yfinance_after_reset_index(tmp_path, name, named, index):
    table = pivoted(long(), FIELDS, tickers_first=False, named=named).rename_axis("Date").reset_index()
    if not index and name == "p.csv" and not named:
        assert table.to_csv(index=False).startswith("Date,Open")
    pd.testing.assert_frame_equal(read(write(table, tmp_path / name, index=index), "yfinance"), long())


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_yfinance_of_one_ticker(tmp_path, name):
    table = pivoted(long(("AAPL",)), FIELDS[::-1], tickers_first=False, named=True)
    path = write(table, tmp_path / name, index=True)
    if name == "p.csv":
        assert path.read_text().startswith("Price,Volume,Close,Low,High,Open\nTicker,AAPL,AAPL,")
        assert "\nDate,,,,,\n" in path.read_text()
        text("\n\n" + path.read_text().replace("\n", "\n\n"), path)
    pd.testing.assert_frame_equal(read(path, "yfinance"), long(("AAPL",)))


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_yfinance_with_adjusted_close_and_dividends(tmp_path, name):
    frame = long()
    frame["adj close"], frame["dividends"] = frame["close"] / 2, 1.0
    fields = ["Adj Close", *FIELDS, "Dividends"]
    path = write(pivoted(frame, fields, tickers_first=False, named=True), tmp_path / name, index=True)
    halved = long()
    halved[list(PRICE_COLUMNS)] /= 2
    pd.testing.assert_frame_equal(read(path, "yfinance (prices times adj close / close)"), halved)
    pd.testing.assert_frame_equal(read(path, "yfinance (adj close ignored)", adjust=False), long())


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_yfinance_of_closes_and_before_a_listing(tmp_path, name):
    table = pivoted(long(), ["Close"], tickers_first=False, named=True)
    pd.testing.assert_frame_equal(
        read(write(table, tmp_path / name, index=True), "yfinance (close only)"), close_only(long())
    )
    table = pivoted(long(), FIELDS, tickers_first=False, named=True)
    table.iloc[0, table.columns.get_level_values("Ticker") == "NAN"] = NAN
    # a volume alone is a value
    table.iloc[1, (table.columns.get_level_values("Ticker") == "NAN") & (table.columns.codes[0] != 4)] = NAN
    expected = long().drop(1).reset_index(drop=True)
    volume_alone = table.columns[table.iloc[1].isna()].get_level_values("Price").unique()
    for field in volume_alone:
        expected.loc[2, field.lower()] = NAN
    assert 0 < len(volume_alone) < 5
    pd.testing.assert_frame_equal(read(write(table, tmp_path / name, index=True), "yfinance"), expected)


@settings(max_examples=12, deadline=None)
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


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
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
def test_missing_columns(tmp_path, header, missing, suffix):
    names = header.split(",")
    path = write(pd.DataFrame([["2020-01-01"] * len(names)], columns=names), tmp_path / f"p.{suffix}")
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


@pytest.fixture(params=["p.csv", "p.csv.gz", "p.parquet"])
def later(request, tmp_path, monkeypatch):
    """A writer of long rows that are read in many batches."""
    monkeypatch.setattr(columns, "CSV_BLOCK_BYTES", 300)
    monkeypatch.setattr(layouts, "BATCH_ROWS", 7)

    def writer(frame: pd.DataFrame) -> Path:
        return write(frame, tmp_path / request.param)

    return writer


def test_many_batches_give_the_same_rows(later):
    frame = long(days=40)
    path = later(frame)
    assert len(list(Input(path).batches())) > 5
    pd.testing.assert_frame_equal(read(path), frame)


def test_the_row_of_an_unreadable_date(later):
    frame = long(days=40).astype({"date": "str"})
    frame.loc[[66, 79], "date"] = "soon"
    assert "dates that cannot be read, first 'soon' in data row 67: write dates" in failure(later(frame))


def test_the_row_without_a_ticker(later):
    frame = long(days=40)
    frame.loc[[67, 79], "ticker"] = None
    assert "rows without a ticker, first data row 68: name it" in failure(later(frame))


@pytest.mark.parametrize("column", [*PRICE_COLUMNS, "volume"])
def test_the_row_of_a_word_among_numbers(later, column):
    frame = long(days=40).astype({column: "str"})
    frame.loc[[68, 79], column] = "1,234.5"
    message = failure(later(frame))
    assert f"column {column!r} has at least 1 values that are no numbers, first '1,234.5' in data row 69" in message


@pytest.mark.parametrize("kind", ["wide", "yfinance"])
def test_the_row_of_a_word_in_a_table(later, kind):
    frame = long(days=40)
    if kind == "wide":
        table = frame.pivot(index="date", columns="ticker", values="close").reset_index()
        column, shown = "NAN", "'NAN'"
    else:
        table = pivoted(frame, FIELDS, tickers_first=False, named=False).rename_axis("Date").reset_index()
        column, shown = ("Low", "NAN"), "\"('Low', 'NAN')\""
    table[column] = table[column].astype("str")
    table.loc[33, column] = "x"
    message = failure(later(table))
    assert f"(read as {kind}" in message
    assert f"column {shown} has at least 1 values that are no numbers, first 'x' in data row 34" in message


def test_numbers_that_only_pandas_reads(later, monkeypatch):
    frame = long(days=40)
    path = later(frame)
    if path.suffix == ".parquet":
        return
    real = columns._typed_csv_batches

    def refuses_late(*args):
        for i, batch in enumerate(real(*args)):
            if i == 3 and args[-1] == pa.float64():
                raise pa.ArrowInvalid("conversion error")
            yield batch

    # as when one cell is read by pandas alone: the rest comes as text, no row twice
    monkeypatch.setattr(columns, "_typed_csv_batches", refuses_late)
    pd.testing.assert_frame_equal(read(path), frame)


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_words_in_a_mistaken_wide_file(tmp_path, name):
    frame = pd.DataFrame({"date": ["2020-01-01"], "company": ["Apple"]})
    message = failure(write(frame, tmp_path / name))
    assert "(read as wide (close only)): column 'company' has at least 1 values that are no numbers" in message


@pytest.mark.parametrize("value", ["13/01/2020", "2020-02-30", "", "2020-01-011"])
def test_unreadable_dates(tmp_path, value):
    path = text(f"date,A\n2020-01-01,1\n{value},1\n", tmp_path / "p.csv")
    assert f"at least 1 dates that cannot be read, first {value!r} in data row 2" in failure(path)


def test_dates_beyond_the_calendar(tmp_path):
    table = pa.Table.from_pandas(long(("A",), 2)).set_column(0, "date", pa.array([0, 10**15], pa.timestamp("s")))
    pq.write_table(table, tmp_path / "p.parquet")
    assert "dates outside the years 1 to 9999, first" in failure(tmp_path / "p.parquet")
    assert "in data row 2" in failure(tmp_path / "p.parquet")


def test_prices_of_another_type(tmp_path):
    for values in ([True] * 6, pd.date_range("2020", periods=6)):
        path = write(long().assign(low=values), tmp_path / "p.parquet")
        assert "column 'low' has at least 6 values that are no numbers" in failure(path)
    frame = long()
    frame["low"] = [[1.0]] * 6
    assert "column 'low' holds list" in failure(write(frame, tmp_path / "p.parquet"))
    # what is not read may be anything
    frame = long()
    frame["list"] = [[1.0]] * 6
    pd.testing.assert_frame_equal(read(write(frame, tmp_path / "p.parquet")), long())


def test_missing_empty_and_unknown_files(tmp_path):
    assert "no price file at" in failure(tmp_path / "no.csv")
    for name in ("p.csv", "p.csv.gz", "p.parquet"):
        (tmp_path / name).touch()
        assert "is empty (0 bytes)" in failure(tmp_path / name)
    assert "has blank lines alone" in failure(text("\n\r\n\n", tmp_path / "p.csv"))
    assert "neither Parquet nor CSV" in failure(text("x", tmp_path / "p.xlsx"))


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_no_rows(tmp_path, name):
    assert "no rows of prices" in failure(write(long().iloc[:0], tmp_path / name))
    table = pd.DataFrame({"date": ["2020-01-01"], "A": [NAN]})
    assert "no rows of prices" in failure(write(table, tmp_path / name))


def test_damaged_files(tmp_path):
    whole = write(long(tuple("ABCDEFGH"), 200), tmp_path / "p.parquet").read_bytes()
    for length in (4, 100, len(whole) - 1):
        (tmp_path / "p.parquet").write_bytes(whole[:length])
        assert "cannot be read as Parquet: damaged" in failure(tmp_path / "p.parquet")
    (tmp_path / "p.parquet").write_bytes(whole[:1000] + bytes(3000) + whole[4000:])
    assert "cannot be read as Parquet: damaged" in failure(tmp_path / "p.parquet")
    zipped = write(long(tuple("ABCDEFGH"), 200), tmp_path / "p.csv.gz").read_bytes()
    (tmp_path / "p.csv.gz").write_bytes(zipped[:-20])
    assert "cannot be read as CSV: damaged" in failure(tmp_path / "p.csv.gz")
    for content in (b"\xff\xfe\x00\x80" * 50, "date,A\n".encode("utf-16")):
        (tmp_path / "p.csv").write_bytes(content)
        assert "cannot be read as CSV: its header is not UTF-8" in failure(tmp_path / "p.csv")
    assert "cannot be read as CSV: damaged" in failure(text("x" * 200_000, tmp_path / "p.csv"))
    assert "cannot be read as CSV" in failure(text(long().to_csv(index=False) + 'a,"b\n', tmp_path / "p.csv"))
    message = failure(text(long().to_csv(index=False) + "2020-01-02,A,10,1,234,5,6,7\n", tmp_path / "p.csv"))
    assert "Expected 7 columns, got 8" in message


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
        frame.to_parquet(tmp_path / name) if name.lower().endswith(("parquet", "pq")) else write(frame, tmp_path / name)
    (tmp_path / "F.csv").mkdir()
    inputs = open_inputs([tmp_path])
    assert [one.path.name for one in inputs] == ["A.csv.gz", "B.csv", "C.PARQUET", "D.pq"]
    assert [next(one.batches())["ticker"].item() for one in inputs] == ["A", "B", "C", "D"]
    assert [one.path.name for one in open_inputs([tmp_path / "D.pq", str(tmp_path / "B.csv")])] == ["D.pq", "B.csv"]


def test_nothing_to_read(tmp_path):
    text("x", tmp_path / "README.md")
    with pytest.raises(UserError, match=r"has no \.csv"):
        open_inputs([tmp_path])
    with pytest.raises(UserError, match="no price files are named"):
        open_inputs([])


def test_a_file_named_twice(tmp_path):
    path = write(long(), tmp_path / "p.csv")
    for paths in ([path, path], [path, tmp_path / "x" / ".." / "p.csv"], [tmp_path, path]):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(UserError, match="named twice"):
            open_inputs(paths)


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not here")
@pytest.mark.parametrize("name", ["dow30.parquet", "finrl_trade.parquet", "sp500_5yr.parquet"])
def test_real_files_as_read_prices_reads_them(name):
    rows = read(DATA / name, "long").sort_values(["ticker", "date"], kind="stable").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, read_prices(DATA / name))


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not here")
def test_real_bad_rows():
    rows = read(DATA / "bad_rows.csv", "long")
    raw = pd.read_csv(DATA / "bad_rows.csv", dtype={"ticker": "str"}, keep_default_na=False, na_values={"open": [""]})
    assert rows["ticker"].tolist() == raw["ticker"].tolist()
    assert {"NAN", "TRUE"} <= set(rows["ticker"])
    assert rows["date"].dt.strftime("%Y-%m-%d").tolist() == raw["date"].tolist()
    np.testing.assert_array_equal(rows["close"], pd.to_numeric(raw["close"]))
