"""The figures of docs/control.md, from what was measured: `python -m benchmarks.learning.control_tables`."""

import json
from typing import Any

import numpy as np

from benchmarks.machine import ROOT
from benchmarks.pages import fill_in, table

PAGE = ROOT / "docs" / "control.md"
FIGURES = ROOT / "docs" / "figures"
SWIMMER, CHEETAH, PENDULUM = (FIGURES / f"{name}.json" for name in ("swimmer", "halfcheetah", "control"))
NOT_YET = "Not measured yet."


def tables() -> dict[str, str]:
    """The page's tables by their names."""
    found = (json.loads(file.read_text()) if file.exists() else None for file in (SWIMMER, CHEETAH, PENDULUM))
    swimmer, cheetah, pendulum = found
    return {
        "swimmer": NOT_YET if swimmer is None else goal_table(swimmer),
        "halfcheetah": NOT_YET if cheetah is None else goal_table(cheetah),
        "pendulum": NOT_YET if pendulum is None else pendulum_table(pendulum),
    }


def goal_table(found: dict[str, Any]) -> str:
    """Champion and speed of learning, a row a seed."""
    header = [
        "seed",
        "champion's validation fitness at the end",
        "environment steps",
        f"{found['goal']:,.0f} reached after",
    ]
    rows = []
    for seed, run in found["runs"].items():
        reached = run["goal_at_env_steps"]
        rows.append(
            [
                seed,
                f"{run['champion'][-1]:,.1f}",
                f"{run['env_steps'][-1]:,.0f}",
                "never" if reached is None else f"{reached:,.0f}",
            ]
        )
    return table(header, rows)


def pendulum_table(found: dict[str, Any]) -> str:
    """Returns and speeds of both sides, and how much faster ours is."""
    rows = []
    for name, runs in found["runs"].items():
        returns = [run["return"] for run in runs]
        speeds = [np.median([run[speed] for run in runs]) for speed in found["ratios"]]
        each = ", ".join(f"{value:.0f}" for value in returns)
        rows.append([name, f"{np.mean(returns):.1f}", each, *(f"{speed:.1f}" for speed in speeds)])
    rows.append(["ours over theirs, median of pairs", "", "", *(f"{ratio:.2f}" for ratio in found["ratios"].values())])
    return table(["", "mean return", "each seed", "steps a second", "steps a second of processor"], rows)


def main() -> None:
    """Write the figures into their places."""
    PAGE.write_text(fill_in(PAGE.read_text(), tables()))


if __name__ == "__main__":
    main()
