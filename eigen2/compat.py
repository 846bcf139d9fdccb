"""All uses of private names of Lightning, jsonargparse, torch and Python.

Any release may move such a name. They are used only here, so that tests/test_compat.py can tell which one moved.
Libraries are imported inside the functions: some commands that import this file load neither torch nor Lightning.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import functools
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser
    from lightning.fabric.plugins import ClusterEnvironment
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint, Timer
    from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
    from torch import Tensor
    from torch.fx import GraphModule
    from torch.nn import Module
    from torch.utils.tensorboard import SummaryWriter

LAUNCHER = "EIGEN2_LAUNCHER"
"""Environment variable by which a process that a launcher starts knows the launcher's process id."""
LAUNCHED: set[int] = set()
"""Ids of the processes that a launcher in this process has started."""
LEAVE_S = 10.0
"""Seconds that the processes started by a launcher may take to exit after the first one."""


def script_launcher(environment: ClusterEnvironment, processes: int, nodes: int) -> _SubprocessScriptLauncher:
    """Return a launcher that starts this machine's other `processes`, unless torchrun or a scheduler did.

    Unlike Lightning's, it does not change the number of threads, on which results depend, and it gives a process whose
    peers have exited time to report that, where Lightning kills it silently.
    """
    from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

    class Launcher(_SubprocessScriptLauncher):
        def launch(
            self, function: Callable[..., Any], *args: Any, trainer: Trainer | None = None, **kwargs: Any
        ) -> Any:
            """Start the other processes, and call the function."""
            self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
            if not self.cluster_environment.creates_processes_externally and not self.procs:
                os.environ[LAUNCHER] = str(os.getpid())
                self._call_children_scripts()
                del os.environ[LAUNCHER]
                LAUNCHED.update(process.pid for process in self.procs)
                atexit.register(end_processes, self.procs)
            return function(*args, **kwargs)

    return Launcher(environment, processes, nodes)


