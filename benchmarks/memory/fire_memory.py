"""What an older fuel-break system held in memory, against what eigen2 holds.

A case keeps transitions in one way, without a network, or is a fit with one of the measures prescribed for that system.
"""

import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import MB, Benchmark, Figures, Row, Settings, Task
from benchmarks.runs import fit
from eigen2.core.replay import ReplayBuffer
from eigen2.dqn import losses
from eigen2.dqn.collector import replay_fields
from eigen2.fire.simulation.environment import RATES
from eigen2.fire.simulation.frames import Frames
from eigen2.memory.growth import theil_sen
from eigen2.memory.process import BLOCK_BYTES, trim_malloc
from eigen2.memory.process import measure as memory_now

SIZE, PLANES = 50, 12  # cells a side, and planes, of the old system's states: float32
STEPS = 8 * 50  # transitions of one of its episodes: steps of all its environments
CAPACITY = 20_000  # transitions of its replay; the ring here gets as many
EPISODES, FILLING = 9, 6  # episodes kept, and those after which a local buffer of 2,000 is full


class Old:
    """Storage of the old system: `copies` (1 or 4) states are tensors of their own; nobody read `experience`."""

    def __init__(self, copies: int, experience: int | None = None) -> None:
        self.copies = copies
        self.replay: deque[Any] = deque(maxlen=CAPACITY)
        self.experience: deque[Any] = deque(maxlen=experience)

    def keep(self, generator: np.random.Generator) -> None:
        """Keep one more transition."""
        state = torch.from_numpy(generator.random((PLANES, SIZE, SIZE), np.float32))
        own = [state, *(state.clone() for _ in range(self.copies - 1))]
        first, following, again, following_again = (own[n % len(own)] for n in range(4))
        self.replay.append((first, 0, 0.0, following, True))
        self.experience.append((again, 0, 0.0, following_again, True))


class Ring:
    """Storage of eigen2."""

    def __init__(self) -> None:
        self.frames = Frames([np.zeros((4, SIZE, SIZE), np.uint8)], downstream=True)
        self.buffer = ReplayBuffer(CAPACITY, replay_fields(self.frames))

    def keep(self, generator: np.random.Generator) -> None:
        """Keep one more transition."""
        observation = generator.integers(0, 256, (1, 8, SIZE, SIZE), dtype=np.uint8)
        observation[:, RATES] = 0
        step = {"action": torch.zeros(1, dtype=torch.int64), "reward": torch.zeros(1)}
        stored = self.frames.pack(observation, {"landscape": np.zeros(1, np.int64)})
        self.buffer.add({**stored, **step, "terminated": torch.zeros(1, dtype=torch.bool)})


HELD: dict[str, Callable[[], Old | Ring]] = {
    "the old system on a GPU": lambda: Old(copies=4),
    "the same, its local buffer held to 2,000": lambda: Old(copies=4, experience=2000),
    "the old system on a CPU": lambda: Old(copies=1),
    "the ring here": Ring,
}


def hold(name: str) -> Row:
    """Keep the transitions of EPISODES; return the growth an episode once the local buffer is full."""
    storage, generator = HELD[name](), np.random.default_rng(0)
    seen: dict[str, list[int]] = {"live": [], "rss": []}
    for _ in range(EPISODES):
        for _ in range(STEPS):
            storage.keep(generator)
        trim_malloc()
        now = memory_now()
        seen["rss"].append(now.rss_bytes)
        seen["live"].append((now.heap_bytes or 0) + BLOCK_BYTES * now.python_blocks)
    return {f"{what}_mb": (each[-1] - each[FILLING - 1]) / (EPISODES - FILLING) / MB for what, each in seen.items()}


