"""Rows are measured once, in processes of their own, and figures are made of all of them."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import harness
from benchmarks.harness import MODULES, Benchmark, Settings, Task, load, main, only_row

asked: list[Task] = []


def measure(task: Task, settings: Settings, folder: Path) -> dict[str, Any]:
    asked.append(task)
    return {"value": task.seed, "large": settings["large"]}


def tasks(settings: Settings) -> list[Task]:
    return [Task(case, seed) for seed in (1, 2) for case in ("a", "b")]


TINY = Benchmark(measure, tasks, {"large": 7, "names": ["x"]}, {"large": 1})


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Measure in this process what a child would."""
    asked.clear()
    monkeypatch.setattr(harness, "workers", ThreadPoolExecutor)
    monkeypatch.setattr(harness, "_measure", lambda run, *given: run(*given))
    monkeypatch.setattr(harness, "describe_machine", lambda: {"commit": "c1"})
    monkeypatch.setattr(harness, "load", lambda name: TINY)
    return monkeypatch


def call(folder: Path, *words: str) -> None:
    main(["tiny", "--rows", str(folder / "rows"), "--out", str(folder), *words])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(list(words))
    assert exit_.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_rows_are_measured_once_and_collected(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call(tmp_path, "--only", "b")
    assert asked == [Task("b", 1), Task("b", 2)]
    assert not (tmp_path / "tiny.json").exists()
    call(tmp_path, "--threads", "2")
    assert asked[2:] == [Task("a", 1), Task("a", 2)]
    found = json.loads((tmp_path / "tiny.json").read_text())
    assert found["machine"] == {"commit": "c1", "threads": 2}
    rows = [{"seed": seed, "commit": "c1", "value": seed, "large": 7} for seed in (1, 2)]
    assert found["runs"] == {"a": rows, "b": rows}
    call(tmp_path, "--smallest")
    assert asked[4:] == [Task("a", 1)]


def test_rows_of_other_settings_are_refused_and_those_of_speed_repeated(
    patch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(tmp_path)
    capsys.readouterr()
    rows = ("tiny", "--rows", str(tmp_path / "rows"))
    assert "--rows" in refused(capsys, *rows, "--large", "8")
    patch.setattr(harness, "load", lambda name: replace(TINY, key=lambda task, settings: "other prices"))
    assert "--rows" in refused(capsys, *rows)
    patch.setattr(harness, "load", lambda name: replace(TINY, fresh=True))
    for words, count in (((), 4), ((), 4), (("--only", "a"), 2), ((), 4)):  # all rows are there, then all again
        asked.clear()
        call(tmp_path, *words)
        assert len(asked) == count
    patch.setattr(harness, "describe_machine", lambda: {"commit": "c2"})
    call(tmp_path, "--only", "a")
    assert {json.loads(path.read_text())["commit"] for path in (tmp_path / "rows" / "tiny").iterdir()} == {"c1", "c2"}
    asked.clear()
    call(tmp_path)
    assert asked == [Task("b", 1), Task("b", 2)]


def test_a_failed_task_leaves_no_row(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*given: Any) -> Any:
        raise SystemExit("training stopped")

    patch.setattr(harness, "load", lambda name: replace(TINY, measure=stopped))
    with pytest.raises(SystemExit, match="training stopped"):
        call(tmp_path)
    assert not list((tmp_path / "rows").rglob("*.json"))


def test_a_bound_that_is_not_kept_is_an_error(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = replace(TINY, measure=lambda *given: {"kept": False}, tasks=lambda _: [Task("a")], figures=only_row)
    patch.setattr(harness, "load", lambda name: broken)
    with pytest.raises(SystemExit, match="a bound is not kept"):
        call(tmp_path)
    assert json.loads((tmp_path / "tiny.json").read_text())["kept"] is False


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["fast"], "'fast'"),
        ([], "name a benchmark"),
        (["bench", "--only", "speed"], "'speed'"),
        (["bench", "--runs", "0"], "--runs is 0"),
        (["study", "--processes", "0"], "--processes is 0"),
        (["bench", "--config", "no/such.yaml"], "no/such.yaml"),
        (["bench", "--device", "cuda"], "--device is cuda"),
        (["bench", "--device", "tpu"], "--device is 'tpu'"),
        (["bench", "--out", "no/such"], "no/such"),
    ],
)
def test_bad_options_are_refused_in_a_line(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert named in refused(capsys, *words)


def test_every_benchmark_is_found_and_has_a_smallest_size() -> None:
    for name in (name for names in MODULES.values() for name in names):
        benchmark = load(name)
        assert benchmark.smallest.keys() <= benchmark.settings.keys(), name
    named = {name: set(MODULES[name]) for name in MODULES}
    found = {name: set(__import__(f"benchmarks.{name}", fromlist=["x"]).BENCHMARKS) for name in MODULES}
    assert named == found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swimmer", *(names[0] for names in MODULES.values())])
def test_the_smallest_size_runs(name: str, tmp_path: Path) -> None:
    main([name, "--smallest", "--rows", str(tmp_path)])
    (row,) = tmp_path.rglob("*.json")
    assert len(json.loads(row.read_text())) > 2
