"""Full-scale runs in one and several processes, and what a model of a cluster is fitted to.

`python -m benchmarks.scale.processes --out FILE.json` on idle cores. Every figure is of runs in processes of their own,
`fit --config configs/full_scale.yaml` with one thread each, read from their metrics.csv; rounds of all runs alternate,
and medians over the generations of all rounds are kept.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import distributed as dist

from benchmarks.machine import ROOT, describe_machine
from benchmarks.memory.resident import memory_mb
from benchmarks.scale.scaling import rows_of
from benchmarks.speed.full_scale import CONFIG
from eigen2.core.replay import Field, ReplayBuffer
from eigen2.core.transition_exchange import TransitionLog, exchange_transitions
from eigen2.distributed.communicator import Communicator
from eigen2.erl.module import ERLModule
from eigen2.runtime.phases import PHASES

OPTIMIZER_STEPS = 8
"""Of a generation, where only the time of a micro-batch is sought; full scale has 32."""
GENERATIONS = 5
"""Of a run; the first one, which begins training, is left out."""
MESSAGE_BYTES = (100, 10_000, 1_000_000, 4_000_000, 16_000_000)
JOURNAL = {"agents": 16, "steps": 144, "bytes": 1530}
"""What full scale puts into the replay buffer in a generation."""


@dataclass(frozen=True)
class Run:
    """A run that is measured."""

    agents: int = 16
    investable: int = 108
    processes: int = 1
    copies: int = 1
    """How many such runs go on at once, and know nothing of each other."""
    optimizer_steps: int = OPTIMIZER_STEPS


ALONE = [Run(agents=agents) for agents in (1, 2, 4, 8, 16, 32, 64)] + [Run(investable=n) for n in (32, 216)]
CROWDED = [Run(agents=8, copies=2), Run(agents=4, copies=4), Run(agents=16, copies=2), Run(agents=8, copies=4)]
TOGETHER = [Run(agents, processes=n, optimizer_steps=32) for agents in (16, 32) for n in (1, 2, 4)]


class Walls(Callback):
    """Notes what metrics.csv does not say: when generations began, and memory; in process 0.

    Args:
        path: JSON file, written when training ends.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)
        self._begun: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A generation begins."""
        self._begun.append(time.perf_counter())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file."""
        assert isinstance(pl_module, ERLModule)
        if trainer.global_rank:
            return
        own = pl_module.population
        sizes = {"weights": own.weights_per_agent, "actor_weights": own.actor.shape[1]}
        buffer = pl_module.data.buffer
        sizes |= {"transition_bytes": buffer.bytes_per_transition, "replay_capacity": buffer.capacity}
        sizes |= {"transitions": buffer.added // (trainer.current_epoch * pl_module.population_size)}
        self.path.write_text(json.dumps({"begun": self._begun, "memory_mb": memory_mb(), "sizes": sizes}))


def started(run: Run, folder: Path, cache: Path, accelerator: str) -> subprocess.Popen[str]:
    """Start a run.

    Args:
        run: what to start; one of its copies.
        folder: of the run.
        cache: folder of panels.
        accelerator: of the trainer.
    """
    settings = {
        "num_threads": 1,
        "trainer.accelerator": accelerator,
        "trainer.devices": run.processes,
        "trainer.default_root_dir": folder,
        "trainer.max_epochs": GENERATIONS,
        "model.population_size": run.agents,
        "model.gradient_steps": run.optimizer_steps,
        "data.investable.top": run.investable,
        "data.replay_min_size": 4,  # a micro-batch: the first generation trains
        "data.cache_dir": cache,
        "trainer.callbacks+": "benchmarks.scale.processes.Walls",
        "trainer.callbacks.path": folder / "walls.json",
    }
    if run.agents == 1:
        settings["model.evolution"] = "null"
    words = ["fit", "--config", str(CONFIG), *(f"--{name}={value}" for name, value in settings.items())]
    return subprocess.Popen(
        [sys.executable, "-m", "eigen2.cli", *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=-1, text=True
    )


def figures(folder: Path) -> dict[str, list[float]]:
    """What a run measured of each generation but the first: seconds by phase, of messages, of all else, and bytes."""
    rows = rows_of(folder / "metrics.csv")[1:]
    seen = json.loads((folder / "walls.json").read_text())
    begun = seen["begun"]
    found = {name: [float(row[f"time/{name}_s"]) for row in rows] for name in (*PHASES, "generation")}
    for name, column in (("exchange", "time/exchange_s"), ("received_mb", "exchange/received_mb")):
        found[name] = [float(row.get(column) or 0) for row in rows]
    whole = [later - earlier for earlier, later in pairwise(begun)][1:]
    found["rest"] = [wall - inside for wall, inside in zip(whole, found["generation"], strict=False)]
    found["peak_mb"] = [seen["memory_mb"]["peak"]]
    found |= {name: [value] for name, value in seen["sizes"].items()}
    return found


def measure(runs: Sequence[Run], folder: Path, rounds: int, accelerator: str) -> list[dict[str, Any]]:
    """All runs, as often as asked, in turns; medians over the generations of all rounds and copies.

    Args:
        runs: to measure.
        folder: for temporary files.
        rounds: of all runs.
        accelerator: of the trainer.

    Returns:
        For each run its fields; medians; `deviation`, of a generation's training from the median of its run, relative:
        its interquartile range over 1.349, which is the standard deviation of a normal distribution.
    """
    seen: dict[Run, dict[str, list[float]]] = {run: defaultdict(list) for run in runs}
    for turn in range(rounds):
        for run in runs:
            with tempfile.TemporaryDirectory(dir=folder) as home:
                parts = [Path(home) / str(copy) for copy in range(run.copies)]
                processes = [started(run, part, folder / "cache", accelerator) for part in parts]
                for process in processes:
                    _, errors = process.communicate()
                    if process.returncode:
                        raise SystemExit(f"{run} failed:\n{errors[-2000:]}")
                for part in parts:
                    for name, values in figures(part).items():
                        seen[run][name] += values
                    train = figures(part)["train"]
                    seen[run]["deviations"] += [value / statistics.median(train) for value in train]
            latest = {
                name: round(statistics.median(seen[run][name]), 3) for name in (*PHASES, "generation", "exchange")
            }
            print(f"{turn} {run} {latest}", file=sys.stderr)
    return [{**asdict(run), **_summary(seen[run])} for run in runs]


def _summary(seen: Mapping[str, list[float]]) -> dict[str, float]:
    medians = {name: round(statistics.median(values), 5) for name, values in seen.items() if name != "deviations"}
    low, _, high = statistics.quantiles(seen["deviations"], n=4)
    return {**medians, "deviation": round((high - low) / 1.349, 4)}


def exchange(rank: int, world: int, store: Path, rounds: int) -> None:
    """What a process of several measures of messages; process 0 prints it as JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    share, found = Communicator(world, rank, world), []
    for size in MESSAGE_BYTES:
        own, seconds = {"bytes": torch.zeros(1, size, dtype=torch.uint8)}, []
        for _ in range(rounds):
            dist.barrier()
            share.start_generation(0)
            share.gather(own, "bytes")
            seconds.append(share.seconds)
        received = share.received_bytes
        found.append({"processes": world, "received": received, "seconds": statistics.median(seconds)})
    seconds = []
    agents = JOURNAL["agents"] // world
    fields = {"reward": Field((), torch.float32), "bytes": Field((JOURNAL["bytes"],), torch.uint8)}
    journal, buffer = TransitionLog(agents, JOURNAL["steps"], fields), ReplayBuffer(50_000, fields)
    step = {"bytes": torch.zeros(agents, JOURNAL["bytes"], dtype=torch.uint8), "reward": torch.zeros(agents)}
    for _ in range(rounds):
        for _ in range(JOURNAL["steps"]):
            journal.add(step)
        dist.barrier()
        share.start_generation(0)
        begun = time.perf_counter()
        exchange_transitions(journal, buffer, share)
        seconds.append(time.perf_counter() - begun - share.seconds)
    journals = {"processes": world, "transitions": JOURNAL["agents"] * JOURNAL["steps"], **JOURNAL}
    if rank == 0:
        print(json.dumps({"messages": found, "journal": {**journals, "seconds": statistics.median(seconds)}}))
    dist.barrier()
    dist.destroy_process_group()


def measure_messages(worlds: Iterable[int], folder: Path) -> list[dict[str, Any]]:
    """Messages between processes of this machine that do nothing else."""
    found = []
    for world in worlds:
        words = [
            sys.executable,
            "-m",
            "benchmarks.scale.processes",
            "--world",
            str(world),
            "--folder",
            str(folder),
            "--rank",
        ]
        processes = [
            subprocess.Popen([*words, str(rank)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for rank in range(world)
        ]
        said = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"messages between {world} processes could not be measured")
        found.append(json.loads(said[0]))
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Measure and write.

    Args:
        words: of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=2, help="of all runs (default 2)")
    parser.add_argument("--accelerator", default="cpu", help="of the trainer (default cpu)")
    parser.add_argument("--folder", type=Path, help="where temporary files go, 1 GB; default: the system's folder")
    parser.add_argument("--rank", type=int, help="of a process that measures messages")
    parser.add_argument("--world", type=int, help="processes that measure messages")
    asked = parser.parse_args(words)
    if asked.rank is not None:
        exchange(asked.rank, asked.world, asked.folder / f"store-{asked.world}", rounds=20)
        return
    if asked.out is None:
        parser.error("name a file: --out")
    machine = {**describe_machine(), "threads": 1, "usable_cores": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory(prefix="eigen2-processes-", dir=asked.folder) as name:
        folder = Path(name)
        for investable in sorted({run.investable for run in ALONE}):  # builds the panel and describes its days
            started(Run(2, investable), folder / f"first-{investable}", folder / "cache", asked.accelerator).wait()
        found = {
            "machine": machine,
            "messages": measure_messages((2, 4), folder),
            **{
                kind: measure(runs, folder, asked.rounds, asked.accelerator)
                for kind, runs in (("alone", ALONE), ("crowded", CROWDED), ("together", TOGETHER))
            },
        }
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
