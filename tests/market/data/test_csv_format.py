"""Text files: separators and decimal marks are guessed or given, and give the rows of a plain CSV file."""

import sys

import numpy as np
import pandas as pd
import pytest

from eigen2.errors import UserError
from eigen2.market.data.cleaning.layouts import Input
from eigen2.market.data.csv_format import CsvFormat, guess_decimal, guess_sep
from eigen2.market.data.source import read_prices
from tests.market.data.test_files import assert_refused, table


@pytest.mark.parametrize(("sep", "decimal"), [(sep, mark) for sep in ",;\t|" for mark in ".," if sep != mark])
@pytest.mark.parametrize("name", ["p.txt", "p.tsv", "p.csv", "p.txt.gz"])
def test_every_format_gives_the_same_rows(tmp_path, sep, decimal, name):
    frame = table(days=20)
    frame["close"] += 0.25
    text = frame.assign(date=frame["date"].dt.strftime("%d.%m.%Y"), note="a, b")
    text.to_csv(tmp_path / name, sep=sep, decimal=decimal, index=False)
    pd.testing.assert_frame_equal(read_prices(tmp_path / name), frame)
    shown = "tab" if sep == "\t" else repr(sep)
    assert Input(tmp_path / name).layout == f"long, sep {shown}, decimal {decimal!r}, dates %d.%m.%Y"
    rows = Input(tmp_path / name, CsvFormat(sep, decimal, "%d.%m.%Y")).batches()
    pd.testing.assert_frame_equal(pd.concat(rows, ignore_index=True), frame)


def test_an_ordinary_file_needs_no_words(tmp_path):
    table().to_csv(tmp_path / "p.csv", index=False)
    assert Input(tmp_path / "p.csv").layout == "long"


def test_thousands_in_numbers_with_a_comma(tmp_path):
    path = tmp_path / "A.csv"
    path.write_text("date;open;high;low;close;volume\n2020-01-01;1.234,5;1.300;0,5;+1.250,25;1.234.567\n")
    assert read_row(path) == [1234.5, 1300, 0.5, 1250.25, 1234567]
    path.write_text("date;open;high;low;close;volume\n2020-01-01;1,5;1.5;0,5;1,5;12.34\n")
    with pytest.raises(UserError, match=r"'high' that are no numbers, first '1\.5' in data row 1"):
        read_row(path, CsvFormat(decimal=","))


def test_thousands_among_semicolons_and_tabs(tmp_path):
    path = tmp_path / "A.tsv"
    for row, form, numbers in (
        ("4,992.73\t143,999", CsvFormat(), [4992.73, 143999]),
        ("4,992\t143,999", CsvFormat(decimal="."), [4992, 143999]),
        ("492.73\t9,143,999", CsvFormat(), [492.73, 9143999]),
        ("4 992,73\t1\u00a0143\u202f999", CsvFormat(), [4992.73, 1143999]),
    ):
        path.write_text(f"date\tclose\tvolume\n2020-01-31\t{row}\n")
        assert read_row(path, form)[-2:] == numbers


def test_thousands_in_texts_of_parquet(tmp_path):
    path = tmp_path / "A.parquet"
    frame = pd.DataFrame({"date": ["2020-01-31"], "close": ["5,006.29"], "volume": ["1,234"]})
    for kind in ("str", "category"):
        frame.astype({"close": kind, "volume": kind}).to_parquet(path, index=False)
        assert read_row(path)[-2:] == [5006.29, 1234]


def read_row(path, form=CsvFormat()):
    (rows,) = Input(path, form).batches()
    return rows.iloc[0, 2:].tolist()


def test_thousands_and_units_as_investing_com_writes_them(tmp_path):
    path = tmp_path / "S&P 500 Historical Data.csv"
    header = '\ufeff"Date","Price","Open","High","Low","Vol.","Change %"\n'
    path.write_text(header + '"02/23/2024","5,088.80","5,100.92","$5,111.06","5,081","1.25B","0.03%"\n')
    assert read_row(path) == [5100.92, 5111.06, 5081, 5088.8, 1.25e9]
    for volume, number in (("87.47M", 87_470_000), ("1,350k", 1_350_000), ("3M", 3_000_000), ("-", np.nan)):
        path.write_text(header + f'"02/23/2024","188.8","188","191","-","{volume}","-0.66%"\n')
        np.testing.assert_equal(read_row(path), [188, 191, np.nan, 188.8, number])
    path.write_text("date;open;high;low;close;volume\n2020-01-01;1;1;1;1,0;12,5M\n")
    assert read_row(path) == [1, 1, 1, 1, 12_500_000]


