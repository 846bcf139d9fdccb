"""Speed and memory of the networks that come with eigen2, each family at full scale in a process of its own."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import MB, Benchmark, Figures, Row, Settings, Task, median_seconds, seconds_of
from benchmarks.memory.resident import memory_mb
from benchmarks.speed.full_scale import CONFIG, FullScale

NETWORKS = "eigen2.market.networks.windows"
FAMILIES: dict[str, list[str]] = {  # words of the command line that choose each
    "columns": [],
    "convolutions": ["--data.encoding=windows"],
    "cnn-lstm": [
        "--data.encoding=windows",
        f"--model.actor.class_path={NETWORKS}.CnnLstmActor",
        f"--model.critic.class_path={NETWORKS}.CnnLstmCritic",
    ],
}
LONG = 10.0  # seconds of a run beyond which the first one counts, as a warm-up hardly changes it
HALF = ", bf16-mixed"


def tasks(settings: Settings) -> list[Task]:
    """Return the families, each once more in bfloat16 on a GPU."""
    precisions = ("", HALF) if settings["device"] == "cuda" else ("",)
    return [Task(family + precision) for family in FAMILIES for precision in precisions]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Measure weights, a day's decisions of all agents, a micro-batch forward and backward, and peak memory."""
    family, half = task.case.removesuffix(HALF), task.case.endswith(HALF)
    device, on_gpu = settings["device"], settings["device"] == "cuda"
    with FullScale(Path(settings["config"]), device, FAMILIES[family], folder / "cache") as full:
        population, data = full.population(), full.data
        batch = full.batch(full.slots()[0])
        observation, _ = data.eval_env.reset(options=data.training_options(0, seed=0))
        cast = partial(torch.autocast, full.device.type, torch.bfloat16, enabled=half)

        def act() -> None:
            with torch.inference_mode(), cast():
                population.act(data.network_inputs(observation))

        def learn() -> None:
            with cast():
                losses = full.module.learner.losses(population, batch)
            (losses.actor + losses.critic).sum().backward()  # type: ignore[no-untyped-call]

        times = {name: 1e3 * typical_seconds(run, settings["runs"]) for name, run in (("act", act), ("learn", learn))}
    return {
        "family": family,
        "device": device,
        "precision": HALF.strip(", ") if half else "32-true",
        "weights": population.weights_per_agent,
        **{f"{name}_ms": value for name, value in times.items()},
        "peak_mb": memory_mb()["peak"],
        "device_peak_mb": torch.cuda.max_memory_allocated() / MB if on_gpu else None,
    }


def typical_seconds(run: Callable[[], None], runs: int) -> float:
    """Return median seconds after a warm-up; of a run longer than `LONG`, the first one's."""
    first = seconds_of(run)
    return first if first > LONG else median_seconds(run, runs)


def figures(measured: Any) -> Figures:
    """Return a list of all families."""
    return {"families": list(measured.values())}


SETTINGS = {"config": str(CONFIG), "device": "cpu", "runs": 5, "threads": 2}
SMALLEST = {"config": "tests/small.yaml", "runs": 1}
BENCHMARKS = {"families-2": Benchmark(measure, tasks, SETTINGS, SMALLEST, figures, fresh=True)}
