"""Private names of other libraries stand in eigen2/compat.py alone, and each still does what it is used for."""

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint, Timer
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector

from eigen2 import compat
from eigen2.cli.parser import Parser

ROOT = Path(__file__).parent.parent
LIBRARIES = ("lightning", "jsonargparse", "torch")


def trainer() -> Trainer:
    return Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


def check_script_launcher() -> None:
    started: list[str] = []
    environment = SimpleNamespace(validate_settings=lambda **sizes: None, creates_processes_externally=False)
    launcher = compat.script_launcher(environment, 2, 1)
    theirs = type(launcher).__mro__[1].launch
    assert {"_call_children_scripts", "procs"} <= {*theirs.__code__.co_names}
    launcher._call_children_scripts = lambda: started.append("children")
    launcher.launch(started.append, "function")
    assert started == ["children", "function"]


def check_skip_sigterm_broadcast() -> None:
    found = trainer()
    method = type(found.fit_loop.epoch_loop).advance
    assert "_broadcast_sigterm_tensor" in method.__code__.co_names
    compat.skip_sigterm_broadcast(found)
    assert found.fit_loop.epoch_loop._broadcast_sigterm_tensor() is None


def check_forget_last_save() -> None:
    callback, found = ModelCheckpoint(), SimpleNamespace(fast_dev_run=False, sanity_checking=False, global_step=0)
    found.state = trainer().state
    found.state.fn = "fit"
    assert callback._should_skip_saving_checkpoint(found)
    compat.forget_last_save(callback)
    assert not callback._should_skip_saving_checkpoint(found)


def check_last_checkpoints() -> None:
    """The Trainer calls the method by this name, so that a subclass's takes its place."""
    assert "_find_last_checkpoints" in _CheckpointConnector._parse_ckpt_path.__code__.co_names
    assert compat.last_checkpoints(ModelCheckpoint(dirpath=ROOT / "docs"), trainer()) == set()


def check_timer_interval() -> None:
    assert [compat.timer_interval(Timer(interval=each)) for each in ("step", "epoch")] == ["step", "epoch"]


def check_saves_within_epoch() -> None:
    within: tuple[dict[str, Any], ...] = (
        *({"every_n_train_steps": 3}, {"train_time_interval": timedelta(seconds=1)}, {"save_on_exception": True}),
    )
    assert all(compat.saves_within_epoch(ModelCheckpoint(**options)) for options in within)
    assert compat.saves_within_epoch(OnExceptionCheckpoint("folder"))
    assert not any(map(compat.saves_within_epoch, (ModelCheckpoint(), ModelCheckpoint(every_n_epochs=2), Timer())))


def check_summary_writer() -> None:
    events: list[Any] = []
    file = SimpleNamespace(get_logdir=lambda: "folder", add_event=events.append)
    compat.summary_writer(file).add_scalar("name", 1.5, global_step=3)
    (event,) = events
    assert (event.step, event.summary.value[0].tag, event.summary.value[0].simple_value) == (3, "name", 1.5)


def check_parsers() -> None:
    inner = Parser()
    inner.add_argument("--size", type=int | None, default=3)
    inner.add_argument("--plain", action="store_true")
    outer = Parser()
    outer.add_subcommands().add_subcommand("run", inner, help="cut")
    assert compat.subparsers(inner) == {}
    assert compat.subparsers(outer) == {"run": inner}
    options = compat.parser_options(inner)
    assert list(options) == ["size", "plain"]
    assert [compat.option_type(each) for each in options.values()] == [int | None, None]


def check_watch_results() -> None:
    seen: list[int] = []
    with compat.watch_results(lambda tensor: seen.append(len(tensor))):
        torch.zeros(3).split([1, 2])
    assert seen == [3, 1, 2]


def check_written() -> None:
    aten, one, two = torch.ops.aten, torch.ones(1), torch.ones(1)
    assert compat.written(aten.add_.Tensor, (one, two), {}) == [one]
    assert compat.written(aten._foreach_add_.Scalar, ([one, two], 1), {}) == [one, two]
    assert compat.written(aten.add.out, (one, one), {"out": two}) == [two]
    assert compat.written(aten.add.Tensor, (one, two), {}) == []


def check_flatten() -> None:
    leaves, rebuild = compat.flatten((1, [2, None]))
    assert rebuild([str(leaf) for leaf in leaves]) == ("1", ["2", "None"])


def check_compile_graph() -> None:
    """Only the signature: tests/erl/test_graphs.py compiles."""
    inductor = importlib.import_module("torch._inductor")
    bound = inspect.signature(inductor.compile).bind("module", ["input"], {"cpp_wrapper": True})
    assert [*bound.arguments] == ["gm", "example_inputs", "options"]
    assert hasattr(importlib.import_module("torch._inductor.config"), "cpp_wrapper")


