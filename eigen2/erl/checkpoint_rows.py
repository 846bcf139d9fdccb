"""Checkpoints of a population spread over processes: one file with all rows, whatever the number of processes."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

Rows = dict[str, Tensor]


def replace_rows(checkpoint: dict[str, Any], names: Iterable[str], change: Callable[[Rows], Rows | None]) -> None:
    """Change what has a row an agent in a checkpoint of Lightning's: the population's `names`, and optimizers' moments.

    It is changed in new dictionaries, as the old ones are in use; not at all where `change` returns None.
    """
    weights = dict(checkpoint["state_dict"])
    optimizers = [
        {**optimizer, "state": {key: dict(state) for key, state in optimizer["state"].items()}}
        for optimizer in checkpoint.get("optimizer_states", ())
    ]
    places = [(weights, f"population.{name}") for name in names]
    for state in (state for optimizer in optimizers for state in optimizer["state"].values()):
        places += [(state, name) for name, values in state.items() if isinstance(values, Tensor) and values.dim() == 2]
    found = change({str(i): holder[name] for i, (holder, name) in enumerate(places)})
    if found is not None:
        for i, (holder, name) in enumerate(places):
            holder[name] = found[str(i)]
        checkpoint["state_dict"], checkpoint["optimizer_states"] = weights, optimizers
