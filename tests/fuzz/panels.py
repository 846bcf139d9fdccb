"""Price files that no one should bring: damaged, mistyped, misnamed, mangled on the way."""

import gzip
import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from eigen2.market.data.source import COLUMNS

DAYS, TICKERS = 50, ("A", "B", "C")
ROWS = DAYS * len(TICKERS)
NAMES = ("p.parquet", "p.pq", "p.csv", "p.csv.gz", "P.CSV", "p.txt", "p")


@dataclass(frozen=True)
class File:
    """A file's name and content, and what was done to it."""

    name: str
    content: bytes
    what: str

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """What a failing test shows of it: not kilobytes of damage."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        return f"File({self.name!r}, {len(self.content)} bytes, {self.what!r})"


def long_table() -> pa.Table:
    """A clean market of a few weeks, ticker by ticker."""
    rng = np.random.default_rng(0)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, ROWS)))
    columns = {
        "date": np.tile(np.busday_offset("2020-01-01", np.arange(DAYS)).astype("datetime64[ms]"), len(TICKERS)),
        "ticker": np.repeat(np.array(TICKERS, dtype=object), DAYS),
        "open": close * 1.001,
        "high": close * 1.01,
        "low": close * 0.99,
        "close": close,
        "volume": rng.integers(1, 10**6, ROWS).astype(float),
    }
    return pa.table(columns)


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def text(table: pa.Table, delimiter: str = ",", end: str = "\n", quote: bool = False) -> str:
    def cell(value: object) -> str:
        word = "" if value is None else str(value)
        return '"' + word.replace('"', '""') + '"' if quote else word

    rows = [table.column_names, *zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return end.join(delimiter.join(map(cell, row)) for row in rows) + end


@cache
def whole_parquet(compression: str, dictionary: bool, pages: int, rows: int, pandas: bool) -> bytes:
    table = pa.Table.from_pandas(long_table().to_pandas().set_index("date")) if pandas else long_table()
    options = {"compression": compression, "use_dictionary": dictionary}
    return parquet(table, data_page_size=pages, row_group_size=rows, **options)


# What a column may hold, by name: arrays of ROWS values

_DAY = long_table()["date"].combine_chunks()
_CLOSE = long_table()["close"].combine_chunks()
_ANY = np.arange(ROWS)


def _cycle(values: list[object], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array([values[i % len(values)] for i in range(ROWS)], kind)


TYPES: dict[str, Callable[[], pa.Array]] = {
    "null": lambda: pa.nulls(ROWS),
    "bool": lambda: _cycle([True, False, None]),
    "int64 extremes": lambda: _cycle([2**63 - 1, -(2**63), 2**53 + 1, None]),
    "uint64 extremes": lambda: _cycle([2**64 - 1, 0], pa.uint64()),
    "huge floats": lambda: _cycle([1e308, 1e39, 3.4e38]),
    "tiny floats": lambda: _cycle([5e-324, 1e-46, 1.2e-38]),
    "far apart": lambda: _cycle([3.4e38, 1.2e-38]),
    "negative": lambda: _cycle([-1.0, -1e30]),
    "infinite": lambda: _cycle([float("inf"), 1.0, -float("inf")]),
    "decimal": lambda: _cycle([Decimal("10.25"), None], pa.decimal128(38, 10)),
    "text": lambda: _cycle(["abc", "", "1.5"]),
    "text of numbers": lambda: _cycle(["1e400", "١٢", "0x10", "1_000", "1,5", " 3 ", "-inf", "nan"]),
    "text view": lambda: _cycle(["x", "y"], pa.string_view()),
    "long text": lambda: _cycle(["x" * 10_000]),
    "controls": lambda: _cycle(["\0", "\n", "\r\n", "\x1b[31m", "\u202e", "\ufeff", '"', "A,B", "[bold]", "[/]"]),
    "not UTF-8": lambda: pa.Array.from_buffers(
        pa.string(), ROWS, [None, pa.py_buffer(np.arange(ROWS + 1, dtype=np.int32)), pa.py_buffer(b"\xff" * ROWS)]
    ),
    "binary": lambda: _cycle([b"\xff\xfe", b"", b"12"]),
    "fixed binary": lambda: _cycle([b"1234", b"\0\0\0\0"], pa.binary(4)),
    "dictionary": lambda: _cycle(["A", "B", None]).dictionary_encode(),
    "dictionary of numbers": lambda: _cycle([1.0, 2.0]).dictionary_encode(),
    "date32": lambda: _DAY.cast(pa.date32()),
    "date32 extremes": lambda: _cycle([2**31 - 1, -(2**31), 0], pa.int32()).cast(pa.date32()),
    "date64": lambda: _cycle([date(1, 1, 1), date(9999, 12, 31)], pa.date64()),
    "timestamp extremes": lambda: _cycle([2**63 - 1, -(2**63) + 1, 0], pa.int64()).cast(pa.timestamp("ms")),
    "timestamp us extremes": lambda: _cycle([2**63 - 1, -(2**63) + 1], pa.int64()).cast(pa.timestamp("us")),
    "zone": lambda: _DAY.cast(pa.timestamp("ms", "America/New_York")),
    "no such zone": lambda: _DAY.cast(pa.int64()).cast(pa.timestamp("ms", "Mars/Phobos")),
    "odd offset": lambda: _DAY.cast(pa.int64()).cast(pa.timestamp("ms", "+99:99")),
    "time": lambda: _cycle([time(1, 2, 3)]),
    "duration": lambda: _cycle([timedelta(days=1), timedelta(days=-1)]),
    "list": lambda: _cycle([[1.0], [], None]),
    "struct": lambda: _cycle([{"a": 1}]),
    "map": lambda: _cycle([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "seconds since 1970": lambda: pa.array(_DAY.cast(pa.int64()).to_numpy() // 1000),
    "ancient and far": lambda: _cycle(["0001-01-01", "9999-12-31", "0000-01-01", "10000-01-01", "-0044-03-15"]),
    "as it was": lambda: _CLOSE,
}

EXTRA_TYPES = ("null", "bool", "huge floats", "text", "controls", "list", "binary", "date32", "as it was")
CELLS = (
    *("", " ", "nan", "NULL", "inf", "-inf", "1e400", "-1", "0", "1e39", "1e-46", "5e-324", "1,5", "0x10", "1e", "--1"),
    *("2020-02-30", "2020-01-01", "0001-01-01", "0000-00-00", "99991231", "2020-01-01T99:99", "20200101.0", "soon"),
    *("\0", "\ufeff", "\ud7ff", "🂡", "x" * 70_000, '"', '""', "'", "a\nb", "\r", "[/red]", "\x1b[2J", "#", "A"),
)
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp037", "utf-7")


def rarely(draw: st.DrawFn) -> bool:
    """One time in eight: several oddities at once are all refused for the first."""
    return draw(st.integers(0, 7)) == 7


def damaged(content: bytes, draw: st.DrawFn) -> tuple[bytes, str]:
    """One piece of damage, anywhere, or in the parts of Parquet that matter most."""
    size = len(content)
    footer = struct.unpack("<I", content[-8:-4])[0] if content[-4:] == b"PAR1" else size // 2
    regions = {"start": (0, 8), "footer": (size - 8 - footer, size - 8), "end": (size - 12, size), "any": (0, size)}
    region = draw(st.sampled_from(sorted(regions)))
    first, last = (min(max(edge, 0), size - 1) for edge in regions[region])
    places = st.integers(first, max(first, last - 1))
    place, many = draw(places), draw(st.integers(1, 64))
    how = draw(st.sampled_from(["cut", "flip", "bytes", "insert", "remove", "front", "swap"]))
    noise = draw(st.binary(min_size=1, max_size=64)) if how in ("bytes", "insert") else b""
    if how == "flip":
        changed = bytearray(content)
        for _ in range(draw(st.sampled_from([1, many]))):
            changed[draw(places)] ^= 1 << draw(st.integers(0, 7))
        return bytes(changed), f"flip in {region}"
    before, after = content[:place], content[place:]
    done = {
        "cut": before,
        "front": after,
        "remove": before + after[many:],
        "insert": before + noise + after,
        "bytes": before + noise + after[len(noise) :],
        "swap": after + before,
    }
    return done[how], f"{how} in {region}"


@st.composite
def random_bytes(draw: st.DrawFn) -> File:
    starts = [b"", b"PAR1", b"\x1f\x8b", b"\x1f\x8b\x08\x00", b"date,", b"\xef\xbb\xbf", b"PK\x03\x04"]
    ends = [b"", b"PAR1", b"\x10\0\0\0PAR1", b"\xff\xff\xff\xffPAR1", b"\n"]
    content = draw(st.sampled_from(starts)) + draw(st.binary(max_size=300)) + draw(st.sampled_from(ends))
    return File(draw(st.sampled_from(NAMES)), content, "random bytes")


@st.composite
def damaged_parquet(draw: st.DrawFn) -> File:
    choices = (
        ["none", "snappy", "gzip", "zstd", "lz4", "brotli"],
        [True, False],
        [256, 1 << 20],
        [40, ROWS],
        [True, False],
    )
    content, what = damaged(whole_parquet(*(draw(st.sampled_from(one)) for one in choices)), draw)
    if rarely(draw) and len(content) > 16:
        content, more = damaged(content, draw)
        what = f"{what}, {more}"
    return File("p.parquet", content, what)


@st.composite
def mistyped(draw: st.DrawFn) -> File:
    """Parquet whose columns hold something else."""
    table = long_table()
    chosen = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=2, unique=True))
    kinds = {name: draw(st.sampled_from(sorted(TYPES))) for name in chosen}
    for name, kind in kinds.items():
        table = table.set_column(table.column_names.index(name), name, TYPES[kind]())
    return File("p.parquet", parquet(_restructured(table, draw)), ", ".join(f"{n}: {k}" for n, k in kinds.items()))


def _restructured(table: pa.Table, draw: st.DrawFn) -> pa.Table:
    """Other columns, other rows, another order of either; mostly as it was."""
    if not rarely(draw):
        return table
    how = draw(st.sampled_from(["less", "more", "twice", "order", "names", "rows", "none", "again"]))
    names = table.column_names
    name = draw(st.sampled_from(names))
    if how == "less":
        return table.drop_columns([name])
    if how == "more":
        extra = st.sampled_from(["adj close", "", "Date", "date ", "tic", "name", "__index_level_0__", "a" * 5000])
        return table.append_column(draw(extra), TYPES[draw(st.sampled_from(EXTRA_TYPES))]())
    if how == "twice":
        return table.append_column(name, table[name])
    if how == "order":
        return table.select(draw(st.permutations(names)))
    if how == "names":
        odd = ["", " ", "('Close', 'A')", "(" * 300, "(" + "-" * 5000 + "1,2)", "a\nb", "\0", name.upper()]
        new = draw(st.sampled_from(odd))
        return table.rename_columns([new if one == name else one for one in names])
    rows = {"none": [], "again": [*range(ROWS), 5, 5, 70]}.get(how)
    if rows is None:
        rows = draw(st.lists(st.integers(0, ROWS - 1), max_size=60))
    # not every type can be taken from by a list of rows
    return pa.concat_tables([table.slice(row, 1) for row in rows]) if rows else table.slice(0, 0)


@st.composite
def dirty_csv(draw: st.DrawFn) -> File:
    """CSV with hostile cells, in an odd dialect or encoding, damaged, compressed or not."""
    table = long_table()
    for _ in range(draw(st.integers(0, 2))):
        name, cell, row = (draw(st.sampled_from(x)) for x in (COLUMNS, CELLS, range(ROWS)))
        values = [*map(str, table[name].to_pylist())]
        values[row] = cell
        values = [cell] * ROWS if rarely(draw) else values
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    table = _restructured(table, draw)
    delimiter = draw(st.sampled_from([";", "\t", "|"])) if rarely(draw) else ","
    end = draw(st.sampled_from(["\r", "\n\n", "\0\n"])) if rarely(draw) else draw(st.sampled_from(["\n", "\r\n"]))
    lines = text(table, delimiter, end, quote=draw(st.booleans()))
    if rarely(draw):
        odd = [lines * 2, "\n" * 3 + lines, lines.replace("\n", "\r", 5), '"' + lines, lines + "x" * (1 << 20)]
        lines = draw(st.sampled_from(odd))
    encoding = draw(st.sampled_from(ENCODINGS)) if rarely(draw) else "utf-8"
    content, what = lines.encode(encoding, errors="replace"), encoding
    name = draw(st.sampled_from(["p.csv", "p.csv.gz", "P.CSV", "a b.csv", "[x].csv", "NULL.csv"]))
    if rarely(draw):
        content, what = damaged(content, draw)
    if rarely(draw):
        content, what = gzip.compress(content, 1, mtime=0), f"{what}, gzip"
        if draw(st.booleans()):
            content, what = damaged(content, draw)
    return File(name, content, what)


@st.composite
def other_layouts(draw: st.DrawFn) -> File:
    """Wide, one ticker a file, and yfinance's two rows of names, dirty."""
    one = long_table().slice(0, DAYS)
    kind = draw(st.sampled_from(["wide", "one", "yfinance"]))
    table, header = one.drop_columns(["ticker"]), ""
    if kind != "one":
        tickers = st.sampled_from(["A", "B", "A.B", "LOW", "", "Close", *CELLS[-4:]])
        names = draw(st.lists(tickers, min_size=1, max_size=4))
        table = pa.table([one["date"], *[one["close"]] * len(names)], names=["date", *names])
        header = ",".join(["Price", *["Close"] * len(names)]) + "\n" if kind == "yfinance" else ""
    lines = (header + text(table)).split("\n")
    for cell in draw(st.lists(st.sampled_from(CELLS), min_size=1, max_size=4)):
        row = draw(st.integers(0, len(lines) - 2))
        parts = lines[row].split(",")
        parts[draw(st.integers(0, len(parts) - 1))] = cell
        lines[row] = ",".join(parts)
    return File(draw(st.sampled_from(["p.csv", "NAN.csv", "x.y.csv"])), "\n".join(lines).encode(errors="replace"), kind)


FILES = st.one_of(random_bytes(), *[damaged_parquet(), mistyped(), dirty_csv()] * 2, other_layouts())
