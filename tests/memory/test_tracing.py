"""Traces of allocations: by memray, and of memory on a GPU, by a stand-in."""

import importlib.util
import logging
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from callbacks import plots
from eigen2.files import Folder
from eigen2.memory.tracing import GENERATIONS, Tracer
from tests.command import in_fork


class FakeCuda:
    """Stands in for torch.cuda.memory: notes the calls, and keeps a tensor of 8,000 bytes from each line it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.kept: list[tuple[str, int]] = []
        monkeypatch.setattr("eigen2.memory.process.uses_cuda", lambda: True)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # no memray
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self.record)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", self.snapshot)

    def record(self, enabled: str | None, **options: Any) -> None:
        self.calls.append(("record", enabled, options.get("stacks")))

    def snapshot(self) -> dict[str, Any]:
        self.calls.append(("snapshot",))
        library = {"filename": torch.__file__, "line": 1, "name": "zeros"}
        stacks = [[library, {"filename": file, "line": line, "name": "step"}] for file, line in self.kept]
        blocks = [{"state": "active_allocated", "size": 8000, "frames": stack} for stack in [*stacks, []]]
        blocks.append({"state": "inactive", "size": 10**6, "frames": stacks[0] if stacks else []})
        return {"segments": [{"blocks": blocks}], "device_traces": [[]]}


def test_memory_on_a_gpu_is_traced_to_its_lines_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda = FakeCuda(monkeypatch)
    cuda.kept.append(("/home/me/model.py", 3))  # before the trace
    tracer = Tracer(Folder(tmp_path) / "memory", gpu=True)
    for generation in range(GENERATIONS):
        cuda.kept.append(("/home/me/model.py", 7))
        assert tracer.generation_end() == (generation == GENERATIONS - 1)
    trace = tracer.close()
    assert cuda.calls == [("record", "all", "python"), ("snapshot",), ("snapshot",), ("record", None, None)]
    (site,) = [site for site in trace.sites if "GPU" in site.line]
    assert (site.line, site.nbytes, site.users) == ("/home/me/model.py:7 on the GPU", 8000, True)
    page = tmp_path / "memory" / "cuda.html"
    assert dict(trace.pages) == {"CUDA_timeline": page}
    assert "Active Memory Timeline" in page.read_text()
    assert f"CUDA timeline of what is kept: {page}" in trace.lines()
    assert trace.record()["CUDA_timeline"] == "cuda.html"


@pytest.mark.parametrize("gpu", [False, True])
def test_without_a_folder_or_where_it_is_not_asked_for_no_gpu_is_traced(
    gpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = FakeCuda(monkeypatch)
    trace = Tracer(None if gpu else Folder(tmp_path), gpu).close()
    assert (cuda.calls, dict(trace.pages), [*tmp_path.iterdir()]) == ([], {}, [])


@pytest.mark.parametrize("call", ["_record_memory_history", "_snapshot", "the disk"])
def test_what_keeps_a_gpu_from_being_traced_is_logged(
    call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cuda = FakeCuda(monkeypatch)
    if call == "the disk":
        (tmp_path / "memory").write_text("in the way")
    else:
        monkeypatch.delattr(torch.cuda.memory, call)
    with caplog.at_level(logging.WARNING):
        tracer = Tracer(Folder(tmp_path) / "memory", gpu=True)
        for _ in range(GENERATIONS):
            tracer.generation_end()
        trace = tracer.close()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("cannot trace allocations: ")
    assert not trace.pages
    records = [each for each in cuda.calls if each[0] == "record"]
    assert records in ([], [("record", "all", "python"), ("record", None, None)])  # never left on


def test_a_recorder_that_fails_halfway_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tracer = Tracer()
    tracemalloc.stop()  # by the user's own code
    for _ in range(GENERATIONS):
        tracer.generation_end()
    assert tracer.close().sites == []
    assert [message.startswith("cannot trace allocations: ") for message in caplog.messages] == [True]


def trace_with_memray(folder: Path) -> tuple[dict[str, Path], str, float]:
    kept: list[np.ndarray] = []
    tracer = Tracer(Folder(folder))
    for _ in range(GENERATIONS):
        kept.append(np.ones(50_000))
        tracer.generation_end()
    trace = tracer.close()
    return dict(trace.pages), trace.sites[0].line, trace.sites[0].nbytes


@pytest.mark.skipif(importlib.util.find_spec("memray") is None, reason="needs memray")
def test_memray_draws_a_page_that_loads_nothing(tmp_path: Path) -> None:
    pages, line, nbytes = in_fork(trace_with_memray, tmp_path)
    assert pages == {"flame_graph": tmp_path / "leak.html"}
    page = pages["flame_graph"].read_text()
    assert "test_tracing.py" in page
    assert '<script src="' not in page
    assert '<link rel="stylesheet" href="http' not in page
    assert __file__ in line
    assert nbytes == pytest.approx(400_000, rel=0.05)


def test_the_callbacks_of_eigen2_are_not_the_users_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda, tracer = FakeCuda(monkeypatch), Tracer(Folder(tmp_path), gpu=True)
    for _ in range(GENERATIONS):
        cuda.kept.append((plots.__file__, 1))
        tracer.generation_end()
    (site,) = [site for site in tracer.close().sites if "GPU" in site.line]
    assert (site.line, site.users) == (f"{plots.__file__}:1 on the GPU", False)
