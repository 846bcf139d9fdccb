"""What an older fuel-break system held in memory, against what is held here: `python -m benchmarks.memory.fire_memory`.

First its storage, played again without its network: every case keeps the transitions of some episodes, in a process of
its own, in one way. Then the measures that were prescribed for it, each on and off, in fits of this workload.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.machine import ROOT, describe_machine
from eigen2.core.replay import ReplayBuffer
from eigen2.dqn import losses
from eigen2.dqn.collector import replay_fields
from eigen2.fire.simulation.environment import RATES
from eigen2.fire.simulation.frames import Frames
from eigen2.memory.growth import theil_sen
from eigen2.memory.process import BLOCK_BYTES, trim_malloc
from eigen2.memory.process import measure as memory_now

SIZE, PLANES = 50, 12
"""Cells a side, and planes, of the old system's states: float32."""
STEPS = 8 * 50
"""Transitions of one of its episodes: steps of all its environments."""
CAPACITY = 20_000
"""Transitions that its replay held; the ring here is given as many."""
EPISODES, FILLING = 9, 6
"""Episodes kept, and those after which a local buffer of 2,000 is full."""
MB = 1e6


class Old:
    """Keeps a transition as the old system did.

    Args:
        copies: states of a transition that are tensors of their own; elsewhere the same one is kept again.
        experience: transitions of the local buffer that nobody read; None for no end.
    """

    def __init__(self, copies: int, experience: int | None = None) -> None:
        self.copies = copies
        self.replay: deque[Any] = deque(maxlen=CAPACITY)
        self.experience: deque[Any] = deque(maxlen=experience)

    def keep(self, chance: np.random.Generator) -> None:
        """Keep one more."""
        state = torch.from_numpy(chance.random((PLANES, SIZE, SIZE), np.float32))
        own = [state, *(state.clone() for _ in range(self.copies - 1))]
        first, following, again, following_again = (own[n % len(own)] for n in range(4))
        self.replay.append((first, 0, 0.0, following, True))
        self.experience.append((again, 0, 0.0, following_again, True))


class Ring:
    """Keeps a transition as it is kept here."""

    def __init__(self) -> None:
        self.frames = Frames([np.zeros((4, SIZE, SIZE), np.uint8)], downstream=True)
        self.buffer = ReplayBuffer(CAPACITY, replay_fields(self.frames))

    def keep(self, chance: np.random.Generator) -> None:
        """Keep one more."""
        observation = chance.integers(0, 256, (1, 8, SIZE, SIZE), dtype=np.uint8)
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


def hold(name: str) -> dict[str, Any]:
    """Keep the transitions of EPISODES in this process; growth an episode once the local buffer is full."""
    kept, chance = HELD[name](), np.random.default_rng(0)
    seen: dict[str, list[int]] = {"rss": [], "live": []}
    for _ in range(EPISODES):
        for _ in range(STEPS):
            kept.keep(chance)
        trim_malloc()
        now = memory_now()
        seen["rss"].append(now.rss_bytes)
        seen["live"].append(now.heap_bytes + BLOCK_BYTES * now.python_blocks)
    grown = {f"{what}_mb": (sizes[-1] - sizes[FILLING - 1]) / (EPISODES - FILLING) / MB for what, sizes in seen.items()}
    return {"case": name, **grown}


class KeepsFigures(Callback):
    """Draws a figure an epoch with pyplot, which keeps it until it is closed.

    Args:
        close: whether it is.
    """

    def __init__(self, close: bool) -> None:
        self.close = close

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw."""
        import matplotlib as mpl

        mpl.use("agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots()
        axes.plot(range(10))
        figure.canvas.draw()
        if self.close:
            pyplot.close(figure)


class KeepsLosses(Callback):
    """Keeps the loss of every gradient step.

    Args:
        detach: whether without the graph behind it.
        most: losses kept, the latest; None for all.
    """

    def __init__(self, detach: bool, most: int | None) -> None:
        self.detach, self.kept = detach, deque[Any](maxlen=most)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to the losses."""
        compute = losses.loss

        def listened(*args: Any, **kwargs: Any) -> losses.Loss:
            found = compute(*args, **kwargs)
            self.kept.append(found.loss.detach() if self.detach else found.loss)
            return found

        losses.loss = listened


NEVER = 10**9
OFF = {"cleanup_frequency": NEVER, "collector_cleanup_frequency": NEVER, "memory_cleanup_frequency": NEVER}


