"""Write an actor as an ONNX graph, for runtimes without torch."""

import logging
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from eigen2.core.networks import Sizes
from eigen2.errors import UserError
from eigen2.runtime.files import move_into_place

LIBRARIES = ("onnx", "onnxscript")
BATCH = 2
"""Batch size of the traced inputs; the graph takes any."""


class _Positional(nn.Module):
    """Network with positional inputs, as a graph has no dictionaries."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs: Tensor) -> Tensor:
        action: Tensor = self.network(dict(zip(self.names, inputs, strict=True)))
        return action


def write_onnx(actor: nn.Module, sizes: Sizes, file: Path) -> Path:
    """Write a graph with the actor's inputs by name, (batch, ...) each, and the output `action` in [-1, 1].

    Args:
        actor: `forward(inputs) -> (batch, *action)`.
        sizes: shapes it was built for.
        file: written completely or not at all.

    Raises:
        UserError: the libraries are not installed, or the actor cannot be exported.
    """
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(f"an ONNX graph needs {' and '.join(missing)}: pip install 'eigen2[onnx]'")
    if "panel" in sizes.inputs:
        raise UserError(
            "an actor of data.encoding windows reads the whole panel, which an ONNX graph does not hold; "
            "train with data.encoding averages"
        )
    names = list(sizes.inputs)
    example = tuple(torch.zeros(BATCH, *sizes.inputs[name]) for name in names)
    batch = torch.export.Dim("batch")
    quiet = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in quiet]
    try:
        for logger in quiet:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about its own pytrees and axis names
            program = torch.onnx.export(
                _Positional(actor, names).eval(),
                example,
                dynamo=True,
                input_names=names,
                output_names=["action"],
                dynamic_shapes=(tuple({0: batch} for _ in names),),
                verbose=False,
            )
    except Exception as error:  # tracing a user's network may raise anything
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{type(actor).__name__} cannot be written as an ONNX graph: {reason}") from error
    finally:
        for logger, level in zip(quiet, levels, strict=True):
            logger.setLevel(level)
    assert program is not None
    draft = file.with_name(f".{file.name}")
    program.save(draft)
    move_into_place(draft, file)
    return file
