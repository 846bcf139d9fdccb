"""Tables with texts that come with the data, such as tickers, as CSV files that no spreadsheet obeys."""

import pandas as pd

from eigen2.errors import printable

_FORMULA = ("=", "+", "-", "@")


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for CSV in which no text is a formula: a ' before it makes spreadsheets show it.

    That is what OWASP advises ("CSV Injection"). Control characters become escapes, see `printable`.
    """
    texts = table.select_dtypes(["object", "string"]).columns
    return table.assign(**{name: table[name].map(_quoted) for name in texts})


def _quoted(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value.replace("\t", " ").replace("\n", " "))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
