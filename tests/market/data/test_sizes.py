"""A price file that expands to more than prices do, or than memory holds, is refused before it does."""

import gzip
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eigen2.cli.main import main
from eigen2.errors import OUT_OF_MEMORY, UserError
from eigen2.market.data import files, sizes, source
from eigen2.market.data.cleaning import blocks
from eigen2.market.data.cleaning.prepare import inspect
from eigen2.market.data.panel import build_panel
from eigen2.market.data.source import COLUMNS, read_prices
from eigen2.memory import limits
from tests.market.data.test_files import assert_refused, table, write

ROW = b"2020-01-01,A,1,1,1,1,1\n"
HEADER = ",".join(COLUMNS).encode() + b"\n"
EXPANDS = r"which expand to [\d,]+ or more, over 100 times as many, as prices do not: "


def gzipped(content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "p.csv.gz").write_bytes(gzip.compress(content, 6))
        return folder / "p.csv.gz"

    return make


def same_row(folder: Path) -> Path:
    rows = 100_000
    columns = {name: np.ones(rows) for name in COLUMNS[2:]}
    dates, tickers = np.zeros(rows, "datetime64[s]"), pa.array(["A"] * rows)
    pq.write_table(pa.table({"date": dates, "ticker": tickers, **columns}), folder / "p.parquet")
    return folder / "p.parquet"


def one_huge_value(folder: Path) -> Path:
    frame = table(("A" * (3 << 20),), 3)
    frame.to_parquet(folder / "p.parquet", index=False, compression="zstd")
    return folder / "p.parquet"


