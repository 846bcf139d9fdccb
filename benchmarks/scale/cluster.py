"""What a generation on many devices takes, by what was measured on few: the model behind docs/processes.md.

A device works through its phases, each as long as was measured for that many agents, now and then longer or shorter;
at every message it waits for the slowest. Between messages devices are independent.
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
CURVE_BYTES = 140
"""Of an agent's numbers for the curves, about."""
ROW_FLOATS = 5
"""Numbers a weight that a process holds: itself, its target, its gradient, Adam's two moments."""
COPIES = 3
"""Of what is gathered: as it came, put together, and taken apart again."""


@dataclass(frozen=True)
class Link:
    """What lies between two devices."""

    latency_s: float = 50e-6
    """Of a message, beyond what it takes in one machine."""
    gbit: float = 10.0
    """Gbit a second that a device receives."""


@dataclass(frozen=True)
class Plan:
    """A run whose generations are simulated."""

    agents: int
    devices: int
    investable: int = MEASURED_INVESTABLE
    optimizer_steps: int = 32
    cores: int | None = None
    """That all devices have together, where they are processes of one machine; None: each has what it needs."""


@dataclass
class Spent:
    """Where the time of a generation goes, in seconds of the mean device."""

    seconds: float
    parts: dict[str, float] = field(default_factory=dict)
    """The phases; `journal`, putting transitions into the replay buffer; `rest`, process 0's checkpoints above all and
    that others wait for it; messages; waiting for the slowest."""

    @property
    def computing(self) -> float:
        """Share of the time in which a device does its own agents' work."""
        return sum(self.parts[phase] for phase in PHASES) / self.seconds


