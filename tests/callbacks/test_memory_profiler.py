import copy
import csv
import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from callbacks import GarbageCollector, MemoryProfiler
from callbacks.memory import get_profiler, log_memory
from eigen2.errors import UserError
from eigen2.memory import leaks
from eigen2.memory.leaks import AFTER, Leak
from eigen2.memory.owners import Filling
from eigen2.memory.snapshot import MemorySnapshot
from tests.callbacks.conftest import loader, run_fit
from tests.command import in_fork

Fit = Callable[..., Trainer]
PHASES = ("evaluate", "train", "validate", "generation")


class LeakedEnvironment:
    def __init__(self) -> None:
        self.prices = np.ones(50_000)


class Owner(Callback):
    def __init__(self, **owners: object) -> None:
        self.owners = owners

    def memory_owners(self) -> dict[str, object]:
        return self.owners


class OwningData(LightningDataModule):
    def train_dataloader(self) -> Any:
        return loader()

    val_dataloader = train_dataloader

    def memory_owners(self) -> dict[str, int]:
        return {"panel": 3_000_000}


class PlainModule(LightningModule):
    """A module that announces nothing, whose training step keeps its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 200)
        self.outputs: list[torch.Tensor] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        output: torch.Tensor = self.layer(batch.expand(200, 1)).exp()
        self.outputs.append(output)
        return output.sum()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-9)

    def memory_owners(self) -> dict[str, object]:
        return {"weights": self.layer}


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def order(rows: list[dict[str, str]]) -> list[tuple[int, str]]:
    return [(int(row["generation"]), row["phase"]) for row in rows]


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("memory/")]
    curves = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in tags}
    assert all(len(curves[tag]) == len(events.Scalars(tag)) for tag in tags)  # no step twice
    return curves


def found(root: Path, *callbacks: Callback, traces: int = 0, **options: Any) -> tuple[Leak | None, str]:
    """Return the leak that a fit finds in this process, and what is printed."""
    leaks.MOST_TRACES = traces
    with redirect_stdout(io.StringIO()) as printed:
        run_fit(root, *callbacks, **options)
    return get_profiler().leak, printed.getvalue()


def fit_with_leaks(root: Path) -> tuple[MemorySnapshot | None, Any, list[str]]:
    """Return the last snapshot of a fit that keeps instances and arrays, psutil's numbers, and what is printed."""
    kept: list[object] = []
    owner = Owner(replay=1_000_000)

    def leak(phase: str, epoch: int) -> None:
        if phase == "train":
            kept.append(np.ones(5_000_000))  # 40 MB, touched
            owner.owners = {"replay": 1_000_000 * (epoch + 2), "late": 7}

    profiler = MemoryProfiler()
    logger = TensorBoardLogger(root, name="tb", version="")
    # the Trainer checks two validation batches first, which are not measured
    options = {"announce": True, "work": leak, "logger": logger, "datamodule": OwningData()}
    with redirect_stdout(io.StringIO()) as printed:
        trainer = run_fit(root, profiler, owner, **options)
    # nothing is measured outside of fit
    trainer.validate(trainer.lightning_module, loader(), verbose=False)
    profiler.on_phase_end(trainer, trainer.lightning_module, "evaluate")
    latest = copy.deepcopy(profiler).latest  # as processes that are spawned need it
    return latest, psutil.Process().memory_info(), printed.getvalue().splitlines()


