"""The report of a run with baselines, a test on cases, and pictures of its champion."""

import base64
import re
from dataclasses import replace
from pathlib import Path

import pytest

from eigen2.report.page import render, scores, write_report
from eigen2.report.record import load
from tests.report.browser import evaluate, needs_browser
from tests.report.runs import write_cases, write_run


@needs_browser
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "dark phone"])
def test_charts_and_pictures_fit_the_page(tmp_path: Path, phone: bool) -> None:
    script = """
      const edge = document.documentElement.getBoundingClientRect().right;
      const right = (each) => each.getBoundingClientRect().right;
      const table = document.getElementById("scores");
      const images = [...document.images];
      while (!images.every((image) => image.complete)) await new Promise((done) => setTimeout(done, 50));
      const texts = (name) => [...document.querySelectorAll(`[data-chart=${name}] svg text`)].map((t) => t.textContent);
      return {
        charts: [...document.querySelectorAll("[data-drawn=yes]")].map((each) => each.dataset.chart),
        table: right(table) <= edge && table.parentElement.scrollWidth <= table.parentElement.clientWidth,
        images: images.map((image) => [image.alt, image.naturalWidth, right(image) <= edge]),
        baselines: texts("baselines"), fitness: texts("fitness"), phases: texts("seconds"),
        columns: getComputedStyle(document.querySelector(".pictures")).gridTemplateColumns.split(" ").length,
      };
    """
    shown = evaluate(write_report(write_cases(tmp_path / "run")), tmp_path, script, phone=phone)
    assert set(shown["charts"]) == {"scores", "baselines", "fitness", "seconds"}
    assert shown["table"]
    assert shown["images"] == [
        [f"the champion: {name}", 72, True] for name in ("breaks 0 no breaks", "breaks 1 champion")
    ]
    assert shown["columns"] == (1 if phone else 2)
    unit = "percent of the burned area saved"
    assert {"champion", "validation", "fitness", "random", "by_rule", unit} <= set(shown["baselines"])
    assert unit in shown["fitness"]
    assert {"train", "validate"} <= set(shown["phases"])
    assert not {"evaluate", "evolve"} & set(shown["phases"])


def test_the_table_of_the_test_by_hand(tmp_path: Path) -> None:
    record = load(write_cases(tmp_path))
    policies = {"champion": [10.0, 20.0, 60.0], "random": [5.0, 5.0, 5.0]}
    record = replace(record, scores={**(record.scores or {}), "scores": policies})
    assert scores(record) == [
        ["", "mean", "standard error", "least", "most"],
        ["champion", "30.0", "15.3", "10.0", "60.0"],
        ["random", "5.0", "0.0", "5.0", "5.0"],
    ]
    page = render(record)
    for heading in ("Trades", "Equity", "Monthly", "Buy and hold", "Luck"):
        assert f">{heading}" not in page
    assert "The champion of generation 7 on 3\nlandscapes not used in its fit" in page
    assert "Shaded: all episodes; darker: their middle half." in page
    assert page.index('href="#test"') < page.index('href="#pictures"') < page.index('href="#training"')
    one_case = replace(record, scores={"scores": {"champion": [10.0]}})
    assert scores(one_case)[1] == ["champion", "10.0", "", "10.0", "10.0"]


def test_the_page_holds_the_very_bytes_of_a_map_if_there_is_one(tmp_path: Path) -> None:
    folder = write_cases(tmp_path)
    for old in (folder / "champion").iterdir():
        old.unlink()
    assert "in pictures</h2>" not in render(load(folder))
    content = bytes(range(256))
    (folder / "champion" / "breaks.png").write_bytes(content)
    page = render(load(folder))
    assert "<h2>The champion in pictures</h2>" in page
    (image,) = re.findall(r'<img src="data:image/png;base64,([^"]*)" alt="the champion: breaks">', page)
    assert base64.b64decode(image) == content


def test_a_market_run_has_no_cases_baselines_or_pictures(tmp_path: Path) -> None:
    page = render(load(write_run(tmp_path)))
    assert "Shaded: all agents; darker: their middle half." in page
    for name in ("scores", "baselines", "pictures"):
        assert f'id="{name}"' not in page
        assert f'data-chart="{name}"' not in page
