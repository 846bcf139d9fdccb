"""Reading prices: what is accepted, and one clear line for everything that is not."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eigen2.errors import UserError
from eigen2.market.data.source import COLUMNS, PRICE_COLUMNS, read_prices, unusable_rows

SHARED_DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"


def table(tickers: tuple[object, ...] = ("A", "B"), days: int = 3) -> pd.DataFrame:
    """Prices of a few days, sorted by ticker and date."""
    dates = pd.date_range("2020-01-01", periods=days).astype("datetime64[s]")
    rows = [(date, ticker, 10.0, 12.0, 9.0, 11.0, 100.0) for ticker in tickers for date in dates]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"date": "datetime64[s]"})


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix in (".parquet", ".pq"):
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


def failure(path: Path) -> str:
    """The message of the one error, which is one line."""
    with pytest.raises(UserError) as error:
        read_prices(path)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


@pytest.mark.parametrize("name", ["p.parquet", "p.pq", "p.csv", "p.csv.gz", "P.CSV", "P.PARQUET"])
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = tmp_path / name
    table().to_parquet(path) if name.lower().endswith(("parquet", "pq")) else write(table(), path)
    prices = read_prices(path)
    pd.testing.assert_frame_equal(prices, table().astype({"ticker": "str"}))
    assert read_prices(str(path)).equals(prices)


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_sorts_renames_and_ignores_further_columns(tmp_path, name):
    messy = table().sample(frac=1, random_state=0)
    messy["adj close"] = 5.0
    messy = messy[messy.columns[::-1]].rename(columns=str.upper).rename(columns={"DATE": " Date "})
    pd.testing.assert_frame_equal(read_prices(write(messy, tmp_path / name)), table().astype({"ticker": "str"}))


def test_content_decides_over_the_name(tmp_path):
    table().to_parquet(tmp_path / "p.csv")
    (tmp_path / "q.csv").write_bytes(gzip.compress(table().to_csv(index=False).encode()))
    (tmp_path / "r.csv").write_bytes(b"\xef\xbb\xbf" + table().to_csv(index=False).encode())
    assert read_prices(tmp_path / "p.csv").equals(read_prices(tmp_path / "q.csv"))
    assert read_prices(tmp_path / "p.csv").equals(read_prices(tmp_path / "r.csv"))


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_tickers_are_text(tmp_path, name):
    names = ("000001", "1E5", "NA", "NAN", "NULL", "TRUE", "nan")
    prices = read_prices(write(table(names, days=1), tmp_path / name))
    assert prices["ticker"].tolist() == list(names)


@pytest.mark.parametrize(
    ("values", "expected"), [([600519, 7], ["600519", "7"]), ([7.0, 8.0], ["7", "8"]), ([True], ["True"])]
)
def test_tickers_of_other_types_become_text(tmp_path, values, expected):
    frame = table(("x",) * len(values), days=1).assign(ticker=values)
    assert read_prices(write(frame, tmp_path / "p.parquet"))["ticker"].tolist() == expected


def test_categories_are_text(tmp_path):
    frame = table().astype({"ticker": "category"})
    assert read_prices(write(frame, tmp_path / "p.parquet"))["ticker"].unique().tolist() == ["A", "B"]


@pytest.mark.parametrize(
    "dates",
    [
        ["2020-01-01", "2020-01-02"],
        ["2020-01-01 00:00:00-05:00", "2020-01-02 00:00:00-04:00"],
        ["2020-01-01T16:00:00Z", "2020-01-02"],
        ["20200101", "20200102"],
    ],
)
def test_date_text(tmp_path, dates):
    path = write(table(("A",), days=2).assign(date=dates), tmp_path / "p.csv")
    assert read_prices(path)["date"].tolist() == [pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02")]


@pytest.mark.parametrize(
    "date",
    [
        pa.array([18262], pa.date32()),
        pa.array([20200101], pa.int64()),
        pa.array([20200101.0], pa.float64()),
        pa.array(["2020-01-01"], pa.string()),
        # midnight in New York
        pa.array([1577854800], pa.timestamp("s", tz="America/New_York")),
        pa.array([1577887200000], pa.timestamp("ms")),
    ],
)
def test_date_types(tmp_path, date):
    columns = pa.Table.from_pandas(table(("A",), days=1)).set_column(0, "date", date)
    pq.write_table(columns, tmp_path / "p.parquet")
    assert read_prices(tmp_path / "p.parquet")["date"].tolist() == [pd.Timestamp("2020-01-01")]


def test_number_types_and_empty_cells(tmp_path):
    frame = table(("A",), days=3).astype(object)
    frame["open"], frame["high"], frame["volume"] = ["", "NaN", "NA"], ["12", "1.2e1", " 12"], ["", 5, 6]
    prices = read_prices(write(frame, tmp_path / "p.csv"))
    assert prices["open"].isna().all()
    assert prices["high"].tolist() == [12, 12, 12]
    decimals = pa.Table.from_pandas(table(("A",), days=1)).set_column(2, "open", pa.array([10], pa.decimal128(9, 2)))
    pq.write_table(decimals, tmp_path / "p.parquet")
    assert read_prices(tmp_path / "p.parquet")["open"].tolist() == [10]


def test_values_are_as_the_file_has_them(tmp_path):
    frame = table()
    frame.loc[0, "low"], frame.loc[1, "close"], frame.loc[2, "high"] = -1.0, np.nan, 1.0
    assert read_prices(write(frame, tmp_path / "p.csv")).equals(frame.astype({"ticker": "str"}))


def test_missing_file(tmp_path):
    assert str(tmp_path / "no.parquet") in failure(tmp_path / "no.parquet")


def test_directory(tmp_path):
    assert f"{str(tmp_path)!r} is a directory" in failure(tmp_path)


@pytest.mark.parametrize("name", ["p.parquet", "p.csv", "p.csv.gz"])
def test_empty_file(tmp_path, name):
    (tmp_path / name).touch()
    assert f"{str(tmp_path / name)!r} is empty" in failure(tmp_path / name)


def test_blank_file(tmp_path):
    (tmp_path / "p.csv").write_text("\n\n")
    assert "Empty CSV file" in failure(tmp_path / "p.csv")


def test_damaged_files(tmp_path):
    whole = write(table(tuple("ABCDEFGH"), days=200), tmp_path / "p.parquet").read_bytes()
    for length in (4, 100, len(whole) - 1):
        (tmp_path / "p.parquet").write_bytes(whole[:length])
        assert "cannot be read as Parquet" in failure(tmp_path / "p.parquet")
    (tmp_path / "p.parquet").write_text("date,ticker\n")
    assert "cannot be read as Parquet" in failure(tmp_path / "p.parquet")
    zipped = write(table(), tmp_path / "p.csv.gz").read_bytes()
    (tmp_path / "p.csv.gz").write_bytes(zipped[:-20])
    assert "cannot be read as CSV" in failure(tmp_path / "p.csv.gz")
    (tmp_path / "p.csv").write_bytes(b"\xff\xfe\x00\x80" * 50)
    assert "cannot be read as CSV" in failure(tmp_path / "p.csv")
    (tmp_path / "p.csv").write_text(table().to_csv(index=False) + 'a,"b\n')
    assert "cannot be read as CSV" in failure(tmp_path / "p.csv")


def test_other_format(tmp_path):
    (tmp_path / "p.xlsx").write_bytes(b"PK\x03\x04")
    message = failure(tmp_path / "p.xlsx")
    assert "neither Parquet nor CSV" in message
    assert "p.xlsx" in message


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_missing_columns_are_all_named(tmp_path, name):
    frame = table().rename(columns={"ticker": "tic", "volume": "amount"})
    message = failure(write(frame, tmp_path / name))
    assert "lacks the columns ticker, volume; it has 'date, tic, open, high, low, close, amount'" in message


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_a_column_twice(tmp_path, name):
    assert "more than one column close" in failure(write(table().assign(CLOSE=1.0), tmp_path / name))


def test_the_same_name_twice(tmp_path):
    (tmp_path / "p.csv").write_text("date,ticker,open,high,low,close,volume,close\n")
    assert "more than one column close" in failure(tmp_path / "p.csv")


def test_rows_longer_than_the_header(tmp_path):
    header, *rows = table().to_csv(index=False).splitlines()
    shifted = [rows[0], rows[1].replace("12.0", "1,234.0"), *rows[2:]]
    (tmp_path / "p.csv").write_text("\n".join([header, *shifted]))
    assert "Expected 7 columns, got 8: 2020-01-02,A,10.0,1,234.0," in failure(tmp_path / "p.csv")


def test_nested_column(tmp_path):
    frame = table(("A",), days=1)
    frame["close"] = [[1.0, 2.0]]
    assert "column close holds list" in failure(write(frame, tmp_path / "p.parquet"))


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_no_rows(tmp_path, name):
    assert "no rows" in failure(write(table().iloc[:0], tmp_path / name))


@pytest.mark.parametrize("value", ["13/01/2020", "2020-02-30", "soon", "", "2020-01-011"])
def test_unreadable_dates(tmp_path, value):
    frame = table().astype({"date": str})
    frame.loc[[2, 4], "date"] = value
    message = failure(write(frame, tmp_path / "p.csv"))
    assert f"2 dates that cannot be read, first {value!r} in data row 3" in message


def test_missing_timestamp(tmp_path):
    frame = table()
    frame.loc[1, "date"] = pd.NaT
    assert "1 dates that cannot be read, first 'NaT' in data row 2" in failure(write(frame, tmp_path / "p.parquet"))


def test_only_missing_dates(tmp_path):
    assert "6 dates" in failure(write(table().assign(date=None), tmp_path / "p.parquet"))


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_missing_ticker(tmp_path, name):
    frame = table()
    frame.loc[[3, 5], "ticker"] = None
    assert "2 rows without a ticker, first data row 4" in failure(write(frame, tmp_path / name))


@pytest.mark.parametrize("column", [*PRICE_COLUMNS, "volume"])
@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_words_among_numbers(tmp_path, name, column):
    frame = table().astype({column: str})
    frame.loc[[1, 2], column] = "1,234.5"
    assert f"column {column} has 2 values that are no numbers, first '1,234.5' in data row 2" in failure(
        write(frame, tmp_path / name)
    )


@pytest.mark.parametrize("values", [[True] * 6, pd.date_range("2020", periods=6)])
def test_prices_of_another_type(tmp_path, values):
    message = failure(write(table().assign(low=values), tmp_path / "p.parquet"))
    assert "column low has 6 values that are no numbers" in message


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_infinite_prices(tmp_path, name, value):
    frame = table()
    frame.loc[4, ["high", "close"]] = value
    message = failure(write(frame, tmp_path / name))
    assert f"2 infinite prices, first high = {value} of 'B' on 2020-01-02" in message


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("name", ["p.parquet", "p.csv", "p.csv.gz"])
def test_infinite_volumes(tmp_path, name, value):
    frame = table()
    frame.loc[[1, 4], "volume"] = value
    message = failure(write(frame, tmp_path / name))
    assert f"2 infinite volumes, first volume = {value} of 'A' on 2020-01-02" in message


@pytest.mark.parametrize("word", ["inf", "Infinity", "-inf", "INF"])
def test_infinite_numbers_in_text_that_is_no_number_elsewhere(tmp_path, word):
    """A file whose cells come as text, because one is no plain number, hides no infinity."""
    frame = table().astype({"close": str, "volume": str})
    frame.loc[2, "close"], frame.loc[3, "volume"] = word, " 100 "
    assert "1 infinite prices, first close" in failure(write(frame, tmp_path / "p.csv"))


@pytest.mark.parametrize("name", ["p.parquet", "p.csv"])
def test_duplicate_rows(tmp_path, name):
    frame = pd.concat([table(), table().iloc[[4, 4, 1]]])
    message = failure(write(frame, tmp_path / name))
    assert "3 duplicate rows of one date and ticker, first 2020-01-02 'A'" in message


def test_messages_stay_one_line_whatever_the_file_says(tmp_path):
    odd = table().astype({"date": str}).assign(date="a\nb" * 500)
    assert r"'a\nba\nb" in failure(write(odd, tmp_path / "p\nq.csv"))
    assert r"close\n" in failure(write(table().rename(columns={"close": "close\n2"}), tmp_path / "p.csv"))


def test_unusable_rows_known_answer():
    frame = table(("A",), days=8)
    frame.loc[0, "open"] = np.nan
    frame.loc[1, ["high", "low"]] = np.nan
    frame.loc[2, "low"] = 0.0
    frame.loc[3, "close"] = -5.0
    frame.loc[4, "high"] = 8.0
    frame.loc[5, ["open", "low"]] = np.nan, -1.0
    # outside [low, high], which is tolerated; and a number that float32 would round to 0
    frame.loc[6, "close"] = 99.0
    frame.loc[7, PRICE_COLUMNS] = 1e-46
    rows = {reason: np.flatnonzero(mask).tolist() for reason, mask in unusable_rows(frame).items()}
    assert rows == {"price missing": [0, 1, 5], "price not positive": [2, 3, 7], "high below low": [4]}


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the real data is not here")
def test_real_bad_rows_are_refused_or_marked(tmp_path):
    bad = pd.read_csv(SHARED_DATA / "bad_rows.csv", keep_default_na=False, dtype=str)
    refused, marked = set(), {}
    for (source, kind), rows in bad.groupby(["source", "kind"]):
        path = write(rows, tmp_path / "bad.csv")
        if kind.startswith("duplicate_row"):
            assert "1 duplicate rows" in failure(path)
            refused.add(kind)
            continue
        prices = read_prices(path)
        assert set(prices["ticker"]) == set(rows["ticker"])
        marked[source, kind] = sum(int(mask.sum()) for mask in unusable_rows(prices).values())
    assert refused == {"duplicate_row_second_all_zero", "duplicate_row_slightly_different"}
    assert {key: count for key, count in marked.items() if count} == {
        ("dow31_2006_2017", "low_is_zero"): 1,
        ("dow31_2006_2017", "nan_ohl_volume0_close_kept"): 1,
        ("dow31_2006_2017", "nan_open_low_one_day_most_tickers"): 1,
        ("sp500_5yr", "high_below_low_and_close_outside"): 1,
        ("sp500_5yr", "nan_row_volume_3_shares"): 1,
        ("us_huge_2017", "high_below_low"): 45,
        ("us_huge_2017", "low_negative"): 1,
        ("us_huge_2017", "low_zero"): 27,
        ("us_yahoo_all", "high_below_low"): 25,
        ("us_yahoo_all", "open_zero_era"): 1,
    }
