"""Checkpoints of a population spread over processes: one file with all rows, whatever the number of processes."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule

PREFIX = "population."


def collect_rows(checkpoint: dict[str, Any], module: "ERLModule") -> None:
    """Replace this process's rows by those of all agents, in the one process that writes the file.

    Args:
        checkpoint: of Lightning, as it is about to be written.
        module: whose it is.

    Raises:
        RunStopped: contact with another process was lost.
    """
    if module.share.world == 1:
        return
    found = module.share.collect(_rows(checkpoint, module), "a checkpoint")
    if found is not None:
        _replace(checkpoint, module, found)


def keep_own_rows(checkpoint: dict[str, Any], module: "ERLModule") -> None:
    """Replace all agents' rows by those that belong to this process.

    Args:
        checkpoint: as it was read, whichever number of processes has written it.
        module: that is about to be restored from it.
    """
    if module.share.world == 1:
        return
    rows = _rows(checkpoint, module)
    _replace(checkpoint, module, {name: module.share.own_rows(values).clone() for name, values in rows.items()})


def _rows(checkpoint: dict[str, Any], module: "ERLModule") -> dict[str, Tensor]:
    """Everything with a row an agent, of the module's state and of the optimizers'."""
    weights = {f"{PREFIX}{name}": checkpoint["state_dict"][f"{PREFIX}{name}"] for name in module.population.rows()}
    moments = {
        f"{i} {parameter} {name}": values
        for i, optimizer in enumerate(checkpoint.get("optimizer_states", ()))
        for parameter, state in optimizer["state"].items()
        for name, values in state.items()
        if isinstance(values, Tensor) and values.dim() == 2
    }
    return weights | moments


def _replace(checkpoint: dict[str, Any], module: "ERLModule", rows: dict[str, Tensor]) -> None:
    """Put rows in the places of `_rows`, in dictionaries of their own: an optimizer's are those it works with."""
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