def test_announced_phases_are_measured_counted_and_logged(tmp_path: Path) -> None:
    latest, now, printed = in_fork(fit_with_leaks, tmp_path)
    rows = read(tmp_path / "memory.csv")
    assert order(rows) == [(0, "baseline"), *((g, phase) for g in range(3) for phase in PHASES)]
    assert latest is not None
    assert latest.rss_bytes == int(rows[-1]["rss_bytes"])
    assert int(rows[-1]["rss_bytes"]) == pytest.approx(now.rss, rel=0.05)
    assert int(rows[-1]["vms_bytes"]) == pytest.approx(now.vms, rel=0.05)
    for before, row in zip((rows[0], *rows), rows, strict=False):
        assert int(row["delta_bytes"]) == int(row["rss_bytes"]) - int(before["rss_bytes"])
    # owners of the data module, and of a callback as they are at the time
    ends = [row for row in rows if row["phase"] in ("baseline", "generation")]
    assert {row["owner_panel_bytes"] for row in ends} == {"3000000"}
    assert [int(row["owner_replay_bytes"]) // 10**6 for row in ends] == [1, 2, 3, 4]
    assert [row["owner_late_bytes"] for row in ends] == ["", "7", "7", "7"]
    assert {row[f"owner_{name}_bytes"] for row in rows if row not in ends for name in ("panel", "replay")} == {""}
    # what is printed: who holds most, and no tables
    assert re.fullmatch(r"memory  RSS \d\.\d{3} GB, \+1[12]\d\.\d MB since training started", printed[0])
    assert printed[1] == "memory  MB  replay 4.0, panel 3.0"
    assert re.fullmatch(
        r"memory  MB  Python [\d.]+, C heap [\d.]+, free [\d.]+, files [\d.]+, other -?[\d.]+", printed[2]
    )
    assert max(map(len, printed)) <= 80
    assert printed[3:] == ["memory  verdict: none, with 3 of the 8 generations that it needs"]
    # metrics once an epoch, at the epoch
    curves = scalars(tmp_path / "tb")
    expected = {"memory/rss_gb", *(f"memory/owner/{name}_mb" for name in ("replay", "late", "panel", "profiler"))}
    assert {tag for tag in curves if "gpu" not in tag} == expected
    assert all(list(curves[tag]) == [0, 1, 2] for tag in expected)
    assert curves["memory/owner/replay_mb"] == {0: 2.0, 1: 3.0, 2: 4.0}
    at_end = [int(row["rss_bytes"]) for row in rows if row["phase"] == "generation"]
    for epoch in (1, 2):  # the first epoch also pays for what loads late
        deltas = {row["phase"]: int(row["delta_bytes"]) for row in rows[1:] if row["generation"] == str(epoch)}
        assert deltas["train"] == pytest.approx(40e6, abs=4e6)
        assert max(abs(deltas[phase]) for phase in PHASES if phase != "train") < 4e6
        assert sum(deltas.values()) == at_end[epoch] - at_end[epoch - 1]
    assert curves["memory/rss_gb"][2] == pytest.approx(at_end[2] / 1e9, rel=1e-6)


def test_any_module_is_measured_and_its_leak_found(tmp_path: Path) -> None:
    callbacks = (GarbageCollector(), MemoryProfiler(), Owner(array=np.ones(2_500_000)))
    leak, printed = in_fork(found, tmp_path, *callbacks, traces=1, epochs=20, module=PlainModule())
    rows = read(tmp_path / "memory.csv")
    phases = ("train", "validate", "generation")
    assert order(rows) == [(0, "baseline"), *((g, phase) for g in range(20) for phase in phases)]
    assert {row["phase"]: row["owner_weights_bytes"] for row in rows} == {
        **{"baseline": "1600", "generation": "1600"},
        **{"train": "", "validate": ""},
    }
    assert leak is not None
    assert (leak.phase, leak.growth.since) == ("train", pytest.approx(0, abs=2))
    assert leak.growth.slope.median == pytest.approx(leak.growth.slope.high, rel=0.2)
    assert __file__ in leak.trace.sites[0].line
    assert printed.count("leak in train: ") == 2


def test_two_owners_of_one_name_are_refused(fit: Fit) -> None:
    with pytest.raises(UserError, match=r"^Owner\.memory_owners\(\) names 'panel', as another owner does"):
        fit(MemoryProfiler(), Owner(panel=1), datamodule=OwningData())


def test_a_killed_run_resumes_without_a_row_missing_or_doubled(fit: Fit, tmp_path: Path) -> None:
    def fail(phase: str, epoch: int) -> None:
        if (phase, epoch) == ("validate", 3):
            raise RuntimeError("killed")

    def saver() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=tmp_path, filename="last", save_on_train_epoch_end=True)

    profiler = MemoryProfiler()
    with pytest.raises(RuntimeError, match="killed"):
        fit(profiler, saver(), epochs=5, announce=True, work=fail)
    path = tmp_path / "memory.csv"
    first_run = path.read_bytes().splitlines(keepends=True)
    assert order(read(path))[-2:] == [(3, "evaluate"), (3, "train")]
    with open(path, "ab") as file:
        file.write(b"3,validate,123")  # torn
    logger = TensorBoardLogger(tmp_path, name="tb", version="")
    fit(profiler, saver(), epochs=5, announce=True, logger=logger, ckpt_path=tmp_path / "last.ckpt")
    first = [(0, "baseline"), *((g, phase) for g in range(3) for phase in PHASES)]
    second = [(3, "baseline"), *((g, phase) for g in (3, 4) for phase in PHASES)]
    assert order(read(path)) == first + second
    kept = 1 + len(first)
    assert path.read_bytes().splitlines(keepends=True)[:kept] == first_run[:kept]
    # nothing of an earlier run is left in the folder of a new one
    fit(profiler, epochs=1, announce=True)
    assert order(read(path)) == [(0, "baseline"), *((0, phase) for phase in PHASES)]


