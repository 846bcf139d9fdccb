"""Steps of training that run as they are, or are compiled, or, on a GPU, recorded as CUDA graphs and replayed."""

import logging
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eigen2.erl.compiled import Compiled, Run

log = logging.getLogger(__name__)

WARM_UP = 3  # calls before a step is recorded: they allocate what it keeps, such as gradients and moments


class Graphs:
    """Calls steps, functions of named tensors and further options; with `record`, from memory of their own.

    `record` turns a function without arguments into one that repeats its operations on the same memory, without its
    Python code. So a step may not wait for the device or read a tensor's value, all else that it reads or writes must
    stay at its address, and whatever decides which operations it makes must be among its options. What it returns is
    overwritten by the next call with tensors of these shapes and these options.
    """

    def __init__(self, record: Callable[[Run], Run] | None = None) -> None:
        self._record, self.recording = record, record is not None
        self._steps: dict[Hashable, _Step] = {}

    def __call__(self, step: Callable[..., Any], tensors: Mapping[str, Tensor], *options: Hashable) -> Any:
        """Return what the step returns."""
        if self._record is None:
            return step(tensors, *options)
        key = step, options, tuple((name, value.shape, value.dtype) for name, value in tensors.items())
        if key not in self._steps:
            self._steps[key] = _Step(step, tensors, options, self._record)
        return self._steps[key](tensors)

    def clear(self) -> None:
        """Forget all steps and free their memory."""
        self._steps.clear()


class _Step:
    """A step with memory for its tensors."""

    def __init__(
        self,
        step: Callable[..., Any],
        tensors: Mapping[str, Tensor],
        options: tuple[Hashable, ...],
        record: Callable[[Run], Run],
    ) -> None:
        self._tensors = {name: value.clone() for name, value in tensors.items()}
        self._replay = record(partial(step, self._tensors, *options))

    def __call__(self, tensors: Mapping[str, Tensor]) -> Any:
        for name, value in tensors.items():
            self._tensors[name].copy_(value)
        return self._replay()


class CudaGraph:
    """A function without arguments that is recorded as a CUDA graph after some calls, and then replayed.

    One that cannot be recorded runs as it is, after a warning. Warm-up and recording take place on one side stream, as
    libraries allocate their workspace for each stream.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._calls = run, 0
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph: Any = None  # a torch.cuda.CUDAGraph
        self._result: Any = None  # in the graph's memory
        self._can_be_recorded = True

    def __call__(self) -> Any:
        """Make the operations once, and return what the function returns."""
        if self._calls < WARM_UP:
            self._calls += 1
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                result = self._run()
            current.wait_stream(self._stream)
            return result
        if self._graph is None and self._can_be_recorded:
            self._graph = self._record()
        if self._graph is None:
            return self._run()
        self._graph.replay()
        return self._result

    def _record(self) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._result = self._run()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._can_be_recorded = False
            log.warning(
                "a training step runs slower than it could, as it cannot be recorded as a CUDA graph (%s): learner and "
                "networks must not read a tensor's value (item, if, boolean masks) or make tensors on the CPU",
                str(error).splitlines()[0],
            )
            return None
        return graph


def graphs_for(device: torch.device, compiled: bool = False) -> Graphs:
    """Return graphs that record steps if the device is a GPU: there, starting operations takes longer than they do.

    On a CPU they compile steps if `compiled` is set.
    """
    return Graphs(CudaGraph if device.type == "cuda" else Compiled if compiled else None)