def sheet(folder: Path, rows: str, strings: str = "", more: str = "") -> Path:
    """Write the least that is an Excel file."""
    kinds = "http://schemas.openxmlformats.org"
    main, links = f"{kinds}/spreadsheetml/2006/main", f"{kinds}/officeDocument/2006/relationships"
    types, package = (f"{kinds}/package/2006/{name}" for name in ("content-types", "relationships"))
    of = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    kind_of = '<Override PartName="/xl/{}.xml" ContentType="{}.{}+xml"/>'
    link = '<Relationship Id="{}" Type="{}/{}" Target="{}.xml"/>'
    names = kind_of.format("workbook", of, "sheet.main") + kind_of.format("sharedStrings", of, "sharedStrings")
    inner = link.format("r1", links, "worksheet", "worksheets/sheet1") + link.format(
        "r2", links, *["sharedStrings"] * 2
    )
    outer = link.format("r1", links, "officeDocument", "xl/workbook")
    book = '<sheets><sheet name="s" sheetId="1" r:id="r1"/></sheets>'
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{types}">{names}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}">{outer}</Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{links}">{book}</workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}">{inner}</Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>{more}',
        "xl/sharedStrings.xml": f'<sst xmlns="{main}"><si><t>{strings}</t></si></sst>',
    }
    with zipfile.ZipFile(folder / "p.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return folder / "p.xlsx"


def many_cells(folder: Path) -> Path:
    row = '<row><c r="ZZZ{}"><v>1</v></c></row>'
    return sheet(folder, "".join(row.format(i + 1) for i in range(200)))


def one_string_in_many_cells(folder: Path) -> Path:
    return sheet(folder, '<row><c t="s"><v>0</v></c></row>' * 200, "a" * 10_000)


def blanks_between(folder: Path) -> Path:
    return sheet(folder, "", more=" " * (3 << 20))


@pytest.mark.parametrize(
    "make",
    [
        *map(gzipped, (HEADER + b"\n" * (3 << 20), HEADER + ROW * (3 << 16))),
        *(same_row, one_huge_value, many_cells, one_string_in_many_cells, blanks_between),
    ],
)
def test_a_file_that_expands_to_far_more_is_refused(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "xlsx" in str(path := make(tmp_path)):
        pytest.importorskip("openpyxl")
    monkeypatch.setattr(sizes, "SMALL_BYTES", 1 << 18)
    monkeypatch.setattr(files, "GUESS_ROWS", 8)
    monkeypatch.setattr(files, "CSV_BLOCK_BYTES", 1 << 18)
    assert_refused(path, EXPANDS)
    with pytest.raises(UserError, match=EXPANDS):
        inspect([path])


def test_a_row_far_below_is_none_of_an_excel_file(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    cells = "".join(f'<c t="inlineStr"><is><t>{name}</t></is></c>' for name in COLUMNS)
    far = '<row r="2000000000"><c r="A2000000000"><v>1</v></c></row>'
    assert_refused(sheet(tmp_path, f'<row r="1">{cells}</row>{far}'), "has a header but no rows of prices")


@pytest.mark.parametrize("text", ["A" * 201, "A" * 1_000_000])
def test_a_long_name_is_not_copied_to_every_row(text: str, tmp_path: Path) -> None:
    rows = 100_000
    frame = pd.DataFrame({"date": np.zeros(rows, "datetime64[s]"), **dict.fromkeys(COLUMNS[2:], 1.0)})
    columns = pa.Table.from_pandas(frame, preserve_index=False)
    name = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [text])
    pq.write_table(columns.append_column("ticker", name), tmp_path / "p.parquet")
    assert_refused(tmp_path / "p.parquet", "has at least 100000 rows without a ticker of at most 200 characters")


def test_a_long_number_is_parsed_once(tmp_path: Path) -> None:
    rows = 100_000  # of a megabyte each, if every cell were a text of its own
    dates = pd.date_range("1700-01-01", periods=rows).astype("datetime64[s]")
    columns = pa.Table.from_pandas(
        pd.DataFrame({"date": dates, "ticker": "A", **dict.fromkeys(COLUMNS[2:6], 1.0)}), preserve_index=False
    )
    codes = pa.array(np.where(np.arange(rows) % 3, 0, 1), pa.int32(), mask=np.arange(rows) % 5 == 0)
    number = pa.DictionaryArray.from_arrays(codes, [" " * 1_000_000 + "7", "8"])
    pq.write_table(columns.append_column("volume", number), tmp_path / "p.parquet")
    expected = [np.nan if i % 5 == 0 else 7 if i % 3 else 8 for i in range(rows)]
    np.testing.assert_array_equal(read_prices(tmp_path / "p.parquet")["volume"], expected)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("p.parquet", r"has about 400 rows x 200 bytes = 0\.00 GB of RAM, with 0\.00 GB available: free memory, or"),
        ("p.csv", r"has about 400 rows x 200 bytes"),
        ("p.csv.gz", r"has at least 400 rows x 200 bytes"),  # compressed, it could be one that fits
    ],
)
def test_a_table_that_memory_cannot_hold_is_refused(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(table(days=200), tmp_path / name)
    monkeypatch.setattr(source, "available_bytes", lambda: 80_000)
    assert len(read_prices(path)) == 400
    monkeypatch.setattr(source, "available_bytes", lambda: 79_999)
    assert_refused(path, words)


def test_a_panel_that_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = table(days=200)
    splits = {"validation_days": 5, "holdout_days": 5}
    monkeypatch.setattr(limits, "available_bytes", lambda: 400 * 61)
    made = build_panel(prices, **splits)
    assert made.features.nbytes + made.valid.nbytes + made.prices.nbytes == 400 * 61
    monkeypatch.setattr(limits, "available_bytes", lambda: 400 * 61 - 1)
    with pytest.raises(UserError, match=r"the panel of 200 days x 2 columns x 61 bytes = 0\.00 GB of RAM"):
        build_panel(prices, **splits)


def test_a_block_that_memory_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(table(days=200), tmp_path / "p.csv")
    monkeypatch.setattr(files, "THREAD_BYTES", 1)
    monkeypatch.setattr(limits, "available_bytes", lambda: 400 * blocks.BYTES_PER_ROW)
    assert inspect([path]).counts["rows"] == 400
    monkeypatch.setattr(limits, "available_bytes", lambda: 400 * blocks.BYTES_PER_ROW - 1)
    with pytest.raises(UserError, match="blocks of whole tickers have up to 400 rows x"):
        inspect([path])


@pytest.mark.parametrize(
    "shortage",
    [
        *(MemoryError("Unable to allocate 9 GiB"), pa.ArrowMemoryError("malloc of size 64 failed")),
        *(OSError(12, "Cannot allocate memory"), RuntimeError("can't start new thread")),
    ],
)
@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_a_lack_of_memory_is_no_damage(
    shortage: Exception,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(table(), tmp_path / name)

    def fails(*args: object, **options: object) -> None:
        raise shortage

    monkeypatch.setattr(files.csv, "open_csv", fails)
    monkeypatch.setattr(files.pq, "ParquetFile", fails)
    for words in (["inspect", str(tmp_path)], ["prepare", str(path), str(tmp_path / "out.parquet")]):
        with pytest.raises(SystemExit) as left:
            main(["data", *words])
        assert left.value.code == OUT_OF_MEMORY
        (line,) = capsys.readouterr().err.splitlines()
        assert re.match(rf"error: no memory or threads left \(.*{re.escape(str(shortage))}\), with [\d.]+ of", line)
    assert not list(tmp_path.glob("out*"))