class Costs:
    """What work and messages cost, fitted to what `benchmarks.scale.processes` measured.

    Args:
        measured: as that wrote it.

    Attributes:
        sizes: weights and transitions of the measured runs.
        deviation: of a phase's time from its median, relative.
    """

    def __init__(self, measured: Mapping[str, Any]) -> None:
        alone: Sequence[Mapping[str, Any]] = measured["alone"]
        usual = sorted(
            (run for run in alone if run["investable"] == MEASURED_INVESTABLE), key=lambda run: int(run["agents"])
        )
        self._agents = [int(run["agents"]) for run in usual]
        self._seconds = {phase: [run[phase] / _steps(run, phase) for run in usual] for phase in PHASES}
        at = usual[self._agents.index(16)]
        others = [run for run in alone if run["investable"] != MEASURED_INVESTABLE]
        more = np.array([run["investable"] - MEASURED_INVESTABLE for run in others], dtype=float)
        self._column = {
            phase: float(
                more
                @ [run[phase] / _steps(run, phase) - at[phase] / _steps(at, phase) for run in others]
                / (more @ more)
                / 16
            )
            for phase in PHASES
        }
        self.sizes = {name: int(at[name]) for name in ("weights", "actor_weights", "transition_bytes", "transitions")}
        self.deviation = float(np.median([run["deviation"] for run in alone]))
        self._crowding = _crowding(measured)
        self._message = _fit_messages(measured["messages"])
        journals = [each["journal"] for each in measured["messages"][:1]]
        self.put_in_s = float(np.mean([each["seconds"] / each["transitions"] for each in journals]))
        kept = [self.checkpoint_bytes(agents) for agents in self._agents]
        between = [run["rest"] + run["generation"] - sum(run[phase] for phase in PHASES) for run in usual]
        self._rest = nnls(np.column_stack([np.ones(len(kept)), kept]), between)[0]
        generations = 5
        held = [
            min(generations * agents * self.sizes["transitions"], int(at["replay_capacity"]))
            * self.sizes["transition_bytes"]
            for agents in self._agents
        ]
        peaks = [1e6 * run["peak_mb"] - replay for run, replay in zip(usual, held, strict=True)]
        self._memory = nnls(np.column_stack([np.ones(len(peaks)), self._agents]), peaks)[0]

    def phase_s(self, phase: str, agents: int, investable: int, optimizer_steps: int) -> float:
        """Seconds of a phase on a device alone: between measured numbers of agents in proportion, beyond them too."""
        steps = optimizer_steps if phase == "train" else 1
        known, seconds = self._agents, self._seconds[phase]
        found = float(np.interp(agents, known, seconds))
        if agents > known[-1]:
            found += (agents - known[-1]) * (seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
        return steps * max(0.0, found + agents * self._column[phase] * (investable - MEASURED_INVESTABLE))

    def crowding(self, devices: int, cores: int | None) -> float:
        """How much longer work takes on cores that others use too."""
        if cores is None:
            return 1.0
        return float(np.interp(devices, [1, *self._crowding], [1.0, *self._crowding.values()]))

    def message_s(self, rounds: float, received_bytes: float, link: Link) -> float:
        """Seconds of a message that takes so many rounds, and from which a device receives so many bytes."""
        a_round, a_byte = self._message
        return rounds * (a_round + link.latency_s) + received_bytes * max(a_byte, 8e-9 / link.gbit)

    def rest_s(self, agents: int) -> float:
        """Seconds of process 0 outside the phases: checkpoints, above all."""
        return float(self._rest @ [1.0, self.checkpoint_bytes(agents)])

    def checkpoint_bytes(self, agents: int) -> int:
        """Of all agents' rows in a checkpoint."""
        return 16 * self.sizes["weights"] * agents

    def memory_bytes(self, plan: Plan, capacity: int) -> int:
        """At most, of process 0, which puts checkpoints together.

        Args:
            plan: of the run.
            capacity: transitions that the replay buffer holds.
        """
        transition = 18 + 14 * plan.investable
        own = len(rows_of(plan.agents, 0, plan.devices))
        total = float(self._memory @ [1.0, own]) + capacity * transition
        if plan.devices > 1:
            came = min(plan.agents * self.sizes["transitions"], capacity) * transition
            total += max(COPIES * came, COPIES * self.checkpoint_bytes(plan.agents))
        return int(total)

    def received_bytes(self, plan: Plan, capacity: int) -> int:
        """What process 0 receives in a generation, but for checkpoints, by the formula; of parents what is expected."""
        return int(
            sum(received(self.traffic(plan, capacity), 0, plan.devices).values()) + self.parent_bytes(plan, capacity)
        )

    def parent_bytes(self, plan: Plan, capacity: int) -> float:
        """Of parents from elsewhere that a device is expected to want, where a quarter of its agents are replaced."""
        children = math.ceil(plan.agents / plan.devices / 4)
        return self.traffic(plan, capacity).parent_bytes * expected_parents(children, plan.agents, plan.devices)

    def traffic(self, plan: Plan, capacity: int) -> Sizes:
        """The sizes of a plan's messages."""
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
    """How much longer a generation of the same agents takes with so many processes at once, each for itself."""
    alone = {(run["agents"], run["investable"]): sum(run[phase] for phase in PHASES) for run in measured["alone"]}
    found: dict[int, list[float]] = {}
    for run in measured["crowded"]:
        seconds = sum(run[phase] for phase in PHASES)
        found.setdefault(int(run["copies"]), []).append(seconds / alone[run["agents"], run["investable"]])
    return {copies: max(1.0, float(np.mean(ratios))) for copies, ratios in sorted(found.items())}


def _fit_messages(measured: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds a round and a byte received, least squares of relative errors."""
    seen = [message for each in measured for message in each["messages"]]
    seconds = np.array([message["seconds"] for message in seen])
    rounds_and_bytes = np.array([[message["processes"] - 1, message["received"]] for message in seen], dtype=float)
    found = nnls(rounds_and_bytes / seconds[:, None], np.ones(len(seen)))[0]
    return float(found[0]), float(found[1])


class _Devices:
    """Clocks of all devices, and where their time went."""

    def __init__(self, devices: int) -> None:
        self.at = np.zeros(devices)
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._alone = "rest", 0.0

    def work(self, name: str, seconds: Seconds) -> None:
        self.at += seconds
        self.spent[name] += float(seconds.mean())

    def work_first(self, name: str, seconds: float) -> None:
        """What device 0 does alone; that others wait for it counts as the same."""
        self.at[0] += seconds
        self.spent[name] += seconds / len(self.at)
        self._alone = name, seconds

    def meet(self, seconds: float) -> None:
        """All wait for the slowest, and then exchange for so many seconds; nothing where there is one device."""
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
    chance: np.random.Generator,
    generations: int = 20,
) -> Spent:
    """Replay generations of a run, message by message, and say what one takes.

    Args:
        costs: of work and messages.
        plan: the run.
        link: between devices.
        capacity: transitions that the replay buffer holds.
        chance: how much longer or shorter a phase takes than its median, log-normal.
        generations: to replay.
    """
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
        devices.work(phase, usual * np.exp(costs.deviation * chance.standard_normal(world)))

    def tell(received_bytes: float, messages: int = 1, rounds: float = world - 1) -> None:
        devices.meet(crowded * messages * costs.message_s(rounds, received_bytes / messages, link))

    for _ in range(generations):
        work("evaluate")
        tell(bytes_of["transitions"], messages=2)
        if world > 1:
            devices.work("journal", np.full(world, crowded * put_in))
        tell(8 * plan.agents)
        work("train")
        tell(plan.agents)
        tell(parents)
        work("evolve")
        work("validate")
        tell(8 * plan.agents)
        tell(bytes_of["curves"], messages=2)
        tell(costs.checkpoint_bytes(plan.agents) if world > 1 else 0)
        devices.work_first("rest", costs.rest_s(plan.agents))
    parts = {name: seconds / generations for name, seconds in devices.spent.items()}
    return Spent(float(devices.at.max()) / generations, parts)
