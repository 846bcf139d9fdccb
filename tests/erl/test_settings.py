"""Settings out of range and Trainer settings that would break a generation, each refused in one line."""

import inspect
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from torch import nn

from eigen2.erl.evolution import Elitism
from eigen2.erl.learners import DDPG
from eigen2.erl.module import ERLModule
from eigen2.erl.settings import RANGES, check_settings
from eigen2.errors import UserError
from eigen2.runtime.checkpoint import GenerationCheckpoint
from eigen2.runtime.trainer_checks import check_precision
from tests.erl.probe import Probe, ProbeRollouts, make_trainer
from tests.erl.recorder import Recorder

IDLE = Probe(lambda x, action, step: x)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("population_size", 0), ("gradient_steps", -2), ("accumulate", 0), ("validate_every", 0)),
        *(("gamma", -0.01), ("gamma", 1.01), ("tau", 0.0), ("tau", 1.5), ("actor_lr", 0.0), ("critic_lr", -1e-3)),
        *(("max_grad_norm", 0.0), ("reward_scale", 0.0), ("noise", -0.1), ("noise_decay", 0.0), ("noise_decay", 1.01)),
        *((name, math.nan) for name in RANGES if RANGES[name].get("most") not in (10**6, 10**9)),
        ("noise_min", -0.1),
        *((name, math.inf) for name in ("actor_lr", "critic_lr", "reward_scale", "noise")),
    ],
)
def test_settings_out_of_range_are_named_with_their_value(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UserError, match=rf"^model\.{setting} is {value}; .*$"):
        ERLModule(**settings)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("population_size", 4.0, "is 4.0; it must be a whole number"),
        ("learner", "TD3", r"is 'TD3'; give a learner, such as TD3\(\)"),
        ("learner", DDPG, "is <class .*; give a learner"),
        ("actor", "mine.Actor", "is 'mine.Actor'; give a class or function that makes the network"),
        ("critic", nn.Linear(1, 1), r"is Linear\(.*; give a class or function"),
        ("evolution", Elitism(), r"is Elitism\(.*; give a list of operators, or null"),
        ("evolution", ["Elitism"], "has 'Elitism'; give operators, each with a name"),
    ],
)
def test_settings_of_another_type(setting: str, value: object, words: str) -> None:
    """As a script may give, whose types nothing checks."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(ERLModule).parameters.items()}
    with pytest.raises(UserError, match=rf"^model\.{setting} {words}"):
        check_settings({**defaults, setting: value})


def test_counts_are_whole_numbers() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(ERLModule).parameters.items()}
    with pytest.raises(UserError, match=r"model\.accumulate is 2\.5; it must be a whole number"):
        check_settings({**defaults, "accumulate": 2.5})
    for learners in (2, "1", True, 1.0):
        with pytest.raises(
            UserError, match=rf"model\.learners is {learners!r}; set 1 if one agent learns alone, or nul"
        ):
            check_settings({**defaults, "learners": learners})


def test_the_ends_of_the_ranges_are_allowed() -> None:
    least = ERLModule(population_size=1, gradient_steps=0, accumulate=1, gamma=0.0, tau=1.0, noise=0.0, noise_min=0.0)
    assert least.optimizer_steps(transitions=1000) == 0
    assert ERLModule(gamma=1.0, noise_decay=1.0, evolution=None).operators == ()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_steps", 3),
        ("min_steps", 3),
        ("val_check_interval", 0.5),
        ("val_check_interval", 1),  # after every batch; 1.0 is once a generation
        ("val_check_interval", "00:00:00:01"),
        ("check_val_every_n_epoch", 2),
        ("limit_val_batches", 0),
        ("limit_train_batches", 0),
        ("max_time", "00:00:01:00"),
        ("precision", "bf16-true"),
    ],
)
def test_trainer_settings_that_break_a_generation_are_refused(setting: str, value: Any) -> None:
    recorder, module = Recorder(), ERLModule(population_size=4, gradient_steps=2, accumulate=2)
    with pytest.raises(UserError, match=rf"^.*{setting}.*$") as error:
        make_trainer(recorder, **{setting: value}).fit(module, datamodule=ProbeRollouts(IDLE))
    assert recorder.order == [], "before anything is played"
    # of a time Lightning keeps no trace
    if setting not in ("max_time", "limit_val_batches", "limit_train_batches") and ":" not in str(value):
        assert str(value) in str(error.value)


@pytest.mark.parametrize(
    "callback",
    [
        ModelCheckpoint(every_n_train_steps=1),
        ModelCheckpoint(train_time_interval=timedelta(seconds=1)),
        ModelCheckpoint(save_on_exception=True),
        OnExceptionCheckpoint("elsewhere"),
    ],
)
def test_checkpoints_within_a_generation_are_refused(
    callback: Callback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(callback, enable_checkpointing=True)
    with pytest.raises(UserError, match=rf"has {type(callback).__name__} that saves within a generation"):
        trainer.fit(ERLModule(population_size=4), datamodule=ProbeRollouts(IDLE))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_second_writer_of_the_last_checkpoint_is_refused(tmp_path: Path) -> None:
    twice = [GenerationCheckpoint(), ModelCheckpoint(dirpath=tmp_path / "checkpoints", save_last=True)]
    trainer = make_trainer(*twice, enable_checkpointing=True, default_root_dir=tmp_path)
    with pytest.raises(UserError, match=r"has one with save_last, which would write over last.ckpt of Generation"):
        trainer.fit(ERLModule(population_size=4), datamodule=ProbeRollouts(IDLE))


class StopsWithin(Callback):
    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        trainer.should_stop = True


def test_a_generation_that_a_callback_cuts_ends_the_run() -> None:
    module = ERLModule(population_size=4, gradient_steps=2, accumulate=2)
    with pytest.raises(UserError, match=r"^generation 0 was cut in the middle: a callback sets trainer.should_stop"):
        make_trainer(StopsWithin()).fit(module, datamodule=ProbeRollouts(IDLE))


def test_early_stopping_does_not_end_a_run_before_its_metric_has_a_value() -> None:
    def fit(**settings: Any) -> int:
        stopping = EarlyStopping("validation/mean", mode="max", patience=3, **settings)
        module = ERLModule(population_size=4, gradient_steps=1, validate_every=2)
        (trainer := make_trainer(stopping, epochs=3)).fit(module, datamodule=ProbeRollouts(IDLE))
        return trainer.current_epoch

    with pytest.raises(UserError, match=r"^EarlyStopping: validation/mean is NaN in generation 0, which would end"):
        fit()
    assert fit(check_finite=False) == 3


@pytest.mark.parametrize(
    ("setting", "value"), [("limit_train_batches", 1), ("limit_train_batches", 0.5), ("overfit_batches", 1)]
)
def test_a_generation_is_not_cut(setting: str, value: float) -> None:
    recorder, module = Recorder(), ERLModule(population_size=4, gradient_steps=2, accumulate=2)
    with pytest.raises(
        UserError, match=rf"^trainer\.limit_train_batches is {value}, or .* a generation of 2 steps; leave"
    ):
        make_trainer(recorder, **{setting: value}).fit(module, datamodule=ProbeRollouts(IDLE))
    assert recorder.order == []


def test_a_limit_that_cuts_nothing_is_allowed() -> None:
    recorder, module = Recorder(), ERLModule(population_size=4, gradient_steps=2, accumulate=2)
    make_trainer(recorder, limit_train_batches=2).fit(module, datamodule=ProbeRollouts(IDLE))
    make_trainer(fast_dev_run=True).fit(module, datamodule=ProbeRollouts(IDLE))
    assert len(recorder.order) == 4


@pytest.mark.parametrize(("precision", "said"), [("16-mixed", "needs a loss scaler "), ("16-true", "")])
def test_half_precision_is_refused_with_the_reason(precision: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"^trainer\.precision {precision} {said}.*; use 32-true or bf16-mixed$"):
        check_precision(precision)


def test_mixed_precision_trains_and_a_sanity_check_changes_nothing() -> None:
    recorder, module = Recorder(), ERLModule(population_size=4, gradient_steps=2, accumulate=2)
    trainer = make_trainer(recorder, precision="bf16-mixed", num_sanity_val_steps=2)
    trainer.fit(module, datamodule=ProbeRollouts(IDLE))
    assert recorder.order == [(0, phase) for phase in ("evaluate", "train", "evolve", "validate")]
    before, after = recorder.states[0, "evaluate"], recorder.states[0, "train"]
    for name in ("actor", "critic"):
        assert after[name].isfinite().all()
        assert not (after[name] == before[name]).all()
        assert str(after[name].dtype) == "torch.float32"


@pytest.mark.parametrize("data", [None, LightningDataModule()])
def test_data_of_another_kind_are_refused(data: LightningDataModule | None) -> None:
    with pytest.raises(UserError, match=r"^ERLModule needs .*datamodule.*$"):
        make_trainer().fit(ERLModule(population_size=2), datamodule=data)
