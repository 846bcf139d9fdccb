"""What a run takes on more devices than were measured: `python -m benchmarks.scale.simulate_cluster FILE.json`.

Replays generations of runs of any size by `benchmarks.scale.cluster`, prints where the time goes, what breaks first
and what it costs; `--page` puts the tables into a page.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import ROOT
from benchmarks.pages import fill_in, number, table
from benchmarks.scale.cluster import PHASES, Costs, Link, Plan, Spent, simulate

AGENTS = DEVICES = (1, 10, 100, 1000, 10_000)
COLUMNS = (3_000, 10_000, 50_000)
CAPACITY = 50_000
"""Transitions of the replay buffer; more where a generation adds more."""
DAYS = 3_781
MAPPED_BYTES = 61
"""A column and day of the panel, docs/scaling.md."""
GENERATIONS = 25
SEED = 0
SCALING = ROOT / "docs" / "figures" / "scaling.json"


@dataclass(frozen=True)
class Terms:
    """What devices are like."""

    link: Link
    memory_gb: float
    price: float
    """Of a device for an hour."""


def capacity_of(costs: Costs, agents: int) -> int:
    """Transitions that a replay buffer holds: those of a generation at least."""
    return max(CAPACITY, agents * costs.sizes["transitions"])


def spent_by(costs: Costs, plan: Plan, link: Link) -> Spent:
    """Simulate a plan; the same plan always meets the same chance."""
    chance = np.random.default_rng([SEED, plan.agents, plan.devices, plan.investable])
    return simulate(costs, plan, link, capacity_of(costs, plan.agents), chance)


def breaks_first(costs: Costs, plan: Plan, spent: Spent, terms: Terms) -> str:
    """What limits a plan: memory, else what most of the time goes to if it is not computing, else nothing."""
    memory = costs.memory_bytes(plan, capacity_of(costs, plan.agents))
    if memory > terms.memory_gb * 1e9:
        return f"memory of process 0: {memory / 1e9:.0f} GB"
    if spent.computing >= 0.5:
        return "nothing"
    other = {name: seconds for name, seconds in spent.parts.items() if name not in PHASES}
    return max(other, key=lambda name: other[name])


def measured_table(measured: Mapping[str, Any], costs: Costs) -> str:
    """Real processes of one machine against what is predicted of them."""
    cores = int(measured["machine"]["usable_cores"])
    rows: list[list[str]] = []
    alone: dict[int, float] = {}
    for run in measured["together"]:
        plan = Plan(run["agents"], run["processes"], run["investable"], run["optimizer_steps"], cores)
        spent = spent_by(costs, plan, Link(latency_s=0.0, gbit=1e6))
        seconds = run["generation"] + run["rest"]
        alone.setdefault(run["agents"], seconds)
        formula = costs.received_bytes(plan, CAPACITY) / 1e6
        cells = [seconds, spent.seconds, run["train"], run["exchange"], run["received_mb"], formula]
        error = f"{100 * (spent.seconds / seconds - 1):+.0f} %"
        speed_up = f"{alone[run['agents']] / seconds:.2f}"
        figures = [number(value) for value in cells]
        rows.append([str(run["agents"]), str(run["processes"]), figures[0], speed_up, *figures[2:], figures[1], error])
    header = ["agents", "processes", "generation s", "speed-up", "train s", "messages s", "received MB", "formula MB"]
    return table([*header, "predicted s", "error"], rows)


def grid_table(costs: Costs, terms: Terms) -> str:
    """Populations on devices."""
    rows = []
    for agents in AGENTS[1:]:
        for devices in (n for n in DEVICES[:-1] if n <= agents):
            plan = Plan(agents, devices)
            spent = spent_by(costs, plan, terms.link)
            seconds = {name: spent.parts.get(name, 0.0) for name in ("journal", "rest", "messages", "waiting")}
            memory = costs.memory_bytes(plan, capacity_of(costs, agents)) / 1e9
            price = GENERATIONS * spent.seconds / 3600 * devices * terms.price
            rows.append(
                [
                    f"{agents:,}",
                    f"{devices:,}",
                    number(spent.seconds),
                    f"{100 * spent.computing:.0f} %",
                    *(number(value) for value in seconds.values()),
                    number(memory),
                    breaks_first(costs, plan, spent, terms),
                    f"{price:,.2f}",
                ]
            )
    header = ["agents", "devices", "generation s", "computing", "journal s", "rest s", "messages s", "waiting s"]
    return table([*header, "process 0 GB", "limit", "cost"], rows)


def column_table(costs: Costs, terms: Terms, agents: int = 1000, devices: int = 100) -> str:
    """Wider panels, of which agents may buy as much as before, or everything."""
    points = json.loads(SCALING.read_text())["columns"]["points"][-2:]
    cells = [point["days"] * point["columns"] for point in points]
    cell_bytes = 1e6 * (points[1]["build"]["peak_mb"] - points[0]["build"]["peak_mb"]) / (cells[1] - cells[0])
    rows = []
    for columns in COLUMNS:
        for investable in (108, columns):
            plan = Plan(agents, devices, investable)
            spent = spent_by(costs, plan, terms.link)
            memory = costs.memory_bytes(plan, capacity_of(costs, agents)) / 1e9
            cells_gb = DAYS * columns / 1e9
            figures = [MAPPED_BYTES * cells_gb, cell_bytes * cells_gb, spent.seconds]
            limit = breaks_first(costs, plan, spent, terms)
            shown = [number(value) for value in figures]
            rows.append([f"{columns:,}", f"{investable:,}", *shown, number(memory), limit])
    header = ["columns", "investable", "panel GB", "its build's peak GB", "generation s", "process 0 GB", "limit"]
    return table(header, rows)


def constants(costs: Costs, measured: Mapping[str, Any]) -> str:
    """What was fitted."""
    a_round, a_byte = (1e6 * costs.message_s(1, 0, Link(0.0)), 1e9 * costs.message_s(0, 1, Link(0.0, 1e6)))
    crowding = ", ".join(
        f"{costs.crowding(run, 2):.2f} with {run}" for run in sorted({run["copies"] for run in measured["crowded"]})
    )
    machine = measured["machine"]
    return f"""{machine["machine"]}, {machine["usable_cores"]} cores, torch {machine["torch"]}, commit \
{machine["commit"][:7]}. Fitted:

