"""Model of a generation on many devices, fitted to what was measured on few; docs/processes.md describes it.

A device works through its phases, each as long as was measured for that many agents, times a random factor; at every
message it waits for the slowest. Between messages devices are independent.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.optimize import nnls

from benchmarks.scale.traffic import Sizes, expected_parents, received, rows_of

Seconds = Float64[np.ndarray, "devices"]
PHASES = ("evaluate", "train", "evolve", "validate")
MEASURED_INVESTABLE = 108
GENERATIONS = 5  # generations of the measured runs
CURVE_BYTES = 140  # bytes of an agent's numbers for the curves, about
COPIES = 3  # copies of what is gathered: as it came, put together, and taken apart again


@dataclass(frozen=True)
class Link:
    """Connection between two devices."""

    latency_s: float = 50e-6  # seconds of a message beyond what it takes in one machine
    gbit: float = 10.0  # Gbit a second that a device receives


@dataclass(frozen=True)
class Plan:
    """Run whose generations are simulated."""

    agents: int
    devices: int
    investable: int = MEASURED_INVESTABLE
    optimizer_steps: int = 32
    cores: int | None = None
    """Cores of all devices together, where they are processes of one machine; None: each has what it needs."""


@dataclass
class Spent:
    """Seconds of a generation and where they go, of the mean device."""

    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    """The phases; `journal`, putting transitions into the replay buffer; `rest`, process 0's checkpoints above all, and
    others' wait for it; messages; waiting for the slowest."""

    @property
    def computing(self) -> float:
        """Return the fraction of the time in which a device does its own agents' work."""
        return sum(self.parts[phase] for phase in PHASES) / self.seconds


