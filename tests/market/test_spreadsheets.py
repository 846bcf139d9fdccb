"""Texts that terminals and spreadsheets would obey."""

import csv
import io
from pathlib import Path

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from eigen2.errors import printable
from eigen2.market.spreadsheets import without_formulas
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.command import eigen2

FORMULA, ESCAPE = "=cmd|' /C calc'!A0", "A\x1b]0;owned\x07B"


@given(st.text())
def test_what_is_printable_has_no_control_characters_and_plain_text_stays(text: str) -> None:
    shown = printable(text)
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown if letter not in "\n\t")
    assert printable(shown) == shown
    if text.isascii() and text.isprintable():
        assert shown == text


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1))
def test_no_cell_of_a_table_is_a_formula(texts: list[str]) -> None:
    written = without_formulas(pd.DataFrame({"ticker": texts, "gain": range(len(texts))})).to_csv(index=False)
    cells = [row[0] for row in csv.reader(io.StringIO(written))][1:]
    assert len(cells) == len(texts)
    assert not any(cell.strip()[:1] in ("=", "+", "-", "@") for cell in cells if cell.strip())


def test_tables_known_answers() -> None:
    table = pd.DataFrame({"ticker": [FORMULA, ESCAPE, "^GSPC", "BRK-B"], "size": [-1.0, 2.0, 3.0, 4.0]})
    safe = without_formulas(table)
    assert safe["ticker"].tolist() == [f"'{FORMULA}", r"A\x1b]0;owned\x07B", "^GSPC", "BRK-B"]
    assert safe["size"].tolist() == [-1.0, 2.0, 3.0, 4.0]


def test_commands_write_tickers_that_no_program_obeys(tmp_path: Path) -> None:
    prices = SyntheticMarket(days=60, columns=2).generate()
    names = dict(zip(prices["ticker"].unique(), (FORMULA, ESCAPE), strict=True))
    prices = prices.assign(ticker=prices["ticker"].map(names))
    prices.loc[30, "close"] = 0.0
    prices.to_parquet(tmp_path / "prices.parquet")
    done = eigen2("data", "prepare", tmp_path / "prices.parquet", tmp_path / "clean.parquet")
    assert done.returncode == 0, done.stderr
    changes = (tmp_path / "clean.changes.csv").read_text()
    assert f"'{FORMULA}" in changes
    inspected = eigen2("data", "inspect", tmp_path / "prices.parquet")
    doubled = pd.concat([prices, prices[prices["ticker"] == ESCAPE]])
    doubled.to_parquet(tmp_path / "doubled.parquet")
    refused = eigen2(
        "fit", "--config", "tests/small.yaml", "--data.path", tmp_path / "doubled.parquet", "--data.synthetic=null"
    )
    assert refused.returncode == 2
    for text in (changes, inspected.stdout, inspected.stderr, refused.stderr, done.stdout, done.stderr):
        assert "\x1b" not in text
