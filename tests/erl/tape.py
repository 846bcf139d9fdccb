"""A CUDA graph for the CPU: the operations of a step are recorded once, and repeated without its Python code."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eigen2.erl.graphs import WARM_UP

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "lift_fresh", "equal", "is_nonzero")
"""Operations that need a tensor's value on the CPU, or bring a value from there: a GPU records none of them."""


class _Recorder(TorchDispatchMode):
    """Appends every operation, what it was given and what it returned."""

    def __init__(self, operations: list[tuple[Any, Any, Any, Any]]) -> None:
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put_", "index_put") and any(
            isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1])
        )
        if name in WAITS or masked:
            raise RuntimeError(f"{name} waits for the device")
        results = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, results))
        return results


class Tape:
    """A function without arguments that is recorded at its fourth call; it stands in for `CudaGraph`."""

    recorded = replayed = 0  # of all tapes since a test set them to 0

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run, self._calls = run, 0
        self._result: Any = None
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __call__(self) -> Any:
        self._calls += 1
        if self._calls <= WARM_UP:
            return self._run()
        if self._calls == WARM_UP + 1:
            Tape.recorded += 1
            with _Recorder(self._operations):
                self._result = self._run()
        else:
            Tape.replayed += 1
            self._replay()
        return self._result

    @torch.no_grad()
    def _replay(self) -> None:
        for func, args, kwargs, results in self._operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.detach().copy_(new)
