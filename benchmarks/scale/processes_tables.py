"""Tables of docs/processes.md, and simulations of further runs.

`python -m benchmarks.scale.processes_tables --agents 1000 --devices 100` prints the time of each part and the limit.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks.harness import FIGURES, Figures, Row
from benchmarks.pages import Block, Page, number, table, where
from benchmarks.scale.cluster import PHASES, Costs, Link, Plan, Timing, simulate

AGENTS, DEVICES = (10, 100, 1000, 10_000), (1, 10, 100)
MEMORY_GB = 8.0  # of a device
FREE = Link(latency_s=0.0, gbit=1e6)
MEASURED = {"agents": "{agents}", "processes": "{processes}", "generation s": "{seconds!n}"}
MEASURED |= {"speed-up": "{speed_up:.2f}", "train s": "{train!n}", "messages s": "{exchange!n}"}
MEASURED |= {"received MB": "{received_mb!n}", "formula MB": "{formula!n}"}
MEASURED |= {"predicted s": "{predicted!n}", "error, %": "{error:+.0f}"}
HELD = {"process": "{rank}", "before MB": "{before:.0f}", "generation MB": "{generation:.0f}"}
HELD |= {"checkpoint MB": "{checkpoint:.0f}", "generation - before": "{generation_own:.0f}"}
HELD |= {"checkpoint - before": "{checkpoint_own:.0f}"}
OUTSIDE = ("transition exchange", "rest", "messages", "waiting")
GRID = {"agents": "{agents:,}", "devices": "{devices:,}", "generation s": "{seconds!n}"}
GRID |= {"computing": "{computing:.0f} %", **{f"{name} s": f"{{{name}!n}}" for name in OUTSIDE}}
GRID |= {"process 0 GB": "{memory_gb!n}", "limit": "{limit}"}


def simulate_plan(costs: Costs, plan: Plan, link: Link) -> Timing:
    """Simulate a plan with fixed random factors."""
    return simulate(costs, plan, link, np.random.default_rng([0, plan.agents, plan.devices, 108]))


def plan_row(costs: Costs, plan: Plan, link: Link, memory_gb: float) -> dict[str, object]:
    """Return seconds, memory and limit of a plan: memory, else the largest part if computing takes less than half."""
    time, needed_gb = simulate_plan(costs, plan, link), costs.memory_bytes(plan) / 1e9
    overhead = {name: seconds for name, seconds in time.parts.items() if name not in PHASES}
    limit = "nothing" if time.computing >= 0.5 else max(overhead, key=lambda name: overhead[name])
    return {
        **dict.fromkeys(OUTSIDE, 0.0),
        **time.parts,
        "seconds": time.seconds,
        "computing": 100 * time.computing,
        "memory_gb": needed_gb,
        "limit": "memory of process 0" if needed_gb > memory_gb else limit,
    }


def measured_table(measured: Figures) -> str:
    """Return measured runs of processes on one machine, with their predicted times."""
    costs, rows = Costs(measured), []
    alone: dict[int, float] = {}
    for run in measured["together"]:
        plan = Plan(run["agents"], run["processes"], run["optimizer_steps"])
        seconds = run["generation"] + run["rest"]
        speed_up = alone.setdefault(run["agents"], seconds) / seconds
        formula = sum(costs.received(plan).values()) / 1e6
        row: Row = {**run, "seconds": seconds, "speed_up": speed_up, "formula": formula}
        row |= {"predicted": None, "error": None}
        if plan.devices <= measured["usable_cores"]:
            row["predicted"] = simulate_plan(costs, plan, FREE).seconds
            row["error"] = 100 * (row["predicted"] / seconds - 1)
        rows.append(row)
    return table(MEASURED, rows)


def grid_table(measured: Figures) -> str:
    """Return simulated times of populations on several numbers of devices."""
    costs, plans = Costs(measured), [Plan(*sizes) for sizes in product(AGENTS, DEVICES) if sizes[1] <= sizes[0]]
    return table(GRID, [{**plan._asdict(), **plan_row(costs, plan, Link(), MEMORY_GB)} for plan in plans])


def memory_table(measured: Figures) -> str:
    """Return what each process of one run held."""
    windows = ("generation", "checkpoint")
    rows = [
        {**rank, **{f"{window}_own": rank[window] - rank["before"] for window in windows}} for rank in measured["ranks"]
    ]
    return f"""{where(measured)}.
{measured["agents"]:,} agents, whose weights, targets and moments take {measured["rows_mb"]:.0f} MB together, and a
replay buffer of {measured["replay_mb"]:.0f} MB.

{table(HELD, rows)}"""


def constants(measured: Figures) -> str:
    """Return the fitted constants."""
    costs = Costs(measured)
    round_us, byte_ns = 1e6 * costs.message_s(1, 0, Link(0.0)), 1e9 * costs.message_s(0, 1, FREE)
    return f"""{where(measured)}. Fitted:

- A message takes {round_us:.0f} us a round and {byte_ns:.2f} ns a byte received.
- Putting a transition into the replay buffer takes {1e6 * costs.exchange_s:.1f} us.
- A phase deviates by {100 * costs.deviation:.1f} % from its median."""


PROCESSES = ("processes",)
PAGE = Page(
    {
        "together": Block(measured_table, PROCESSES),
        "constants": Block(constants, PROCESSES),
        "memory": Block(memory_table, ("process-memory",)),
        "grid": Block(grid_table, PROCESSES),
    }
)


def main(args: Sequence[str] | None = None) -> None:
    """Simulate one run and print the time of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--devices", type=int, required=True, help="processes, each with its own core or GPU")
    parser.add_argument("--latency-us", type=float, default=50.0, help="latency of a message in us (default 50)")
    parser.add_argument("--gbit", type=float, default=10.0, help="bandwidth of a device in Gbit/s (default 10)")
    parser.add_argument("--memory-gb", type=float, default=MEMORY_GB, help="memory of a device in GB (default 8)")
    options = parser.parse_args(args)
    if not 1 <= options.devices <= options.agents:
        parser.error(f"--devices is {options.devices}; it must be at least 1 and at most --agents, {options.agents}")
    costs = Costs(json.loads((FIGURES / "processes.json").read_text()))
    link = Link(options.latency_us * 1e-6, options.gbit)
    for name, value in plan_row(costs, Plan(options.agents, options.devices), link, options.memory_gb).items():
        print(f"{name:20} {value if isinstance(value, str) else number(float(str(value)))}")


if __name__ == "__main__":
    main()