@pytest.mark.parametrize("cell", ["12,34", "1,2345", "1,234,56", ",123", "0,953", "12.5X", "M", "1.2M3", "12.5MM"])
def test_text_that_is_no_number(tmp_path, cell):
    path = tmp_path / "A.csv"
    path.write_text(f'date,close,volume\n2020-01-31,1,"{cell}"\n')
    with pytest.raises(UserError, match=f"column 'volume' that are no numbers, first '{cell}' in data row 1"):
        read_row(path)


def test_a_comma_among_semicolons_may_be_decimal(tmp_path):
    path = tmp_path / "A.csv"
    path.write_text("date;close;volume\n2020-01-31;1,234;1\n")
    with pytest.raises(
        UserError, match=r"'close' that are no numbers, first '1,234' .* cells empty, or give the .* by --csv\.decimal"
    ):
        read_row(path)


def test_a_time_with_a_point_is_no_decimal_mark(tmp_path):
    path = tmp_path / "A.csv"
    path.write_text("date;time;close\n31.01.2020;17.30;1,085\n")
    with pytest.raises(UserError, match="column 'close' that are no numbers, first '1,085'"):
        read_row(path)


def test_dollars_and_nasdaqs_names(tmp_path):
    path = tmp_path / "A.csv"
    path.write_text("Date,Close/Last,Volume,Open,High,Low\n01/31/2020,$12.5,100,$12,$13,$11\n")
    assert read_row(path) == [12, 13, 11, 12.5, 100]


@pytest.mark.parametrize(
    ("cells", "sep", "decimal"),
    [
        (["1,5"], ";", ","),
        (["1.234,5"], "\t", ","),
        (["1,5", "2.25"], ";", "."),
        # thousands, perhaps
        (["1,234"], ";", "."),
        (["1.234", "1,5"], ";", ","),
        (["1,5"], ",", "."),
        ([], ";", "."),
    ],
)
def test_the_decimal_mark(cells, sep, decimal):
    assert guess_decimal(sep, [cells]) == decimal


def test_the_separator():
    assert guess_sep("date;Close, adjusted;High") == ";"
    assert guess_sep("date") == ","


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sep": "ab"}, "csv.sep is 'ab'; it must be one ASCII character"),
        ({"sep": '"'}, "csv.sep is '\"'; it must be"),
        *(({"sep": one}, f"csv.sep is {one!r}; it must be one ASCII character") for one in ("§", "→", "\0")),
        ({"sep": ",", "decimal": ","}, "csv.sep and csv.decimal are both ','"),
        *(
            ({"date_format": one}, f"csv.date_format is {one!r}; it must be")
            for one in ("%Q", "%d %", "%d.%m.%Y %z", "", "%d.%d.%Y", "%Y", "%m/%Y", "%Y %U")
        ),
        ({"date_format": "dmy"}, "csv.date_format is 'dmy'; it must be a format such as"),
    ],
)
def test_settings_that_are_refused(settings, words):
    with pytest.raises(UserError) as error:
        CsvFormat(**settings)
    assert words in str(error.value)
    assert CsvFormat("tab").sep == CsvFormat("\\t").sep == "\t"


@pytest.mark.parametrize("form", ["%d.%m.%y", "%b %d, %Y", "%Y%j", "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%G-%V-%u"])
def test_formats_of_dates(form):
    assert CsvFormat(date_format=form).date_format == form


def test_excel_is_read_as_text(tmp_path, monkeypatch):
    openpyxl = pytest.importorskip("openpyxl")
    frame = table(("600519", "TRUE")).assign(volume=[1, 2, np.nan, 4, 5, 6])
    book = openpyxl.Workbook()
    sheet = book.active
    rows = [[*frame.columns], [], *frame.astype(object).where(frame.notna(), "#DIV/0!").values.tolist()]
    for row in rows:
        sheet.append([cell == "TRUE" or cell for cell in row])  # a boolean, as Excel makes of what is typed
    sheet["I4"] = "a note"
    book.create_sheet("other").append(["not read"])
    book.save(tmp_path / "p.xlsx")
    pd.testing.assert_frame_equal(read_prices(tmp_path / "p.xlsx"), frame)
    assert Input(tmp_path / "p.xlsx", CsvFormat(";", ",", "%d.%m.%Y")).layout == "long"
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert_refused(tmp_path / "p.xlsx", r"is an Excel file: pip install .*'\.\[xlsx\]'.*, or save it as CSV")


def test_a_real_excel_file(tmp_path):
    pytest.importorskip("openpyxl")
    table().to_excel(tmp_path / "p.xlsx", index=False)
    pd.testing.assert_frame_equal(read_prices(tmp_path / "p.xlsx"), table())


def test_a_broken_excel_file(tmp_path):
    (tmp_path / "p.xlsx").write_bytes(b"PK\x03\x04 cut")
    assert_refused(tmp_path / "p.xlsx", r"cannot be read as Excel \(.+\); is it damaged or cut short")