@dataclass(frozen=True)
class Case:
    """A fit of this workload."""

    name: str
    hygiene: dict[str, int] | None = field(default_factory=lambda: dict(OFF))
    """Settings of `MemoryHygiene` that are not the defaults; None leaves it out."""
    also: dict[str, Any] | None = None
    """A further callback."""


def _also(name: str, **settings: Any) -> dict[str, Any]:
    return {"class_path": f"benchmarks.memory.fire_memory.{name}", "init_args": settings}


CASES = (
    Case("without `MemoryHygiene`", None),
    Case("bounded histories alone"),
    Case("the same, 10^9 long", OFF | {"max_history_size": NEVER, "experience_buffer_size": NEVER}),
    Case("garbage, each 100 training steps", OFF | {"cleanup_frequency": 100}),
    Case("garbage, each 50 environment steps", OFF | {"collector_cleanup_frequency": 50}),
    Case("full cleaning, each 10 episodes", OFF | {"memory_cleanup_frequency": 10}),
    Case("`MemoryHygiene`, its defaults", {}),
    Case("a figure an epoch, closed", also=_also("KeepsFigures", close=True)),
    Case("a figure an epoch, not closed", also=_also("KeepsFigures", close=False)),
    Case("1,000 losses kept, detached", also=_also("KeepsLosses", detach=True, most=1000)),
    Case("all losses kept, with their graphs", also=_also("KeepsLosses", detach=False, most=None)),
)
EPOCHS, WARM_UP, TOGETHER = 80, 40, 4
"""Epochs of a fit, those left out of figures, and the episodes of one."""
SETTINGS = {"grid_size": 16, "budget": 0.05, "num_parallel_envs": TOGETHER, "buffer_size": 500, "warmup": 100}


def measure(case: Case, folder: Path, epochs: int = EPOCHS, warm_up: int = WARM_UP) -> dict[str, Any]:
    """Run a fit in a process of its own.

    Args:
        case: what it does.
        folder: of the run.
        epochs: in all.
        warm_up: those left out of figures.

    Returns:
        `rss_kb` and `live_kb`, growth an episode; `between_mb`, resident after an epoch; `cpu_s`, of a processor and
        of the whole run, which other work on the machine changes less than what a clock shows.
    """
    config: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "fire" / "small.yaml").read_text())
    hygiene, *others = config["trainer"]["callbacks"]
    assert hygiene["class_path"].endswith("MemoryHygiene")
    callbacks = [] if case.hygiene is None else [{**hygiene, "init_args": case.hygiene}]
    callbacks += ([] if case.also is None else [case.also]) + others
    config["trainer"] |= {"callbacks": callbacks, "default_root_dir": str(folder), "max_epochs": epochs}
    config["data"] |= SETTINGS
    config["model"]["validate_every"] = 10
    folder.mkdir()
    written = folder / "settings.yaml"
    written.write_text(yaml.safe_dump(config))
    line = [sys.executable, "-m", "eigen2.cli", "fit", "--config", str(written)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{case.name} failed:\n{done.stderr[-2000:]}")
    rows = [row for row in _rows(folder / "memory.csv") if row["phase"] == "generation"][warm_up:]
    rss = [int(row["rss_bytes"]) for row in rows]
    live = [int(row["heap_bytes"]) + BLOCK_BYTES * int(row["python_blocks"]) for row in rows]
    return {
        "case": case.name,
        "rss_kb": theil_sen(rss).median / TOGETHER / 1e3,
        "live_kb": theil_sen(live).median / TOGETHER / 1e3,
        "between_mb": median(rss) / MB,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def main(words: Sequence[str] | None = None) -> None:
    """Measure and write.

    Args:
        words: of the command line; None takes the process's.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, help="JSON file to write")
    options.add_argument("--hold", choices=list(HELD), help="measure this one storage in this process alone")
    asked = options.parse_args(words)
    if asked.hold is not None:
        print(json.dumps(hold(asked.hold)))
        return
    held, measures = [], []
    for name in HELD:
        line = [sys.executable, "-m", "benchmarks.memory.fire_memory", "--hold", name]
        held.append(json.loads(subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout))
        print(json.dumps(held[-1]), flush=True)
    with tempfile.TemporaryDirectory(prefix="eigen2-fire-") as folder:
        for number, case in enumerate(CASES):
            measures.append(measure(case, Path(folder) / str(number)))
            print(json.dumps(measures[-1]), flush=True)
    sizes = {"state_bytes": PLANES * SIZE * SIZE * 4, "transitions_an_episode": STEPS, "capacity": CAPACITY}
    sizes["ring_bytes"] = Ring().buffer.bytes_per_transition
    found = {"machine": describe_machine(), "sizes": sizes, "held": held, "measures": measures}
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
