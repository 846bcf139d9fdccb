"""Tables of docs/processes.md, and simulations of other runs than those.

`python -m benchmarks.scale.processes_tables --agents 1000 --devices 100` says where time goes and what breaks first.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from benchmarks.harness import FIGURES, Figures
from benchmarks.pages import Block, Page, commit, number, table
from benchmarks.scale.cluster import PHASES, Costs, Link, Plan, Spent, simulate

AGENTS, DEVICES = (10, 100, 1000, 10_000), (1, 10, 100, 1000)
COLUMNS = (3_000, 10_000, 50_000)
CAPACITY = 50_000  # transitions of the replay buffer; more where a generation adds more
DAYS = 3_781
MAPPED_BYTES = 61  # bytes of a column and day of the panel, docs/scaling.md
GENERATIONS = 25
SEED = 0
MEASURED = {
    **{"agents": "{agents}", "processes": "{processes}", "generation s": "{seconds!n}", "speed-up": "{speed_up:.2f}"},
    **{"train s": "{train!n}", "messages s": "{exchange!n}", "received MB": "{received_mb!n}"},
    **{"formula MB": "{formula!n}", "predicted s": "{predicted!n}", "error": "{error:+.0f} %"},
}
OUTSIDE = ("journal", "rest", "messages", "waiting")
GRID = {
    **{
        "agents": "{agents:,}",
        "devices": "{devices:,}",
        "generation s": "{seconds!n}",
        "computing": "{computing:.0f} %",
    },
    **{f"{name} s": f"{{{name}!n}}" for name in OUTSIDE},
    **{"process 0 GB": "{memory_gb!n}", "limit": "{limit}", "cost": "{cost:,.2f}"},
}
WIDE = {
    **{"columns": "{columns:,}", "investable": "{investable:,}", "panel GB": "{panel_gb!n}"},
    **{"its build's peak GB": "{build_gb!n}", "generation s": "{seconds!n}"},
    **{"process 0 GB": "{memory_gb!n}", "limit": "{limit}"},
}


@dataclass(frozen=True)
class Terms:
    """Properties of devices."""

    link: Link = field(default_factory=Link)
    memory_gb: float = 8.0
    price: float = 0.05  # price of a device for an hour


def capacity_of(costs: Costs, agents: int) -> int:
    """Return the transitions that a replay buffer holds: those of a generation at least."""
    return max(CAPACITY, agents * costs.sizes["transitions"])


def spent_by(costs: Costs, plan: Plan, link: Link) -> Spent:
    """Simulate a plan, always with the same random factors."""
    generator = np.random.default_rng([SEED, plan.agents, plan.devices, plan.investable])
    return simulate(costs, plan, link, capacity_of(costs, plan.agents), generator)


def _simulated(costs: Costs, plan: Plan, terms: Terms) -> dict[str, object]:
    """Return a plan's seconds, memory, cost, and its limit: memory, else where most time goes if not computing."""
    spent, memory = spent_by(costs, plan, terms.link), costs.memory_bytes(plan, capacity_of(costs, plan.agents))
    other = {name: seconds for name, seconds in spent.parts.items() if name not in PHASES}
    limit = "nothing" if spent.computing >= 0.5 else max(other, key=lambda name: other[name])
    return {
        **dict.fromkeys(OUTSIDE, 0.0),
        **spent.parts,
        "seconds": spent.seconds,
        "computing": 100 * spent.computing,
        "memory_gb": memory / 1e9,
        "limit": f"memory of process 0: {memory / 1e9:.0f} GB" if memory > terms.memory_gb * 1e9 else limit,
        "cost": GENERATIONS * spent.seconds / 3600 * plan.devices * terms.price,
    }


def usable_cores(measured: Figures) -> int:
    """Return the cores that measured runs had; older figures have them in the machine's description."""
    return int(measured.get("usable_cores") or measured["machine"]["usable_cores"])


