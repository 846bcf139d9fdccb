"""Columns of price files, parsed: local times, tickers and numbers, and a mask of the cells that cannot be read."""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float64

from eigen2.market.data.dates import END_DAY, FIRST_DAY, DateFormat

# texts that mean an empty number; in the ticker column they are names
EMPTY_NUMBERS = pa.array(
    ["", "-", ".", "nan", "NaN", "NAN", "na", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "null", "NULL", "None", "none"],
    pa.string(),
)
EXPONENTS = {"K": "e3", "M": "e6", "B": "e9"}
"""Units of volumes, as in 12.34M, and the exponents that they stand for."""

# of a ticker; a name of a megabyte, stored once in a file, would be copied to every row
LONGEST_NAME = 200

Mask = Bool[np.ndarray, " rows"]
Kind = tuple[Callable[[pa.Array], tuple[Any, Mask]], str, str]
"""Parser of a column, problem of a cell that it cannot parse, and remedy."""


def dates(form: DateFormat) -> Kind:
    """Return the parser of dates of this format."""

    def parse(column: pa.Array) -> tuple[pd.Series, Mask]:
        stamps = form.parse(column)
        return stamps, ~((stamps >= FIRST_DAY) & (stamps < END_DAY)).to_numpy()

    return parse, "dates that cannot be read", "write dates as 2009-01-31"


def tickers() -> Kind:
    """Return the parser of tickers."""
    return _tickers, f"rows without a ticker of at most {LONGEST_NAME} characters", "name it"


def numbers(decimal: str, thousands: str) -> Kind:
    """Return the parser of numbers with this decimal mark and, if not empty, this mark between thousands, in text."""
    parse = partial(_numbers, decimal=decimal, thousands=thousands)
    return parse, "values in column {} that are no numbers", "correct them, or leave the cells empty"


def _tickers(column: pa.Array) -> tuple[pd.Series, Mask]:
    """Parse names as text, whatever type the file has them in; return them, and which are missing or too long."""
    codes, distinct = pd.factorize(column.to_pandas())
    # a column of integers with a gap in it comes as floats, also in text
    texts = (re.sub(r"^(\d+)\.0$", r"\1", str(name).strip()) for name in distinct)
    short = (name if len(name) <= LONGEST_NAME else "" for name in texts)
    names = np.array([*short, ""], dtype=object)
    return pd.Series(pd.Series(names, dtype="str").array.take(codes)), (names == "")[codes]


def _numbers(column: pa.Array, decimal: str, thousands: str) -> tuple[Float64[np.ndarray, " rows"], Mask]:
    """Parse numbers or numbers as text; return float64, NaN where a cell is empty, and a mask of invalid cells."""
    if pa.types.is_dictionary(column.type):
        # each text once: a long one may stand for millions of cells
        values, bad = _numbers(column.dictionary, decimal, thousands)
        places = pc.fill_null(column.indices, len(values)).to_numpy(zero_copy_only=False)
        return np.append(values, np.nan)[places], np.append(bad, False)[places]
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) and decimal == ".":
        with suppress(pa.ArrowInvalid):
            column = column.cast(pa.float64())
    if pa.types.is_string(column.type):
        column = pc.utf8_trim(column, " \t$")
        column = _plain_numbers(pc.if_else(pc.is_in(column, EMPTY_NUMBERS), None, column), decimal, thousands)
        with suppress(pa.ArrowInvalid):
            column = column.cast(pa.float64())
    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64), np.zeros(len(column), np.bool_)
    raw = column.to_pandas()
    if raw.dtype.kind in "bmM":
        return np.full(len(raw), np.nan), raw.notna().to_numpy()
    # decimals are objects; Arrow does not parse the rest, such as +1.5
    numbers = pd.to_numeric(raw, errors="coerce")
    return np.asarray(numbers.astype(np.float64)), (numbers.isna() & raw.notna()).to_numpy()


def _plain_numbers(column: pa.Array, decimal: str, thousands: str) -> pa.Array:
    """Return numbers such as 1.234,5, 1 234,5 and 12,3M as 1234.5 and 12.3e6; a mark of thousands elsewhere stays."""
    if decimal == ",":
        column = pc.replace_substring_regex(column, r"[ \x{00a0}\x{202f}](\d{3})", r".\1")
    if thousands:
        grouped = pc.match_substring_regex(
            column, rf"^[-+]?[1-9]\d{{0,2}}([{thousands}]\d{{3}})+([{decimal}]\d*)?[KMBkmb]?$"
        )
        rest = pc.replace_substring(column, thousands, "?")
        column = pc.if_else(grouped, pc.replace_substring(column, thousands, ""), rest)
    if decimal != ".":
        column = pc.replace_substring(column, decimal, ".")
    for unit, exponent in EXPONENTS.items():
        column = pc.replace_substring_regex(column, rf"^([-+]?[\d.]*\d)(?i:{unit})$", rf"\1{exponent}")
    return column
