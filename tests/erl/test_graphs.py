"""Recorded steps of training against the same steps made directly, bit for bit, with a tape in place of a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from eigen2 import compat
from eigen2.erl import base
from eigen2.erl.graphs import WARM_UP, Compiled, CudaGraph, StepRunner, record, step_runner_for, warn_once
from eigen2.erl.learners import DDPG, TD3, Batch, Losses
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Population
from eigen2.erl.row_adam import RowAdam
from eigen2.errors import UserError
from tests.erl.evolution.builders import evolution
from tests.erl.interrupted import check_resume
from tests.erl.probe import AIM, Probe, fit
from tests.erl.recorder import Recorder, same
from tests.erl.tape import Tape

WALK = Probe(lambda x, action, step: -((action - x / 4) ** 2), steps=3, contexts=(-1.0, 0.0, 1.0), walks=True)
RUNS: dict[str, dict[str, Any]] = {
    "one agent, TD3": {"population_size": 1, "learner": TD3(), "gradient_steps": 11},
    "a rarer actor": {"population_size": 2, "learner": TD3(policy_delay=5), "gradient_steps": 13},
    "population": {"gradient_steps": 9, "evolution": evolution()},
    "micro-batches": {"gradient_steps": 5, "accumulate": 4, "learner": DDPG()},
    "one learns": {"learners": 1, "gradient_steps": 9, "learner": TD3(), "random_warmup": True},
}


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a context in which modules record their steps on tapes."""

    @contextmanager
    def context() -> Iterator[None]:
        Tape.recorded = Tape.replayed = 0
        with monkeypatch.context() as patch:
            patch.setattr(ERLModule, "make_step_runner", staticmethod(lambda *_: StepRunner(Tape)))
            yield
        assert Tape.recorded
        assert Tape.replayed > Tape.recorded

    return context


def trained(*callbacks: Callback, **settings: Any) -> Recorder:
    recorder = Recorder()
    module = fit(WALK, *callbacks, recorder, epochs=3, **settings)
    assert module.trainer.global_step == recorder.optimizer_steps
    return recorder


@cache
def trained_directly(name: str, fault: bool = False, fused: bool = True) -> Recorder:
    """Train one of `RUNS` as eager PyTorch does; whether Adam is `fused` the caller sees to."""
    return trained(*([Fault()] if fault else []), **RUNS[name])


def check_same(direct: Recorder, recorded: Recorder) -> None:
    assert direct.optimizer_steps == recorded.optimizer_steps > WARM_UP
    for moment, state in direct.states.items():
        other = recorded.states[moment]
        assert [name for name in state if not same(state[name], other[name])] == [], moment
    for one, two in zip(direct.metrics.values(), recorded.metrics.values(), strict=True):
        assert {k: repr(v) for k, v in one.items() if "time/" not in k} == {
            k: repr(v) for k, v in two.items() if "time/" not in k
        }


@pytest.mark.parametrize("name", RUNS)
def test_recorded_steps_have_the_same_bits(name: str, taped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "micro-batches":
        monkeypatch.setattr("eigen2.erl.base.batches_together", lambda *_: 2)
    direct = trained_directly(name)
    with taped():
        recorded = trained(**RUNS[name])
    check_same(direct, recorded)


@dataclass
class Reload(Callback):
    """Keeps weights and moments after the first generation, and loads them before the third."""

    saved: Any = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ERLModule)
        parts = pl_module.population, trainer.optimizers[0]
        if trainer.current_epoch == 1:
            self.saved = [_copied(part.state_dict()) for part in parts]
        if trainer.current_epoch == 2:
            for part, state in zip(parts, self.saved, strict=True):
                part.load_state_dict(state)

    __hash__ = object.__hash__


def _copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


def test_recorded_steps_use_what_is_loaded_later(taped: Any) -> None:
    direct, unloaded = trained(Reload(), **RUNS["population"]), trained_directly("population")
    with taped():
        recorded = trained(Reload(), **RUNS["population"])
    check_same(direct, recorded)
    assert not same(direct.states[2, "train"]["actor"], unloaded.states[2, "train"]["actor"])


def test_recorded_steps_have_their_gradients_in_the_same_memory(taped: Any) -> None:
    seen = set()

    class Watch(Callback):
        def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
            assert isinstance(module, ERLModule)
            seen.add(tuple(0 if rows.grad is None else rows.grad.data_ptr() for rows in module.population.parameters()))

    with taped():
        trained(Watch(), **RUNS["population"])
    (pointers,) = seen
    assert all(pointers)


