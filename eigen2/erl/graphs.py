"""Steps of training that run as they are, or are compiled, or, on a GPU, recorded as CUDA graphs and replayed."""

import logging
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from eigen2 import compat
from eigen2.errors import UserError

log = logging.getLogger(__name__)
aten = torch.ops.aten

WARM_UP = 3  # calls before a step is recorded: they allocate what it keeps, such as gradients and moments

Run = Callable[[], Any]


class StepRunner:
    """Calls steps, functions of named tensors and further options; with `record`, from memory of their own.

    `record` turns a function without arguments into one that repeats its operations on the same memory, without its
    Python code. So a step may not wait for the device or read a tensor's value, all else that it reads or writes must
    stay at its address, and whatever decides which operations it makes must be among its options. What it returns is
    overwritten by the next call with tensors of these shapes and these options.
    """

    def __init__(self, record: Callable[[Run], Run] | None = None) -> None:
        self._record, self.recording = record, record is not None
        self._steps: dict[Hashable, tuple[dict[str, Tensor], Run]] = {}  # with memory for their tensors

    def __call__(self, step: Callable[..., Any], tensors: Mapping[str, Tensor], *options: Hashable) -> Any:
        """Return what the step returns."""
        if self._record is None:
            return step(tensors, *options)
        key = step, options, tuple((name, value.shape, value.dtype) for name, value in tensors.items())
        if key not in self._steps:
            memory = {name: value.clone() for name, value in tensors.items()}
            self._steps[key] = memory, self._record(partial(step, memory, *options))
        memory, replay = self._steps[key]
        for name, value in tensors.items():
            memory[name].copy_(value)
        return replay()

    def clear(self) -> None:
        """Forget all steps and free their memory."""
        self._steps.clear()


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
        """Run the operations once, and return what the function returns."""
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


class Compiled:
    """A function without arguments whose operations, backward passes included, are compiled as one graph.

    They are recorded while it runs, and what it wrote is put back, so that already its first call runs compiled, and a
    resumed run has the bits of one that never stopped. One that cannot be recorded runs as it is, after a warning; if
    the compiler fails, which it may in one run and not in another, that is a UserError.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._compiled: Run | None = None

    def __call__(self) -> Any:
        """Run the operations once, and return what the function returns."""
        if self._compiled is None:
            try:
                record(self._run)  # allocates what the function keeps
                recorded = record(self._run)
            except CannotRecord as error:
                self._compiled = self._run
                warn_once(str(error))
            else:
                # a process without learners has nothing to do in some steps
                self._compiled = _compile(*recorded) if recorded[0].inputs else self._run
        return self._compiled()


class CannotRecord(RuntimeError):
    """An operation that cannot be recorded, with the reason."""


@cache
def warn_once(reason: str) -> None:
    """Warn once for each reason."""
    log.warning(
        "training steps run slower than they could, as they cannot be compiled (%s): learner and networks must not "
        "read a tensor's value (item, if, boolean masks) or draw random numbers; else set model.compile to false",
        reason,
    )


def _compile(recording: "Recording", result: Any) -> Run:
    leaves, rebuild = compat.flatten(result)
    recording.graph.output(tuple(map(recording.nodes, leaves)))
    inputs = [tensor.detach() for tensor in recording.inputs]
    try:
        with torch.no_grad():
            compiled = compat.compile_graph(fx.GraphModule({}, recording.graph), inputs)
    except Exception as error:  # of any class
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"training steps cannot be compiled ({reason}): install a C++ compiler, delete torch's cache "
            f"{compat.compiler_cache()}, or set model.compile to false"
        ) from error

    @torch.no_grad()
    def run() -> Any:
        return rebuild(compiled(*inputs))

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

    def nodes(self, value: Any) -> Any:
        """Return what stands for a tensor in the graph, and anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._nodes:
            self.inputs.append(value)
            with self.graph.inserting_before(self._first):
                self._put(value, self.graph.placeholder(f"input_{len(self.inputs)}"))
        return self._nodes[id(value)]

    def add(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and record it."""
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise CannotRecord(f"{function} draws random numbers")
        # a constant is an input, which later operations may change
        recorded = aten.clone.default if function is aten.lift_fresh.default else function
        node = self.graph.call_function(recorded, map_aggregate(args, self.nodes), map_aggregate(kwargs, self.nodes))
        self._first = self._first or node
        written = compat.written(function, args, kwargs)
        self._before += [(tensor, tensor.detach().clone()) for tensor in written]
        results = function(*args, **kwargs)
        if isinstance(results, Tensor):
            self._put(results, node)
        elif isinstance(results, Sequence):
            for place, result in enumerate(results):
                self._put(result, self.graph.call_function(operator.getitem, (node, place)))
        elif results is not None:
            raise CannotRecord(f"{function} reads a tensor's value")
        return results

    @torch.no_grad()
    def undo(self) -> None:
        """Put back what operations wrote."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)

    def _put(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._tensors.append(tensor)


def step_runner_for(device: torch.device, compiled: bool = False) -> StepRunner:
    """Return a runner that records steps on a GPU, where starting operations takes longer than they do.

    On a CPU it compiles them if `compiled` is set, else calls them as they are.
    """
    return StepRunner(CudaGraph if device.type == "cuda" else Compiled if compiled else None)
