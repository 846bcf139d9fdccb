"""Bytes of transitions, seconds of checkpoints."""

import statistics
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.runs import fill
from benchmarks.speed.full_scale import FullScale, fit
from benchmarks.speed.timing import at_least, at_most, seconds_of
from eigen2.runtime.checkpoint import DurableCheckpointIO

REPEATS = 5  # writes, and loads, of a checkpoint


def replay_bytes(full: FullScale, runs: int) -> list[Row]:
    """Compare the bytes of a stored transition with those of two dense windows."""
    _, columns, features = full.data.panel.features.shape
    compact, investable = full.data.buffer.bytes_per_transition, len(full.data.investable_columns)
    dense = dense_bytes(investable, full.data.context_days, columns, features)
    what = f"replay, bytes a transition, {investable} of {columns} columns"
    return [at_least("replay_bytes", what, compact, dense, dense / compact, bound=7000.0)]


def dense_bytes(investable: int, days: int, columns: int, features: int) -> int:
    """Return the bytes of two float32 windows (days, columns, features), an action, a reward and two flags."""
    return 2 * days * columns * features * 4 + investable * 2 * 4 + 6


def checkpoints(full: FullScale, runs: int) -> list[Row]:
    """Measure median seconds of writing a checkpoint, synced to disk, and of loading one just written."""
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
    """Let the Trainer save a run that has trained, so that Adam has its moments, and whose replay buffer is full."""
    trains = f"--data.replay_min_size={full.data.batch_size}"
    cli = full.start("--trainer.max_epochs=1", "--model.gradient_steps=1", trains)
    fit(cli)
    fill(cli.datamodule.buffer)
    cli.trainer.save_checkpoint(str(path), weights_only=False)