class KeepsFigures(Callback):
    """Draws a figure an epoch with pyplot, which keeps it until it is closed."""

    def __init__(self, close: bool) -> None:
        self.close = close

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the figure."""
        import matplotlib as mpl

        mpl.use("agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots()
        axes.plot(range(10))
        figure.canvas.draw()
        if self.close:
            pyplot.close(figure)


class KeepsLosses(Callback):
    """Keeps the latest losses of gradient steps, detached from their graphs or with them."""

    def __init__(self, detach: bool, most: int | None) -> None:
        self.detach, self.kept = detach, deque[Any](maxlen=most)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wrap the function that computes losses."""
        compute = losses.loss

        def kept_loss(*args: Any, **kwargs: Any) -> losses.Loss:
            found = compute(*args, **kwargs)
            self.kept.append(found.loss.detach() if self.detach else found.loss)
            return found

        losses.loss = kept_loss


NEVER = 10**9
OFF = {"cleanup_frequency": NEVER, "collector_cleanup_frequency": NEVER, "memory_cleanup_frequency": NEVER}


def _own(name: str, **settings: Any) -> dict[str, Any]:
    return {"class_path": f"{__name__}.{name}", "init_args": settings}


# settings of `MemoryHygiene` beside its defaults, None without it; a further callback
MEASURES: dict[str, tuple[dict[str, int] | None, dict[str, Any] | None]] = {
    "without `MemoryHygiene`": (None, None),
    "bounded histories alone": (OFF, None),
    "the same, 10^9 long": (OFF | {"max_history_size": NEVER, "experience_buffer_size": NEVER}, None),
    "garbage, each 100 training steps": (OFF | {"cleanup_frequency": 100}, None),
    "garbage, each 50 environment steps": (OFF | {"collector_cleanup_frequency": 50}, None),
    "full cleaning, each 10 episodes": (OFF | {"memory_cleanup_frequency": 10}, None),
    "`MemoryHygiene`, its defaults": ({}, None),
    "a figure an epoch, closed": (OFF, _own("KeepsFigures", close=True)),
    "a figure an epoch, not closed": (OFF, _own("KeepsFigures", close=False)),
    "1,000 losses kept, detached": (OFF, _own("KeepsLosses", detach=True, most=1000)),
    "all losses kept, with their graphs": (OFF, _own("KeepsLosses", detach=False, most=None)),
}
TOGETHER = 4  # episodes of an epoch
SETTINGS = {
    **{"data.grid_size": 16, "data.budget": 0.05, "data.num_parallel_envs": TOGETHER},
    **{"data.buffer_size": 500, "data.warmup": 100, "model.validate_every": 10},
}


def measure_fit(name: str, folder: Path, epochs: int) -> Row:
    """Return `rss_kb` and `live_kb`, growth an episode over the last half of a fit, `between_mb` and `cpu_s`."""
    settings, further = MEASURES[name]

    def change(callbacks: list[Row]) -> list[Row]:
        hygiene, *others = callbacks
        assert hygiene["class_path"].endswith("MemoryHygiene")
        own = settings is not None and {**hygiene, "init_args": settings}
        return [*filter(None, (own, further)), *others]

    own = {**SETTINGS, "trainer.max_epochs": epochs}
    done = fit(Path(tempfile.mkdtemp(dir=folder)), "tests/fire/small.yaml", own, change=change)
    rss, live = done.rss[epochs // 2 :], done.live[epochs // 2 :]
    slopes = {f"{what}_kb": theil_sen(sizes).median / TOGETHER / 1e3 for what, sizes in (("rss", rss), ("live", live))}
    return {**slopes, "between_mb": median(rss) / MB, "cpu_s": done.cpu_s}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Measure a storage or a fit."""
    return hold(task.case) if task.case in HELD else measure_fit(task.case, folder, settings["epochs"])


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the rows of storages and of measures, and the sizes they are of."""
    cases = [{"case": task.case, **row} for task, row in measured.items()]
    sizes = {"state_bytes": PLANES * SIZE * SIZE * 4, "transitions_an_episode": STEPS, "capacity": CAPACITY}
    sizes["ring_bytes"] = Ring().buffer.bytes_per_transition
    return {"sizes": sizes, "held": cases[: len(HELD)], "measures": cases[len(HELD) :]}


BENCHMARKS = {
    "fire-memory": Benchmark(
        measure,
        lambda _: [Task(case) for case in (*HELD, *MEASURES)],
        {"epochs": 80},
        {"epochs": 8},
        figures,
        fresh=True,
    )
}
