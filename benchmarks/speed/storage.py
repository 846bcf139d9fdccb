"""Bytes of transitions and seconds of checkpoints, against a dense system and against bounds."""

import statistics
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.runs import fill
from benchmarks.speed.full_scale import FullScale, fit
from benchmarks.speed.timing import at_least, at_most, seconds_of
from eigen2.runtime.checkpoint import DurableCheckpointIO

REPEATS = 5  # times that a checkpoint is written, and loaded


def replay_bytes(full: FullScale, runs: int) -> list[Row]:
    """Compare the bytes of a transition with those of a dense system, which stores two windows."""
    _, columns, features = full.data.panel.features.shape
    compact, investable = full.data.buffer.bytes_per_transition, len(full.data.investable_columns)
    dense = dense_bytes(investable, full.data.context_days, columns, features)
    what = f"replay, bytes a transition, {investable} of {columns} columns"
    return [at_least("replay_bytes", what, compact, dense, dense / compact, bound=7000.0)]


def dense_bytes(investable: int, days: int, columns: int, features: int) -> int:
    """Return the bytes of a transition with two float32 windows, an action, a reward and two flags."""
    return 2 * days * columns * features * 4 + investable * 2 * 4 + 6


def checkpoints(full: FullScale, runs: int) -> list[Row]:
    """Measure the median seconds of writing a checkpoint, synced to disk, and of loading it."""
    path, io = full.folder / "bench.ckpt", DurableCheckpointIO()
    write_checkpoint(full, path)
    state = io.load_checkpoint(path)
    load = statistics.median(seconds_of(lambda: io.load_checkpoint(path)) for _ in range(REPEATS))
    save = statistics.median(seconds_of(lambda: io.save_checkpoint(state, path)) for _ in range(REPEATS))
    size = f"{path.stat().st_size / 1e6:.0f} MB"
    return [
        at_most("checkpoint_save", f"checkpoint of {size} written, s", save, 1.0),
        at_most("checkpoint_load", f"checkpoint of {size} loaded, s", load, 1.0),
    ]


def write_checkpoint(full: FullScale, path: Path) -> None:
    """Save a run that has trained, so that Adam has its moments, with a full replay buffer."""
    replay = f"--data.replay_min_size={full.data.batch_size}"  # so that the first generation trains
    cli = full.start("--trainer.max_epochs=1", "--model.gradient_steps=1", replay)
    fit(cli)
    fill(cli.datamodule.buffer)
    cli.trainer.save_checkpoint(str(path), weights_only=False)
