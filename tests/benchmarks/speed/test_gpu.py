"""The measurements on a GPU, tried on the CPU, and the table of known rows."""

from pathlib import Path

import pytest
import torch

from benchmarks.harness import Task, main
from benchmarks.speed import gpu
from benchmarks.speed.tables import gpu_table

BENCHMARK = gpu.BENCHMARKS["gpu"]
SMALLEST = {**BENCHMARK.settings, **BENCHMARK.smallest, "threads": 1}


def test_without_a_gpu_the_command_ends_with_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(["gpu"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: torch finds no GPU here")


@pytest.mark.parametrize("case", ["one agent: with CUDA graphs", "one agent: without"])
def test_one_agent_is_measured(case: str, tmp_path: Path) -> None:
    row = gpu.measure(Task(case), SMALLEST, tmp_path)
    assert row["steps_per_s"] * (row["ms"]["evaluate"] + row["ms"]["train"]) == pytest.approx(1e3)


def test_an_update_is_measured(tmp_path: Path) -> None:
    assert gpu.measure(Task("update: 2 agents, bf16-mixed"), SMALLEST, tmp_path)["update_ms"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("case", [task.case for task in BENCHMARK.tasks(SMALLEST)])
def test_every_case_is_measured(case: str, tmp_path: Path) -> None:
    row = gpu.measure(Task(case), SMALLEST, tmp_path)
    if case.startswith("resume"):
        assert row["tensors"] > 10
        assert row["different"] == []


def test_tensors_are_compared_bit_for_bit() -> None:
    one = {"a": torch.tensor([1.0, torch.nan]), "b": [torch.ones(2), {"c": torch.zeros(1)}]}
    named = dict(gpu.tensors(one))
    assert named.keys() == {"/a", "/b/0", "/b/1/c"}
    assert gpu.same(named["/a"], named["/a"].clone())
    for other in (None, torch.ones(3), torch.ones(2).double(), torch.tensor([1.0, 2.0])):
        assert not gpu.same(named["/b/0"], other)
    assert not gpu.same(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_the_table_says_what_is_kept() -> None:
    measured = {
        "one agent: with CUDA graphs": {"steps_per_s": 935.9},
        "one agent: without": {"steps_per_s": 300.0},
        "update: 1 agents, 32-true": {"update_ms": 0.5},
        "update: 16 agents, 32-true": {"update_ms": 0.65},
        "update: 200 agents, 32-true": {"update_ms": 3.0},
        "run: 32-true": {"fit_s": 45.0},
        "resume: bf16-mixed": {"tensors": 20, "different": ["/a"]},
    }
    figures = gpu.figures({Task(case): row for case, row in measured.items()})
    assert [row["kept"] for row in figures["rows"]] == [False, None, None, True, False, True, False]
    table = gpu_table(figures).splitlines()
    assert table[2] == "| steps of one agent a second, with CUDA graphs | 936 | at least 936 | no |"
    assert (
        table[5]
        == "| update of 16 agents, 32-true | 0.650 ms, 1.30 times that of the first | at most 1.3 times | yes |"
    )
    assert table[8] == "| killed and resumed, bf16-mixed | 1 of 20 tensors differ | none | no |"
