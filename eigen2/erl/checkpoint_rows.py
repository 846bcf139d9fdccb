"""Checkpoints of a population spread over processes: one file with all rows, whatever the number of processes."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from eigen2.distributed.communicator import Communicator

PREFIX = "population."


def collect_rows(checkpoint: dict[str, Any], names: Iterable[str], communicator: Communicator) -> None:
    """Replace this process's rows by those of all agents, in the process that writes the file.

    Args:
        checkpoint: Lightning's, about to be written.
        names: tensors of the population with a row an agent.
        communicator: partition of the population.

    Raises:
        RunStopped: contact with another process was lost.
    """
    if communicator.world > 1:
        found = communicator.collect(_rows(checkpoint, names), "a checkpoint")
        if found is not None:
            _replace(checkpoint, found)


def keep_own_rows(checkpoint: dict[str, Any], names: Iterable[str], communicator: Communicator) -> None:
    """Replace all agents' rows by this process's, whichever number of processes has written the checkpoint."""
    if communicator.world > 1:
        rows = _rows(checkpoint, names)
        _replace(checkpoint, {name: communicator.own_rows(values).clone() for name, values in rows.items()})


def _rows(checkpoint: dict[str, Any], names: Iterable[str]) -> dict[str, Tensor]:
    """Return everything with a row an agent, of the module's state and of the optimizers'."""
    weights = {f"{PREFIX}{name}": checkpoint["state_dict"][f"{PREFIX}{name}"] for name in names}
    moments = {
        f"{i} {parameter} {name}": values
        for i, optimizer in enumerate(checkpoint.get("optimizer_states", ()))
        for parameter, state in optimizer["state"].items()
        for name, values in state.items()
        if isinstance(values, Tensor) and values.dim() == 2
    }
    return weights | moments


def _replace(checkpoint: dict[str, Any], rows: dict[str, Tensor]) -> None:
    """Put rows in the places of `_rows`, in new dictionaries: the optimizer works with the old ones."""
    state = checkpoint["state_dict"]
    checkpoint["state_dict"] = {name: rows.get(name, values) for name, values in state.items()}
    checkpoint["optimizer_states"] = [
        {
            **optimizer,
            "state": {
                parameter: {name: rows.get(f"{i} {parameter} {name}", values) for name, values in state.items()}
                for parameter, state in optimizer["state"].items()
            },
        }
        for i, optimizer in enumerate(checkpoint.get("optimizer_states", ()))
    ]
