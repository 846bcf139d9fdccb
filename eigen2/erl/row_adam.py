"""Adam that steps each row of a matrix by itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from eigen2.core.adam import Adam


class RowAdam(Adam):
    """Adam over matrices (agents, weights), each row stepped as `torch.optim.Adam(fused=True)` would step it alone.

    A step of the whole matrix by torch's kernel makes the last bit of a number depend on whether it falls into a full
    vector register or the remainder, and so on the number of agents. The state has Adam's names and one `step` for all
    rows.

    Args:
        groups: parameters and their learning rates.
        fused: use torch's kernel; if not, operations that a compiler can join, with results that differ by rounding.
    """

    def __init__(self, groups: list[dict[str, Any]], fused: bool = True) -> None:
        super().__init__(groups, fused=fused)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, run: Callable[[], Any] | None = None) -> Any:
        """Run the closure, then `step_rows`, or in place of it `run`, and return what the closure returned."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        (run or self.step_rows)()
        return loss

    @torch.no_grad()
    def step_rows(self) -> None:
        """Step every row of the parameters that have a gradient, without the optimizer's hooks."""
        for group in self.param_groups:
            for rows in group["params"]:
                if rows.grad is not None:
                    self._step(rows, rows.grad, group)

    def _step(self, rows: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[rows]
        if not state:
            state["step"] = torch.zeros((), device=rows.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(rows), torch.zeros_like(rows)
        (_fused if group["fused"] else _by_operations)(rows, grad, state, group)


def _fused(rows: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    steps = state["step"].expand(len(rows)).clone()  # copies: the call increments each
    parts = rows, grad, state["exp_avg"], state["exp_avg_sq"], steps
    weights, gradients, averages, squares, counts = (list(part.unbind()) for part in parts)
    options = {name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")}
    beta1, beta2 = group["betas"]
    adam(weights, gradients, averages, squares, [], counts, fused=True, beta1=beta1, beta2=beta2, **options)
    state["step"] += 1


def _by_operations(rows: Tensor, grad: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """Take a step of algorithm 1 of Kingma and Ba, "Adam: a method for stochastic optimization", 2015."""
    (beta1, beta2), average, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
    state["step"] += 1
    average.lerp_(grad, 1 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    # as one tensor: a compiler would compute numbers anew for every few weights
    powers = torch.stack([beta ** state["step"].double() for beta in (beta1, beta2)])
    correction1, correction2 = (1 - powers).float()
    rows.sub_(average * (group["lr"] / correction1) / ((square / correction2).sqrt() + group["eps"]))
