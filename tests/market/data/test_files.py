"""The reader of price files: every format and type gives the same rows, and bad content one clear line."""

import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eigen2.errors import UserError
from eigen2.market.data import files, source
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS, read_prices


def table(tickers: tuple[object, ...] = ("A", "B"), days: int = 3) -> pd.DataFrame:
    """Prices sorted by ticker and date, each number another one."""
    dates = pd.date_range("2020-01-01", periods=days).astype("datetime64[s]")
    frame = pd.DataFrame([(date, ticker) for ticker in tickers for date in dates], columns=["date", "ticker"])
    for i, column in enumerate(COLUMNS[2:]):
        frame[column] = np.arange(len(frame)) + 100.0 * (i + 1)
    return frame.astype({"date": "datetime64[s]", "ticker": "str"})


def write(frame: pd.DataFrame, path: Path, *, index: bool = False) -> Path:
    if path.name.lower().endswith(("parquet", "pq")):
        frame.to_parquet(path, index=index)
    else:
        frame.to_csv(path, index=index)
    return path


def write_column(folder: Path, name: str, values: pa.Array) -> Path:
    """A Parquet file with one column of another type."""
    columns = pa.Table.from_pandas(table(("A",), len(values)))
    pq.write_table(columns.set_column(columns.schema.names.index(name), name, values), folder / "p.parquet")
    return folder / "p.parquet"


def assert_refused(path: Path, words: str) -> None:
    """Check that the file is refused in one line that names it and matches this pattern."""
    with pytest.raises(UserError) as error:
        read_prices(path)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 600
    assert repr(str(path)) in message
    assert re.search(words, message), message


@pytest.mark.parametrize("name", ["p.parquet", "p.pq", "p.csv", "p.csv.gz", "P.CSV", "P.PARQUET"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = write(table(), tmp_path / name)
    pd.testing.assert_frame_equal(read_prices(path), table())
    assert read_prices(str(path)).equals(table())


def test_content_decides_over_the_name(tmp_path):
    table().to_parquet(tmp_path / "p.csv")
    (tmp_path / "q.csv").write_bytes(gzip.compress(table().to_csv(index=False).encode()))
    columns = pa.Table.from_pandas(table()).replace_schema_metadata(None)
    pq.write_table(columns, tmp_path / "r.parquet", row_group_size=4)
    for name in ("p.csv", "q.csv", "r.parquet"):
        assert read_prices(tmp_path / name).equals(table())


def test_blank_lines_quotes_and_a_byte_order_mark(tmp_path):
    frame = table().assign(**{"a\nnote": "one\ntwo, three"})[["a\nnote", *COLUMNS]]
    lines = table().to_csv(index=False).splitlines()
    lines[2] = ",".join(f'"{cell}"' for cell in lines[2].split(","))
    (tmp_path / "p.csv").write_bytes(b"\xef\xbb\xbf\r\n" + "\r\n\r\n".join(lines).encode() + b"\r\n\r\n")
    for path in (tmp_path / "p.csv", write(frame, tmp_path / "r.csv")):
        pd.testing.assert_frame_equal(read_prices(path), table())


def test_only_columns_that_are_read_must_be_utf_8_and_plain(tmp_path):
    content = table().assign(company="Nestl#").to_csv(index=False).encode().replace(b"#", b"\xe9")
    (tmp_path / "p.csv").write_bytes(content)
    lists = table().assign(list=[[1.0]] * 6)
    for path in (tmp_path / "p.csv", write(lists, tmp_path / "p.parquet")):
        pd.testing.assert_frame_equal(read_prices(path), table())


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_tickers_are_text(tmp_path, name):
    names = ("000001", "1E5", "600519", "BRK.B", "NA", "NAN", "NULL", "TRUE", "nan")
    assert read_prices(write(table(names, days=1), tmp_path / name))["ticker"].tolist() == list(names)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("ticker", pa.array([600519]), ["600519"]),
        ("ticker", pa.array([7.0]), ["7"]),
        ("ticker", pa.array(["007.0"]), ["007"]),
        ("ticker", pa.array(["A.0"]), ["A.0"]),
        ("ticker", pa.array([True]), ["True"]),
        ("ticker", pa.array(["A"]).dictionary_encode(), ["A"]),
        ("open", pa.array([10, None], pa.decimal128(9, 2)), [10, -1]),
        ("open", pa.array([10, None], pa.int32()), [10, -1]),
        ("open", pa.array([10, None], pa.float32()), [10, -1]),
        ("open", pa.array(["+10", "", " 1e1"]), [10, -1, 10]),
        ("open", pa.array(["10", "n/a"], pa.large_string()), [10, -1]),
    ],
)
def test_types_of_tickers_and_numbers(tmp_path, column, values, expected):
    found = read_prices(write_column(tmp_path, column, values))[column]
    assert (found if column == "ticker" else found.fillna(-1)).tolist() == expected


