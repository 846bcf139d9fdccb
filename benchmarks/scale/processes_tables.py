"""Tables of docs/processes.md, and simulations of other runs than those.

`python -m benchmarks.scale.processes_tables --agents 1000 --devices 100` says where time goes and what breaks first.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks.harness import FIGURES, Figures, Row
from benchmarks.pages import Block, Page, number, table, where
from benchmarks.scale.cluster import PHASES, Costs, Link, Plan, Spent, simulate

AGENTS, DEVICES = (10, 100, 1000, 10_000), (1, 10, 100)
MEMORY_GB = 8.0  # of a device
FREE = Link(latency_s=0.0, gbit=1e6)
MEASURED = {"agents": "{agents}", "processes": "{processes}", "generation s": "{seconds!n}"}
MEASURED |= {"speed-up": "{speed_up:.2f}", "train s": "{train!n}", "messages s": "{exchange!n}"}
MEASURED |= {"received MB": "{received_mb!n}", "formula MB": "{formula!n}"}
MEASURED |= {"predicted s": "{predicted!n}", "error, %": "{error:+.0f}"}
OUTSIDE = ("transition exchange", "rest", "messages", "waiting")
GRID = {"agents": "{agents:,}", "devices": "{devices:,}", "generation s": "{seconds!n}"}
GRID |= {"computing": "{computing:.0f} %", **{f"{name} s": f"{{{name}!n}}" for name in OUTSIDE}}
GRID |= {"process 0 GB": "{memory_gb!n}", "limit": "{limit}"}


def spent_by(costs: Costs, plan: Plan, link: Link) -> Spent:
    """Simulate a plan, always with the same random factors."""
    return simulate(costs, plan, link, np.random.default_rng([0, plan.agents, plan.devices, 108]))


def simulated(costs: Costs, plan: Plan, link: Link, memory_gb: float) -> dict[str, object]:
    """Return a plan's seconds, memory, and its limit: memory, else where most time goes if not computing."""
    spent, needed_gb = spent_by(costs, plan, link), costs.memory_bytes(plan) / 1e9
    other = {name: seconds for name, seconds in spent.parts.items() if name not in PHASES}
    limit = "nothing" if spent.computing >= 0.5 else max(other, key=lambda name: other[name])
    return {
        **dict.fromkeys(OUTSIDE, 0.0),
        **spent.parts,
        "seconds": spent.seconds,
        "computing": 100 * spent.computing,
        "memory_gb": needed_gb,
        "limit": "memory of process 0" if needed_gb > memory_gb else limit,
    }


def measured_table(measured: Figures) -> str:
    """Return real processes of one machine beside what is predicted of them."""
    costs, rows = Costs(measured), []
    alone: dict[int, float] = {}
    for run in measured["together"]:
        plan = Plan(run["agents"], run["processes"], run["optimizer_steps"])
        seconds = run["generation"] + run["rest"]
        speed_up = alone.setdefault(run["agents"], seconds) / seconds
        formula = sum(costs.received(plan).values()) / 1e6
        found: Row = {**run, "seconds": seconds, "speed_up": speed_up, "formula": formula}
        found |= {"predicted": None, "error": None}
        if plan.devices <= measured["usable_cores"]:
            found["predicted"] = spent_by(costs, plan, FREE).seconds
            found["error"] = 100 * (found["predicted"] / seconds - 1)
        rows.append(found)
    return table(MEASURED, rows)


def grid_table(measured: Figures) -> str:
    """Return simulated populations on devices."""
    costs, plans = Costs(measured), [Plan(*sizes) for sizes in product(AGENTS, DEVICES) if sizes[1] <= sizes[0]]
    return table(GRID, [{**plan._asdict(), **simulated(costs, plan, Link(), MEMORY_GB)} for plan in plans])


def constants(measured: Figures) -> str:
    """Return what was fitted."""
    costs = Costs(measured)
    a_round, a_byte = 1e6 * costs.message_s(1, 0, Link(0.0)), 1e9 * costs.message_s(0, 1, FREE)
    return f"""{where(measured)}. Fitted:

- A message takes {a_round:.0f} us a round and {a_byte:.2f} ns a byte received.
- Putting a transition into the replay buffer takes {1e6 * costs.exchange_s:.1f} us.
- A phase deviates by {100 * costs.deviation:.1f} % from its median."""


PROCESSES = ("processes",)
PAGE = Page(
    {
        "together": Block(measured_table, PROCESSES),
        "constants": Block(constants, PROCESSES),
        "grid": Block(grid_table, PROCESSES),
    }
)


def main(words: Sequence[str] | None = None) -> None:
    """Simulate one run and print where its time goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--devices", type=int, required=True, help="processes with a core or a GPU each")
    parser.add_argument("--latency-us", type=float, default=50.0, help="microseconds between devices (default 50)")
    parser.add_argument("--gbit", type=float, default=10.0, help="Gbit a second of a device (default 10)")
    parser.add_argument("--memory-gb", type=float, default=MEMORY_GB, help="of a device (default 8)")
    asked = parser.parse_args(words)
    if not 1 <= asked.devices <= asked.agents:
        parser.error(f"--devices is {asked.devices}; it must be at least 1 and at most --agents, {asked.agents}")
    costs = Costs(json.loads((FIGURES / "processes.json").read_text()))
    link = Link(asked.latency_us * 1e-6, asked.gbit)
    for name, value in simulated(costs, Plan(asked.agents, asked.devices), link, asked.memory_gb).items():
        print(f"{name:20} {value if isinstance(value, str) else number(float(str(value)))}")


if __name__ == "__main__":
    main()
