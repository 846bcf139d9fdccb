"""Bytes of transitions, seconds of batches, checkpoints and panels."""

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import median_ratio, seconds_of
from benchmarks.runs import fill
from benchmarks.speed.comparison import SECONDS, Comparison, at_most
from benchmarks.speed.dense import DenseMarket
from benchmarks.speed.full_scale import FullScale, fit
from eigen2.market.data.cache import load_panel
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime.checkpoint import DurableCheckpointIO

COPIED_WINDOWS = 4  # that the reference of a micro-batch copies; its seconds are multiplied up to two a transition
REPEATS = 5  # writes, and loads, of a checkpoint or a panel


def replay_bytes(full: FullScale, runs: int) -> list[Comparison]:
    """Compare the bytes of a stored transition with those of two dense windows."""
    _, columns, features = full.data.panel.features.shape
    compact, investable = full.data.buffer.bytes_per_transition, len(full.data.investable_columns)
    dense = dense_bytes(investable, full.data.context_days, columns, features)
    what = f"replay, bytes a transition, {investable} of {columns} columns"
    return [Comparison("replay_bytes", what, compact, dense, dense / compact, bound=7000.0)]


def dense_bytes(investable: int, days: int, columns: int, features: int) -> int:
    """Return the bytes of two float32 windows (days, columns, features), an action, a reward and two flags."""
    return 2 * days * columns * features * 4 + investable * 2 * 4 + 6


def batch_assembly(full: FullScale, runs: int) -> list[Comparison]:
    """Compare milliseconds until a micro-batch lies ready for the networks with copies of the windows of its days."""
    slots = full.slots()[0]
    ours, reference, ratio = median_ratio(lambda: full.batch(slots), copied_windows(full, slots), runs)
    factor = 2 * slots.numel() / COPIED_WINDOWS
    agents, batch = slots.shape
    what = f"micro-batch of {agents} x {batch} transitions, ms (reference: from {COPIED_WINDOWS} windows)"
    return [Comparison("batch_assembly", what, 1e3 * ours, 1e3 * factor * reference, factor * ratio, bound=50.0)]


def copied_windows(full: FullScale, slots: torch.Tensor) -> Callable[[], None]:
    """Return a function that copies windows of the first of these transitions, and their next ones, into a batch."""
    data = full.data
    market = DenseMarket(data.panel, data.investable_columns, data.context_days)
    stored = full.replay.gather(slots.flatten()[:COPIED_WINDOWS])
    days = torch.stack([stored["day"], stored["next_day"]], dim=1).flatten()[:COPIED_WINDOWS].tolist()
    batch = np.empty((len(days), data.context_days, *data.panel.features.shape[1:]), np.float32)

    def run() -> None:
        for row, day in zip(batch, days, strict=True):
            row[:] = market.window(day).values
        torch.from_numpy(batch).to(full.device)

    return run


def checkpoints(full: FullScale, runs: int) -> list[Comparison]:
    """Measure median seconds of writing a checkpoint, synced to disk, and of loading one just written."""
    path, io = full.folder / "bench.ckpt", DurableCheckpointIO()
    write_checkpoint(full, path)
    state = io.load_checkpoint(path)
    load = statistics.median(seconds_of(lambda: io.load_checkpoint(path)) for _ in range(REPEATS))
    save = statistics.median(seconds_of(lambda: io.save_checkpoint(state, path)) for _ in range(REPEATS))
    size = f"{path.stat().st_size / 1e6:.0f} MB"
    return [
        at_most("checkpoint_save", f"checkpoint of {size} written, s", save, 1.0, SECONDS),
        at_most("checkpoint_load", f"checkpoint of {size} loaded, s", load, 1.0, SECONDS),
    ]


def write_checkpoint(full: FullScale, path: Path) -> None:
    """Let the Trainer save a run that has trained, so that Adam has its moments, and whose replay buffer is full."""
    trains = f"--data.replay_min_size={full.data.batch_size}"
    cli = full.start("--trainer.max_epochs=1", "--model.gradient_steps=1", trains)
    fit(cli)
    fill(cli.datamodule.buffer)
    cli.trainer.save_checkpoint(str(path), weights_only=False)


def panels(full: FullScale, runs: int) -> list[Comparison]:
    """Measure seconds to build a panel of the configured sizes from Parquet, and of its fastest load from the cache."""
    sizes = full.data.panel
    with tempfile.TemporaryDirectory(prefix="eigen2-bench-") as folder:
        path = Path(folder) / "prices.parquet"
        prices = SyntheticMarket(days=sizes.num_days, columns=sizes.num_columns).generate()
        prices.to_parquet(path)
        what = f"panel of {len(prices) / 1e6:.1f} million rows"
        del prices

        held = {"validation_days": len(sizes.splits.validation), "holdout_days": len(sizes.splits.holdout)}
        load = partial(load_panel, path, **held, cache_dir=Path(folder) / "cache")
        build = seconds_of(load)
        again = min(seconds_of(load) for _ in range(REPEATS))
    return [
        Comparison("panel_build", f"{what} from Parquet, s", build, 20.0, 20.0 / build),
        Comparison("panel_load", f"{what} from its cache, s", again, 0.5, 0.5 / again),
    ]
