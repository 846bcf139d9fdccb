"""Seconds to write the whole state of a run and to read it back."""

import statistics

from benchmarks.speed.full_scale import FullScale, fill, fit
from benchmarks.timing import SECONDS, Row, at_most, seconds_of
from eigen2.runtime.checkpoint import DurableCheckpointIO

BOUND_S = 1.0
TIMES = 5


def rows(full: FullScale) -> list[Row]:
    """Median seconds of several writes, each synced to disk, and of several loads of a file just written."""
    path = full.folder / "bench.ckpt"
    write_checkpoint(full, str(path))
    io = DurableCheckpointIO()
    state = io.load_checkpoint(path)
    load = statistics.median(seconds_of(lambda: io.load_checkpoint(path)) for _ in range(TIMES))
    save = statistics.median(seconds_of(lambda: io.save_checkpoint(state, path)) for _ in range(TIMES))
    size = f"{path.stat().st_size / 1e6:.0f} MB"
    return [
        at_most("checkpoint_save", f"checkpoint of {size} written, s", save, BOUND_S, SECONDS),
        at_most("checkpoint_load", f"checkpoint of {size} loaded, s", load, BOUND_S, SECONDS),
    ]


def write_checkpoint(full: FullScale, path: str) -> None:
    """Let the Trainer save a run that has trained, so that Adam has its moments, and whose replay buffer is full."""
    cli = full.start(
        "--trainer.max_epochs=1", "--model.gradient_steps=1", f"--data.replay_min_size={full.data.batch_size}"
    )
    fit(cli)
    fill(cli.datamodule.buffer)
    cli.trainer.save_checkpoint(path, weights_only=False)
