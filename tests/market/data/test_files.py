"""The reader of price files: every format and type gives the same rows, and bad content one clear line."""

import gzip
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


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.name.lower().endswith(("parquet", "pq")):
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    return path


def write_column(folder: Path, name: str, values: pa.Array) -> Path:
    """A Parquet file with one column of another type."""
    columns = pa.Table.from_pandas(table(("A",), len(values)))
    pq.write_table(columns.set_column(columns.schema.names.index(name), name, values), folder / "p.parquet")
    return folder / "p.parquet"


def failure(path: Path) -> str:
    """The message of the one error, which is one line and names the file."""
    with pytest.raises(UserError) as error:
        read_prices(path)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 600
    assert repr(str(path)) in message
    return message


@pytest.mark.parametrize("name", ["p.parquet", "p.pq", "p.csv", "p.csv.gz", "P.CSV", "P.PARQUET"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = write(table(), tmp_path / name)
    pd.testing.assert_frame_equal(read_prices(path), table())
    assert read_prices(str(path)).equals(table())


def test_content_decides_over_the_name(tmp_path):
    table().to_parquet(tmp_path / "p.csv")
    (tmp_path / "q.csv").write_bytes(gzip.compress(table().to_csv(index=False).encode()))
    for name in ("p.csv", "q.csv"):
        assert read_prices(tmp_path / name).equals(table())


def test_blank_lines_quotes_and_a_byte_order_mark(tmp_path):
    frame = table().assign(**{"a\nnote": "one\ntwo, three"})[["a\nnote", *COLUMNS]]
    lines = table().to_csv(index=False).splitlines()
    lines[2] = ",".join(f'"{cell}"' for cell in lines[2].split(","))
    content = b"\xef\xbb\xbf\r\n" + "\r\n\r\n".join(lines).encode() + b"\r\n\r\n"
    (tmp_path / "p.csv").write_bytes(content)
    (tmp_path / "q.csv").write_bytes(gzip.compress(content))
    for path in (tmp_path / "p.csv", tmp_path / "q.csv", write(frame, tmp_path / "r.csv")):
        pd.testing.assert_frame_equal(read_prices(path), table())


def test_only_columns_that_are_read_must_be_utf_8_and_plain(tmp_path):
    content = table().assign(company="Nestl#").to_csv(index=False).encode().replace(b"#", b"\xe9")
    (tmp_path / "p.csv").write_bytes(content)
    lists = table().assign(list=[[1.0]] * 6)
    for path in (tmp_path / "p.csv", write(lists, tmp_path / "p.parquet")):
        pd.testing.assert_frame_equal(read_prices(path), table())


def test_parquet_without_pandas_metadata(tmp_path):
    columns = pa.Table.from_pandas(table()).replace_schema_metadata(None)
    pq.write_table(columns, tmp_path / "p.parquet", row_group_size=4)
    pd.testing.assert_frame_equal(read_prices(tmp_path / "p.parquet"), table())


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_tickers_are_text(tmp_path, name):
    names = ("000001", "1E5", "600519", "BRK.B", "NA", "NAN", "NULL", "TRUE", "nan")
    assert read_prices(write(table(names, days=1), tmp_path / name))["ticker"].tolist() == list(names)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([600519]), "600519"),
        (pa.array([7.0]), "7"),
        (pa.array([True]), "True"),
        (pa.array(["A"]).dictionary_encode(), "A"),
        (pa.array([b"A"]), "A"),
        (pa.array([b"A"], pa.binary(1)), "A"),
    ],
)
def test_tickers_of_other_types_become_text(tmp_path, values, expected):
    assert read_prices(write_column(tmp_path, "ticker", values))["ticker"].tolist() == [expected]


@pytest.mark.parametrize("date", ["2020-01-01 00:00:00-05:00", "2020-01-01T16:00:00Z", "2020-01-01", "20200101"])
def test_date_text(tmp_path, date):
    path = write(table(("A",), days=1).assign(date=date), tmp_path / "p.csv")
    assert read_prices(path)["date"].tolist() == [pd.Timestamp("2020-01-01")]