@pytest.mark.parametrize(
    "date",
    [
        *("2020-01-01 00:00:00-05:00", "2020-01-01T16:00:00Z", "2020-01-01", "20200101"),
        pa.array([18262], pa.date32()),
        pa.array([1577836800000], pa.date64()),
        pa.array([20200101]),
        pa.array([20200101.0]),
        pa.array(["20200101"], pa.large_string()),
        pa.array(["2020-01-01"]).dictionary_encode(),
        # midnight in New York and Tokyo: the day there counts, not that of UTC
        pa.array([1577854800], pa.timestamp("s", tz="America/New_York")),
        pa.array([1577804400], pa.timestamp("s", tz="Asia/Tokyo")),
        pa.array([1577887200000], pa.timestamp("ms")),
        pa.array([1577887200000000000], pa.timestamp("ns")),
    ],
)
def test_types_of_dates(tmp_path, date):
    if isinstance(date, str):
        path = write(table(("A",), days=1).assign(date=date), tmp_path / "p.csv")
    else:
        path = write_column(tmp_path, "date", date)
    dates = read_prices(path)["date"]
    assert dates.tolist() == [pd.Timestamp("2020-01-01")]
    assert dates.dtype == "datetime64[s]"


def test_empty_cells_and_odd_numbers_in_csv(tmp_path):
    frame = table(("A",)).astype(object)
    frame["open"], frame["high"], frame["volume"] = ["", "NaN", "NA"], ["12", "1.2e1", " 12"], ["", 5, "+6"]
    prices = read_prices(write(frame, tmp_path / "p.csv"))
    assert prices["open"].isna().all()
    assert prices["high"].tolist() == [12, 12, 12]
    assert prices["volume"].fillna(-1).tolist() == [-1, 5, 6]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("no.parquet", None, "no price file at"),
        ("", None, "it is a directory"),
        *((name, b"", r"is empty \(0 bytes\)") for name in ("p.csv", "p.csv.gz", "p.parquet")),
        ("p.csv", b"\n\r\n\n", "has blank lines alone"),
        ("p.doc", b"PK\x03\x04", "neither Parquet, CSV nor Excel"),
        ("p.csv", b"\xff\xfe\x00\x80" * 50, "cannot be read as CSV: its header is not UTF-8"),
        ("p.csv", "date,A\n".encode("utf-16"), "cannot be read as CSV: its header is not UTF-8"),
        ("p.csv", table(("É",)).to_csv(index=False).encode("latin-1"), "its text is not UTF-8; save it as UTF-8"),
        ("p.csv", b"x" * 200_000, "cannot be read as CSV: damaged"),
        ("p.csv", table().to_csv(index=False).encode() + b'a,"b\n', "cannot be read as CSV: damaged"),
        ("p.csv", table().to_csv(index=False).encode() + b"2020-01-02,A,10,1,234,5,6,7\n", "Expected 7 columns, got 8"),
    ],
)
def test_damaged_files(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert_refused(tmp_path / name, words)


@pytest.mark.parametrize("name", ["p.parquet", "p.csv.gz"])
def test_files_cut_short(tmp_path, name):
    path = write(table(tuple("ABCDEFGH"), days=200), tmp_path / name)
    whole = path.read_bytes()
    zeroed = whole[:1000] + bytes(3000) + whole[4000:]
    contents = (whole[:4], whole[:100], whole[:-1], zeroed, b"date,ticker\n") if name == "p.parquet" else (whole[:-20],)
    for content in contents:
        path.write_bytes(content)
        assert_refused(path, "cannot be read as (Parquet|CSV): damaged")


@pytest.fixture(params=["p.csv", "p.csv.gz", "p.parquet"])
def later(request, tmp_path, monkeypatch):
    """A writer of rows that are read in many batches."""
    monkeypatch.setattr(files, "CSV_BLOCK_BYTES", 300)
    monkeypatch.setattr(source, "BATCH_ROWS", 7)
    return lambda frame: write(frame, tmp_path / request.param)


def test_many_batches_give_the_same_rows(later):
    path = later(table(days=40))
    file = files.PriceFile(path)
    assert len(list(file.batches(file.date_column(0), 1, [2], 7))) > 5
    pd.testing.assert_frame_equal(read_prices(path), table(days=40))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("date", "soon", "dates that cannot be read, first 'soon' in data row 67: write dates"),
        ("ticker", None, "rows without a ticker of at most 200 characters, first .* in data row 67: "),
        ("close", "1,23.5", "values in column 'close' that are no numbers, first '1,23.5' in data row 67: "),
        ("volume", "true", "values in column 'volume' that are no numbers, first 'true' in data row 67: "),
    ],
)
def test_the_first_bad_row_is_named(later, column, value, words):
    frame = table(days=40).astype({column: object if value is None else "str"})
    frame.loc[[66, 79], column] = value
    assert_refused(later(frame), words)


