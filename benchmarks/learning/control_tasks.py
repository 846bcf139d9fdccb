"""Control tasks for a million environment steps: `python -m benchmarks.learning.control_tasks --out FILE.json`.

Trains a configuration, Swimmer's if no other is named, to its end for each seed, by the command line; run again with
the same folder, it goes on with what was cut off. From each run's metrics.csv it keeps the curve.
"""

import argparse
import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, describe_machine

CURVE = {
    "env_steps": "replay/added",
    "fitness_max": "fitness/max",
    "fitness_mean": "fitness/mean",
    "champion": "champion/validation_fitness",
}
"""Our name and that of metrics.csv."""


def train(config: str, seed: int, folder: Path) -> Path:
    """Train one seed to the end, or go on with it; return its metrics.csv."""
    words = ["--seed_everything", str(seed), "--trainer.default_root_dir", str(folder), "--ckpt_path", "last"]
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", config, *words]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("a") as output:
        subprocess.run(command, cwd=ROOT, stdout=output, check=True)
    return folder / "metrics.csv"


def curve(metrics: Path, goal: float) -> dict[str, Any]:
    """The columns of a run, by generation, and when its champion reached the goal: None for never.

    Args:
        metrics: its metrics.csv.
        goal: return of a validation episode.
    """
    with metrics.open() as source:
        rows = list(csv.DictReader(source))
    found: dict[str, Any] = {"generation": [int(row["generation"]) for row in rows]}
    for name, column in CURVE.items():
        found[name] = [_number(row[column]) for row in rows]
    reached = [i for i, value in enumerate(found["champion"]) if value is not None and value >= goal]
    found["goal_at_env_steps"] = found["env_steps"][reached[0]] if reached else None
    return found


def _number(text: str) -> float | None:
    """Rounded to a tenth; None for what JSON has no number for."""
    value = float(text or "nan")
    return round(value, 1) if math.isfinite(value) else None


def main() -> None:
    """Train every seed and say what was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/control_swimmer.yaml", help="what to train")
    parser.add_argument("--goal", type=float, default=300.0, help="return that the champion must reach in validation")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seeds", type=int, default=3, help="runs, with the seeds 1, 2, ...")
    parser.add_argument("--folder", type=Path, default=Path("lightning_logs/swimmer-seeds"), help="takes the runs")
    args = parser.parse_args()
    runs = {}
    for seed in range(1, args.seeds + 1):
        runs[seed] = run = curve(train(args.config, seed, args.folder.resolve() / str(seed)), args.goal)
        print(
            f"seed {seed}  champion {run['champion'][-1]} after {run['env_steps'][-1]:,.0f} environment steps, "
            f"{args.goal:.0f} reached after {run['goal_at_env_steps']}",
            flush=True,
        )
    if args.out is not None:
        text = (ROOT / args.config).read_text()
        found = {"machine": describe_machine(), "config": text, "goal": args.goal, "runs": runs}
        args.out.write_text(json.dumps(found, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
