"""Agents whose numbers are not finite: skipped, counted, reported, replaced."""

import logging

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.optim import Optimizer

from eigen2.distributed.communicator import Communicator
from eigen2.erl.learners import Losses
from eigen2.erl.learners.gradients import PARTS, state_faults
from eigen2.erl.population import Population
from eigen2.errors import ALL_AGENTS_FAILED, RunStopped

log = logging.getLogger(__name__)

RETURNS = "actions or rewards"
MOST_NAMED = 8  # agents that a warning names
LAST_STEPS = 2  # an agent that skips this many in a row at the generation's end has failed; one may be chance


class Quarantine:
    """Numbers of this process's agents that were not finite in a generation; `steps` are optimizer steps so far.

    The first `learners` of the agents learn.
    """

    def __init__(self, agents: range, loss: Float[Tensor, "2 agents"], learners: int) -> None:
        size, device = len(agents), loss.device
        self.first, self.steps = agents.start, 0
        self.learners = slice(learners)
        # steps in which each of PARTS was not finite, plus 1 if it is not finite after the last step
        self.faults = torch.zeros(len(PARTS), size, dtype=torch.int64, device=device)
        self.skipped, self.streak = torch.zeros_like(self.faults[:2])  # steps skipped, and how many in a row up to now
        self.misplayed = torch.zeros(size, dtype=torch.bool, device=device)  # not finite in evaluation: see RETURNS
        self.failed = torch.zeros(size, dtype=torch.bool)  # known after `find_failed`
        self.loss = loss  # the step's actor and critic losses so far

    def mask_losses(self, losses: Losses) -> tuple[Float[Tensor, "losses learners"], Bool[Tensor, " learners"]]:
        """Add a batch's losses to those of the step; return them, 0 where one of an agent's is not finite, and a mask.

        The mask has the agents whose losses are all finite.
        """
        values = torch.stack(losses).detach()
        self.loss[:, : values.shape[1]] += values[:2]  # learners come first
        finite = torch.isfinite(values).all(0)
        return torch.where(finite, values, 0.0), finite

    def record_step(self, finite: Bool[Tensor, "parts rows"]) -> Bool[Tensor, " rows"] | None:
        """Record which of the first `PARTS` are finite in an optimizer step; return the rows that skip it, if any."""
        self.loss.zero_()
        self.steps += 1
        if bool(finite.all()):  # the step's one synchronization with the device
            self.streak.zero_()
            return None
        faults, own = ~finite, self.learners
        broken = faults.any(0)
        self.faults[: len(faults), own] += faults[:, own]
        self.skipped[own] += broken[own]
        self.streak[own] = (self.streak[own] + 1) * broken[own]
        return broken

    @torch.no_grad()
    def find_failed(
        self,
        fitness: Float[Tensor, " agents"],
        population: Population,
        optimizer: Optimizer,
        communicator: Communicator,
    ) -> Bool[Tensor, " agents"]:
        """Find the agents that failed in the generation, set their fitness to NaN, and return a mask over all agents.

        They have no finite fitness, skipped the last steps, or end with a weight, target or moment that is not finite.
        """
        failed = ~torch.isfinite(communicator.own_rows(fitness))
        if self.steps:
            failed |= (self.streak >= min(LAST_STEPS, self.steps)).cpu()
        state = state_faults(population, optimizer)
        failed[self.learners] |= state.any(0).cpu()[self.learners]
        self.faults[-len(state) :, self.learners] += state[:, self.learners]
        if population.heads is not None:
            broken = ~torch.isfinite(population.head).all(1)
            failed |= broken.cpu()
            self.faults[PARTS.index("actor weights")] += broken
        self.failed = failed
        everywhere = communicator.gather({"failed": failed}, "failed agents")["failed"]
        fitness[everywhere] = torch.nan
        return everywhere

    @property
    def affected(self) -> Bool[Tensor, " agents"]:
        """Return a mask of the agents that had a number that is not finite."""
        return self.failed | self.faults.any(0).cpu() | self.misplayed.cpu()

    def fault_names(self, row: int | slice = slice(None)) -> str:
        """Return the names of what was not finite in an agent, or in any."""
        names = [RETURNS] * bool(self.misplayed[row].any())
        counts = self.faults[:, row].reshape(len(PARTS), -1).sum(1).tolist()
        return ", ".join(names + [part for part, count in zip(PARTS, counts, strict=True) if count])

    def report(self, failed: Bool[Tensor, " agents"], generation: int, one_learner: bool, evolution: bool) -> None:
        """Log this process's agents whose numbers were not finite, and what becomes of those that failed.

        The only learner goes on from the champion; others are replaced if there is `evolution`. Raises RunStopped if no
        agent is left to evolve or, without evolution, at all.
        """
        needed = failed[int(one_learner) :] if evolution else failed
        if needed.all():
            environment = "look whether the environment returns such observations or rewards; if not, "
            raise RunStopped(
                f"all agents{' that evolve' * (len(needed) < len(failed))} ({len(needed)}) failed in generation "
                f"{generation}, not finite: {(names := self.fault_names())}; {environment * (names == RETURNS)}"
                "start again with a lower model.actor_lr, model.critic_lr, model.max_grad_norm or model.reward_scale",
                ALL_AGENTS_FAILED,
            )
        rows = self.affected.nonzero().flatten().tolist()
        if not rows:
            return
        named = [
            f"agent {self.first + row} ({self.fault_names(row)}; {int(self.skipped[row])} of {self.steps} steps skipped"
            f"{self._fate(row, one_learner, evolution)})"
            for row in rows[:MOST_NAMED]
        ]
        more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
        log.warning("generation %d, not finite: %s%s", generation, ", ".join(named), more)

    def _fate(self, row: int, one_learner: bool, evolution: bool) -> str:
        if not self.failed[row]:
            return ""
        if one_learner and self.first + row == 0:
            return ", goes on from the champion"
        return ", replaced" if evolution else ", not replaced without evolution"
