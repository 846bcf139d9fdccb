"""Checkpoints of a population spread over processes: one file with all rows, whatever the number of processes."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

Rows = dict[str, Tensor]


def replace_rows(checkpoint: dict[str, Any], names: Iterable[str], change: Callable[[Rows], Rows | None]) -> None:
    """Change tensors with one row per agent in a Lightning checkpoint: the population's `names`, optimizers' moments.

    The results go to new dictionaries, as the old ones are in use; None from `change` leaves the checkpoint as it is.
    """
    weights = dict(checkpoint["state_dict"])
    optimizers = [
        {**optimizer, "state": {key: dict(state) for key, state in optimizer["state"].items()}}
        for optimizer in checkpoint.get("optimizer_states", ())
    ]
    places = [(weights, f"population.{name}") for name in names]
    for state in (state for optimizer in optimizers for state in optimizer["state"].values()):
        places += [(state, name) for name, values in state.items() if isinstance(values, Tensor) and values.dim() == 2]
    changed = change({str(i): holder[name] for i, (holder, name) in enumerate(places)})
    if changed is not None:
        for i, (holder, name) in enumerate(places):
            holder[name] = changed[str(i)]
        checkpoint["state_dict"], checkpoint["optimizer_states"] = weights, optimizers