def test_other_processes_write_their_own_file_and_print_nothing(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Trainer, "is_global_zero", property(lambda trainer: False))
    monkeypatch.setattr(Trainer, "global_rank", property(lambda trainer: 2))
    fit(MemoryProfiler(), epochs=1)
    assert not (tmp_path / "memory.csv").exists()
    assert len(read(tmp_path / "memory-2.csv")) == 4
    assert "memory " not in capsys.readouterr().out


def test_cuda_memory_of_all_devices_is_logged(fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen2.memory.process.uses_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for more, name in enumerate(("memory_allocated", "memory_reserved", "max_memory_allocated"), start=1):
        monkeypatch.setattr(torch.cuda, name, lambda device, more=more: (device + more) * 10**9)
    fit(MemoryProfiler(), epochs=1, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    curves = scalars(tmp_path / "tb")
    assert curves["memory/gpu_peak_gb"][0] == 7.0
    names = ("allocated", "reserved", "peak")
    rows = {tuple(int(row[f"gpu_{name}_bytes"]) // 10**9 for name in names) for row in read(tmp_path / "memory.csv")}
    assert rows == {(3, 5, 7)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_on_a_real_gpu_is_seen(fit: Fit, tmp_path: Path) -> None:
    kept: list[torch.Tensor] = []

    def keep(phase: str, epoch: int) -> None:
        if phase == "train":
            kept.append(torch.zeros(2**20, device="cuda"))

    fit(MemoryProfiler(), epochs=2, announce=True, work=keep)
    rows = read(tmp_path / "memory.csv")
    gpu = [int(row["gpu_allocated_bytes"]) for row in rows if row["phase"] == "generation"]
    assert gpu[1] - gpu[0] == 4 * 2**20


@pytest.mark.parametrize(("option", "number"), [("least_leak_kb", 0), ("trace_at", -1), ("trace_at", 0.5)])
def test_a_wrong_number_is_refused(option: str, number: int) -> None:
    with pytest.raises(UserError, match=f"{option} is {number}; it must be"):
        MemoryProfiler(**{option: number})


def test_snapshots_by_hand_report_what_grew(
    fit: Fit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callbacks.memory._latest_profiler", None)
    assert get_profiler() is get_profiler()
    log_memory("before")
    kept = np.ones(5_000_000)
    log_memory("after")
    get_profiler().print_memory_growth(baseline_label="before")
    grown = capsys.readouterr().out
    assert re.search(r"memory  C heap .* +\+4[01]\.\d\n", grown)
    with pytest.raises(ValueError, match=r"no snapshot is labelled 'never'.*'before', 'after'"):
        get_profiler().print_memory_growth(baseline_label="never")
    assert kept.size == 5_000_000
    # in a fit, of the fit
    profiler, seen = MemoryProfiler(), []
    fit(profiler, Owner(replay=5), epochs=2, work=lambda phase, epoch: seen.append(log_memory(f"{phase} {epoch}")))
    assert get_profiler() is profiler
    assert [(each.generation, each.phase) for each in seen if "train" in each.phase] == [(0, "train 0"), (1, "train 1")]
    assert all(snapshot.owner_bytes["replay"] == 5 for snapshot in seen)
    capsys.readouterr()
    get_profiler().print_memory_growth()
    assert capsys.readouterr().out.startswith("memory  growth since baseline")


def fit_with_environments(root: Path) -> tuple[Leak | None, str]:
    kept = []

    def keep(phase: str, epoch: int) -> None:
        if phase == "evaluate" and epoch >= 5:
            kept.append(LeakedEnvironment())

    return found(root, GarbageCollector(), MemoryProfiler(), traces=3, epochs=16, announce=True, work=keep)


def test_a_leak_is_reported_with_its_phase_start_and_line(tmp_path: Path) -> None:
    leak, printed = in_fork(fit_with_environments, tmp_path)
    assert leak is not None
    assert (leak.phase, leak.where, leak.growth.since) == ("evaluate", "memory", pytest.approx(5, abs=2))
    assert leak.growth.slope.median == pytest.approx(400_000, rel=0.1)
    site = leak.trace.sites[0]
    assert site.line == f"{__file__}:{LeakedEnvironment.__init__.__code__.co_firstlineno + 1}"
    assert site.nbytes == pytest.approx(400_000, rel=0.01)
    # not only at the end; anonymous memory may grow visibly first
    assert printed.index("grows since generation ") < printed.index("holder  ")
    assert "leak in evaluate: " in printed
    record = json.loads((tmp_path / "memory" / "verdict.json").read_text())
    assert (record["leak"]["phase"], record["leak"]["since"]) == ("evaluate", leak.growth.since)
    assert record["leak"]["sites"][0]["line"] == site.line
    assert record["series"]["memory"]["kind"] == "leak"


def fit_with_a_trace(root: Path, start: int) -> tuple[Leak | None, str]:
    kept: list[np.ndarray] = []

    def keep(phase: str, epoch: int) -> None:
        if phase == "evaluate":
            kept.append(np.ones(5_000))  # 40 kB, less than a leak

    return found(root, GarbageCollector(), MemoryProfiler(trace_at=start), epochs=12, announce=True, work=keep)


@pytest.mark.parametrize("start", [0, 3, 11])
def test_a_trace_is_made_on_demand_though_nothing_leaks(start: int, tmp_path: Path) -> None:
    leak, printed = in_fork(fit_with_a_trace, tmp_path, start)
    assert leak is None
    assert printed.count("memory  tracing 4 generations\n") == 1
    # at the end, and before if the trace ends before the run does
    assert printed.count("memory  kept from the generations that were traced:\n") == (1 if start == 11 else 2)
    record = json.loads((tmp_path / "memory" / "verdict.json").read_text())
    assert record["leak"] is None
    if start < 11:  # else the run ends with the generation that fills the trace
        assert record["trace"]["sites"][0]["line"].startswith(f"{__file__}:")
        assert record["trace"]["sites"][0]["nbytes"] == pytest.approx(40_000, rel=0.02)
        assert f"40 kB a generation kept from {__file__}:" in printed
    assert "holder  " not in printed  # no table


class Late(Callback):
    """Keeps memory at the end of an epoch, after the profiler if it is listed later; drops it all in `cleared`."""

    def __init__(self, cleared: int = 10**6) -> None:
        self.kept: list[np.ndarray] = []
        self.cleared = cleared

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch >= 5:
            self.kept.append(np.ones(50_000))
        if trainer.current_epoch == self.cleared:
            self.kept.clear()


@pytest.mark.parametrize("listed_first", [True, False])
def test_a_callback_is_told_from_a_phase_wherever_it_is_listed(listed_first: bool, tmp_path: Path) -> None:
    late = (Late(), MemoryProfiler()) if listed_first else (MemoryProfiler(), Late())
    leak, _ = in_fork(found, tmp_path, GarbageCollector(), *late, epochs=16, announce=True)
    assert leak is not None
    assert leak.phase == ("generation" if listed_first else AFTER)
    assert abs(leak.growth.since - 5) <= 1


def test_a_leak_that_turns_out_to_be_none_is_taken_back(tmp_path: Path) -> None:
    callbacks = (GarbageCollector(), Late(cleared=18), MemoryProfiler())
    leak, printed = in_fork(found, tmp_path, *callbacks, epochs=22, announce=True)
    assert leak is None
    assert printed.index("leak in generation: ") < printed.index("no leak in generation after all: ")
    assert re.search("verdict: healthy now; .*memory grew from generation [3-7] on, but the memory returns", printed)
    assert json.loads((tmp_path / "memory" / "verdict.json").read_text())["leak"] is None


class Buffer(Callback):
    def __init__(self, ends: bool) -> None:
        self.ends = ends
        self.rows: list[np.ndarray] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rows.append(np.ones(50_000))

    def memory_owners(self) -> dict[str, object]:
        return {"buffer": Filling(self.rows, full=len(self.rows) == 50) if self.ends else self.rows}


@pytest.mark.parametrize("ends", [True, False])
def test_a_buffer_that_fills_is_no_leak_and_an_unbounded_one_is(ends: bool, tmp_path: Path) -> None:
    leak, printed = in_fork(found, tmp_path, GarbageCollector(), Buffer(ends), MemoryProfiler(), epochs=10)
    assert printed.count("verdict: healthy") == ends
    assert printed.count("holder  ") == (not ends)  # a table for the leak alone
    if ends:
        assert leak is None
    else:
        assert leak is not None
        assert leak.where == "owner buffer"
        assert leak.growth.slope.median == pytest.approx(400_000, rel=0.01)


def leak_beside_a_buffer(root: Path) -> Leak | None:
    """Return the leak that is found in a phase of a fit whose buffer fills in another."""
    kept: list[np.ndarray] = []

    def leak(phase: str, epoch: int) -> None:
        if phase == "evaluate" and epoch >= 5:
            kept.append(np.ones(20_000))

    callbacks = GarbageCollector(), Buffer(ends=True), MemoryProfiler()
    return found(root, *callbacks, epochs=18, announce=True, work=leak)[0]


def test_a_leak_beside_a_buffer_that_fills_is_found_in_its_own_phase(tmp_path: Path) -> None:
    leak = in_fork(leak_beside_a_buffer, tmp_path)
    assert leak is not None
    assert (leak.where, leak.phase) == ("memory", "evaluate")


def test_phases_count_small_objects_in_two_epochs_of_five(fit: Fit, tmp_path: Path) -> None:
    fit(MemoryProfiler(), epochs=10, announce=True)
    rows = [row for row in read(tmp_path / "memory.csv") if row["phase"] not in ("baseline", "generation")]
    assert {int(row["generation"]) for row in rows if row["python_bytes"]} == {
        2,
        3,
        6,
        7,
    }  # not always the same of five
    assert {int(row["generation"]) for row in rows if not row["python_bytes"]} == {0, 1, 4, 5, 8, 9}


def test_the_verdict_of_an_earlier_fit_does_not_stay(fit: Fit, tmp_path: Path) -> None:
    file = tmp_path / "memory" / "verdict.json"
    file.parent.mkdir()
    file.write_text('{"leak": {"phase": "train"}}')
    fit(MemoryProfiler(), epochs=8)
    record = json.loads(file.read_text())
    assert (record["leak"], record["lines"]) == (None, ["verdict: healthy"])
    assert record["series"]["memory"]["kind"] == "flat"


def test_a_few_generations_are_not_called_healthy(fit: Fit, tmp_path: Path) -> None:
    fit(MemoryProfiler(), epochs=7)
    (line,) = json.loads((tmp_path / "memory" / "verdict.json").read_text())["lines"]
    assert line == "verdict: none, with 7 of the 8 generations that it needs"


def test_a_second_profiler_is_refused(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 MemoryProfilers: set the one that is there"):
        fit(MemoryProfiler(), MemoryProfiler(), epochs=1)
    assert not (tmp_path / "memory.csv").exists()
