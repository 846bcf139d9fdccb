"""Tables of docs/control.md."""

from statistics import fmean, median

from benchmarks.harness import Figures
from benchmarks.pages import Block, Page, spread, table


def goal_table(found: Figures) -> str:
    """Return champion and speed of learning of each seed."""
    columns = {
        "seed": "{seed}",
        "champion's validation fitness at the end": "{fitness:,.1f}",
        "environment steps": "{steps:,.0f}",
        f"{found['goal']:,.0f} reached after": "{reached}",
    }
    rows = [
        {"seed": seed, "fitness": run["champion"][-1], "steps": run["env_steps"][-1]}
        | {"reached": "never" if run["goal_at_env_steps"] is None else f"{run['goal_at_env_steps']:,.0f}"}
        for seed, run in found["runs"].items()
    ]
    return table(columns, rows)


def pendulum_table(found: Figures) -> str:
    """Return returns and speeds of both sides, and how much faster eigen2's is."""
    columns = {"": "{side}", "mean return": "{mean:.1f}", "each seed": "{each}"}
    columns |= {"steps a second": "{steps_per_s:.1f}", "steps a second of processor": "{steps_per_cpu_s:.1f}"}
    rows = []
    for side, runs in found["runs"].items():
        returns = [run["return"] for run in runs]
        speeds = {name: median(run[name] for run in runs) for name in found["ratios"]}
        rows.append({"side": side, "mean": fmean(returns), "each": spread(returns, ".0f"), **speeds})
    ratios = " | ".join(f"{ratio:.2f}" for ratio in found["ratios"].values())
    return f"{table(columns, rows)}\n| ours over theirs, median of pairs |  |  | {ratios} |"


PAGE = Page(
    {
        "swimmer": Block(goal_table, ("swimmer",)),
        "halfcheetah": Block(goal_table, ("halfcheetah",)),
        "pendulum": Block(pendulum_table, ("control",)),
    }
)
