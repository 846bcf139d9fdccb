"""Runs of `fit` on tests/small.yaml, and their results in a form that can be compared."""

import csv
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eigen2.core.replay import Field, ReplayBuffer
from eigen2.distributed.communicator import Communicator
from eigen2.erl.checkpoint_rows import join_checkpoint
from eigen2.runtime.checkpoint import part_files
from tests.command import eigen2


def run(root: Path, *options: object, **environment: Any) -> CompletedProcess[str]:
    """Start or resume a run in a folder, and wait for its end."""
    folder = ["--trainer.default_root_dir", root, "--ckpt_path", "last"]
    return eigen2("fit", "--config", "tests/small.yaml", *folder, *options, **environment)


def finish(root: Path, *options: object) -> CompletedProcess[str]:
    """Start or resume a run that must succeed."""
    done = run(root, *options)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the bytes of all files in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def state(root: Path, data: str = "MarketDataModule") -> dict[str, object]:
    """Return what a resumed run depends on of the last checkpoint, whichever number of processes wrote it."""
    path = root / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    if files := part_files(path, checkpoint):
        names = [name for name, values in checkpoint["state_dict"].items() if values.is_meta]
        agents = Communicator(len(checkpoint["state_dict"][names[0]]))
        join_checkpoint(checkpoint, [name.removeprefix("population.") for name in names], agents, data, files)
        replay = checkpoint[data]["replay"]
        fields = {name: Field(values.shape[1:], values.dtype) for name, values in replay["storage"].items()}
        whole = ReplayBuffer(len(replay["storage"]["reward"]), fields)
        whole.load_state_dict(replay)
        checkpoint[data]["replay"] = whole.state_dict()
    return {
        "weights": checkpoint["state_dict"],
        "optimizer": checkpoint["optimizer_states"],
        "data": checkpoint[data],
        "epoch": checkpoint["epoch"],
    }


def metrics(root: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv without times, memory and transfers."""
    with (root / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/", "exchange/"))} for row in rows]


def steps(root: Path) -> list[int]:
    """Return the generations of a curve in TensorBoard."""
    curves = EventAccumulator(str(root / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [event.step for event in curves.Scalars("fitness/mean")]


def same(a: object, b: object) -> bool:
    """Return whether two states are equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b