def measured_table(measured: Figures) -> str:
    """Return real processes of one machine beside what is predicted of them."""
    costs, rows = Costs(measured), []
    alone: dict[int, float] = {}
    for run in measured["together"]:
        sizes = run["agents"], run["processes"], run["investable"], run["optimizer_steps"]
        plan = Plan(*sizes, cores=usable_cores(measured))
        predicted = spent_by(costs, plan, Link(latency_s=0.0, gbit=1e6)).seconds
        seconds = run["generation"] + run["rest"]
        speed_up = alone.setdefault(run["agents"], seconds) / seconds
        found = {"seconds": seconds, "speed_up": speed_up, "formula": costs.received_bytes(plan, CAPACITY) / 1e6}
        rows.append({**run, **found, "predicted": predicted, "error": 100 * (predicted / seconds - 1)})
    return table(MEASURED, rows)


def grid_table(measured: Figures) -> str:
    """Return simulated populations on devices."""
    costs, plans = Costs(measured), [Plan(*sizes) for sizes in product(AGENTS, DEVICES) if sizes[1] <= sizes[0]]
    rows = [{"agents": plan.agents, "devices": plan.devices, **_simulated(costs, plan, Terms())} for plan in plans]
    return table(GRID, rows)


def wide_table(measured: Figures, scaling: Figures) -> str:
    """Return simulated wider panels, of which agents may buy as much as before, or everything."""
    costs, points = Costs(measured), scaling["columns"]["points"][-2:]
    cells = [point["days"] * point["columns"] for point in points]
    cell_bytes = 1e6 * (points[1]["build"]["peak_mb"] - points[0]["build"]["peak_mb"]) / (cells[1] - cells[0])
    rows = []
    for columns in COLUMNS:
        billions = DAYS * columns / 1e9
        sizes = {"columns": columns, "panel_gb": MAPPED_BYTES * billions, "build_gb": cell_bytes * billions}
        for investable in (108, columns):
            found = _simulated(costs, Plan(1000, 100, investable), Terms())
            rows.append({**sizes, "investable": investable, **found})
    return table(WIDE, rows)


def constants(measured: Figures) -> str:
    """Return what was fitted."""
    costs, machine = Costs(measured), measured["machine"]
    a_round, a_byte = (1e6 * costs.message_s(1, 0, Link(0.0)), 1e9 * costs.message_s(0, 1, Link(0.0, 1e6)))
    copies = sorted({run["copies"] for run in measured["crowded"]})
    crowding = ", ".join(f"{costs.crowding(count, 2):.2f} with {count}" for count in copies)
    where = f"{machine['machine']}, {usable_cores(measured)} cores, torch {machine['torch']}, {commit(machine)}"
    return f"""{where}. Fitted:

- A message takes {a_round:.0f} us a round and {a_byte:.2f} ns a byte received.
- Putting a transition into the replay buffer takes {1e6 * costs.put_in_s:.1f} us.
- The same work takes {crowding} processes at once on these cores times as long as alone.
- A phase deviates by {100 * costs.deviation:.1f} % from its median."""


PAGE = Page(
    {
        "together": Block(measured_table, ("processes",)),
        "constants": Block(constants, ("processes",)),
        "grid": Block(grid_table, ("processes",)),
        "wide": Block(wide_table, ("processes", "scaling")),
    }
)


def main(words: Sequence[str] | None = None) -> None:
    """Simulate one run and print where its time goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--devices", type=int, required=True, help="processes with a core or a GPU each")
    parser.add_argument("--investable", type=int, default=108, help="columns agents may buy (default 108)")
    parser.add_argument("--latency-us", type=float, default=50.0, help="microseconds between devices (default 50)")
    parser.add_argument("--gbit", type=float, default=10.0, help="Gbit a second of a device (default 10)")
    parser.add_argument("--memory-gb", type=float, default=Terms.memory_gb, help="of a device (default 8)")
    parser.add_argument("--price", type=float, default=Terms.price, help="of a device for an hour (default 0.05)")
    asked = parser.parse_args(words)
    if not 1 <= asked.devices <= asked.agents:
        parser.error(f"--devices is {asked.devices}; it must be at least 1 and at most --agents, {asked.agents}")
    costs = Costs(json.loads((FIGURES / "processes.json").read_text()))
    terms = Terms(Link(asked.latency_us * 1e-6, asked.gbit), asked.memory_gb, asked.price)
    for name, value in _simulated(costs, Plan(asked.agents, asked.devices, asked.investable), terms).items():
        print(f"{name:12} {value if isinstance(value, str) else number(float(str(value)))}")


if __name__ == "__main__":
    main()