def check_compiler_cache() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache")
        assert compat.compiler_cache() == "/cache"


def check_reshape_fresh() -> None:
    weight = torch.ones(2, requires_grad=True)
    out = compat.reshape_fresh(2 * weight, (1, 2))
    out.relu_().sum().backward()  # autograd refuses to change a view of some functions' results in place
    assert out._base is None
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2]


def check_replace_parameter() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    compat.replace_parameter(layer, "weight", torch.full((1, 1), 3.0))
    assert layer(torch.ones(1)).item() == 3


def check_small_object_bytes() -> None:
    before = compat.small_object_bytes()
    texts = [f"{number:300}" for number in range(10_000)]
    after = compat.small_object_bytes()
    assert before is not None
    assert after is not None
    assert after[0] - before[0] == pytest.approx(10_000 * 352, rel=0.05)  # 49 bytes more than characters, of 16 each
    assert after[0] < after[1]
    assert len(texts) == 10_000


def check_created_shared_memory() -> None:
    names = compat.created_shared_memory()
    memory = SharedMemory(create=True, size=1)
    assert memory.name in names
    memory.close()
    memory.unlink()


def check_cuda_history() -> None:
    """Only the signatures, without a GPU; tests/memory/test_tracing.py calls them on a stand-in."""
    memory = torch.cuda.memory
    record = inspect.signature(memory._record_memory_history).bind("all", stacks="python", max_entries=9)
    assert inspect.signature(memory._snapshot).bind().arguments == {}
    assert [*record.arguments] == ["enabled", "stacks", "max_entries"]
    assert "Active Memory Timeline" in compat.cuda_timeline({"segments": [], "device_traces": []})


CHECKS: dict[str, Callable[[], None]] = {
    "lightning: _SubprocessScriptLauncher._call_children_scripts, procs": check_script_launcher,
    "lightning: _TrainingEpochLoop._broadcast_sigterm_tensor": check_skip_sigterm_broadcast,
    "lightning: ModelCheckpoint._last_global_step_saved": check_forget_last_save,
    "lightning: ModelCheckpoint._find_last_checkpoints": check_last_checkpoints,
    "lightning: Timer._interval": check_timer_interval,
    "lightning: ModelCheckpoint._every_n_train_steps, _train_time_interval": check_saves_within_epoch,
    "torch: SummaryWriter._get_file_writer": check_summary_writer,
    "torch: aten._unsafe_view": check_reshape_fresh,
    "torch: Module._parameters": check_replace_parameter,
    "torch: cuda.memory._record_memory_history, _snapshot, cuda._memory_viz": check_cuda_history,
    "torch: _python_dispatch.TorchDispatchMode, _pytree.tree_leaves": check_watch_results,
    "torch: OpOverload._schema": check_written,
    "torch: _pytree.tree_flatten, tree_unflatten": check_flatten,
    "torch: _inductor.compile": check_compile_graph,
    "torch: _inductor.runtime.cache_dir_utils.cache_dir": check_compiler_cache,
    "python: _PyObject_DebugMallocStats": check_small_object_bytes,
    "python: multiprocessing.resource_tracker.register": check_created_shared_memory,
    "jsonargparse: _actions, _typehint, _subcommands_action": check_parsers,
}
"""Library and private name, to a check that it still does what eigen2 uses it for."""


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_private_name_still_does_what_it_is_used_for(check: Callable[[], None]) -> None:
    check()


def test_a_name_that_is_gone_is_named() -> None:
    with pytest.raises(AttributeError, match="SimpleNamespace has no _last_global_step_saved any more"):
        compat.forget_last_save(SimpleNamespace())


def test_processes_that_do_not_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "LEAVE_S", 0.05)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    compat.end_processes([process])
    assert process.wait(10) == -9


MODULES = {"torch", "lightning", "jsonargparse", "np", "pd", "gymnasium", "yaml", "nn", "optim"}
PUBLIC = {"__version__", "_exit"}


@pytest.mark.parametrize("folder", ["eigen2", "callbacks"])
def test_private_names_are_imported_nowhere_else(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        where = str(path.relative_to(ROOT))
        if where == "eigen2/compat.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr not in PUBLIC:
                root, *names = ast.unparse(node.value).split(".")
                own = any(name[:1].isupper() for name in names)  # of a class, such as the one that is extended
                assert own or root not in MODULES, f"{where}: {ast.unparse(node)}"
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
                names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
                assert not [name for name in names if name.startswith("_") and name != "__version__"], where
