"""Steps of training that are compiled for the CPU."""

import logging
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from eigen2 import compat

log = logging.getLogger(__name__)

Run = Callable[[], Any]


class Compiled:
    """A function without arguments whose operations, backward passes included, are compiled as one graph.

    They are recorded while it runs, and what it wrote is put back, so that already its first call runs compiled, and a
    resumed run has the bits of one that never stopped. One that cannot be compiled runs as it is, after a warning.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._compiled: Run | None = None

    def __call__(self) -> Any:
        """Make the operations once, and return what the function returns."""
        if self._compiled is None:
            try:
                record(self._run)  # allocates what the function keeps
                self._compiled = _compile(*record(self._run))
            except Exception as error:  # also whatever the compiler raises
                self._compiled = self._run
                log.warning(
                    "a training step runs slower than it could, as it cannot be compiled (%s): learner and networks "
                    "must not read a tensor's value (item, if, boolean masks) or draw random numbers, and a C++ "
                    "compiler must be installed; else set model.compile to false",
                    str(error).splitlines()[0] if str(error) else type(error).__name__,
                )
        return self._compiled()


def _compile(recording: "Recording", result: Any) -> Run:
    leaves, spec = tree_flatten(result)
    recording.graph.output(tuple(recording.node(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
    inputs = [tensor.detach() for tensor in recording.inputs]
    with torch.no_grad():
        compiled = compat.compile_graph(fx.GraphModule({}, recording.graph), inputs)

    @torch.no_grad()
    def run() -> Any:
        return tree_unflatten(compiled(*inputs), spec)

    return run


def record(run: Run) -> tuple["Recording", Any]:
    """Return the operations of a function and what it returns, after putting back what it wrote."""
    recording = Recording()
    try:
        with compat.intercept(recording.add):
            result = run()
    finally:
        recording.undo()
    return recording, result


class Recording:
    """Operations as a graph, whose inputs are all tensors that no operation made."""

    def __init__(self) -> None:
        self.graph, self.inputs = fx.Graph(), list[Tensor]()
        self._first: fx.Node | None = None  # operation
        self._nodes: dict[int, fx.Node] = {}  # by the id of a tensor
        self._tensors: list[Tensor] = []  # all of them: while they live, no other gets their id
        self._before: list[tuple[Tensor, Tensor]] = []  # what was written to, and a copy from before

    def node(self, tensor: Tensor) -> fx.Node:
        """Return what stands for a tensor in the graph."""
        if id(tensor) not in self._nodes:
            self.inputs.append(tensor)
            with self.graph.inserting_before(self._first):
                self._put(tensor, self.graph.placeholder(f"input_{len(self.inputs)}"))
        return self._nodes[id(tensor)]

    def add(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make an operation and record it."""
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise RuntimeError(f"{function} draws random numbers")
        nodes = tree_map_only(Tensor, self.node, (args, kwargs))
        if function._schema.is_mutable:
            self._keep(function, args, kwargs)
        results = function(*args, **kwargs)
        # a constant is an input, which a later operation could change
        node = self.graph.call_function(_COPY if function is torch.ops.aten.lift_fresh.default else function, *nodes)
        self._first = self._first or node
        for place, result in enumerate(results if isinstance(results, tuple | list) else ()):
            self._put(result, self.graph.call_function(operator.getitem, (node, place)))
        if isinstance(results, Tensor):
            self._put(results, node)
        elif results is not None and not isinstance(results, tuple | list):
            raise RuntimeError(f"{function} reads a tensor's value")
        return results

    @torch.no_grad()
    def undo(self) -> None:
        """Put back what operations wrote."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)

    def _put(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._tensors.append(tensor)

    def _keep(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = dict(zip((argument.name for argument in function._schema.arguments), args, strict=False)) | kwargs
        for argument in function._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = tree_flatten(named.get(argument.name))[0]
                self._before += [(tensor, tensor.detach().clone()) for tensor in written if isinstance(tensor, Tensor)]


_COPY = torch.ops.aten.clone.default
