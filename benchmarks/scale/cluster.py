"""Model of a generation on many devices, fitted to what was measured on few; docs/processes.md describes it.

A device works through its phases, each as long as was measured for that many agents, times a random factor; at every
message it waits for the slowest. Between messages devices are independent.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy.optimize import nnls

from eigen2.erl.evolution.statistics import MOST_COMPARED

Seconds = Float64[np.ndarray, "devices"]
PHASES = ("evaluate", "train", "evolve", "validate")
FLOAT = 4
ROW_TENSORS = 4  # numbers sent of a parent's weight: itself, its target and Adam's two moments
CURVE_BYTES = 140  # bytes of an agent's numbers for the curves, about
COPIES = 3  # copies of what is gathered: as it came, put together, and taken apart again
GENERATIONS = 5  # generations of the measured runs
CAPACITY = 50_000  # transitions of the replay buffer; more where a generation adds more


class Link(NamedTuple):
    """Connection between two devices."""

    latency_s: float = 50e-6  # seconds of a message beyond what it takes in one machine
    gbit: float = 10.0  # Gbit a second that a device receives


class Plan(NamedTuple):
    """Run whose generations are simulated."""

    agents: int
    devices: int
    optimizer_steps: int = 32

    def rows(self, rank: int) -> range:
        """Return the agents of a device."""
        return range(rank * self.agents // self.devices, (rank + 1) * self.agents // self.devices)


class Spent(NamedTuple):
    """Seconds of a generation and where they go, of the mean device."""

    seconds: float
    parts: Mapping[str, float]
    """The phases; `transition exchange`, putting transitions into the replay buffer; `rest`, process 0's checkpoints
    above all, and others' wait for it; `messages`; `waiting` for the slowest."""

    @property
    def computing(self) -> float:
        """Return the fraction of the time in which a device does its own agents' work."""
        return sum(self.parts[phase] for phase in PHASES) / self.seconds


