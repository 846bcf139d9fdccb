"""Trainer settings that would break a generation, refused before they can."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Timer

from eigen2 import compat
from eigen2.errors import UserError
from eigen2.runtime.checkpoint import GenerationCheckpoint

PRECISIONS = ("32-true", "bf16-mixed")


def check_precision(precision: str) -> None:
    """Refuse precisions that do not train a population correctly; raises UserError with the reason."""
    if precision not in PRECISIONS:
        reason = "is not supported"
        if precision == "16-mixed":
            reason = "needs a loss scaler whose one overflow would skip the step of the whole population"
        raise UserError(f"trainer.precision {precision} {reason}; use {' or '.join(PRECISIONS)}")


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse Trainer arguments that have another name here, before a Trainer is made from them; raises UserError."""
    check_precision(str(config.get("precision") or "32-true"))
    for name, refused, remedy in (
        ("accumulate_grad_batches", lambda value: value != 1, "use model.accumulate, or a larger data.batch_size"),
        ("gradient_clip_val", lambda value: True, "use model.max_grad_norm, which clips each agent's gradient"),
        ("max_epochs", lambda value: value == 0, "give at least 1 generation, or -1 for no end"),
        ("max_time", lambda value: isinstance(value, Mapping), "leave it out: a generation is not cut"),
        ("val_check_interval", lambda value: isinstance(value, Mapping), "leave it out: a generation is not cut"),
        ("limit_val_batches", lambda value: value == 0, "leave it out: validation is one batch"),
        ("limit_test_batches", lambda value: value == 0, "leave it out: a test is one batch"),
        ("barebones", lambda value: value, "leave it out: a run needs its logger and checkpoints"),
    ):
        if (value := config.get(name)) is not None and refused(value):
            raise UserError(f"trainer.{name} is {value}; {remedy}")
    if config.get("default_root_dir", "") is None:
        raise UserError("trainer.default_root_dir is null; name the folder of the run")


def check_batches(trainer: Any, steps: int) -> None:
    """Refuse a limit on batches below a generation's training `steps`; raises UserError."""
    most = trainer.limit_train_batches
    cut = most < steps if isinstance(most, int) else most < 1.0
    if cut and not trainer.fast_dev_run:
        cutting = f"trainer.limit_train_batches is {most}, or trainer.overfit_batches"
        raise UserError(f"{cutting}: it would cut a generation of {steps} steps; leave it out")


def check_trainer(trainer: Any) -> None:
    """Refuse what would cut a generation, or skip its validation or checkpoint; raises UserError."""
    check_precision(str(trainer.precision))
    steps = -1 if trainer.fast_dev_run else trainer.max_steps
    interval = getattr(trainer, "val_check_interval", "a time")  # Lightning sets none when it is a time
    every, batches = trainer.check_val_every_n_epoch, (trainer.limit_train_batches, trainer.limit_val_batches)
    timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]
    savers = [callback for callback in trainer.callbacks if compat.saves_within_epoch(callback)]
    # they would save at the very error
    trainer.callbacks = [callback for callback in trainer.callbacks if not compat.saves_on_exception(callback)]
    for broken, reason in (
        (steps != -1, f"max_steps is {steps}: it would stop in the middle of a generation; use trainer.max_epochs"),
        (trainer.min_steps, f"min_steps is {trainer.min_steps}: it may stop within a generation; use min_epochs"),
        (
            not isinstance(interval, float) or interval != 1.0,
            f"val_check_interval is {interval}: it would validate before evolution; leave it at 1.0",
        ),
        (every != 1, f"check_val_every_n_epoch is {every}: every generation is validated; leave it at 1"),
        (0 in batches, "limit_train_batches and limit_val_batches must not be 0: a generation does both"),
        (
            any(compat.timer_interval(timer) == "step" for timer in timers),
            "max_time would stop in the middle of a generation; use Lightning's callback Timer with interval: epoch",
        ),
        (
            savers != [],
            f"callbacks has {' and '.join(type(each).__name__ for each in savers)} that saves within a generation, "
            "where no run resumes exactly; leave out every_n_train_steps, train_time_interval, "
            "save_on_exception and OnExceptionCheckpoint",
        ),
        (
            any(isinstance(each, GenerationCheckpoint) for each in trainer.callbacks)
            and any(_writes_last(each, trainer.default_root_dir) for each in trainer.checkpoint_callbacks),
            "callbacks has one with save_last, which would write over last.ckpt of GenerationCheckpoint; leave it out",
        ),
    ):
        if broken:
            raise UserError(f"trainer.{reason}")


def _writes_last(callback: Any, root: str) -> bool:
    """Return whether a ModelCheckpoint writes a `last.ckpt` of its own into the run's folder of checkpoints."""
    if not getattr(callback, "save_last", None):
        return False
    return Path(callback.dirpath).resolve() == (Path(root) / "checkpoints").resolve()


def check_early_stopping(trainer: Any, metrics: Mapping[str, float]) -> None:
    """Refuse an EarlyStopping that would silently end the run, as its metric has no value; raises UserError."""
    for callback in () if trainer.fast_dev_run else trainer.early_stopping_callbacks:
        if callback.check_finite and math.isnan(metrics.get(callback.monitor, 0.0)):
            raise UserError(
                f"EarlyStopping: {callback.monitor} is NaN in generation {trainer.current_epoch}, which would end the "
                "run; set its check_finite to false, and its patience above the generations without a value"
            )
