"""Adam with a learning rate for each row of a matrix."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adam import adam


class RowAdam(torch.optim.Adam):
    """Adam over matrices with a row an agent, each of which is stepped by itself.

    A row is stepped as `torch.optim.Adam(fused=True)` would step it alone, bit for bit. Over the whole matrix a
    number's last bit depends on whether it falls into a vector or into the rest after the last one, and so on how
    many agents belong to a process. The state has the same names and shapes: `exp_avg`, `exp_avg_sq` and one `step`
    for all rows.

    Args:
        groups: as `torch.optim.Adam` takes them, each with its `lr`; every parameter (agents, weights).
        factors: what each agent's rate is in units of its group's, (agents,) for each group, asked at every step; None
            where all have their group's.
    """

    def __init__(
        self, groups: list[dict[str, Any]], factors: Callable[[], tuple[Float[Tensor, " agents"], ...]] | None = None
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
        own = [None] * len(self.param_groups) if self._factors is None else self._factors()
        for group, factors in zip(self.param_groups, own, strict=True):
            for rows in group["params"]:
                if rows.grad is not None:
                    self._step(rows, factors, group)
        return loss

    def _step(self, rows: Tensor, factors: Float[Tensor, " agents"] | None, group: dict[str, Any]) -> None:
        state = self.state[rows]
        if not state:
            state["step"] = torch.zeros((), device=rows.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(rows), torch.zeros_like(rows)
        if factors is None:
            self._step_rows(rows, slice(None), group["lr"], group)
        else:
            for row, factor in enumerate(factors.tolist()):
                self._step_rows(rows, slice(row, row + 1), group["lr"] * factor, group)
        state["step"] += 1

    def _step_rows(self, rows: Tensor, chosen: slice, rate: float, group: dict[str, Any]) -> None:
        """Step the chosen rows, each as a parameter of its own, with one rate."""
        state, grad = self.state[rows], rows.grad
        assert grad is not None
        count = len(rows[chosen])
        beta1, beta2 = group["betas"]
        adam(
            list(rows[chosen].unbind()),
            list(grad[chosen].unbind()),
            list(state["exp_avg"][chosen].unbind()),
            list(state["exp_avg_sq"][chosen].unbind()),
            [],
            list(state["step"].repeat(count).unbind()),  # copies, which the call counts on
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=rate,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
