import copy
import csv
import gc
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from torch.utils.data import DataLoader

from callbacks import GarbageCollector, MemoryProfiler
from callbacks.memory import get_profiler, log_memory
from eigen2.memory.leaks import TENSORS
from eigen2.memory.owners import Filling

Fit = Callable[..., Trainer]
PROCESS = "eigen2.memory.process"


class Leaked:
    pass


class LeakedChild(Leaked):
    pass


class LeakedSlots:
    __slots__ = ("number",)


class TwinA:
    class Same:
        pass


class TwinB:
    class Same:
        pass


class Owner(Callback):
    def __init__(self, **owners: int) -> None:
        self.owners = owners

    def memory_owners(self) -> dict[str, int]:
        return self.owners


class OwningData(LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(torch.zeros(1, 1))  # type: ignore[arg-type]

    def val_dataloader(self) -> Any:
        return DataLoader(torch.zeros(1, 1))  # type: ignore[arg-type]

    def memory_owners(self) -> dict[str, int]:
        return {"panel": 3_000_000}


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def order(rows: list[dict[str, str]]) -> list[tuple[int, str]]:
    return [(int(row["generation"]), row["phase"]) for row in rows]


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("memory/")]
    found = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in tags}
    assert all(len(found[tag]) == len(events.Scalars(tag)) for tag in tags)  # no step twice
    return found


def test_a_module_that_announces_nothing_gets_baseline_validation_and_epoch(
    fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = MemoryProfiler(watch=[f"{__name__}.Leaked"], verbose=True)
    fit(profiler, Owner(replay=1_500_000), epochs=2)
    expected = [(0, "baseline"), *((g, phase) for g in (0, 1) for phase in ("train", "validate", "generation"))]
    rows = read(tmp_path / "memory.csv")
    assert order(rows) == [(snapshot.generation, snapshot.phase) for snapshot in profiler.snapshots] == expected
    now = psutil.Process().memory_info()
    before = None
    for row, snapshot in zip(rows, profiler.snapshots, strict=True):
        assert int(row["rss_bytes"]) == snapshot.rss_bytes == pytest.approx(now.rss, rel=0.2)
        assert int(row["vms_bytes"]) == snapshot.vms_bytes == pytest.approx(now.vms, rel=0.2)
        assert int(row["delta_bytes"]) == snapshot.delta_bytes
        assert snapshot.delta_bytes == (0 if before is None else snapshot.rss_bytes - before.rss_bytes)
        assert snapshot.gpu_allocated_bytes == snapshot.gpu_reserved_bytes == 0 or torch.cuda.is_available()
        before = snapshot
    assert profiler.latest == before
    with pytest.raises(FrozenInstanceError):
        before.rss_bytes = 0  # type: ignore
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match("memory  generation +0 ", line)]
    assert [line.split()[3] for line in lines] == ["baseline", "train", "validate", "generation"]
    assert all("replay 1.5 MB" in line for line in lines)
    assert lines[3].endswith("Leaked x0")
    assert copy.deepcopy(profiler).snapshots == profiler.snapshots  # as processes that are spawned need it


def test_announced_phases_are_taken_and_sanity_checking_is_not(fit: Fit, tmp_path: Path) -> None:
    profiler = MemoryProfiler(directory=tmp_path / "elsewhere")
    fit(profiler, epochs=2, announce=True)  # the Trainer checks two validation batches first
    phases = ("evaluate", "train", "validate", "generation")
    expected = [(0, "baseline"), *((g, phase) for g in range(2) for phase in phases)]
    assert order(read(tmp_path / "elsewhere" / "memory.csv")) == expected
    assert not (tmp_path / "memory.csv").exists()