- A message takes {a_round:.0f} us a round and {a_byte:.2f} ns a byte received.
- Putting a transition into the replay buffer takes {1e6 * costs.put_in_s:.1f} us.
- The same work takes {crowding} processes at once on these cores times as long as alone.
- A phase deviates by {100 * costs.deviation:.1f} % from its median."""


def main(words: Sequence[str] | None = None) -> None:
    """Print or put into a page.

    Args:
        words: of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path, help="JSON file of benchmarks.scale.processes")
    parser.add_argument("--agents", type=int, help="simulate this population alone, with --devices")
    parser.add_argument("--devices", type=int, help="processes with a core or a GPU each")
    parser.add_argument("--investable", type=int, default=108, help="columns agents may buy (default 108)")
    parser.add_argument("--latency_us", type=float, default=50.0, help="between devices, microseconds (default 50)")
    parser.add_argument("--gbit", type=float, default=10.0, help="Gbit a second of a device (default 10)")
    parser.add_argument("--memory_gb", type=float, default=8.0, help="of a device (default 8)")
    parser.add_argument("--price", type=float, default=0.05, help="of a device for an hour (default 0.05)")
    parser.add_argument("--page", type=Path, help="Markdown page to put the tables into")
    asked = parser.parse_args(words)
    measured = json.loads(asked.measured.read_text())
    costs = Costs(measured)
    terms = Terms(Link(asked.latency_us * 1e-6, asked.gbit), asked.memory_gb, asked.price)
    if asked.agents or asked.devices:
        if not (asked.agents and asked.devices) or asked.devices > asked.agents:
            parser.error("name both --agents and --devices, no more devices than agents")
        plan = Plan(asked.agents, asked.devices, asked.investable)
        spent = spent_by(costs, plan, terms.link)
        print(f"{number(spent.seconds)} s a generation; limit: {breaks_first(costs, plan, spent, terms)}")
        for name, seconds in spent.parts.items():
            print(f"{name:12} {number(seconds)} s")
        return
    found = {
        "together": measured_table(measured, costs),
        "constants": constants(costs, measured),
        "grid": grid_table(costs, terms),
        "wide": column_table(costs, terms),
    }
    if asked.page:
        asked.page.write_text(fill_in(asked.page.read_text(), found))
    else:
        print("\n\n".join(found.values()))


if __name__ == "__main__":
    main()