@pytest.mark.parametrize("value", ["13/01/2020", "2020-02-30", "", "2020-01-011"])
def test_unreadable_dates(tmp_path, value):
    frame = table().astype({"date": str})
    frame.loc[[2, 4], "date"] = value
    words = f"at least 2 dates that cannot be read, first {value!r} in data row 3"
    assert_refused(write(frame, tmp_path / "p.csv"), words)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("date", pa.array([0, None], pa.timestamp("s")), "dates that cannot be read, first 'NaT' in data row 2"),
        ("date", pa.nulls(2), "at least 2 dates that cannot be read"),
        ("date", pa.array([0, 10**15], pa.timestamp("s")), "at least 1 dates that cannot be read, first"),
        ("low", pa.array([True, True]), "at least 2 values in column 'low' that are no numbers"),
        ("low", pa.array([18262, 18263], pa.date32()), "at least 2 values in column 'low' that are no numbers"),
        ("low", pa.array([[1.0], [2.0]]), "column 'low' holds list"),
        ("ticker", pa.array([b"A", b"\xff"]), "column 'ticker' holds binary"),
    ],
)
def test_values_of_a_wrong_type(tmp_path, column, values, words):
    assert_refused(write_column(tmp_path, column, values), words)


def test_messages_stay_one_line_whatever_the_file_says(tmp_path):
    odd = table().astype({"date": str}).assign(date="a\nb" * 500)
    assert_refused(write(odd, tmp_path / "p\nq.csv"), re.escape(r"'a\nba\nb"))
    assert_refused(write(table().rename(columns={"close": "close\n2"}), tmp_path / "p.csv"), r"close\\n")


def test_prices_are_those_of_pandas(tmp_path):
    """The oracle: a reader that shares nothing with this one."""
    rng = np.random.default_rng(0)
    frame = table(tuple("ABCDEFGH"), 50)
    frame[list(COLUMNS[2:])] = np.exp(rng.normal(0, 5, (len(frame), 5))).round(6)
    frame.loc[7, "open"] = np.nan
    readers = {"p.csv": lambda path: pd.read_csv(path, dtype={"ticker": str}), "p.parquet": pd.read_parquet}
    for name, read in readers.items():
        path = write(frame.sample(frac=1, random_state=0), tmp_path / name)
        expected = read(path).sort_values(["ticker", "date"], ignore_index=True)
        np.testing.assert_array_equal(read_prices(path)[list(PRICE_COLUMNS)], expected[list(PRICE_COLUMNS)])