def test_an_array_kept_every_epoch_shows_in_its_phase_and_deltas_add_up(fit: Fit, tmp_path: Path) -> None:
    kept: list[np.ndarray] = []

    def leak(phase: str, epoch: int) -> None:
        if phase == "train":
            kept.append(np.ones(5_000_000))  # 40 MB, touched

    profiler = MemoryProfiler()
    fit(profiler, epochs=3, announce=True, work=leak, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    found = scalars(tmp_path / "tb")
    at_end = {snapshot.generation: snapshot.rss_bytes for snapshot in profiler.snapshots}
    for epoch in (1, 2):  # the first epoch also pays for what loads late
        deltas = [found[f"memory/{phase}_delta_mb"][epoch] for phase in ("evaluate", "validate", "generation", "train")]
        assert deltas[-1] == pytest.approx(40, abs=4)
        assert max(map(abs, deltas[:-1])) < 4
        assert sum(deltas) * 1e6 == pytest.approx(at_end[epoch] - at_end[epoch - 1], abs=100)
    assert found["memory/rss_gb"][2] - found["memory/rss_gb"][0] == pytest.approx(0.08, abs=0.008)


def test_metrics_are_logged_once_an_epoch_at_the_epoch(fit: Fit, tmp_path: Path) -> None:
    profiler = MemoryProfiler(watch=[f"{__name__}.Leaked"])
    fit(
        profiler,
        Owner(replay=2_500_000),
        announce=True,
        logger=TensorBoardLogger(tmp_path, name="tb", version=""),
    )
    found = scalars(tmp_path / "tb")
    deltas = {f"memory/{phase}_delta_mb" for phase in ("evaluate", "train", "validate", "generation")}
    process = {f"memory/{name}_gb" for name in ("rss", "vms", "heap", "unaccounted")}
    expected = process | {f"memory/owner/{name}_mb" for name in ("replay", "profiler")} | deltas
    expected.add("memory/objects/Leaked")
    assert {tag for tag in found if "gpu" not in tag} == expected
    assert all(list(found[tag]) == [0, 1, 2] for tag in expected)
    assert found["memory/owner/replay_mb"] == {0: 2.5, 1: 2.5, 2: 2.5}
    latest = profiler.latest
    assert latest is not None
    assert found["memory/rss_gb"][2] == pytest.approx(latest.rss_bytes / 1e9, rel=1e-6)
    assert found["memory/vms_gb"][2] == pytest.approx(latest.vms_bytes / 1e9, rel=1e-6)


def test_leaked_instances_are_counted_exactly(fit: Fit, tmp_path: Path) -> None:
    kept: list[object] = []

    def leak(phase: str, epoch: int) -> None:
        if phase == "evaluate":
            kept.extend((Leaked(), Leaked(), Leaked(), LeakedChild(), LeakedSlots()))
            Leaked()  # freed at once

    gc.collect()
    fit(
        MemoryProfiler(watch=[f"{__name__}.Leaked", f"{__name__}.LeakedSlots"]),
        work=leak,
        announce=True,
        logger=TensorBoardLogger(tmp_path, name="tb", version=""),
    )
    rows = read(tmp_path / "memory.csv")
    counted = [row for row in rows if row["phase"] in ("baseline", "generation")]
    assert [row["count_Leaked"] for row in counted] == ["0", "3", "6", "9"]
    assert [row["count_LeakedSlots"] for row in counted] == ["0", "1", "2", "3"]
    assert all(row["count_Leaked"] == "" for row in rows if row not in counted)
    assert scalars(tmp_path / "tb")["memory/objects/Leaked"] == {0: 3.0, 1: 6.0, 2: 9.0}


@pytest.mark.parametrize(
    ("watch", "named"),
    [
        (["no_such_package.Thing"], "no_such_package"),
        (["callbacks.Absent"], "callbacks.Absent"),
        (["callbacks.trim_malloc"], "callbacks.trim_malloc"),
        ([""], "''"),
        (["numpy.ndarray"], "numpy.ndarray"),  # Python does not track arrays: the count would always be 0
        (["builtins.dict"], "builtins.dict"),
        ([f"{__name__}.TwinA.Same", f"{__name__}.TwinB.Same"], "TwinB.Same"),
    ],
)
def test_a_class_that_cannot_be_counted_is_refused_by_name(fit: Fit, watch: list[str], named: str) -> None:
    with pytest.raises(ValueError, match="watch") as error:
        fit(MemoryProfiler(watch=watch))
    assert named in str(error.value)


def test_module_data_and_callbacks_are_asked_for_what_they_own(fit: Fit, tmp_path: Path) -> None:
    owner = Owner(replay=1_000)

    def grow(phase: str, epoch: int) -> None:
        if phase == "train":
            owner.owners = {"replay": 1_000 * (epoch + 2), "late": 7}

    fit(MemoryProfiler(), owner, work=grow, announce=True, epochs=2, datamodule=OwningData())
    rows = read(tmp_path / "memory.csv")
    assert {row["owner_panel_bytes"] for row in rows} == {"3000000"}
    expected = ["1000", "1000", "2000", "2000", "2000", "2000", "3000", "3000", "3000"]
    assert [row["owner_replay_bytes"] for row in rows] == expected
    assert [row["owner_late_bytes"] for row in rows] == ["", "", *["7"] * 7]


def test_two_owners_of_one_name_are_refused(fit: Fit) -> None:
    with pytest.raises(ValueError, match="'panel'"):
        fit(MemoryProfiler(), Owner(panel=1), datamodule=OwningData())


def test_a_killed_run_resumes_without_a_row_missing_or_doubled(fit: Fit, tmp_path: Path) -> None:
    def fail(phase: str, epoch: int) -> None:
        if (phase, epoch) == ("validate", 3):
            raise RuntimeError("killed")

    def saver() -> ModelCheckpoint:
        return ModelCheckpoint(dirpath=tmp_path, filename="last", save_on_train_epoch_end=True)

    with pytest.raises(RuntimeError, match="killed"):
        fit(MemoryProfiler(), saver(), epochs=5, announce=True, work=fail)
    path = tmp_path / "memory.csv"
    first_run = path.read_bytes().splitlines(keepends=True)
    assert order(read(path))[-2:] == [(3, "evaluate"), (3, "train")]
    with open(path, "ab") as file:
        file.write(b"3,validate,123")  # torn
    fit(MemoryProfiler(), saver(), epochs=5, announce=True, ckpt_path=tmp_path / "last.ckpt")
    phases = ("evaluate", "train", "validate", "generation")
    first = [(0, "baseline"), *((g, phase) for g in range(3) for phase in phases)]
    second = [(3, "baseline"), *((g, phase) for g in (3, 4) for phase in phases)]
    assert order(read(path)) == first + second
    kept = 1 + len(first)
    assert path.read_bytes().splitlines(keepends=True)[:kept] == first_run[:kept]


def test_a_fit_after_a_failed_one_starts_afresh(fit: Fit, tmp_path: Path) -> None:
    def fail(phase: str, epoch: int) -> None:
        if phase == "validate":
            raise RuntimeError("failed")

    profiler = MemoryProfiler()
    with pytest.raises(RuntimeError, match="failed"):
        fit(profiler, announce=True, work=fail)
    assert profiler.latest is not None
    assert profiler.latest.phase == "train"
    fit(profiler, epochs=1, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    assert {tag for tag in scalars(tmp_path / "tb") if tag.endswith("_delta_mb")} == {
        "memory/train_delta_mb",
        "memory/validate_delta_mb",
        "memory/generation_delta_mb",
    }


def test_history_is_bounded_and_the_file_is_not_until_a_new_run_in_the_same_folder(fit: Fit, tmp_path: Path) -> None:
    profiler = MemoryProfiler(max_history=2)
    assert (profiler.snapshots, profiler.latest) == ((), None)
    fit(profiler, epochs=3)
    assert [snapshot.phase for snapshot in profiler.snapshots] == ["validate", "generation"]
    assert len(read(tmp_path / "memory.csv")) == 10
    fit(profiler, epochs=1)
    expected = [(0, "baseline"), (0, "train"), (0, "validate"), (0, "generation")]
    assert order(read(tmp_path / "memory.csv")) == expected


def test_nothing_is_measured_outside_fit(fit: Fit, tmp_path: Path) -> None:
    profiler = MemoryProfiler()
    trainer = fit(profiler, epochs=1, announce=True)
    before = (tmp_path / "memory.csv").read_bytes()
    trainer.validate(trainer.lightning_module, OwningData().val_dataloader(), verbose=False)
    profiler.on_phase_end(trainer, trainer.lightning_module, "evaluate")
    assert (tmp_path / "memory.csv").read_bytes() == before
    assert len(profiler.snapshots) == 5


def test_only_rank_zero_writes_and_prints(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Trainer, "is_global_zero", property(lambda trainer: False))
    profiler = MemoryProfiler(verbose=True)
    fit(profiler, epochs=1)
    assert len(profiler.snapshots) == 4
    assert not (tmp_path / "memory.csv").exists()
    assert "memory " not in capsys.readouterr().out


def test_cuda_memory_of_all_devices_is_logged(fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PROCESS}.uses_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: (device + 1) * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: (device + 2) * 10**9)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: (device + 3) * 10**9)
    fit(MemoryProfiler(), epochs=1, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    found = scalars(tmp_path / "tb")
    assert found["memory/gpu_allocated_gb"] == {0: 3.0}
    assert found["memory/gpu_reserved_gb"] == {0: 5.0}
    assert found["memory/gpu_peak_gb"] == {0: 7.0}
    assert {row["gpu_reserved_bytes"] for row in read(tmp_path / "memory.csv")} == {str(5 * 10**9)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_on_a_real_gpu_is_seen(fit: Fit) -> None:
    kept: list[torch.Tensor] = []
    profiler = MemoryProfiler()
    fit(
        profiler,
        epochs=2,
        announce=True,
        work=lambda phase, epoch: kept.append(torch.zeros(2**20, device="cuda")) if phase == "train" else None,
    )
    gpu = [snapshot.gpu_allocated_bytes for snapshot in profiler.snapshots if snapshot.phase == "generation"]
    assert gpu[1] - gpu[0] == 4 * 2**20


@pytest.mark.parametrize("folder", ["s3://bucket/run", Path("gs://bucket")])
def test_a_folder_that_is_not_local_is_refused(fit: Fit, folder: str | Path) -> None:
    with pytest.raises(ValueError, match="directory"):
        fit(MemoryProfiler(directory=folder))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="max_history is 0"):
        MemoryProfiler(max_history=0)
    with pytest.raises(ValueError, match="watch"):
        MemoryProfiler(watch="callbacks.MemoryProfiler")


def test_a_collector_listed_before_the_profiler_is_seen_in_its_snapshot(fit: Fit) -> None:
    def litter(phase: str, epoch: int) -> None:
        circle: list[object] = [Leaked()]
        circle.append(circle)

    counts = []
    gc.collect()
    gc.disable()
    try:
        for names in (["collector", "profiler"], ["profiler", "collector"]):
            profiler = MemoryProfiler(watch=[f"{__name__}.Leaked"])
            listed: dict[str, Callback] = {"collector": GarbageCollector(), "profiler": profiler}
            fit(*(listed[name] for name in names), epochs=1, work=litter)
            assert profiler.latest is not None
            counts.append(profiler.latest.counts["Leaked"])
    finally:
        gc.enable()
    assert counts == [0, 3]


def test_the_module_may_be_any_lightning_module(fit: Fit, tmp_path: Path) -> None:
    class Owning(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).sum()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def memory_owners(self) -> dict[str, int]:
            return {"weights": sum(parameter.nbytes for parameter in self.parameters())}

    fit(MemoryProfiler(), epochs=1, module=Owning(), val_dataloaders=None)
    rows = read(tmp_path / "memory.csv")
    assert order(rows) == [(0, "baseline"), (0, "generation")]
    assert {row["owner_weights_bytes"] for row in rows} == {"8"}


class Supervised(LightningModule):
    """A plain model whose training step keeps its outputs."""

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


def test_a_leak_in_a_plain_supervised_model_is_found(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    profiler = MemoryProfiler()
    fit(GarbageCollector(), profiler, epochs=12, module=Supervised())
    leak = profiler.leak
    assert leak is not None
    assert (leak.phase, leak.verdict, leak.growth.since) == ("train", TENSORS, 0)
    assert leak.types[0][0] == "torch.Tensor"
    assert leak.growth.slope.median == pytest.approx(leak.growth.slope.high, rel=0.2)
    assert any(".outputs[" in each.path for each in leak.largest)
    assert "leak in train: tensors or graphs kept after training" in capsys.readouterr().out


def test_snapshots_by_hand_tell_what_grew(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callbacks.memory._latest_profiler", None)
    assert get_profiler() is get_profiler()
    first = log_memory("before")
    kept = [np.ones(5_000_000), [Leaked() for _ in range(3)]]
    second = log_memory("after", show_objects=True)
    assert second.heap_bytes is not None
    assert first.heap_bytes is not None
    assert second.heap_bytes - first.heap_bytes == pytest.approx(40e6, rel=0.05)
    shown = capsys.readouterr().out
    assert (
        re.search(r"40.0 MB  numpy.ndarray float64 \(5000000,\)  .*tells_what_grew: kept\[0\]", shown)
        or "kept[0]" in shown
    )
    get_profiler().print_memory_growth(baseline_label="before")
    grown = capsys.readouterr().out
    assert re.search(r"memory  heap .* MB +\+4[01]\.\d", grown)
    assert re.search(rf"memory  {__name__}.Leaked +\+3\n", grown)
    with pytest.raises(ValueError, match=r"no snapshot is labelled 'never'.*'before', 'after'"):
        get_profiler().print_memory_growth(baseline_label="never")
    assert len(kept) == 2


def test_the_profiler_of_the_last_fit_is_the_one_to_ask(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def ask(phase: str, epoch: int) -> None:
        if phase == "train":
            seen.append(log_memory(f"epoch {epoch}"))

    profiler = MemoryProfiler()
    fit(profiler, Owner(replay=5), epochs=2, announce=True, work=ask)
    assert get_profiler() is profiler
    assert [(snapshot.generation, snapshot.phase) for snapshot in seen] == [(0, "epoch 0"), (1, "epoch 1")]
    assert all(snapshot.owner_bytes["replay"] == 5 for snapshot in seen)
    capsys.readouterr()
    get_profiler().print_memory_growth()
    assert capsys.readouterr().out.startswith("memory  growth since baseline")


def test_the_end_tells_generations_and_owners_whose_sum_is_rss(fit: Fit, capsys: pytest.CaptureFixture[str]) -> None:
    class Array(Callback):
        def memory_owners(self) -> dict[str, object]:
            return {"array": array}

    array = np.ones(2_500_000)
    fit(MemoryProfiler(), Array(), epochs=20)
    printed = capsys.readouterr().out
    table = re.findall(r"^memory +(\d+) +\d\.\d{3} ", printed, re.MULTILINE)
    assert [int(row) for row in table] == [0, 3, 6, 9, 12, 15, 18, 19]
    assert printed.count("verdict: healthy") == 1
    rows = re.findall(r"^memory  (\S.*?) {2,}(-?[\d,.]+) +[+-][\d.]+$", printed, re.MULTILINE)
    held = {name: float(mb.replace(",", "")) for name, mb in rows}
    assert held["array"] == 20.0
    assert sum(mb for name, mb in held.items() if name != "RSS") == pytest.approx(held["RSS"], abs=1)
    assert all(len(line) <= 90 for line in printed.partition("verdict")[0].splitlines())


@pytest.mark.slow  # takes half a minute
def test_a_buffer_that_fills_is_no_leak_and_one_without_end_is(fit: Fit) -> None:
    class Buffer(Callback):
        def __init__(self, ends: bool) -> None:
            self.ends = ends
            self.rows: list[np.ndarray] = []

        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.rows.append(np.ones(50_000))

        def memory_owners(self) -> dict[str, object]:
            return {"buffer": Filling(self.rows, full=len(self.rows) == 50) if self.ends else self.rows}

    for ends in (True, False):
        profiler = MemoryProfiler()
        fit(Buffer(ends), profiler, epochs=14)
        if ends:
            assert profiler.leak is None
        else:
            assert profiler.leak is not None
            assert profiler.leak.where == "owner buffer"
            assert profiler.leak.growth.slope.median == pytest.approx(400_000, rel=0.01)
