"""Agents whose numbers are not finite: skipped, counted, reported, replaced; the evidence if none is left."""

import logging
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eigen2.distributed.communicator import Communicator
from eigen2.erl.learners import Losses
from eigen2.erl.learners.gradients import PARTS, Optimizer, state_faults, state_is_finite
from eigen2.erl.population import Population
from eigen2.runtime.checkpoint import DurableCheckpointIO

log = logging.getLogger(__name__)

RETURNS = "actions or rewards"
MOST_NAMED = 8
"""Agents that a warning names."""
LAST_STEPS = 2
"""An agent that skipped so many steps in a row up to the generation's end has failed: one alone may be chance."""
EVIDENCE_BYTES = 64 * 2**20
"""About the size of the evidence: weights of as many agents as fit, at least one's."""


class Quarantine:
    """Numbers of this process's agents that were not finite in a generation.

    Args:
        agents: their numbers in the whole population.
        device: of the population.

    Attributes:
        faults: (parts, agents) steps in which a part was not finite, by `PARTS`; one more if it ends so.
        skipped: (agents,) steps that each agent skipped.
        streak: (agents,) how many of these were the last ones in a row.
        steps: optimizer steps so far.
        misplayed: (agents,) whether an action or reward of the evaluation was not finite.
        failed: (agents,) which agents are to be replaced, known after `judge`.
        last: the last step that an agent skipped, and the losses (2, agents) of it.
    """

    def __init__(self, agents: range, device: torch.device | str = "cpu") -> None:
        size = len(agents)
        self.first = agents.start
        self.faults = torch.zeros(len(PARTS), size, dtype=torch.int64, device=device)
        self.skipped = torch.zeros(size, dtype=torch.int64, device=device)
        self.streak = torch.zeros_like(self.skipped)
        self.steps = 0
        self.misplayed = torch.zeros(size, dtype=torch.bool, device=device)
        self.failed = torch.zeros(size, dtype=torch.bool)
        self.loss = torch.zeros(2, size, device=device)
        self.last: tuple[int, Tensor] | None = None

    def record_losses(self, losses: Losses) -> tuple[Float[Tensor, "losses learners"], Bool[Tensor, " learners"]]:
        """Record a micro-batch's losses.

        Returns:
            The losses, 0 for agents of which one is not finite; and whether all of an agent's are finite.
        """
        values = torch.stack(losses).detach()
        self.loss[:, : values.shape[1]] += values[:2]  # of those that learn
        finite = torch.isfinite(values).all(0)
        return torch.where(finite, values, 0.0), finite

    def record_step(self, faults: Bool[Tensor, "parts agents"] | None) -> Bool[Tensor, " agents"] | None:
        """Record an optimizer step and the `faults` that it returned; return the agents that skipped it, if any."""
        broken = None
        if faults is None:
            self.streak.zero_()
        else:
            broken = faults.any(0)
            self.faults += faults
            self.skipped += broken
            self.streak = (self.streak + 1) * broken
            self.last = self.steps, self.loss.clone()
        self.loss.zero_()
        self.steps += 1
        return broken

    def judge(self, fitness: Float[Tensor, " agents"], state: Bool[Tensor, "parts agents"] | None) -> None:
        """Find the agents that failed: no finite fitness, the last steps skipped, or weights that are not finite.

        Args:
            fitness: of this process's agents.
            state: where weights, targets and moments are not finite after training, by `PARTS` from the fifth on;
                None if all are finite.
        """
        failed = ~torch.isfinite(fitness)
        if self.steps:
            failed |= (self.streak >= min(LAST_STEPS, self.steps)).cpu()
        if state is not None:
            failed |= state.any(0).cpu()
            self.faults[-len(state) :] += state
        self.failed = failed

    @property
    def agents(self) -> Bool[Tensor, " agents"]:
        """Return which agents had a number that is not finite."""
        return self.failed | (self.faults.any(0) | self.misplayed).cpu()

    def parts(self, row: int | slice = slice(None)) -> str:
        """Return the parts of an agent, or of all, that were not finite."""
        found = [RETURNS] * bool(self.misplayed[row].any())
        counts = self.faults[:, row].reshape(len(PARTS), -1).sum(1).tolist()
        return ", ".join(found + [part for part, count in zip(PARTS, counts, strict=True) if count])

    def warn(self, generation: int, fate: str) -> None:
        """Warn of agents with numbers that are not finite, and of what becomes of those that failed."""
        rows = self.agents.nonzero().flatten().tolist()
        if not rows:
            return
        named = [
            f"agent {self.first + row} ({self.parts(row)}; {int(self.skipped[row])} of {self.steps} steps skipped"
            f"{fate if self.failed[row] else ''})"
            for row in rows[:MOST_NAMED]
        ]
        more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
        log.warning("generation %d, not finite: %s%s", generation, ", ".join(named), more)


def save_evidence(contents: dict[str, Any], path: Path) -> str:
    """Write why all agents failed, tensors and plain values, and return where it lies."""
    try:
        plain = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in contents.items()}
        DurableCheckpointIO().save_checkpoint(plain, path)
    except OSError as error:
        return f"the evidence could not be written to {path} ({error.strerror or error})"
    return f"evidence in {path}"


@torch.no_grad()
def judge_agents(
    quarantine: Quarantine,
    fitness: Float[Tensor, " agents"],
    population: Population,
    optimizer: Optimizer,
    communicator: Communicator,
) -> Bool[Tensor, " agents"]:
    """Set the fitness of agents that failed in a generation to NaN, and return which failed of all."""
    faults = None if bool(state_is_finite(population, optimizer)) else state_faults(population, optimizer)
    quarantine.judge(communicator.own_rows(fitness), faults)
    failed = communicator.gather({"failed": quarantine.failed}, "who failed")["failed"]
    fitness[failed] = torch.nan
    return failed


def evidence(
    quarantine: Quarantine, population: Population, fitness: Tensor, slots: Tensor | None, accumulate: int
) -> dict[str, Any]:
    """Return what shows why all agents failed: faults, the last step that was skipped, weights.

    Args:
        quarantine: of the generation.
        population: of this process.
        fitness: of all agents, as it was measured.
        slots: replay slots of all micro-batches.
        accumulate: micro-batches of an optimizer step.
    """
    contents: dict[str, Any] = {
        "parts": list(PARTS),
        "faults": quarantine.faults,
        "misplayed": quarantine.misplayed,
        "skipped": quarantine.skipped,
        "steps": quarantine.steps,
        "fitness": fitness,
    }
    if quarantine.last is not None and slots is not None:
        step, losses = quarantine.last
        last = slots[step * accumulate : (step + 1) * accumulate].clone()
        contents |= {"step": step, "losses": losses / accumulate, "slots": last}
    kept = max(1, EVIDENCE_BYTES // (8 * population.weights_per_agent))
    return contents | {name: rows[:kept].clone() for name, rows in population.rows().items() if name != "noise"}