class Costs:
    """Costs of work, messages and memory, fitted to what `benchmarks.scale.processes` measured."""

    def __init__(self, measured: Mapping[str, Any]) -> None:
        alone = sorted(measured["alone"], key=lambda run: int(run["agents"]))
        self._agents = [int(run["agents"]) for run in alone]
        self._seconds = {
            phase: [run[phase] / (run["optimizer_steps"] if phase == "train" else 1) for run in alone]
            for phase in PHASES
        }
        at = alone[self._agents.index(16)]
        self.weights, self.actor_weights, self.transition_bytes, self.transitions = (
            int(at[name]) for name in ("weights", "actor_weights", "transition_bytes", "transitions")
        )
        self.deviation = float(np.median([run["deviation"] for run in alone]))
        self._message = _fit_messages(measured["messages"])
        exchange = measured["messages"][0]["transition_exchange"]
        self.exchange_s = float(exchange["seconds"] / exchange["transitions"])
        between = [run["rest"] + run["generation"] - sum(run[phase] for phase in PHASES) for run in alone]
        self._rest = _line([self.checkpoint_bytes(agents) for agents in self._agents], between)
        added = [GENERATIONS * agents * self.transitions for agents in self._agents]
        held = [min(count, int(at["replay_capacity"])) * self.transition_bytes for count in added]
        peaks = [1e6 * run["peak_mb"] - replay for run, replay in zip(alone, held, strict=True)]
        self._memory = _line(self._agents, peaks)

    def phase_s(self, phase: str, agents: int, optimizer_steps: int) -> float:
        """Return seconds of a phase on a device alone, linear between measured numbers of agents and beyond them."""
        known, seconds = self._agents, self._seconds[phase]
        found = float(np.interp(agents, known, seconds))
        if agents > known[-1]:
            found += (agents - known[-1]) * (seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
        return (optimizer_steps if phase == "train" else 1) * found

    def message_s(self, rounds: float, received_bytes: float, link: Link) -> float:
        """Return seconds of a message of so many rounds, from which a device receives so many bytes."""
        a_round, a_byte = self._message
        return rounds * (a_round + link.latency_s) + received_bytes * max(a_byte, 8e-9 / link.gbit)

    def rest_s(self, agents: int) -> float:
        """Return seconds of process 0 outside the phases: checkpoints, above all."""
        return float(self._rest @ [1.0, self.checkpoint_bytes(agents)])

    def checkpoint_bytes(self, agents: int) -> int:
        """Return the bytes of all agents' rows in a checkpoint."""
        return ROW_TENSORS * FLOAT * self.weights * agents

    def capacity(self, agents: int) -> int:
        """Return the transitions that a replay buffer holds: those of a generation at least."""
        return max(CAPACITY, agents * self.transitions)

    def memory_bytes(self, plan: Plan) -> int:
        """Return the most bytes of process 0, which assembles checkpoints."""
        capacity = self.capacity(plan.agents)
        total = float(self._memory @ [1.0, len(plan.rows(0))]) + capacity * self.transition_bytes
        if plan.devices > 1:
            came = min(plan.agents * self.transitions, capacity) * self.transition_bytes
            total += max(COPIES * came, COPIES * self.checkpoint_bytes(plan.agents))
        return int(total)

    def received(self, plan: Plan) -> dict[str, float]:
        """Return the bytes that process 0 receives in a generation, without champions and checkpoints.

        Those of parents are expected ones, where a quarter of the agents are replaced.
        """
        most = max(len(plan.rows(rank)) for rank in range(plan.devices))
        compared = min(plan.agents, MOST_COMPARED)
        foreign = sum(place * plan.agents // compared not in plan.rows(0) for place in range(compared))
        others, steps = plan.devices - 1, self.transitions // 2
        parents = expected_parents(math.ceil(plan.agents / plan.devices / 4), plan.agents, plan.devices)
        return {
            "transitions": others * most * self.transitions * self.transition_bytes + others * 8 * steps,
            "fitness": others * most * (8 + 1 + 8),  # of the generation, who failed, of validation
            "curves": others * most * CURVE_BYTES + foreign * FLOAT * self.actor_weights,
            "parents": (self.checkpoint_bytes(1) + FLOAT) * parents,  # each with its exploration noise
        }


def expected_parents(children: int, agents: int, world: int) -> float:
    """Return the expected parents from other processes of so many children, each with two evenly drawn ones."""
    elsewhere = agents - agents // world
    # each of the others is wanted unless none of the 2 x children draws finds it
    return float(elsewhere * (1 - (1 - 1 / agents) ** (2 * children)))


def _line(sizes: Sequence[float], values: Sequence[float]) -> np.ndarray:
    """Return constant and slope, neither below 0."""
    fitted: np.ndarray = nnls(np.column_stack([np.ones(len(sizes)), sizes]), values)[0]
    return fitted


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
        self._rest = 0.0  # seconds that device 0 has worked alone since the last message

    def work(self, name: str, seconds: Seconds) -> None:
        self.at += seconds
        self.spent[name] += float(seconds.mean())

    def work_first(self, seconds: float) -> None:
        """Let device 0 work alone; others' wait for it counts as the same."""
        self.at[0] += seconds
        self.spent["rest"] += seconds / len(self.at)
        self._rest = seconds

    def exchange(self, seconds: float) -> None:
        """Let all wait for the slowest, then exchange for so many seconds; nothing happens with one device."""
        if len(self.at) > 1:
            last = self.at.max()
            waited = last - self.at
            for_first = np.minimum(waited, self._rest)
            self.spent["rest"] += float(for_first.mean())
            self.spent["waiting"] += float((waited - for_first).mean())
            self.spent["messages"] += seconds
            self.at[:] = last + seconds
        self._rest = 0.0


def simulate(costs: Costs, plan: Plan, link: Link, generator: np.random.Generator, generations: int = 20) -> Spent:
    """Replay generations of a run, phases' seconds times log-normal factors, by message; return the mean one."""
    devices, world = _Devices(plan.devices), plan.devices
    own = np.array([len(plan.rows(rank)) for rank in range(world)])
    received = costs.received(plan)
    exchange_s = np.full(world, costs.exchange_s * costs.transitions * plan.agents)

    def work(phase: str) -> None:
        known = {n: costs.phase_s(phase, n, plan.optimizer_steps) for n in set(own.tolist())}
        usual = np.array([known[n] for n in own.tolist()])
        devices.work(phase, usual * np.exp(costs.deviation * generator.standard_normal(world)))

    def exchange(received_bytes: float, messages: int = 1) -> None:
        devices.exchange(messages * costs.message_s(world - 1, received_bytes / messages, link))

    for _ in range(generations):
        work("evaluate")
        exchange(received["transitions"], messages=2)
        if world > 1:
            devices.work("transition exchange", exchange_s)
        exchange(8 * plan.agents)
        work("train")
        exchange(plan.agents)
        exchange(received["parents"])
        work("evolve")
        work("validate")
        exchange(8 * plan.agents)
        exchange(received["curves"], messages=2)
        exchange(costs.checkpoint_bytes(plan.agents) if world > 1 else 0)
        devices.work_first(costs.rest_s(plan.agents))
    parts = {name: seconds / generations for name, seconds in devices.spent.items()}
    return Spent(float(devices.at.max()) / generations, parts)
