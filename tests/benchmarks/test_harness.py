"""Rows are measured once, in processes of their own, and figures are made of all of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import harness
from benchmarks.harness import MODULES, Benchmark, Rows, Settings, Task, as_json, describe_machine, load, main, only_row


def measure(task: Task, settings: Settings, folder: Path) -> dict[str, Any]:
    return {"value": task.seed, "large": settings["large"]}


def tasks(settings: Settings) -> list[Task]:
    return [Task(case, seed) for seed in (1, 2) for case in ("a", "b")]


TINY = Benchmark(measure, tasks, {"large": 7, "names": ["x"]}, {"large": 1})


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Measure in this process what a child would; list its tasks."""
    started: list[Task] = []

    def child(command: list[Any], **rest: object) -> Any:
        case, seed, settings, folder, row = command[command.index("--task") + 1 :]
        started.append(Task(case, int(seed)))
        found = harness.load("tiny").measure(started[-1], json.loads(settings), Path(folder))
        if found is not None:
            Path(row).write_text(as_json(found))
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(harness.subprocess, "run", child)
    monkeypatch.setattr(harness, "describe_machine", lambda: {"commit": "c1"})
    monkeypatch.setattr(harness, "load", lambda name: TINY)
    return started


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


def test_rows_are_measured_once_and_collected(children: list[Task], tmp_path: Path) -> None:
    call(tmp_path, "--only", "b")
    assert children == [Task("b", 1), Task("b", 2)]
    assert not (tmp_path / "tiny.json").exists()
    call(tmp_path, "--threads", "2")
    assert children[2:] == [Task("a", 1), Task("a", 2)]
    found = json.loads((tmp_path / "tiny.json").read_text())
    assert found["machine"] == {"commit": "c1", "threads": 2}
    rows = [{"seed": seed, "commit": "c1", "value": seed, "large": 7} for seed in (1, 2)]
    assert found["runs"] == {"a": rows, "b": rows}
    call(tmp_path, "--smallest")
    assert children[4:] == [Task("a", 1)]


def test_rows_of_other_settings_are_refused_but_for_speed(
    children: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(tmp_path)
    capsys.readouterr()
    assert "--rows" in refused(capsys, "tiny", "--rows", str(tmp_path / "rows"), "--large", "8")
    keyed = replace(TINY, key=lambda task, settings: "other prices")
    monkeypatch.setattr(harness, "load", lambda name: keyed)
    assert "--rows" in refused(capsys, "tiny", "--rows", str(tmp_path / "rows"))
    fresh = replace(TINY, fresh=True)
    monkeypatch.setattr(harness, "load", lambda name: fresh)
    for _ in range(2):
        children.clear()
        call(tmp_path)
        assert len(children) == 4
    first = Rows(tmp_path / "rows" / "tiny", fresh, {"threads": 1, **TINY.settings}, {"commit": "c1"})
    assert first.read(Task("a", 1)) is not None
    assert Rows(first.folder, fresh, {"threads": 1, **TINY.settings}, {"commit": "c2"}).read(Task("a", 1)) is None


def test_a_task_without_a_row_stops_the_benchmark(
    children: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "load", lambda name: replace(TINY, measure=lambda *given: None))
    with pytest.raises(SystemExit, match="left no row"):
        call(tmp_path)
    assert not list((tmp_path / "rows").rglob("*.json"))


def test_a_bound_that_is_not_kept_is_an_error(
    children: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(TINY, measure=lambda *given: {"kept": False}, tasks=lambda _: [Task("a")], figures=only_row)
    monkeypatch.setattr(harness, "load", lambda name: broken)
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
        (["bench", "--threads", "0"], "--threads is 0"),
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
        assert benchmark.measure.__module__.endswith(next(module for module in MODULES if name in MODULES[module]))
    named = {name: set(MODULES[name]) for name in MODULES}
    found = {name: set(__import__(f"benchmarks.{name}", fromlist=["x"]).BENCHMARKS) for name in MODULES}
    assert named == found


def test_figures_say_where_they_come_from() -> None:
    found = describe_machine()
    assert all(found[name] for name in ("machine", "cores", "python", "torch", "lightning"))
    assert found["commit"] is None or len(found["commit"]) == 40
    assert {"dirty", "accelerator"} <= found.keys()
