"""The harness: rows are measured once, and figures need all of them; errors are one line."""

import json
import multiprocessing
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks import harness
from benchmarks.harness import MODULES, Benchmark, Settings, Task, load, main, only_row, workers

measured: list[Task] = []


def measure(task: Task, settings: Settings, folder: Path) -> dict[str, Any]:
    measured.append(task)
    return {"value": task.seed, "large": settings["large"]}


def tasks(settings: Settings) -> list[Task]:
    return [Task(case, seed) for seed in (1, 2) for case in ("a", "b")]


TINY = Benchmark(measure, tasks, {"large": 7, "names": ["x"]}, {"large": 1})


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Measure in this process instead of a child."""
    measured.clear()
    monkeypatch.setattr(harness, "workers", ThreadPoolExecutor)
    monkeypatch.setattr(harness, "_measure", lambda function, *args: function(*args))
    monkeypatch.setattr(harness, "describe_machine", lambda: {"commit": "c1", "machine": "Xeon", "dirty": False})
    monkeypatch.setattr(harness, "load", lambda name: TINY)
    return monkeypatch


def run_tiny(folder: Path, *args: str) -> None:
    main(["tiny", "--rows", str(folder / "rows"), "--out", str(folder), *args])


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as error:
        main(list(args))
    assert error.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    return output.err


def test_rows_are_measured_once_and_collected(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_tiny(tmp_path, "--only", "b")
    assert measured == [Task("b", 1), Task("b", 2)]
    assert not (tmp_path / "tiny.json").exists()
    run_tiny(tmp_path, "--threads", "2")
    assert measured[2:] == [Task("a", 1), Task("a", 2)]
    figures = json.loads((tmp_path / "tiny.json").read_text())
    assert figures["machine"] == {"commit": "c1", "machine": "Xeon", "dirty": False, "threads": 2}
    place = {"processor": "Xeon", "commit": "c1", "dirty": False}
    rows = {
        case: [{"seed": seed, **place, "threads": threads, "value": seed, "large": 7} for seed in (1, 2)]
        for case, threads in (("a", 2), ("b", 1))  # of the command that measured the row
    }
    assert figures["runs"] == rows
    run_tiny(tmp_path, "--smallest")
    assert measured[4:] == [Task("a", 1)]


def test_uneven_figures_are_of_every_row_there_is(
    patch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tasks(settings: Settings) -> list[Task]:
        return [Task(arm, seed) for seed in range(1, settings["seeds"] + 1) for arm in settings["arms"]]

    defaults = {**TINY.settings, "arms": ["a", "b"], "tasks": ["x"], "seeds": 2}
    patch.setattr(harness, "load", lambda name: replace(TINY, tasks=tasks, settings=defaults, uneven=True))
    run_tiny(tmp_path, "--arms", "a", "--seeds", "3")
    assert capsys.readouterr().err.splitlines()[-1] == "tiny: no figures yet, as b, seed 1, is not measured"
    assert not (tmp_path / "tiny.json").exists()
    run_tiny(tmp_path, "--seeds", "1")
    runs = json.loads((tmp_path / "tiny.json").read_text())["runs"]
    assert {case: [row["seed"] for row in rows] for case, rows in runs.items()} == {"a": [1, 2, 3], "b": [1]}
    capsys.readouterr()
    main(["tiny", "--rows", str(tmp_path / "rows"), "--arms", "b", "--seeds", "2"])  # printed, not written
    assert [*json.loads(capsys.readouterr().out)["runs"]] == ["b"]


def test_rows_of_other_settings_are_refused_and_fresh_ones_repeated(
    patch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_tiny(tmp_path)
    capsys.readouterr()
    rows = ("tiny", "--rows", str(tmp_path / "rows"))
    assert "--rows" in refusal(capsys, *rows, "--large", "8")
    patch.setattr(harness, "load", lambda name: replace(TINY, key=lambda task, settings: "other prices"))
    assert "--rows" in refusal(capsys, *rows)
    patch.setattr(harness, "load", lambda name: replace(TINY, fresh=True))
    for args, count in (((), 4), ((), 4), (("--only", "a"), 2), ((), 4)):  # finished rows are measured again
        measured.clear()
        run_tiny(tmp_path, *args)
        assert len(measured) == count
    patch.setattr(harness, "describe_machine", lambda: {"commit": "c2", "machine": "Xeon", "dirty": True})
    run_tiny(tmp_path, "--only", "a")
    assert {json.loads(path.read_text())["commit"] for path in (tmp_path / "rows" / "tiny").iterdir()} == {"c1", "c2"}
    measured.clear()
    run_tiny(tmp_path)
    assert measured == [Task("b", 1), Task("b", 2)]


def test_a_failed_task_leaves_no_row_and_others_theirs(
    patch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(task: Task, *args: Any) -> Any:
        if task == Task("a", 1):
            raise SystemExit("training stopped")
        return TINY.measure(task, *args)

    patch.setattr(harness, "load", lambda name: replace(TINY, measure=stopped))
    with pytest.raises(SystemExit, match="training stopped"):
        run_tiny(tmp_path)
    assert len(list((tmp_path / "rows").rglob("*.json"))) == 3
    assert "failed a, seed 1: training stopped" in capsys.readouterr().err


def test_a_bound_that_does_not_hold_is_an_error(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = replace(TINY, measure=lambda *args: {"kept": False}, tasks=lambda _: [Task("a")], figures=only_row)
    patch.setattr(harness, "load", lambda name: broken)
    with pytest.raises(SystemExit, match="a bound does not hold"):
        run_tiny(tmp_path)
    assert json.loads((tmp_path / "tiny.json").read_text())["kept"] is False


def start_worker() -> None:
    with workers(1) as pool:
        pool.submit(subprocess.run, ["sleep", "600"]).result()


def test_a_killed_command_leaves_no_process() -> None:
    """A worker, and a program that it runs, end with the process that started them."""
    parent = multiprocessing.get_context("fork").Process(target=start_worker)
    parent.start()
    process, started = psutil.Process(parent.pid), time.monotonic()
    while not any(child.name() == "sleep" for child in process.children(recursive=True)):
        assert time.monotonic() - started < 100, "the worker runs nothing"
        time.sleep(0.1)
    descendants = process.children(recursive=True)
    parent.kill()
    parent.join()
    _, alive = psutil.wait_procs(descendants, timeout=30)
    for left in alive:
        left.kill()
    assert not alive


@pytest.mark.parametrize(
    ("args", "named"),
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
def test_invalid_options_are_refused_in_one_line(
    args: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert named in refusal(capsys, *args)


def test_every_benchmark_is_listed_and_has_a_smallest_size() -> None:
    for name in (name for names in MODULES.values() for name in names):
        benchmark = load(name)
        assert benchmark.smallest.keys() <= benchmark.settings.keys(), name
    listed = {name: set(MODULES[name]) for name in MODULES}
    defined = {name: set(__import__(f"benchmarks.{name}", fromlist=["x"]).BENCHMARKS) for name in MODULES}
    assert listed == defined


@pytest.mark.slow
@pytest.mark.parametrize("name", [names[0] for names in MODULES.values()])
def test_the_smallest_size_runs(name: str, tmp_path: Path) -> None:
    main([name, "--smallest", "--rows", str(tmp_path)])
    (row,) = tmp_path.rglob("*.json")
    assert len(json.loads(row.read_text())) > 2
