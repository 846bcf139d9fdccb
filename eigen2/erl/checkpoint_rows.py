"""Checkpoints of a population spread over processes: one file with all rows, whatever the number of processes."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from eigen2.distributed.communicator import Communicator

Rows = dict[str, Tensor]


def collect_rows(checkpoint: dict[str, Any], names: Iterable[str], communicator: Communicator) -> None:
    """Replace this process's rows by those of all agents, in the process that writes a checkpoint of Lightning's.

    `names` are the population's tensors with a row an agent.
    """
    if communicator.world > 1:
        _replace(checkpoint, names, lambda rows: communicator.collect(rows, "a checkpoint"))


def keep_own_rows(checkpoint: dict[str, Any], names: Iterable[str], communicator: Communicator) -> None:
    """Replace all agents' rows by this process's, whichever number of processes has written the checkpoint."""
    if communicator.world > 1:
        own = communicator.own_rows
        _replace(checkpoint, names, lambda rows: {name: own(values).clone() for name, values in rows.items()})


def _replace(checkpoint: dict[str, Any], names: Iterable[str], change: Callable[[Rows], Rows | None]) -> None:
    """Change what has a row an agent, of the module and of optimizers, in new dictionaries: the old ones are in use."""
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
