"""Adam that steps each row of a matrix by itself."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from eigen2.core.adam import Adam
from eigen2.erl.graphs import Graphs


class RowAdam(Adam):
    """Adam over matrices (agents, weights), each row stepped as `torch.optim.Adam(fused=True)` would step it alone.

    A step of the whole matrix makes the last bit of a number depend on whether it falls into a full vector register
    or the remainder, and so on the number of agents. The state has Adam's names and one `step` for all rows.
    """

    def __init__(self, groups: list[dict[str, Any]], graphs: Graphs | None = None) -> None:
        super().__init__(groups, fused=True)
        self._graphs = graphs or Graphs()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every row of the parameters that have a gradient; return what the closure returned."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        stepped = tuple(rows.grad is not None for group in self.param_groups for rows in group["params"])
        self._graphs(self._step_all, {}, stepped)
        return loss

    def _step_all(self, tensors: Mapping[str, Tensor], stepped: tuple[bool, ...]) -> None:
        parameters = [(rows, group) for group in self.param_groups for rows in group["params"]]
        for (rows, group), chosen in zip(parameters, stepped, strict=True):
            if chosen:
                self._step(rows, rows.grad, group)

    def _step(self, rows: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[rows], group["betas"]
        if not state:
            state["step"] = torch.zeros((), device=rows.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(rows), torch.zeros_like(rows)
        steps = state["step"].expand(len(rows)).clone()  # copies: the call increments each
        parts = rows, grad, state["exp_avg"], state["exp_avg_sq"], steps
        weights, gradients, averages, squares, counts = (list(part.unbind()) for part in parts)
        options = {name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")}
        adam(weights, gradients, averages, squares, [], counts, fused=True, beta1=beta1, beta2=beta2, **options)
        state["step"] += 1
