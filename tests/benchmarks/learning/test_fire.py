"""What the page of fuel breaks says is what was measured."""

import json
from pathlib import Path

from benchmarks.learning.fire import fill_page, results_table

ROOT = Path(__file__).parents[3]
MEASURED = ROOT / "docs" / "figures" / "fire.json"


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    page = tmp_path / "fire.md"
    page.write_text((ROOT / "docs" / "fire.md").read_text())
    fill_page(MEASURED, page)
    assert page.read_text() == (ROOT / "docs" / "fire.md").read_text()
    assert "<!-- measured: agents -->\n|" in page.read_text()


def test_means_are_over_landscapes_then_seeds() -> None:
    scores = {"1": ([60.0, 70.0], [10.0, 20.0]), "2": ([50.0, 50.0], [30.0, 30.0])}
    runs = {
        seed: {"fit_s": 100.0, "scores": {"champion": champion, "random": random}}
        for seed, (champion, random) in scores.items()
    }
    rows = results_table({"runs": {"default": runs}}).splitlines()[2:]
    assert rows == ["| agent, default | 57.5 | 65.0, 50.0 | 100 |", "| random | 22.5 | 15.0, 30.0 |  |"]


def test_five_seeds_save_what_was_asked() -> None:
    runs = json.loads(MEASURED.read_text())["runs"]["default"]
    champions = [sum(run["scores"]["champion"]) / len(run["scores"]["champion"]) for run in runs.values()]
    assert len(champions) == 5
    assert sum(champions) / 5 >= 62
