"""The networks that come with eigen2, at full scale: `python -m benchmarks.speed.families --out FILE.json`.

Each family is measured in a process of its own: weights, time of a day's decisions of all agents, time of a micro-batch
forward and backward, peak memory. With `--device cuda` all of it on a GPU, and once more in bfloat16.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import ROOT, describe_machine
from benchmarks.memory.resident import MB, memory_mb
from benchmarks.speed.full_scale import FullScale
from benchmarks.timing import seconds_of
from eigen2.erl.learners import ddpg

NETWORKS = "eigen2.market.networks.windows"
FAMILIES: dict[str, list[str]] = {
    "columns": [],
    "convolutions": ["--data.encoding=windows"],
    "cnn-lstm": [
        "--data.encoding=windows",
        f"--model.actor.class_path={NETWORKS}.CnnLstmActor",
        f"--model.critic.class_path={NETWORKS}.CnnLstmCritic",
    ],
}
"""Words of the command line that choose each."""
LONG = 10.0
"""Seconds."""


def measure(family: str, device: str, precision: str, runs: int) -> dict[str, Any]:
    """Measure a family in this process.

    Args:
        family: of `FAMILIES`.
        device: cpu or cuda.
        precision: 32-true or bf16-mixed.
        runs: of each time, whose median counts.
    """
    with FullScale(device=device, words=FAMILIES[family]) as full:
        population, data = full.population(), full.data
        batch = full.batch(full.slots()[0])
        observation, _ = data.eval_env.reset(options=data.training_options(0, seed=0))
        cast = partial(torch.autocast, full.device.type, torch.bfloat16, enabled=precision == "bf16-mixed")

        def act() -> None:
            with torch.inference_mode(), cast():
                population.act(data.network_inputs(observation))

        def learn() -> None:
            with cast():
                losses = ddpg.losses(population, batch, full.module.gamma)
            (losses.actor + losses.critic).sum().backward()  # type: ignore[no-untyped-call]

        times = {name: 1e3 * typical_s(run, runs) for name, run in (("act_ms", act), ("learn_ms", learn))}
    on_gpu = device == "cuda"
    return {
        "family": family,
        "device": device,
        "precision": precision,
        "weights": population.weights_per_agent,
        **times,
        "peak_mb": memory_mb()["peak"],
        "device_peak_mb": torch.cuda.max_memory_allocated() / MB if on_gpu else None,
    }


def typical_s(run: Callable[[], None], runs: int) -> float:
    """Median seconds after a warm-up; of a run that takes `LONG`, the first one's, which a warm-up hardly changes."""
    first = seconds_of(run)
    return first if first > LONG else statistics.median(seconds_of(run) for _ in range(runs))


def main(words: Sequence[str] | None = None) -> None:
    """Measure each family in a process of its own, print and write the figures.

    Args:
        words: of the command line; None takes the process's.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, help="JSON file to write")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    options.add_argument("--runs", type=int, default=5, help="of each time (default 5)")
    options.add_argument("--one", nargs=2, metavar=("FAMILY", "PRECISION"), help="this one, in this process")
    asked = options.parse_args(words)
    torch.set_num_threads(asked.threads)
    if asked.one:
        print(json.dumps(measure(asked.one[0], asked.device, asked.one[1], asked.runs)))
        return
    precisions = ("32-true", "bf16-mixed") if asked.device == "cuda" else ("32-true",)
    found = []
    for family in FAMILIES:
        for precision in precisions:
            chosen = ["--one", family, precision, "--device", asked.device]
            counts = ["--threads", str(asked.threads), "--runs", str(asked.runs)]
            command = [sys.executable, "-m", "benchmarks.speed.families", *chosen, *counts]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"{family} in {precision} failed:\n{done.stderr[-2000:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
    machine = {**describe_machine(), "threads": asked.threads}
    text = json.dumps({"machine": machine, "families": found}, indent=1) + "\n"
    if asked.out:
        asked.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
