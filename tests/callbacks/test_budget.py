"""The budget warns, then stops the run, at its fractions of a limit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import Strategy

from callbacks import MemoryBudget, MemoryBudgetExceeded, MemoryProfiler
from eigen2.errors import UserError
from eigen2.memory import limits as limits_module
from eigen2.memory.limits import Limit
from tests.callbacks.conftest import PhasedModule, loader

Fit = Callable[..., Trainer]
pytestmark = pytest.mark.filterwarnings("ignore:memory runs short")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the bytes used of a limit of 1,000, for the test to change."""
    state = {"bytes": 100}

    def limits(budget: int | None) -> list[Limit]:
        assert budget == 10**9
        return [Limit("the test's memory", state["bytes"], 1000)]

    monkeypatch.setattr("callbacks.budget.limits", limits)
    return state


@pytest.mark.parametrize(("nbytes", "times"), [(799, 0), (800, 1)])
def test_from_warn_at_on_it_warns_once(
    fit: Fit, used: dict[str, int], nbytes: int, times: int, recwarn: pytest.WarningsRecorder
) -> None:
    used["bytes"] = nbytes
    assert fit(MemoryBudget(1), announce=True).current_epoch == 3
    assert len([each for each in recwarn if "memory runs short" in str(each.message)]) == times


def test_from_stop_at_on_it_ends_after_the_phase(fit: Fit, used: dict[str, int]) -> None:
    seen = []

    def work(phase: str, epoch: int) -> None:
        seen.append((epoch, phase))
        if (epoch, phase) == (1, "train"):
            used["bytes"] = 950

    expected = r"^stopped after the train of epoch 1: 0\.00 of 0\.00 GB \(95%\) of the test's memory used; resume"
    with pytest.raises(MemoryBudgetExceeded, match=expected):
        fit(MemoryBudget(1), announce=True, work=work)
    assert seen[-1] == (1, "train")


def test_memory_that_can_be_given_back_does_not_count(
    fit: Fit, used: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trim() -> bool:
        used["bytes"] = 100
        return True

    used["bytes"] = 990
    monkeypatch.setattr("callbacks.budget.trim_malloc", trim)
    assert fit(MemoryBudget(1), announce=True).current_epoch == 3


def test_growth_that_the_next_epoch_would_not_survive_ends_the_run(fit: Fit, used: dict[str, int]) -> None:
    def work(phase: str, epoch: int) -> None:
        used["bytes"] = 600 + 120 * epoch + (80 if phase == "train" else 0)

    # 800 after the training of epoch 1, 120 more than before; 920 after that of epoch 2 leave no 120
    with pytest.raises(MemoryBudgetExceeded, match="after the train of epoch 2"):
        fit(MemoryBudget(1), epochs=9, announce=True, work=work)


def test_growth_counts_towards_every_limit(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is the tightest until the container, which grows, passes it and leaves no room for another epoch."""
    used = {"container": 500}
    monkeypatch.setattr(
        "callbacks.budget.limits",
        lambda budget: sorted(
            [Limit("the machine", 7500, 10_000), Limit("the container", used["container"], 1000)],
            key=lambda limit: -limit.share,
        ),
    )

    def work(phase: str, epoch: int) -> None:
        used["container"] = (500, 670, 840, 980)[min(epoch, 3)]

    with pytest.raises(MemoryBudgetExceeded, match=r"of epoch 2: .* of the container used"):
        fit(MemoryBudget(), epochs=9, announce=True, work=work)


def test_memory_that_is_freed_within_an_epoch_is_no_growth(fit: Fit, used: dict[str, int]) -> None:
    def work(phase: str, epoch: int) -> None:
        used["bytes"] = 930 if phase == "train" else 600

    assert fit(MemoryBudget(1), epochs=4, announce=True, work=work).current_epoch == 4


@pytest.mark.parametrize("last", [False, True])
def test_at_the_end_of_an_epoch_the_checkpoint_comes_first(
    fit: Fit, used: dict[str, int], tmp_path: Path, last: bool
) -> None:
    class Late(MemoryBudget):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
            used["bytes"] = 990 if trainer.current_epoch == 1 else 100
            super().on_train_epoch_end(trainer, pl_module)

    saver = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    if last:  # nothing is left to be stopped
        assert fit(Late(1), saver, epochs=2).current_epoch == 2
    else:
        with pytest.raises(MemoryBudgetExceeded, match="after epoch 1: "):
            fit(Late(1), saver, epochs=5)
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {"epoch=0.ckpt", "epoch=1.ckpt"}


def test_epochs_that_are_asked_for_do_not_go_on_beyond_the_limit(tmp_path: Path, used: dict[str, int]) -> None:
    class Late(MemoryBudget):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
            used["bytes"] = 990
            super().on_train_epoch_end(trainer, pl_module)

    trainer = Trainer(
        accelerator="cpu", max_epochs=5, min_epochs=5, callbacks=[Late(1)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.raises(MemoryBudgetExceeded, match="before epoch 1: "):
        trainer.fit(PhasedModule(None, announce=False), loader())


@pytest.mark.parametrize("profiler_first", [False, True])
def test_who_holds_the_memory_is_printed_whichever_callback_is_listed_first(
    fit: Fit, used: dict[str, int], profiler_first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    class Late(MemoryBudget):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
            used["bytes"] = 990
            super().on_train_epoch_end(trainer, pl_module)

    callbacks = [MemoryProfiler(), Late(1)]
    with pytest.raises(MemoryBudgetExceeded):
        fit(*callbacks[:: 1 if profiler_first else -1])
    assert "unaccounted" in capsys.readouterr().out


def test_a_limit_that_another_process_reaches_ends_all_after_the_same_epoch(
    fit: Fit, used: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = iter([False, True])

    def any_of_all(strategy: object, decision: bool, all: bool) -> bool:
        assert not decision
        assert not all
        return next(decided)

    monkeypatch.setattr(Strategy, "reduce_boolean_decision", any_of_all)
    with pytest.raises(MemoryBudgetExceeded, match="after epoch 1: almost all memory of another process used; resume"):
        fit(MemoryBudget(1), epochs=5)


def test_a_share_is_of_the_memory_that_groups_and_the_machine_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_groups", lambda: iter([Limit("a", 1, 7_000), Limit("b", 1, 4_000)]))
    assert MemoryBudget(memory_budget_share=0.25).budget_bytes == 1_000
    assert MemoryBudget(memory_budget_share=0.25, memory_budget_gb=0.5e-6).budget_bytes == 500
    assert MemoryBudget(memory_budget_gb=1e-10).budget_bytes == 1  # a limit of 0 bytes has no share in use
    assert MemoryBudget().budget_bytes is None
    monkeypatch.setattr(limits_module, "_groups", lambda: iter([]))
    assert MemoryBudget(memory_budget_share=0.5).budget_bytes == psutil.virtual_memory().total // 2


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"memory_budget_gb": 0}, "budget.memory_budget_gb is 0; it must be above 0"),
        ({"memory_budget_share": 0.0}, "memory_budget_share is 0.0"),
        ({"memory_budget_share": 1.01}, "memory_budget_share is 1.01"),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, float], named: str) -> None:
    with pytest.raises(UserError, match=named):
        MemoryBudget(**settings)
