"""How text files write numbers and dates: given, or guessed from the first lines."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from eigen2.errors import UserError

SEPARATORS = ",;\t|"
THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+")
DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+(?:e[-+]?\d+)?", re.IGNORECASE)
COMMA_OF_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:(?:,\d{3})+\.\d+|(?:,\d{3}){2,})")
# three digits after a comma may be thousands
DECIMAL_COMMA = re.compile(r"[-+]?[\d.\s]+,(?:\d{1,2}|\d{4,})(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class CsvFormat:
    """How text files write their columns, numbers and dates; what is null is guessed from the first lines."""

    sep: str | None = None
    """Separator of columns: an ASCII character, or tab (null: the one of , ; | and tab that the header has most of)."""
    decimal: Literal[".", ","] | None = None
    """Decimal mark of numbers (null: a comma if numbers have it and columns are not separated by commas)."""
    date_format: str | None = None
    """Format of dates as in strftime, such as %d.%m.%Y (null: guessed from the dates; a day and month that cannot be
    told apart are refused)."""

    def __post_init__(self) -> None:
        if self.sep in ("tab", "\\t"):
            object.__setattr__(self, "sep", "\t")
        if self.sep is not None and (len(self.sep) != 1 or self.sep in '"\r\n\0' or not self.sep.isascii()):
            raise UserError(f"csv.sep is {self.sep!r}; it must be one ASCII character, or tab")
        if self.sep == self.decimal == ",":
            raise UserError("csv.sep and csv.decimal are both ','; give a file whose columns and decimals differ")
        if self.date_format is not None and not _is_date_format(self.date_format):
            raise UserError(
                f"csv.date_format is {self.date_format!r}; it must be a format such as %d.%m.%Y, without zone"
            )


def _is_date_format(text: str) -> bool:
    """Return whether pandas reads a day by the format, which has no zone."""
    day = pd.Timestamp(2020, 1, 31)
    try:
        return not re.search("%[zZ]", text) and pd.to_datetime(f"{day:{text}}", format=text) == day
    except (ValueError, re.error):  # the latter where a part comes twice
        return False


def guess_sep(header: str) -> str:
    """Return the separator that the header has most of."""
    return max(SEPARATORS, key=header.count)


def guess_decimal(sep: str, rows: Iterable[Sequence[str]]) -> Literal[".", ","]:
    """Return the decimal mark of the numbers in rows of cells."""
    cells = {cell.strip() for row in rows for cell in row}
    point = any(DECIMAL_POINT.fullmatch(cell) and not THOUSANDS.fullmatch(cell) for cell in cells)
    comma = any(DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    return "," if comma and not point and sep != "," else "."


def guess_thousands(sep: str, decimal: str, is_given: bool, rows: Iterable[Sequence[str]]) -> Literal[".", ",", ""]:
    """Return the mark between the thousands of numbers in rows of cells; none where it may be the decimal mark.

    `is_given` says that the decimal mark is known and not guessed.
    """
    if decimal == ",":
        return "."
    certain = any(COMMA_OF_THOUSANDS.fullmatch(cell.strip()) for row in rows for cell in row)
    return "," if sep == "," or is_given or certain else ""
