"""Adam with a learning rate for each row of a matrix."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adam import adam


class RowAdam(torch.optim.Adam):
    """Adam over matrices with a row an agent, of which each agent takes steps of its own length.

    A row is stepped as `torch.optim.Adam(fused=True)` would step it alone, bit for bit, and the state has the same
    names and shapes: `exp_avg`, `exp_avg_sq` and one `step` for all rows.

    Args:
        groups: as `torch.optim.Adam` takes them, each with its `lr`; every parameter (agents, weights).
        factors: what each agent's rate is in units of its group's, (agents,) for each group; asked at every step.
    """

    def __init__(
        self, groups: list[dict[str, Any]], factors: Callable[[], tuple[Float[Tensor, " agents"], ...]]
    ) -> None:
        super().__init__(groups, fused=True)
        self._factors = factors

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every row of the parameters that have a gradient; return what the closure returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, factors in zip(self.param_groups, self._factors(), strict=True):
            rates = [group["lr"] * factor for factor in factors.tolist()]
            for rows in group["params"]:
                if rows.grad is not None:
                    self._step_rows(rows, rates, group)
        return loss

    def _step_rows(self, rows: Tensor, rates: list[float], group: dict[str, Any]) -> None:
        state = self.state[rows]
        if not state:
            state["step"] = torch.zeros((), device=rows.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(rows), torch.zeros_like(rows)
        beta1, beta2 = group["betas"]
        for row, rate in enumerate(rates):
            adam(
                [rows[row]],
                [rows.grad[row]],  # type: ignore[index]
                [state["exp_avg"][row]],
                [state["exp_avg_sq"][row]],
                [],
                [state["step"].clone()],  # which the call counts on, row by row
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=rate,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
        state["step"] += 1
