"""Full-scale runs in one and several processes, on idle cores, for the model of a cluster.

Rounds of all runs alternate; figures are medians over the generations of all rounds.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import distributed as dist

from benchmarks.harness import MEASURED_ON, Benchmark, Figures, Row, Settings, Task
from benchmarks.runs import fit, require_linux
from benchmarks.speed.full_scale import CONFIG, OWN
from eigen2.core.replay import Field
from eigen2.core.shared_replay import SharedReplay, TransitionLog
from eigen2.distributed.communicator import Communicator
from eigen2.runtime.phases import PHASES

GENERATIONS = 5  # generations of a run; the first, in which training starts, is left out
MESSAGE_BYTES = (100, 10_000, 1_000_000, 4_000_000, 16_000_000)
EXCHANGE = {"agents": 16, "steps": 144, "bytes": 1530}  # transitions of a generation at full scale


@dataclass(frozen=True)
class Run:
    """A run to measure."""

    agents: int = 16
    processes: int = 1
    optimizer_steps: int = 8  # per generation, enough for the time of a micro-batch; full scale has 32


RUNS = {
    "alone": [Run(agents=agents) for agents in (1, 2, 4, 8, 16, 32, 64)],
    "together": [Run(agents, processes=n, optimizer_steps=32) for agents in (16, 32) for n in (1, 2, 4)],
}
WORLDS = (2, 4)  # numbers of processes whose messages are measured


def measure_run(run: Run, folder: Path, settings: Settings) -> dict[str, list[float]]:
    """Return lists of measurements of a run, by generation without the first."""
    options = {
        "trainer.accelerator": settings["accelerator"],
        "trainer.devices": run.processes,
        "trainer.max_epochs": GENERATIONS,
        "model.population_size": run.agents,
        "model.gradient_steps": run.optimizer_steps,
        "data.replay_min_size": 4,  # a micro-batch: the first generation trains
        "data.cache_dir": folder / "cache",
        **OWN,
    }
    built = folder / "built"
    if not built.exists():
        fit(built, CONFIG, {**options, "trainer.devices": 1, "model.population_size": 2}, settings["words"])
    options |= {"model.evolution": "null"} if run.agents == 1 else {}
    result = fit(Path(tempfile.mkdtemp(dir=folder)), CONFIG, options, settings["words"])
    columns = {name: f"time/{name}_s" for name in (*PHASES, "generation", "exchange")}
    columns["received_mb"] = "exchange/received_mb"
    measured = {name: [float(row.get(column) or 0) for row in result.metrics[1:]] for name, column in columns.items()}
    walls = [later - earlier for earlier, later in pairwise(result.probe["generation_starts"])][1:]
    measured["rest"] = [wall - inside for wall, inside in zip(walls, measured["generation"], strict=False)]
    median = statistics.median(measured["train"])
    measured["deviations"] = [seconds / median for seconds in measured["train"]]
    sizes = {"peak_mb": result.probe["peak_mb"], **result.probe["sizes"]}
    return measured | {name: [value] for name, value in sizes.items()}


def measure_messages(world: int, folder: Path, rounds: int) -> Row:
    """Measure messages between otherwise idle processes of this machine."""
    with ProcessPoolExecutor(world, multiprocessing.get_context("spawn")) as pool:
        ranks = [pool.submit(exchange, rank, world, folder / f"store-{world}", rounds) for rank in range(world)]
        rows = [rank.result() for rank in ranks]
    return rows[0]


def exchange(rank: int, world: int, store: Path, rounds: int) -> Row:
    """Exchange messages and transitions with the other processes; return the median seconds."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    communicator, messages = Communicator(world, rank, world), []
    for size in MESSAGE_BYTES:
        rows, seconds = {"bytes": torch.zeros(1, size, dtype=torch.uint8)}, []
        for _ in range(rounds):
            dist.barrier()
            communicator.start_generation(0)
            communicator.gather(rows, "bytes")
            seconds.append(communicator.seconds)
        received = communicator.received_bytes
        messages.append({"processes": world, "received": received, "seconds": statistics.median(seconds)})
    seconds, agents = [], EXCHANGE["agents"] // world
    fields = {"reward": Field((), torch.float32), "bytes": Field((EXCHANGE["bytes"],), torch.uint8)}
    log = TransitionLog(agents, EXCHANGE["steps"], fields)
    buffer = SharedReplay(50_000, fields, communicator, log)
    step = {"bytes": torch.zeros(agents, EXCHANGE["bytes"], dtype=torch.uint8), "reward": torch.zeros(agents)}
    for _ in range(rounds):
        for _ in range(EXCHANGE["steps"]):
            log.add(step)
        dist.barrier()
        communicator.start_generation(0)
        start = time.perf_counter()
        buffer.add_log()
        seconds.append(time.perf_counter() - start - communicator.seconds)
    shape = {"processes": world, "transitions": agents * EXCHANGE["steps"], **EXCHANGE}  # of each process
    dist.barrier()
    dist.destroy_process_group()
    return {"messages": messages, "transition_exchange": {**shape, "seconds": statistics.median(seconds)}}


def tasks(settings: Settings) -> list[Task]:
    """Return the messages, then all runs in several rounds."""
    require_linux()
    cases = [f"{kind} {i}" for kind, runs in RUNS.items() for i in range(len(runs))]
    rounds = [Task(case, number) for number in range(settings["rounds"]) for case in cases]
    return [*(Task(f"messages {world}") for world in WORLDS), *rounds]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Measure messages, or one round of a run."""
    kind, number = task.case.split()
    if kind == "messages":
        return measure_messages(int(number), folder, settings["repeats"])
    return measure_run(RUNS[kind][int(number)], folder, settings)


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the messages, and for each run its settings and medians."""
    result: Figures = {"usable_cores": len(os.sched_getaffinity(0))}
    result["messages"] = [measured[Task(f"messages {world}")] for world in WORLDS]
    for kind, runs in RUNS.items():
        result[kind] = [
            {**asdict(run), **summary([row for task, row in measured.items() if task.case == f"{kind} {i}"])}
            for i, run in enumerate(runs)
        ]
    return result


def summary(rows: list[Row]) -> dict[str, float]:
    """Return medians over the generations of all rounds, and the relative deviation of training.

    `deviation` is the interquartile range of training over 1.349, the standard deviation of a normal distribution.
    """
    series = {name: [value for row in rows for value in row[name]] for name in rows[0] if name not in MEASURED_ON}
    low, _, high = statistics.quantiles(series.pop("deviations"), n=4)
    medians = {name: round(statistics.median(values), 5) for name, values in series.items()}
    return {**medians, "deviation": round((high - low) / 1.349, 4)}


SETTINGS = {"rounds": 2, "repeats": 20, "accelerator": "cpu", "words": []}
BENCHMARKS = {"processes": Benchmark(measure, tasks, SETTINGS, {"rounds": 1, "repeats": 2}, figures, fresh=True)}
