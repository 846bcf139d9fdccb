"""Write an actor as an ONNX graph, for runtimes without torch."""

import logging
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from eigen2.core.networks import Sizes
from eigen2.errors import UserError, install_hint, one_line
from eigen2.files import replacing

LIBRARIES = ("onnx", "onnxscript")


class _Positional(nn.Module):
    """Network with positional inputs, as a graph has no dictionaries."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.network(dict(zip(self.names, inputs, strict=True)))


def write_onnx(actor: nn.Module, sizes: Sizes, file: str | Path) -> Path:
    """Write an actor as a graph from its named inputs, (batch, ...), to `action`; UserError if that fails."""
    file = Path(file)
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(f"an ONNX graph needs {' and '.join(missing)}: {install_hint('onnx')}")
    if "panel" in sizes.inputs:
        problem = "an actor of data.encoding windows reads the whole panel, which an ONNX graph does not hold"
        raise UserError(f"{problem}; train with data.encoding averages")
    for name in ("torch.onnx", *LIBRARIES):
        logging.getLogger(name).setLevel(logging.ERROR)  # they report their progress as warnings
    batch = torch.export.Dim("batch")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own pytrees and axis names
            program = torch.onnx.export(
                _Positional(actor, list(sizes.inputs)).eval(),
                tuple(torch.zeros(2, *shape) for shape in sizes.inputs.values()),  # the graph takes any batch size
                dynamo=True,
                input_names=list(sizes.inputs),
                output_names=["action"],
                dynamic_shapes=(tuple({0: batch} for _ in sizes.inputs),),
                verbose=False,
            )
    except Exception as error:  # tracing a user's network may raise anything
        reason = one_line(error)
        raise UserError(f"{type(actor).__name__} cannot be written as an ONNX graph: {reason}") from error
    assert program is not None
    with replacing(file) as draft:
        program.save(draft)
    return file
