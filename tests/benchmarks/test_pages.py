"""Docs pages quote the measured figures, and tables are formatted as specified."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.harness import FIGURES, ROOT, Rows, rows_by_case
from benchmarks.harness import load as load_benchmark
from benchmarks.pages import PAGES, blocks, fill, load, number, read, table, where

BLOCKS = re.compile(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_quotes_the_figures(name: str) -> None:
    page, texts = (ROOT / "docs" / f"{name}.md").read_text(), blocks(load(name))
    assert dict(BLOCKS.findall(page)) == texts
    assert fill(page, texts) == page
    numbers = [line for line in BLOCKS.sub("", page).splitlines() if re.search(r"\| *[-+]?[\d,.]+ *(%? \||$)", line)]
    assert not numbers, "figures that no benchmark measured"


def test_every_figure_is_quoted_by_a_page() -> None:
    quoted = {name for page in PAGES for block in load(page).blocks.values() for name in block.figures}
    assert {path.stem for path in FIGURES.glob("*.json")} <= quoted


@pytest.mark.parametrize("name", ["mujoco", "parity", "swimmer", "fresh"])
def test_figures_are_those_of_the_kept_rows_which_a_run_of_this_configuration_would_take(name: str) -> None:
    benchmark, folder = load_benchmark(name), FIGURES / "rows" / name
    files = [*folder.glob("*.json")]
    settings = {"threads": 1, **benchmark.settings}
    if "seeds" in settings:
        settings["seeds"] = max(int(path.stem.rpartition("-")[2]) for path in files)
    rows = Rows(folder, benchmark, settings, {})  # refuses rows of other settings
    measured = {task: row for task in benchmark.tasks(settings) if (row := rows.read(task)) is not None}
    assert len(measured) == len(files)
    assert json.loads((FIGURES / f"{name}.json").read_text())["runs"] == rows_by_case(measured)["runs"]


def test_pictures_are_drawn_from_their_figures(tmp_path: Path) -> None:
    for path, block in load("scaling").pictures.items():
        (figures,) = read(block) or ()
        block.make(tmp_path / "drawn.png", figures)
        with Image.open(tmp_path / "drawn.png") as picture, Image.open(ROOT / "docs" / path) as expected:
            drawn, shown = (np.asarray(each.convert("L").resize((96, 96)), float) for each in (picture, expected))
        assert np.abs(drawn - shown).max() < 8, f"{path} is not of its figures: python -m benchmarks.pages scaling"


def test_blocks_without_figures_are_marked(tmp_path: Path) -> None:
    assert set(blocks(load("study"), tmp_path).values()) == {"Not measured yet."}


def test_blocks_are_replaced_and_the_rest_is_kept() -> None:
    page = "a\n<!-- measured: one -->\nold\nolder\n<!-- end -->\nb\n<!-- measured: two -->\n<!-- end -->\n"
    filled = fill(page, {"one": "new"})
    assert filled == "a\n<!-- measured: one -->\nnew\n<!-- end -->\nb\n<!-- measured: two -->\n<!-- end -->\n"
    assert fill(filled, {"one": "new", "two": "x"}).count("\n") == page.count("\n")


def test_formats_access_nested_values() -> None:
    rows = [{"a": {"b": 1234.5}, "c": "x"}, {"a": None, "c": "y"}]
    assert table({"b": "{a[b]!n}", "c d": "{c}"}, rows).splitlines()[2:] == ["| 1,234 | x |", "|  | y |"]
    with pytest.raises(KeyError):
        table({"d": "{d}"}, rows)
    assert [number(value) for value in (1234.5, 12.34, 1.234, 0.1234)] == ["1,234", "12.3", "1.23", "0.123"]


def test_a_page_says_where_every_row_was_measured() -> None:
    command = {"machine": "Xeon", "cores": 2, "torch": "2", "threads": 2, "commit": "c" * 40, "dirty": True}
    old, new = {"commit": "a" * 40}, {"processor": "EPYC", "threads": 1, "commit": "b" * 40, "dirty": False}
    assert where({"machine": command}) == "Xeon, 2 cores, torch 2 with 2 threads, commit ccccccc with changes"
    both = (
        "EPYC and Xeon, 2 cores, torch 2 with 1 or 2 threads, commit aaaaaaa, bbbbbbb; 1 of 3 rows do not say on which "
        "processor: this is the command's; 2 of 3 do not say whether the code had changes"
    )
    assert where({"machine": command, "runs": {"case": [new, old, {**old, "processor": "EPYC"}]}}) == both
    silent = "Xeon, 2 cores, torch 2 with 2 threads, commit aaaaaaa"
    assert where({"machine": command, "runs": {"case": [old, old]}}) == silent
    assert where({"machine": {**command, "dirty": None}}, old["commit"]).endswith("aaaaaaa, with or without changes")