class Waiting(DDPG):
    """Asks for the value of a tensor, as a network written without a thought of GPUs may."""

    def losses(self, population: Population, batch: Batch, train_actor: bool = True) -> Losses:
        assert float(batch.reward.sum()) < 1e9
        return super().losses(population, batch, train_actor)


def test_a_step_that_waits_for_the_device_is_found(taped: Any) -> None:
    with pytest.raises(RuntimeError, match="waits for the device"), taped():
        trained(learner=Waiting(), gradient_steps=9)


def test_a_step_gets_copies_in_memory_of_its_own_for_each_shape_type_and_option() -> None:
    seen: list[Tensor] = []

    def double(tensors: dict[str, Tensor], factor: int) -> Tensor:
        seen.append(tensors["x"])
        return tensors["x"] * factor

    Tape.recorded = 0
    run, given = StepRunner(Tape), torch.ones(2)
    for number in range(2 * WARM_UP):
        given.fill_(number)
        assert run(double, {"x": given}, 2).tolist() == [2 * number] * 2
        assert given.tolist() == [number] * 2
    assert len(seen) == WARM_UP + 1  # later calls run no Python
    assert len({tensor.data_ptr() for tensor in seen}) == 1
    assert seen[0].data_ptr() != given.data_ptr()
    assert Tape.recorded == 1
    for further in (torch.ones(3), torch.ones(2, dtype=torch.float64), torch.ones(3, 1)):
        for _ in range(2 * WARM_UP):
            assert torch.equal(run(double, {"x": further}, 2), 2 * further)
    assert run(double, {"x": given}, 3).tolist() == (3 * given).tolist()
    assert Tape.recorded == 4
    assert len({tensor.data_ptr() for tensor in seen}) == 5


def test_on_a_cpu_a_step_gets_the_tensors_themselves() -> None:
    given = {"x": torch.ones(2)}
    assert step_runner_for(torch.device("cpu"))(lambda tensors: tensors, given) is given
    assert step_runner_for(torch.device("cpu"), compiled=True).recording


def test_without_gradients_of_an_earlier_fit_nothing_is_replayed(taped: Any) -> None:
    with taped():
        module = fit(AIM, gradient_steps=9)
        module.cleanup_memory()
        assert not module.step_runner._steps


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put what CudaGraph calls of torch.cuda on a list instead of a GPU."""
    calls: list[str] = []

    @contextmanager
    def context(name: str) -> Iterator[None]:
        calls.append(name)
        try:
            yield
        finally:
            calls.append(f"end {name}")

    stream = SimpleNamespace(wait_stream=lambda other: calls.append("wait"))
    graph = SimpleNamespace(replay=lambda: calls.append("replay"))
    for name, value in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "CUDAGraph": lambda: graph,
        "stream": lambda stream: context("side"),
        "graph": lambda graph, stream: context("record"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return calls


def test_a_cuda_graph_is_warmed_up_recorded_once_and_replayed(cuda: list[str]) -> None:
    graph = CudaGraph(lambda: cuda.append("run"))
    for _ in range(WARM_UP + 2):
        graph()
    warm_up = ["wait", "side", "run", "end side", "wait"]
    assert cuda == [*warm_up * WARM_UP, "record", "run", "end record", "replay", "replay"]


def test_a_step_that_cannot_be_recorded_runs_as_it_is(cuda: list[str], caplog: pytest.LogCaptureFixture) -> None:
    def run() -> None:
        if cuda[-1] == "record":
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        cuda.append("run")

    graph = CudaGraph(run)
    for _ in range(WARM_UP + 3):
        graph()
    assert cuda.count("run") == WARM_UP + 3
    assert cuda.count("record") == 1
    assert "replay" not in cuda
    (line,) = caplog.messages
    assert "operation not permitted when stream is capturing)" in line


@dataclass
class Fault(Callback):
    """Makes an agent's weight NaN at the start of the second generation."""

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, ERLModule)
        if trainer.current_epoch == 1:
            module.population.critic.detach()[-1, 1] = torch.nan

    __hash__ = object.__hash__


