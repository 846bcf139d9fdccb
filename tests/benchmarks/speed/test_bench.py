"""The table: every row at tiny size, its options, and what its JSON says."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.speed import bench, environment, overhead, panel
from benchmarks.timing import PERCENT, SECONDS, Row, at_most
from tests.benchmarks.conftest import SMALL


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a small run; the rows whose sizes are no options are made small too."""
    for name, size in (("DAYS", 300), ("COLUMNS", 4), ("MANY", 3), ("FEW", 2)):
        monkeypatch.setattr(environment, name, size)
    monkeypatch.setattr(panel, "panel_seconds", partial(panel.panel_seconds, days=520, columns=2, loads=1))
    monkeypatch.setattr(overhead, "GENERATIONS", 1)
    return ["--config", str(SMALL), "--runs", "1"]


def test_every_row_is_measured(tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main([*tiny, "--json", str(tmp_path / "figures.json")])
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [row["key"] for row in figures["rows"]] == list(bench.KEYS)
    for row in figures["rows"]:
        for name in ("ours", "reference", "ratio", "bound"):
            assert math.isfinite(row[name]), f"{name} of {row['key']}"
            assert row[name] > 0, f"{name} of {row['key']}"
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["what", "eigen2", "reference", "ratio", "bound", "kept"]
    for text, row in zip(lines, figures["rows"], strict=True):
        assert text.startswith(row["what"])
        assert text.endswith("yes" if row["kept"] else "no")


def test_json_says_where_figures_come_from(tiny: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bench.main([*tiny, "--only", "environment_16,replay_bytes", "--json"])
    figures = json.loads(capsys.readouterr().out)
    for name in ("machine", "python", "torch", "lightning", "device"):
        assert figures[name], name
    assert figures["cores"] >= 1
    assert figures["threads"] == 1
    assert figures["commit"] is None or len(figures["commit"]) == 40
    assert {"dirty", "accelerator"} <= figures.keys()
    assert [row["key"] for row in figures["rows"]] == ["replay_bytes", "environment_16"]
    assert set(figures["rows"][0]) == {"key", "what", "ours", "reference", "ratio", "bound", "unit", "kept"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--only", "replay_bytes,speed"], "'speed'"),
        (["--only", ""], "''"),
        (["--runs", "0"], "--runs is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--config", "no/such.yaml"], "no/such.yaml"),
        (["--device", "cuda"], "--device is cuda"),
        (["--json", "no/such/figures.json"], "no/such/figures.json"),
    ],
)
def test_bad_options_are_refused_in_a_line(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as exit_:
        bench.main(words)
    assert exit_.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert named in said.err
    assert said.err.count("\n") == 1


def test_a_gpu_measures_what_runs_there() -> None:
    assert bench.chosen(None, "cuda") == {"evaluation", "training_step", "batch_assembly"}
    assert bench.chosen(None, "cpu") == set(bench.KEYS)
    with pytest.raises(bench.UserError, match="'overhead': no such row with --device cuda"):
        bench.chosen("overhead", "cuda")


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (Row("k", "w", 1.0, 50.0, 50.0, bound=50.0), True),
        (Row("k", "w", 1.0, 49.0, 49.0, bound=50.0), False),
        (Row("k", "w", 2.0, 1.0, 0.5), False),
        (Row("k", "w", math.nan, 1.0, math.nan, bound=50.0), False),
        (at_most("k", "w", 5.0, 5.0, PERCENT), True),
        (at_most("k", "w", 5.1, 5.0, PERCENT), False),
        (at_most("k", "w", math.nan, 1.0, SECONDS), False),
    ],
)
def test_bounds(row: Row, kept: bool) -> None:
    assert row.kept == kept
    assert row.json()["kept"] == kept