class Costs:
    """Costs of work and messages, fitted to what `benchmarks.scale.processes` measured."""

    def __init__(self, measured: Mapping[str, Any]) -> None:
        alone: Sequence[Mapping[str, Any]] = measured["alone"]
        usual = [run for run in alone if run["investable"] == MEASURED_INVESTABLE]
        usual.sort(key=lambda run: int(run["agents"]))
        others = [run for run in alone if run["investable"] != MEASURED_INVESTABLE]
        self._agents = [int(run["agents"]) for run in usual]
        self._seconds = {phase: [run[phase] / _steps(run, phase) for run in usual] for phase in PHASES}
        at = usual[self._agents.index(16)]
        more = np.array([run["investable"] - MEASURED_INVESTABLE for run in others], dtype=float)
        self._column = {}
        for phase in PHASES:
            longer = [run[phase] / _steps(run, phase) - at[phase] / _steps(at, phase) for run in others]
            self._column[phase] = float(more @ longer / (more @ more) / 16)
        self.sizes = {name: int(at[name]) for name in ("weights", "actor_weights", "transition_bytes", "transitions")}
        self.deviation = float(np.median([run["deviation"] for run in alone]))
        self._crowding = _crowding(measured)
        self._message = _fit_messages(measured["messages"])
        journal = measured["messages"][0]["journal"]
        self.put_in_s = float(journal["seconds"] / journal["transitions"])
        kept = [self.checkpoint_bytes(agents) for agents in self._agents]
        between = [run["rest"] + run["generation"] - sum(run[phase] for phase in PHASES) for run in usual]
        self._rest = nnls(np.column_stack([np.ones(len(kept)), kept]), between)[0]
        added = [GENERATIONS * agents * self.sizes["transitions"] for agents in self._agents]
        held = [min(count, int(at["replay_capacity"])) * self.sizes["transition_bytes"] for count in added]
        peaks = [1e6 * run["peak_mb"] - replay for run, replay in zip(usual, held, strict=True)]
        self._memory = nnls(np.column_stack([np.ones(len(peaks)), self._agents]), peaks)[0]

    def phase_s(self, phase: str, agents: int, investable: int, optimizer_steps: int) -> float:
        """Return seconds of a phase on a device alone, linear between measured numbers of agents and beyond them."""
        steps = optimizer_steps if phase == "train" else 1
        known, seconds = self._agents, self._seconds[phase]
        found = float(np.interp(agents, known, seconds))
        if agents > known[-1]:
            found += (agents - known[-1]) * (seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
        return steps * max(0.0, found + agents * self._column[phase] * (investable - MEASURED_INVESTABLE))

    def crowding(self, devices: int, cores: int | None) -> float:
        """Return how many times longer work takes on cores that others use too."""
        known = self._crowding if cores is not None else {}
        return float(np.interp(devices, [1, *known], [1.0, *known.values()]))

    def message_s(self, rounds: float, received_bytes: float, link: Link) -> float:
        """Return seconds of a message of so many rounds, from which a device receives so many bytes."""
        a_round, a_byte = self._message
        return rounds * (a_round + link.latency_s) + received_bytes * max(a_byte, 8e-9 / link.gbit)

    def rest_s(self, agents: int) -> float:
        """Return seconds of process 0 outside the phases: checkpoints, above all."""
        return float(self._rest @ [1.0, self.checkpoint_bytes(agents)])

    def checkpoint_bytes(self, agents: int) -> int:
        """Return the bytes of all agents' rows in a checkpoint."""
        return 16 * self.sizes["weights"] * agents

    def memory_bytes(self, plan: Plan, capacity: int) -> int:
        """Return the most bytes of process 0, which assembles checkpoints, with a buffer of `capacity` transitions."""
        transition = 18 + 14 * plan.investable
        own = len(rows_of(plan.agents, 0, plan.devices))
        total = float(self._memory @ [1.0, own]) + capacity * transition
        if plan.devices > 1:
            came = min(plan.agents * self.sizes["transitions"], capacity) * transition
            total += max(COPIES * came, COPIES * self.checkpoint_bytes(plan.agents))
        return int(total)

    def received_bytes(self, plan: Plan, capacity: int) -> int:
        """Return the expected bytes that process 0 receives in a generation, without checkpoints."""
        always = received(self.traffic(plan, capacity), 0, plan.devices)
        return int(sum(always.values()) + self.parent_bytes(plan, capacity))

    def parent_bytes(self, plan: Plan, capacity: int) -> float:
        """Return the expected bytes of parents from other devices, where a quarter of the agents are replaced."""
        children = math.ceil(plan.agents / plan.devices / 4)
        return self.traffic(plan, capacity).parent_bytes * expected_parents(children, plan.agents, plan.devices)

    def traffic(self, plan: Plan, capacity: int) -> Sizes:
        """Return the sizes of a plan's messages."""
        return Sizes(
            agents=plan.agents,
            actor_weights=self.sizes["actor_weights"],
            critic_weights=self.sizes["weights"] - self.sizes["actor_weights"],
            transition_bytes=18 + 14 * plan.investable,
            steps=self.sizes["transitions"] // 2,
            transitions=min(self.sizes["transitions"], capacity // plan.agents),
            curve_bytes=CURVE_BYTES,
        )


def _steps(run: Mapping[str, Any], phase: str) -> int:
    return int(run["optimizer_steps"]) if phase == "train" else 1


def _crowding(measured: Mapping[str, Any]) -> dict[int, float]:
    """Return how many times longer a generation takes with so many independent processes at once."""
    alone = {(run["agents"], run["investable"]): sum(run[phase] for phase in PHASES) for run in measured["alone"]}
    found: dict[int, list[float]] = {}
    for run in measured["crowded"]:
        seconds = sum(run[phase] for phase in PHASES)
        found.setdefault(int(run["copies"]), []).append(seconds / alone[run["agents"], run["investable"]])
    return {copies: max(1.0, float(np.mean(ratios))) for copies, ratios in sorted(found.items())}


def _fit_messages(measured: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return seconds a round and a byte received, by least squares of relative errors."""
    seen = [message for each in measured for message in each["messages"]]
    seconds = np.array([message["seconds"] for message in seen])
    rounds_and_bytes = np.array([[message["processes"] - 1, message["received"]] for message in seen], dtype=float)
    found = nnls(rounds_and_bytes / seconds[:, None], np.ones(len(seen)))[0]
    return float(found[0]), float(found[1])


class _Devices:
    """Clocks of all devices, and where their time goes."""

    def __init__(self, devices: int) -> None:
        self.at = np.zeros(devices)
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._alone = "rest", 0.0

    def work(self, name: str, seconds: Seconds) -> None:
        self.at += seconds
        self.spent[name] += float(seconds.mean())

    def work_first(self, name: str, seconds: float) -> None:
        """Let device 0 work alone; others' wait for it counts as the same."""
        self.at[0] += seconds
        self.spent[name] += seconds / len(self.at)
        self._alone = name, seconds

    def exchange(self, seconds: float) -> None:
        """Let all wait for the slowest, then exchange for so many seconds; nothing happens with one device."""
        if len(self.at) > 1:
            name, alone = self._alone
            last = self.at.max()
            waited = last - self.at
            for_first = np.minimum(waited, alone)
            self.spent[name] += float(for_first.mean())
            self.spent["waiting"] += float((waited - for_first).mean())
            self.spent["messages"] += seconds
            self.at[:] = last + seconds
        self._alone = "rest", 0.0


def simulate(
    costs: Costs,
    plan: Plan,
    link: Link,
    capacity: int,
    generator: np.random.Generator,
    generations: int = 20,
) -> Spent:
    """Replay generations of a run, phases' seconds times log-normal factors, by message; return the mean one."""
    devices, world = _Devices(plan.devices), plan.devices
    own = np.array([len(rows_of(plan.agents, rank, world)) for rank in range(world)])
    crowded = costs.crowding(world, plan.cores)
    sizes = costs.traffic(plan, capacity)
    bytes_of = received(sizes, 0, world)
    parents = costs.parent_bytes(plan, capacity)
    put_in = sizes.transitions * plan.agents * costs.put_in_s * sizes.transition_bytes / (18 + 14 * MEASURED_INVESTABLE)

    def work(phase: str) -> None:
        known = {n: costs.phase_s(phase, n, plan.investable, plan.optimizer_steps) for n in set(own.tolist())}
        usual = crowded * np.array([known[n] for n in own.tolist()])
        devices.work(phase, usual * np.exp(costs.deviation * generator.standard_normal(world)))

    def exchange(received_bytes: float, messages: int = 1, rounds: float = world - 1) -> None:
        devices.exchange(crowded * messages * costs.message_s(rounds, received_bytes / messages, link))

    for _ in range(generations):
        work("evaluate")
        exchange(bytes_of["transitions"], messages=2)
        if world > 1:
            devices.work("journal", np.full(world, crowded * put_in))
        exchange(8 * plan.agents)
        work("train")
        exchange(plan.agents)
        exchange(parents)
        work("evolve")
        work("validate")
        exchange(8 * plan.agents)
        exchange(bytes_of["curves"], messages=2)
        exchange(costs.checkpoint_bytes(plan.agents) if world > 1 else 0)
        devices.work_first("rest", costs.rest_s(plan.agents))
    parts = {name: seconds / generations for name, seconds in devices.spent.items()}
    return Spent(float(devices.at.max()) / generations, parts)