@pytest.mark.parametrize(
    "date",
    [
        pa.array([18262], pa.date32()),
        pa.array([1577836800000], pa.date64()),
        pa.array([20200101]),
        pa.array([20200101.0]),
        pa.array(["2020-01-01T16:00:00Z"]),
        pa.array(["20200101"], pa.large_string()),
        pa.array(["2020-01-01"]).dictionary_encode(),
        # midnight in New York and Tokyo: the day there counts, not that of UTC
        pa.array([1577854800], pa.timestamp("s", tz="America/New_York")),
        pa.array([1577804400], pa.timestamp("s", tz="Asia/Tokyo")),
        pa.array([1577887200000], pa.timestamp("ms")),
        pa.array([1577887200000000000], pa.timestamp("ns")),
    ],
)
def test_date_types(tmp_path, date):
    dates = read_prices(write_column(tmp_path, "date", date))["date"]
    assert dates.tolist() == [pd.Timestamp("2020-01-01")]
    assert dates.dtype == "datetime64[s]"


@pytest.mark.parametrize(
    "values",
    [
        pa.array([10, None], pa.decimal128(9, 2)),
        pa.array([10, None], pa.int32()),
        pa.array([10, None], pa.float32()),
        pa.array(["10", ""]),
    ],
)
def test_number_types(tmp_path, values):
    assert read_prices(write_column(tmp_path, "open", values))["open"].fillna(-1).tolist() == [10, -1]


def test_empty_cells_and_odd_numbers_in_csv(tmp_path):
    frame = table(("A",)).astype(object)
    frame["open"], frame["high"], frame["volume"] = ["", "NaN", "NA"], ["12", "1.2e1", " 12"], ["", 5, 6]
    prices = read_prices(write(frame, tmp_path / "p.csv"))
    assert prices["open"].isna().all()
    assert prices["high"].tolist() == [12, 12, 12]
    assert prices["volume"].fillna(-1).tolist() == [-1, 5, 6]


def test_missing_empty_and_unknown_files(tmp_path):
    assert "no price file at" in failure(tmp_path / "no.parquet")
    assert "is a directory" in failure(tmp_path)
    for name in ("p.csv", "p.csv.gz", "p.parquet"):
        (tmp_path / name).touch()
        assert "is empty (0 bytes)" in failure(tmp_path / name)
    (tmp_path / "p.csv").write_text("\n\r\n\n")
    assert "has blank lines alone" in failure(tmp_path / "p.csv")
    (tmp_path / "p.xlsx").write_bytes(b"PK\x03\x04")
    assert "neither Parquet nor CSV" in failure(tmp_path / "p.xlsx")


def test_damaged_parquet(tmp_path):
    path = write(table(tuple("ABCDEFGH"), days=200), tmp_path / "p.parquet")
    whole = path.read_bytes()
    zeroed = whole[:1000] + bytes(3000) + whole[4000:]
    for content in (whole[:4], whole[:100], whole[:-1], zeroed, b"date,ticker\n"):
        path.write_bytes(content)
        assert "cannot be read as Parquet: damaged" in failure(path)


def test_damaged_csv(tmp_path):
    text, path = table().to_csv(index=False), tmp_path / "p.csv"
    for content in (b"\xff\xfe\x00\x80" * 50, "date,A\n".encode("utf-16")):
        path.write_bytes(content)
        assert "cannot be read as CSV: its header is not UTF-8" in failure(path)
    for content in ("x" * 200_000, text + 'a,"b\n'):
        path.write_text(content)
        assert "cannot be read as CSV: damaged" in failure(path)
    path.write_text(text + "2020-01-02,A,10,1,234,5,6,7\n")
    assert "Expected 7 columns, got 8: 2020-01-02,A,10,1,234" in failure(path)
    zipped = write(table(tuple("ABCDEFGH"), days=200), tmp_path / "p.csv.gz")
    zipped.write_bytes(zipped.read_bytes()[:-20])
    assert "cannot be read as CSV: damaged" in failure(zipped)


