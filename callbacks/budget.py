"""Stop a run cleanly before the system runs out of memory."""

import warnings

from lightning.pytorch import Callback, LightningModule, Trainer

from eigen2.errors import require_range
from eigen2.memory.limits import Limit, allowed_bytes, limits
from eigen2.memory.process import GB, trim_malloc


class MemoryBudgetExceeded(RuntimeError):
    """The run had used almost all memory available to it; it can be resumed from its last checkpoint."""


class MemoryBudget(Callback):
    """Warns from 80 % of a limit on and ends the run cleanly before the system kills it.

    After every phase that the module announces (see `MemoryProfiler`), after validation and at the end of every epoch,
    it compares what is used with each limit that can stop the process: the budget given here, the control groups of
    containers and job schedulers, RLIMIT_AS, the machine's memory (see `eigen2.memory.limits`).

    From 95 % on, or from 80 % on when an epoch that grows like the last one would reach the limit, the run ends at once
    with `MemoryBudgetExceeded`. At the end of an epoch its checkpoint is written first. Within an epoch none is
    written, as half an epoch cannot be resumed exactly: a resume repeats the epoch from the last checkpoint. Free pages
    are returned to the system before a limit counts as reached.
    """

    warn_at, stop_at = 0.8, 0.95  # fractions of a limit

    def __init__(self, memory_budget_gb: float | None = None, memory_budget_share: float | None = None) -> None:
        """Choose the budget.

        Args:
            memory_budget_gb: GB (10^9 bytes) of resident memory that each process of the run may use, without pages of
                files, above 0. Default none: only what limits the process from outside.
            memory_budget_share: The same as a share of what control groups and the machine allow, above 0 and at most
                1: 0.5 for each of two runs of one process. With both, the smaller counts. Default none.

        Raises:
            UserError: A number is out of its range.
        """
        super().__init__()
        if memory_budget_gb is not None:
            require_range("budget.memory_budget_gb", memory_budget_gb, above=0)
        if memory_budget_share is not None:
            require_range("budget.memory_budget_share", memory_budget_share, above=0, most=1)
        self.memory_budget_gb, self.memory_budget_share = memory_budget_gb, memory_budget_share
        self._warned: set[str] = set()
        self._used: dict[tuple[str, int, str], int] = {}  # of a limit after a phase
        self._reached: Limit | str | None = None  # limit that is reached, or what to say of another process's

    @property
    def budget_bytes(self) -> int | None:
        """Return the resident bytes that the process may use, without pages of files; None if no budget is set."""
        budgets = [] if self.memory_budget_gb is None else [self.memory_budget_gb * GB]
        budgets += [] if self.memory_budget_share is None else [self.memory_budget_share * allowed_bytes()]
        return max(1, int(min(budgets))) if budgets else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to start if almost all memory is used; raises MemoryBudgetExceeded."""
        self._warned.clear()
        self._used.clear()
        self._reached = None
        self.on_phase_end(trainer, pl_module, "start")

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Check after a phase that the module announces; raises MemoryBudgetExceeded."""
        if not trainer.sanity_checking:
            self._stop(self._reached_limit(phase), f"after the {phase} of epoch {trainer.current_epoch}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check after validation; raises MemoryBudgetExceeded."""
        self.on_phase_end(trainer, pl_module, "validation")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check at the end of an epoch, all processes together; let the checkpoint be written before the run ends."""
        self._reached = self._reached_limit("epoch")
        if trainer.strategy.reduce_boolean_decision(self._reached is not None, all=False):
            self._reached = self._reached or "almost all memory of another process"
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run if the last epoch reached a limit and `min_epochs` goes on; raises MemoryBudgetExceeded."""
        self._stop(self._reached, f"before epoch {trainer.current_epoch}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run if its last epoch reached a limit and others would follow; raises MemoryBudgetExceeded."""
        if trainer.max_epochs is None or trainer.max_epochs < 0 or trainer.current_epoch < trainer.max_epochs:
            self._stop(self._reached, f"after epoch {trainer.current_epoch - 1}")

    def _reached_limit(self, phase: str) -> Limit | None:
        """Return the limit that is reached, or None; warn if one is near."""
        budget = self.budget_bytes
        if (found := limits(budget))[0].share >= self.warn_at and trim_malloc():
            found = limits(budget)
        reached = None
        for limit in found:  # all, as one that is far off now may be the first to be reached
            key = limit.name, limit.limit, phase
            grown = max(0, limit.used - self._used.get(key, limit.used))
            self._used[key] = limit.used
            if limit.share >= self.stop_at or (limit.share >= self.warn_at and grown >= limit.left):
                reached = reached or limit
            elif limit.share >= self.warn_at and limit.name not in self._warned:
                self._warned.add(limit.name)
                warnings.warn(f"memory runs short: {limit}; at {self.stop_at:.0%} the run ends", stacklevel=2)
        return reached

    @staticmethod
    def _stop(limit: Limit | str | None, when: str) -> None:
        if limit is not None:
            advice = "resume from the last checkpoint with more memory or smaller settings"
            raise MemoryBudgetExceeded(f"stopped {when}: {limit} used; {advice}")


def budget_of(trainer: Trainer) -> int | None:
    """Return the bytes that the trainer's callbacks allow this process; None without a budget."""
    budgets = [callback.budget_bytes for callback in trainer.callbacks if isinstance(callback, MemoryBudget)]  # type: ignore[attr-defined]
    return min((budget for budget in budgets if budget is not None), default=None)
