"""Agents whose numbers go wrong in a generation: counted, named, given up; the evidence if none is left."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eigen2.erl.learners import ddpg
from eigen2.errors import ALL_AGENTS_FAILED, RunStopped
from eigen2.runtime.checkpoint import DurableCheckpointIO

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule

log = logging.getLogger(__name__)

RETURNS = "actions or rewards"
MOST_NAMED = 8
"""Agents that a warning names."""
LAST_STEPS = 2
"""An agent that sat out that many steps in a row, up to the generation's end, has failed: one alone may be chance."""
EVIDENCE_BYTES = 64 * 2**20
"""About what the evidence takes: weights of as many agents as fit, at least one's."""


class Quarantine:
    """What was not finite in the generation in progress, agent by agent.

    Args:
        agents: how many there are here.
        device: where they are.
        first: number of the first of them.

    Attributes:
        faults: (parts, agents) steps in which a part was not finite, by `ddpg.PARTS`; and once more if it is left so.
        skipped: (agents,) steps that each agent sat out.
        streak: (agents,) how many of these were the last ones, without one in between that it took.
        steps: optimizer steps so far.
        misplayed: (agents,) whether an action or reward of the evaluation was not finite.
        failed: (agents,) who is to be replaced, known once agents have been judged.
    """

    def __init__(self, agents: int, device: torch.device | str = "cpu", first: int = 0) -> None:
        self.first = first
        self.faults = torch.zeros(len(ddpg.PARTS), agents, dtype=torch.int64, device=device)
        self.skipped = torch.zeros(agents, dtype=torch.int64, device=device)
        self.streak = torch.zeros_like(self.skipped)
        self.steps = 0
        self.misplayed = torch.zeros(agents, dtype=torch.bool, device=device)
        self.failed = torch.zeros(agents, dtype=torch.bool)
        self.loss = torch.zeros(2, agents, device=device)
        self.last: tuple[int, Tensor] | None = None  # the last step that an agent sat out, and its losses

    def heed(self, losses: ddpg.Losses) -> tuple[Float[Tensor, "losses learners"], Bool[Tensor, " learners"]]:
        """Take note of a micro-batch's losses.

        Returns:
            The losses, 0 for agents of which one is not finite, and whether all are.
        """
        values = torch.stack(losses).detach()
        self.loss[:, : values.shape[1]] += values[:2]  # of those that learn
        sound = torch.isfinite(values).all(0)
        return torch.where(sound, values, 0.0), sound

    def note(self, faults: Bool[Tensor, "parts agents"] | None) -> Bool[Tensor, " agents"] | None:
        """Take note of an optimizer step, of which `ddpg.step` returned `faults`; return who sat it out, if any."""
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
        """Find the agents that failed: no finite fitness, the last steps sat out, or numbers left that are not finite.

        Args:
            fitness: of the generation.
            state: where weights, targets and moments are not finite after training, by `ddpg.PARTS` from the fifth
                on; None if nowhere.
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
        """Who had a number that is not finite."""
        return self.failed | (self.faults.any(0) | self.misplayed).cpu()

    def parts(self, row: int | slice = slice(None)) -> str:
        """What was not finite of an agent, or of all."""
        found = [RETURNS] * bool(self.misplayed[row].any())
        counts = self.faults[:, row].reshape(len(ddpg.PARTS), -1).sum(1).tolist()
        return ", ".join(found + [part for part, count in zip(ddpg.PARTS, counts, strict=True) if count])

    def describe(self, fate: str) -> str:
        """Agents, what was not finite, the steps they sat out and what becomes of those that failed."""
        rows = self.agents.nonzero().flatten().tolist()
        words = [
            f"agent {self.first + row} ({self.parts(row)}; {int(self.skipped[row])} of {self.steps} steps skipped"
            f"{fate if self.failed[row] else ''})"
            for row in rows[:MOST_NAMED]
        ]
        return ", ".join(words) + (f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else "")


@torch.no_grad()
def conclude(module: "ERLModule") -> Bool[Tensor, " agents"]:
    """Judge the agents after a generation's training and warn of those here with numbers that are not finite.

    Raises:
        RunStopped: no agent is left; the evidence is saved.

    Returns:
        The agents to be replaced, of the whole population.
    """
    quarantine, population = module.quarantine, module.population
    finite = bool(ddpg.state_is_finite(population, module.optimizer))
    faults = None if finite else ddpg.state_faults(population, module.optimizer)
    quarantine.judge(module.share.own_rows(module.fitness), faults)
    failed = module.share.gather({"failed": quarantine.failed}, "who failed")["failed"]
    if failed.all():
        place = _save_evidence(module)
        raise RunStopped(
            f"all agents ({module.population_size}) failed in generation {module.current_epoch}, not finite: "
            f"{quarantine.parts()}; {place}; start again with a lower model.actor_lr, model.critic_lr, "
            "model.max_grad_norm or model.reward_scale",
            ALL_AGENTS_FAILED,
        )
    if quarantine.agents.any():
        fate = ", replaced" if module.evolution else ", not replaced without evolution"
        log.warning("generation %d, not finite: %s", module.current_epoch, quarantine.describe(fate))
    return failed


def _save_evidence(module: "ERLModule") -> str:
    """Write what shows why the agents failed to `failure/evidence.pt` in the run's folder; say where it lies."""
    path = Path(module.trainer.default_root_dir) / "failure" / "evidence.pt"
    if module.share.rank:
        return f"process 0 writes its evidence to {path}"
    try:
        DurableCheckpointIO().save_checkpoint(_evidence(module), path)
    except OSError as error:
        return f"the evidence could not be written to {path} ({error.strerror or error})"
    return f"evidence in {path}"


def _evidence(module: "ERLModule") -> dict[str, Any]:
    """Tensors and plain values: what was not finite, the last step that was skipped, weights."""
    quarantine, population = module.quarantine, module.population
    evidence: dict[str, Any] = {
        "generation": module.current_epoch,
        "parts": list(ddpg.PARTS),
        "faults": quarantine.faults,
        "misplayed": quarantine.misplayed,
        "skipped": quarantine.skipped,
        "steps": quarantine.steps,
        "fitness": module.fitness,
    }
    if quarantine.last is not None and module.slots is not None:
        step, losses = quarantine.last
        slots = module.slots[step * module.accumulate : (step + 1) * module.accumulate]
        rewards = module.data.buffer["reward"][slots.to(module.device)]
        evidence |= {"step": step, "losses": losses / module.accumulate, "slots": slots.clone(), "rewards": rewards}
    kept = max(1, EVIDENCE_BYTES // (8 * population.weights_per_agent))
    names = "actor", "critic", "actor_target", "critic_target"
    evidence |= {name: getattr(population, name).detach()[:kept].clone() for name in names}
    return {name: value.cpu() if isinstance(value, Tensor) else value for name, value in evidence.items()}
