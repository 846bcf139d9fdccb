"""Checkpoints of a population spread over processes: each writes its agents and replay slots as a part."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigen2.distributed.communicator import Communicator
from eigen2.runtime.checkpoint import read_part


def split_checkpoint(checkpoint: dict[str, Any], names: Iterable[str], agents: int, data: str, capacity: int) -> None:
    """Move what this process alone holds to the checkpoint's `part`; tensors without data keep the shapes of all.

    These are rows of `agents`, the population's `names` and the optimizers' moments, and, in the state of the data
    module `data`, the slots of a replay buffer of `capacity`.
    """
    part = {}
    for name, (holder, key) in _row_tensors(checkpoint, names).items():
        part[name], holder[key] = holder[key], _without_data(holder[key], agents)
    storage = checkpoint[data]["replay"]["storage"]
    for name, values in storage.items():
        part[f"replay.{name}"], storage[name] = values, _without_data(values, capacity)
    checkpoint["part"] = part


def join_checkpoint(
    checkpoint: dict[str, Any], names: Iterable[str], communicator: Communicator, data: str, files: Sequence[Path]
) -> None:
    """Put this process's rows in place of all; `files` has the checkpoint's parts, none if it is one file.

    A part that holds nothing for this process is not read.
    """
    own, world, step = communicator.rows, len(files), math.gcd(communicator.world, len(files))
    saved = [Communicator(communicator.total, rank, world).rows for rank in range(world)]
    overlaps = [range(max(own.start, rows.start), min(own.stop, rows.stop)) for rows in saved]
    parts: list[dict[str, Tensor]] = [
        read_part(file) if overlap or (communicator.rank - rank) % step == 0 else {}
        for rank, (file, overlap) in enumerate(zip(files, overlaps, strict=True))
    ]
    for name, (holder, key) in _row_tensors(checkpoint, names).items():
        pieces = [
            part[name][overlap.start - rows.start : overlap.stop - rows.start]
            for part, rows, overlap in zip(parts, saved, overlaps, strict=True)
            if overlap
        ]
        holder[key] = torch.cat(pieces) if files else communicator.own_rows(holder[key]).clone()
    if files and "replay" in (state := checkpoint.get(data, {})):
        state["replay"]["parts"] = [
            {name: part[f"replay.{name}"] for name in state["replay"]["storage"]} if part else {} for part in parts
        ]


def _row_tensors(checkpoint: dict[str, Any], names: Iterable[str]) -> dict[str, tuple[dict[str, Any], str]]:
    """Return dictionary and key of every tensor with a row per agent, by name; dictionaries in use are copied first."""
    weights = checkpoint["state_dict"] = dict(checkpoint["state_dict"])
    found = {name: (weights, name) for name in (f"population.{name}" for name in names)}
    # where one agent alone learns, all hold what the optimizer does
    optimizers = [
        {**optimizer, "state": {key: dict(state) for key, state in optimizer["state"].items()}}
        for optimizer in checkpoint.get("optimizer_states", ())
    ]
    if "population.actor" not in found:
        return found
    if optimizers:
        checkpoint["optimizer_states"] = optimizers
    for number, optimizer in enumerate(optimizers):
        for rows, state in optimizer["state"].items():
            matrices = [key for key, values in state.items() if isinstance(values, Tensor) and values.dim() == 2]
            found |= {f"optimizer {number}.{rows}.{key}": (state, key) for key in matrices}
    return found


def _without_data(values: Tensor, rows: int) -> Tensor:
    return values.new_empty((rows, *values.shape[1:]), device="meta")
