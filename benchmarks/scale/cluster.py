"""Model of a generation on many devices, fitted to measurements on few; docs/processes.md describes it.

A device works through its phases, each as long as measured for its number of agents, times a random factor; at every
message it waits for the slowest device. Between messages devices are independent.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy.optimize import nnls

from eigen2.core.shared_replay import CHUNK_BYTES
from eigen2.erl.estimate import EXCHANGE_COPIES
from eigen2.erl.evolution.statistics import MOST_COMPARED
from eigen2.erl.population import ELITES_AT_ONCE
from eigen2.runtime.phases import PHASES

Seconds = Float64[np.ndarray, "devices"]
FLOAT = 4
ROW_TENSORS = 4  # numbers per weight of a parent: weight, target weight and Adam's two moments
CURVE_BYTES = 140  # approximate bytes of an agent's metrics
DRAWS = 24  # transitions that an agent draws for an optimizer step
ELITES = 0.5  # of the agents, whose mean every process computes
PARENT_COPIES = 3  # of parents on their way: packed, received, unpacked
TEXT = 200  # bytes of a process's answer about its part of a checkpoint
SLOT = 8  # bytes of a replay slot's number
GENERATIONS = 5  # generations of the measured runs
CAPACITY = 50_000  # transitions of the replay buffer; larger if a generation adds more


class Link(NamedTuple):
    """Connection between two devices."""

    latency_s: float = 50e-6  # seconds of a message beyond those within one machine
    gbit: float = 10.0  # Gbit/s that a device receives


class Plan(NamedTuple):
    """The run to simulate."""

    agents: int
    devices: int
    optimizer_steps: int = 32

    def rows(self, rank: int) -> range:
        """Return the agents of a device."""
        return range(rank * self.agents // self.devices, (rank + 1) * self.agents // self.devices)


class Timing(NamedTuple):
    """Seconds of a generation, and their parts on the mean device."""

    seconds: float
    parts: Mapping[str, float]
    """The phases; `transition exchange`, adding transitions to the replay buffer and drawing them; `rest`, mainly a
    device's part of checkpoints; `messages`; `waiting` for the slowest device."""

    @property
    def computing(self) -> float:
        """Return the fraction of time that a device spends in the phases of its agents."""
        return sum(self.parts[phase] for phase in PHASES) / self.seconds