class ByOperations(RowAdam):
    """Adam of compiled steps."""

    def __init__(self, groups: list[dict[str, Any]], fused: bool) -> None:
        super().__init__(groups, fused=False)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the operations of recorded graphs one by one, as they were recorded, in place of compiling them.

    The optimizer's are those of a compiled step in runs that are not compiled, too.
    """
    monkeypatch.setattr(compat, "compile_graph", lambda module, inputs: module)
    monkeypatch.setattr(base, "RowAdam", ByOperations)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, False) for name in RUNS),
        *(("population", True), ("one learns", True)),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in ("a rarer actor", "micro-batches")),
    ],
)
def test_steps_as_graphs_have_the_same_bits(
    name: str, fault: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "micro-batches":
        monkeypatch.setattr("eigen2.erl.base.batches_together", lambda *_: 2)
    direct = trained_directly(name, fault, fused=False)
    caplog.clear()
    compiled = trained(*([Fault()] if fault else []), compile=True, **RUNS[name])
    check_same(direct, compiled)
    assert "cannot be compiled" not in caplog.text
    assert ("not finite" in caplog.text) == fault


class Random(DDPG):
    """Draws random numbers."""

    def losses(self, population: Population, batch: Batch, train_actor: bool = True) -> Losses:
        torch.rand(1)
        return super().losses(population, batch, train_actor)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("learner", "reason"),
    [(Waiting(), "aten._local_scalar_dense.default reads"), (Random(), "aten.rand.default draws")],
)
def test_a_learner_that_cannot_be_compiled_runs_as_it_is_after_one_warning(
    learner: DDPG, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    direct, compiled = (trained(compile=each, learner=learner, gradient_steps=9) for each in (False, True))
    check_same(direct, compiled)
    (line,) = [message for message in caplog.messages if "cannot be compiled" in message]
    assert reason in line


def test_a_compiler_that_fails_ends_the_run_as_its_results_would_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ImportError("file too short")

    monkeypatch.setattr(compat, "compile_graph", fail)
    with pytest.raises(
        UserError, match=r"\(file too short\): install a C\+\+ compiler, .* or set model.compile to false"
    ):
        trained(compile=True)


def test_a_function_without_operations_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "compile_graph", None)
    compiled = Compiled(lambda: None)
    assert [compiled(), compiled()] == [None, None]


@pytest.mark.usefixtures("uncompiled")
def test_the_first_call_of_a_graph_counts_once_and_constants_stay() -> None:
    total, calls = torch.zeros(2), []

    def run() -> tuple[Tensor, None]:
        calls.append(None)
        constant = torch.tensor(1.0)
        constant += 1
        total[:1].add_(constant)
        return total * 2, None

    compiled = Compiled(run)
    for number in range(1, 4):
        doubled, none = compiled()
        assert (total.tolist(), doubled.tolist(), none) == ([2 * number, 0], [4 * number, 0], None)
    assert len(calls) == 2  # recorded twice, and put back


def test_what_a_function_wrote_is_put_back_though_it_fails() -> None:
    weights = torch.arange(3.0)

    def run() -> None:
        weights.mul_(2)
        weights[1:].add_(1)
        float(weights.sum())

    with pytest.raises(RuntimeError, match="reads a tensor's value"):
        record(run)
    assert weights.tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"population_size": 1, "learner": TD3()}, {"learner": DDPG(), "evolution": evolution()}]
)
def test_compiled_steps_agree_up_to_rounding(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    callbacks = [Fault()] if "evolution" in settings else []
    direct, compiled = (trained(*callbacks, compile=each, gradient_steps=9, **settings) for each in (False, True))
    for name, left in direct.states[0, "train"].items():
        torch.testing.assert_close(compiled.states[0, "train"][name], left, rtol=1e-3, atol=1e-5, equal_nan=True)
    for name in ("actor", "critic"):
        left, right = (each.states[1, "train"][name].isfinite() for each in (direct, compiled))
        assert torch.equal(left, right)
    assert "cannot be compiled" not in caplog.text


@pytest.mark.slow
def test_a_broken_agent_leaves_the_others_the_same_bits_with_compiled_steps() -> None:
    runs = [trained(*faults, compile=True, learner=TD3(), gradient_steps=9) for faults in ([], [Fault()])]
    healthy, other = (run.states[1, "train"] for run in runs)
    assert other["critic"][-1].isnan().any()
    rows = [name for name in healthy if healthy[name].dim() and len(healthy[name]) == 4]
    assert {"actor", "critic_target", "actor.exp_avg"} <= {*rows}
    assert [name for name in rows if not same(healthy[name][:-1], other[name][:-1])] == []


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits_with_compiled_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_resume(tmp_path, 3, compile=True, learner=TD3(), evolution=evolution())
    assert "cannot be compiled" not in caplog.text