def end_processes(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait up to `LEAVE_S` seconds for processes to end, and kill those that do not."""
    deadline = time.monotonic() + LEAVE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def skip_sigterm_broadcast(trainer: Trainer) -> None:
    """Keep the training loop from asking process 0 before every batch whether it got SIGTERM."""
    loop = trainer.fit_loop.epoch_loop
    _require(loop, "_broadcast_sigterm_tensor")
    loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def forget_last_save(callback: ModelCheckpoint) -> None:
    """Let a ModelCheckpoint save again although no optimizer has stepped since its last checkpoint."""
    _require(callback, "_last_global_step_saved")
    callback._last_global_step_saved = -1


def has_saved(callback: ModelCheckpoint) -> bool:
    """Return whether a ModelCheckpoint has saved since `forget_last_save`."""
    return callback._last_global_step_saved != -1


def last_checkpoints(callback: ModelCheckpoint, trainer: Trainer) -> set[str]:
    """Return what a ModelCheckpoint finds for `ckpt_path="last"`; a subclass may override the method called here."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    _require(callback, "_find_last_checkpoints")
    return ModelCheckpoint._find_last_checkpoints(callback, trainer)


def timer_interval(timer: Timer) -> str:
    """Return how often a Timer looks at the clock: `step` or `epoch`."""
    return str(timer._interval)


def saves_within_epoch(callback: object) -> bool:
    """Return whether a callback of Lightning may save a checkpoint before an epoch has ended."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    within = isinstance(callback, ModelCheckpoint) and (callback._every_n_train_steps or callback._train_time_interval)
    return bool(within) or saves_on_exception(callback)


def saves_on_exception(callback: object) -> bool:
    """Return whether a callback of Lightning saves a checkpoint when an error ends the run."""
    from lightning.pytorch.callbacks import OnExceptionCheckpoint

    return isinstance(callback, OnExceptionCheckpoint) or getattr(callback, "save_on_exception", False)


def summary_writer(event_file: Any) -> SummaryWriter:
    """Return torch's SummaryWriter on `event_file`, which has the methods of TensorBoard's EventFileWriter."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.writer import FileWriter

    class Files(FileWriter):
        def __init__(self) -> None:
            self.event_writer = event_file

    class Writer(SummaryWriter):
        def _get_file_writer(self) -> Any:
            if self.file_writer is None:
                self.file_writer: Any = Files()
                self.all_writers: Any = {self.log_dir: self.file_writer}
            return self.file_writer

    return Writer(event_file.get_logdir())


def reshape_fresh(out: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape a new tensor without marking it as a view for autograd, so that it can be modified in place."""
    from torch import ops

    return ops.aten._unsafe_view.default(out, shape)


def replace_parameter(module: Module, name: str, value: Tensor) -> None:
    """Replace a parameter of a module by a plain tensor, which `setattr` refuses."""
    module._parameters[name] = value  # type: ignore[assignment]


def intercept(handle: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> AbstractContextManager[Any]:
    """Return a context in which `handle(operation, args, kwargs)` makes torch's operations and returns their results.

    Those of backward passes are among them.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Intercept(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return handle(func, args, kwargs or {})

    return Intercept()  # type: ignore[no-untyped-call]


def watch_results(callback: Callable[[Tensor], None]) -> AbstractContextManager[Any]:
    """Return a context in which `callback` receives every tensor that torch computes, backward passes included."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    def handle(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        results = operation(*args, **kwargs)
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor):
                callback(leaf)
        return results

    return intercept(handle)


def written(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors among an operation's arguments that it writes to."""
    arguments = operation._schema.arguments
    given = dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    values = [given.get(each.name) for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    return [each for value in values if value is not None for each in (value if isinstance(value, list) else [value])]


def flatten(value: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the leaves of nested tuples, lists and dicts, and a function that makes the same of other leaves."""
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, structure = tree_flatten(value)
    return leaves, lambda others: tree_unflatten(others, structure)


def compile_graph(module: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """Return the graph compiled for these inputs, which it reads and writes where they lie.

    C++ starts its operations too, which from Python takes longer than many of them do.
    """
    import torch._inductor

    return torch._inductor.compile(module, inputs, {"cpp_wrapper": True})


def compiler_cache() -> str:
    """Return the folder in which torch's compiler keeps what it compiled."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def parser_options(parser: ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options and positional arguments of a jsonargparse parser by key, without those that print help."""
    return {
        action.dest: action
        for action in parser._actions
        if action.dest not in ("help", argparse.SUPPRESS) and not action.dest.endswith(".help")
    }


def option_type(option: argparse.Action) -> Any:
    """Return the type that jsonargparse checks an option's values against, None if it checks none."""
    return getattr(option, "_typehint", None)


def subparsers(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the parsers of a jsonargparse parser's subcommands by name."""
    return dict(getattr(parser._subcommands_action, "choices", None) or {})


def small_object_bytes() -> tuple[int, int] | None:
    """Return the bytes of Python's small objects and of the arenas they lie in; None where Python does not tell.

    It reads the statistics that `sys._debugmallocstats` prints, in 0.1 ms, and 0.8 ms where caches are cold.
    """
    library = _libc()
    if library is None:
        return None
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(library.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    if not stream.value:  # there is no memory
        return None
    ctypes.pythonapi._PyObject_DebugMallocStats(stream)
    library.fclose(stream)
    numbers = re.findall(rb"\n(?:# bytes in allocated blocks|Total) += +([\d,]+)", text.value or b"")
    library.free(text)
    used, total, *_ = (int(number.replace(b",", b"")) for number in (*numbers, b"0", b"0"))
    return (used, total) if total else None


def record_cuda_history(entries: int | None) -> None:
    """Let torch record the Python frames of allocations on GPUs, and the latest `entries` of them; None stops it."""
    from torch.cuda import memory

    if entries is None:
        memory._record_memory_history(None)  # clears the history
    else:
        memory._record_memory_history("all", stacks="python", max_entries=entries)


def cuda_snapshot() -> Any:
    """Return torch's snapshot of the memory on GPUs, and of the history of it if that is recorded."""
    from torch.cuda import memory

    return memory._snapshot()


def cuda_timeline(snapshot: Any) -> str:
    """Return an HTML page of a snapshot's history, whose script the browser loads from the internet."""
    from torch.cuda import _memory_viz

    return str(_memory_viz.trace_plot(snapshot))  # type: ignore[no-untyped-call]


@functools.cache
def _libc() -> ctypes.CDLL | None:
    """Return the C library if it and Python have what statistics of small objects need."""
    try:
        library, _ = ctypes.CDLL(None), ctypes.pythonapi._PyObject_DebugMallocStats
        library.open_memstream.restype = ctypes.c_void_p
    except (AttributeError, OSError, TypeError):
        return None
    return library


@functools.cache
def created_shared_memory() -> set[str]:
    """Return a set to which the name of all shared memory is added that this process opens from the first call on."""
    names: set[str] = set()
    register = resource_tracker.register

    def remember(name: str, kind: str) -> None:
        if kind == "shared_memory":
            names.add(name.lstrip("/"))
        register(name, kind)

    _require(resource_tracker, "register")
    resource_tracker.register = remember  # type: ignore[assignment]
    return names


def _require(owner: object, name: str) -> None:
    """Raise an AttributeError if a name is gone: assigning to it would silently do nothing."""
    if not hasattr(owner, name):
        raise AttributeError(f"{type(owner).__module__}.{type(owner).__qualname__} has no {name} any more")
