"""Docs pages say what was measured, and tables of known figures are right."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.harness import FIGURES, ROOT
from benchmarks.pages import NOT_YET, PAGES, across, blocks, digest, draw, fill, load, number, table

DOCS = ROOT / "docs"
PLACES = re.compile(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_says_what_was_measured(name: str) -> None:
    page, texts = (DOCS / f"{name}.md").read_text(), blocks(load(name))
    assert dict(PLACES.findall(page)) == texts
    assert fill(page, texts) == page
    numbers = [line for line in PLACES.sub("", page).splitlines() if re.search(r"\| *[-+]?[\d,.]+ *(%? \||$)", line)]
    assert not numbers, "figures that nothing measured"


@pytest.mark.parametrize("name", ["time", "memory"])
def test_pictures_are_drawn_of_the_same_figures(name: str) -> None:
    with Image.open(DOCS / "images" / f"scaling-{name}.png") as picture:
        assert picture.info["Source"] == digest(FIGURES / "scaling.json")


def test_pictures_are_drawn_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    found = json.loads((FIGURES / "scaling.json").read_text())
    (tmp_path / "scaling.json").write_text(json.dumps({"agents": found["agents"]}))
    draw(load("scaling"), tmp_path, figures=tmp_path)
    with Image.open(tmp_path / "images" / "scaling-time.png") as picture:
        assert picture.info["Source"] == digest(tmp_path / "scaling.json")
    soak = {"generations": 3, "curves_mb": {"RSS": [1.0, 2.0, 3.0], "heap": [1.0, 1.0, 1.0]}}
    (tmp_path / "soak.json").write_text(json.dumps(soak))
    draw(load("memory"), tmp_path, figures=tmp_path)
    assert (tmp_path / "figures" / "soak.png").stat().st_size > 5000


def test_pages_without_figures_say_so(tmp_path: Path) -> None:
    assert set(blocks(load("study"), tmp_path).values()) == {NOT_YET}


def test_texts_take_their_places_and_leave_the_rest() -> None:
    page = "a\n<!-- measured: one -->\nold\nolder\n<!-- end -->\nb\n<!-- measured: two -->\n<!-- end -->\n"
    filled = fill(page, {"one": "new"})
    assert filled == "a\n<!-- measured: one -->\nnew\n<!-- end -->\nb\n<!-- measured: two -->\n<!-- end -->\n"
    assert fill(filled, {"one": "new", "two": "x"}).count("\n") == page.count("\n")


def test_formats_reach_into_rows() -> None:
    rows = [{"a": {"b": 1234.5}, "c": "x"}, {"a": None, "c": "y"}]
    assert table({"b": "{a[b]!n}", "c d": "{c}"}, rows).splitlines()[2:] == ["| 1,234 | x |", "|  | y |"]
    lines = across("", {"b": "{a[b]:.1f}"}, {"one": rows[0], "two": rows[1]}).splitlines()
    assert lines[0] == "|  | one | two |"
    assert lines[2] == "| b | 1234.5 | not measured |"
    with pytest.raises(KeyError):
        table({"d": "{d}"}, rows)
    assert [number(value) for value in (1234.5, 12.34, 1.234, 0.1234)] == ["1,234", "12.3", "1.23", "0.123"]