@pytest.fixture(params=["p.csv", "p.csv.gz", "p.parquet"])
def later(request, tmp_path, monkeypatch):
    """A writer of rows that are read in many batches."""
    monkeypatch.setattr(files, "CSV_BLOCK_BYTES", 300)
    monkeypatch.setattr(source, "BATCH_ROWS", 7)
    return lambda frame: write(frame, tmp_path / request.param)


def test_many_batches_give_the_same_rows(later):
    path = later(table(days=40))
    assert len(list(files.PriceFile(path).batches([0, 1], [2], 7))) > 5
    pd.testing.assert_frame_equal(read_prices(path), table(days=40))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("date", "soon", "dates that cannot be read, first 'soon' in data row 67: write dates"),
        ("ticker", None, "rows without a ticker, first "),
        *(
            (name, "1,234.5", f"values in column {name!r} that are no numbers, first '1,234.5' in")
            for name in COLUMNS[2:]
        ),
    ],
)
def test_the_first_bad_row_is_named(later, column, value, message):
    frame = table(days=40).astype({column: object if value is None else "str"})
    frame.loc[[66, 79], column] = value
    found = failure(later(frame))
    assert message in found
    assert " in data row 67: " in found


def test_numbers_that_only_pandas_reads(later, monkeypatch):
    path = later(table(days=40))
    real = files.PriceFile._typed_csv_batches

    def refuses_late(self, text, numbers, number, rows):
        for i, batch in enumerate(real(self, text, numbers, number, rows)):
            if i == 3 and number == pa.float64():
                raise pa.ArrowInvalid("conversion error")
            yield batch

    # as when Arrow cannot read one cell: the rest comes as text, no row twice
    monkeypatch.setattr(files.PriceFile, "_typed_csv_batches", refuses_late)
    pd.testing.assert_frame_equal(read_prices(path), table(days=40))


@pytest.mark.parametrize("value", ["13/01/2020", "2020-02-30", "", "2020-01-011"])
def test_unreadable_dates(tmp_path, value):
    frame = table().astype({"date": str})
    frame.loc[[2, 4], "date"] = value
    message = failure(write(frame, tmp_path / "p.csv"))
    assert f"at least 2 dates that cannot be read, first {value!r} in data row 3" in message


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("date", pa.array([0, None], pa.timestamp("s")), "dates that cannot be read, first 'NaT' in data row 2"),
        ("date", pa.nulls(2), "at least 2 dates that cannot be read"),
        ("date", pa.array([0, 10**15], pa.timestamp("s")), "dates outside the years 1 to 9999, first"),
        ("low", pa.array([True, True]), "at least 2 values in column 'low' that are no numbers"),
        ("low", pa.array([18262, 18263], pa.date32()), "at least 2 values in column 'low' that are no numbers"),
        ("low", pa.array([[1.0], [2.0]]), "column 'low' holds list"),
        ("ticker", pa.array([b"A", b"\xff"]), "cannot be read as Parquet: damaged"),
    ],
)
def test_values_of_a_wrong_type(tmp_path, column, values, message):
    assert message in failure(write_column(tmp_path, column, values))


def test_messages_stay_one_line_whatever_the_file_says(tmp_path):
    odd = table().astype({"date": str}).assign(date="a\nb" * 500)
    assert r"'a\nba\nb" in failure(write(odd, tmp_path / "p\nq.csv"))
    assert r"close\n" in failure(write(table().rename(columns={"close": "close\n2"}), tmp_path / "p.csv"))


def test_prices_are_those_of_pandas(tmp_path):
    """The oracle: a reader that shares nothing with this one."""
    rng = np.random.default_rng(0)
    frame = table(tuple("ABCDEFGH"), 50)
    frame[list(COLUMNS[2:])] = np.exp(rng.normal(0, 5, (len(frame), 5))).round(6)
    readers = {"p.csv": lambda path: pd.read_csv(path, dtype={"ticker": str}), "p.parquet": pd.read_parquet}
    for name, read in readers.items():
        path = write(frame.sample(frac=1, random_state=0), tmp_path / name)
        expected = read(path).sort_values(["ticker", "date"], ignore_index=True)
        np.testing.assert_array_equal(read_prices(path)[list(PRICE_COLUMNS)], expected[list(PRICE_COLUMNS)])