class Costs:
    """Costs of work, messages and memory, fitted to the figures of `benchmarks.scale.processes`."""

    def __init__(self, measured: Mapping[str, Any]) -> None:
        alone = sorted(measured["alone"], key=lambda run: int(run["agents"]))
        self._agents = [int(run["agents"]) for run in alone]
        self._seconds = {
            phase: [run[phase] / (run["optimizer_steps"] if phase == "train" else 1) for run in alone]
            for phase in PHASES
        }
        reference = alone[self._agents.index(16)]
        self.weights, self.actor_weights, self.transition_bytes, self.transitions = (
            int(reference[name]) for name in ("weights", "actor_weights", "transition_bytes", "transitions")
        )
        self.deviation = float(np.median([run["deviation"] for run in alone]))
        self._message = _fit_messages(measured["messages"])
        exchange = measured["messages"][0]["transition_exchange"]
        self.exchange_s = float(exchange["seconds"] / exchange["transitions"])
        rest = [run["rest"] + run["generation"] - sum(run[phase] for phase in PHASES) for run in alone]
        self._rest = _line([self.checkpoint_bytes(agents) for agents in self._agents], rest)
        added = [GENERATIONS * agents * self.transitions for agents in self._agents]
        held = [min(count, int(reference["replay_capacity"])) * self.transition_bytes for count in added]
        peaks = [1e6 * run["peak_mb"] - replay for run, replay in zip(alone, held, strict=True)]
        self._memory = _line(self._agents, peaks)

    def phase_s(self, phase: str, agents: int, optimizer_steps: int) -> float:
        """Return seconds of a phase on one device, by linear inter- and extrapolation in the number of agents."""
        sizes, seconds = self._agents, self._seconds[phase]
        estimate = float(np.interp(agents, sizes, seconds))
        if agents > sizes[-1]:
            estimate += (agents - sizes[-1]) * (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        return (optimizer_steps if phase == "train" else 1) * estimate

    def message_s(self, rounds: float, received_bytes: float, link: Link) -> float:
        """Return seconds of a message of `rounds`, in which a device receives `received_bytes`."""
        round_s, byte_s = self._message
        return rounds * (round_s + link.latency_s) + received_bytes * max(byte_s, 8e-9 / link.gbit)

    def rest_s(self, agents: int) -> float:
        """Return seconds of a device outside the phases, mainly for its part of checkpoints."""
        return float(self._rest @ [1.0, self.checkpoint_bytes(agents)])

    def checkpoint_bytes(self, agents: int) -> int:
        """Return the bytes of all agents' rows in a checkpoint."""
        return ROW_TENSORS * FLOAT * self.weights * agents

    def capacity(self, agents: int) -> int:
        """Return the capacity of the replay buffer, at least the transitions of a generation."""
        return max(CAPACITY, agents * self.transitions)

    def memory_bytes(self, plan: Plan) -> int:
        """Return the peak bytes of process 0: its agents and its part of the replay buffer, and what it exchanges."""
        agents = len(plan.rows(0))
        total = float(self._memory @ [1.0, agents]) + self.capacity(plan.agents) * self.transition_bytes / plan.devices
        if plan.devices > 1:
            total += agents * self.transitions * self.transition_bytes
            total += max(EXCHANGE_COPIES * CHUNK_BYTES, PARENT_COPIES * self.received(plan)["parents"])
        return int(total)

    def draws(self, plan: Plan) -> int:
        """Return the transitions that an agent draws in a generation."""
        return DRAWS * plan.optimizer_steps

    def chunks(self, plan: Plan) -> int:
        """Return the messages in which the drawn transitions of a generation come."""
        return math.ceil(len(plan.rows(0)) * self.draws(plan) * self.transition_bytes / CHUNK_BYTES)

    def received(self, plan: Plan) -> dict[str, float]:
        """Return the bytes that process 0 receives in a generation, without champions and checkpoints.

        Bytes of parents are expected values, if evolution replaces a quarter of the agents.
        """
        most = max(len(plan.rows(rank)) for rank in range(plan.devices))
        compared = min(plan.agents, MOST_COMPARED)
        foreign = sum(place * plan.agents // compared not in plan.rows(0) for place in range(compared))
        others, steps = plan.devices - 1, self.transitions // 2
        elsewhere = others / plan.devices * (self.transition_bytes + SLOT)  # bytes a transition, of which most travel
        added, drawn = (plan.agents / plan.devices * count for count in (self.transitions, self.draws(plan)))
        parents = expected_parents(math.ceil(plan.agents / plan.devices / 4), plan.agents, plan.devices)
        return {
            "transitions": added * elsewhere + others * 8 * steps,
            "draws": drawn * elsewhere,
            "fitness": others * most * (8 + 1 + 8 * 2),  # fitness in a window, failed or not, two validation windows
            "curves": others * most * CURVE_BYTES + foreign * FLOAT * self.actor_weights,
            "elites": ELITES * (plan.agents - len(plan.rows(0))) * FLOAT * self.actor_weights,
            "parents": (self.checkpoint_bytes(1) + FLOAT) * parents,  # with their exploration noise
        }


def expected_parents(children: int, agents: int, world: int) -> float:
    """Return the expected number of distinct parents in other processes, two drawn uniformly for each child."""
    elsewhere = agents - agents // world
    # an agent is needed unless all 2 x children draws miss it
    return float(elsewhere * (1 - (1 - 1 / agents) ** (2 * children)))


def _line(sizes: Sequence[float], values: Sequence[float]) -> np.ndarray:
    """Return constant and slope of a least-squares line, neither below 0."""
    return nnls(np.column_stack([np.ones(len(sizes)), sizes]), values)[0]


def _fit_messages(measured: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return seconds per round and per byte received, by least squares of relative errors."""
    messages = [message for row in measured for message in row["messages"]]
    seconds = np.array([message["seconds"] for message in messages])
    rounds_and_bytes = np.array([[message["processes"] - 1, message["received"]] for message in messages], dtype=float)
    round_s, byte_s = nnls(rounds_and_bytes / seconds[:, None], np.ones(len(messages)))[0]
    return float(round_s), float(byte_s)


class _Devices:
    """Clocks of all devices, and the mean time they spent on each part."""

    def __init__(self, devices: int) -> None:
        self.clocks = np.zeros(devices)
        self.spent: defaultdict[str, float] = defaultdict(float)

    def work(self, name: str, seconds: Seconds) -> None:
        self.clocks += seconds
        self.spent[name] += float(seconds.mean())

    def exchange(self, seconds: float) -> None:
        """Let all devices wait for the slowest, then exchange for `seconds`; with one device do nothing."""
        if len(self.clocks) > 1:
            last = self.clocks.max()
            self.spent["waiting"] += float((last - self.clocks).mean())
            self.spent["messages"] += seconds
            self.clocks[:] = last + seconds


def simulate(costs: Costs, plan: Plan, link: Link, generator: np.random.Generator, generations: int = 20) -> Timing:
    """Simulate generations message by message, with log-normal factors on the phases; return their mean."""
    devices, world = _Devices(plan.devices), plan.devices
    agents = [len(plan.rows(rank)) for rank in range(world)]  # by device
    received = costs.received(plan)
    exchange_s = costs.exchange_s * (costs.transitions + costs.draws(plan)) * np.array(agents)
    rest_s = np.array([costs.rest_s(count) for count in agents])

    def work(phase: str) -> None:
        seconds = {n: costs.phase_s(phase, n, plan.optimizer_steps) for n in set(agents)}
        medians = np.array([seconds[n] for n in agents])
        devices.work(phase, medians * np.exp(costs.deviation * generator.standard_normal(world)))

    def exchange(received_bytes: float, messages: int = 1) -> None:
        devices.exchange(messages * costs.message_s(world - 1, received_bytes / messages, link))

    for _ in range(generations):
        work("evaluate")
        exchange(received["transitions"], messages=3)
        if world > 1:
            devices.work("transition exchange", exchange_s)
        exchange(8 * plan.agents)
        work("train")
        exchange(received["draws"], messages=3 * costs.chunks(plan))
        exchange(plan.agents)
        exchange(received["parents"])
        exchange(received["elites"], messages=math.ceil(plan.agents * ELITES / ELITES_AT_ONCE))
        work("evolve")
        work("validate")
        exchange(8 * plan.agents)
        exchange(received["curves"], messages=2)
        devices.work("rest", rest_s)
        exchange(TEXT * world)
    parts = {name: seconds / generations for name, seconds in devices.spent.items()}
    return Timing(float(devices.clocks.max()) / generations, parts)
