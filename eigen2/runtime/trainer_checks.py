"""Trainer settings that would break a generation, refused before they can."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer

from eigen2 import compat
from eigen2.errors import UserError

PRECISIONS = ("32-true", "bf16-mixed")


def check_precision(precision: str) -> None:
    """Refuse precisions that do not train a population correctly; raises UserError with the reason."""
    if precision not in PRECISIONS:
        reason = "is not supported"
        if precision == "16-mixed":
            reason = "needs a loss scaler whose one overflow would skip the step of the whole population"
        raise UserError(f"trainer.precision {precision} {reason}; use {' or '.join(PRECISIONS)}")


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse Trainer arguments, by name, that have another name here, before a Trainer is made from them.

    Raises:
        UserError: names the setting, its value and the remedy.
    """
    check_precision(str(config.get("precision") or "32-true"))
    for name, refused, remedy in (
        ("accumulate_grad_batches", lambda value: value != 1, "use model.accumulate, or a larger data.batch_size"),
        ("gradient_clip_val", lambda value: True, "use model.max_grad_norm, which clips each agent's gradient"),
        ("max_time", lambda value: isinstance(value, Mapping), "leave it out: a generation is not cut"),
        ("val_check_interval", lambda value: isinstance(value, Mapping), "leave it out: a generation is not cut"),
    ):
        if (value := config.get(name)) is not None and refused(value):
            raise UserError(f"trainer.{name} is {value}; {remedy}")
    if config.get("default_root_dir", "") is None:
        raise UserError("trainer.default_root_dir is null; name the folder of the run")


def check_trainer(trainer: Trainer) -> None:
    """Refuse what would cut a generation, or skip its validation or checkpoint.

    Raises:
        UserError: names the setting, its value and the remedy.
    """
    check_precision(str(trainer.precision))
    if trainer.max_steps != -1 and not trainer.fast_dev_run:  # type: ignore[attr-defined]
        raise UserError(
            f"trainer.max_steps is {trainer.max_steps}: it would stop in the middle of a generation; "
            "use trainer.max_epochs, in generations"
        )
    interval = getattr(trainer, "val_check_interval", "a time")  # Lightning sets none when it is a time
    if not isinstance(interval, float) or interval != 1.0:
        raise UserError(
            f"trainer.val_check_interval is {interval}: it would validate before evolution; leave it at 1.0"
        )
    if (every := trainer.check_val_every_n_epoch) != 1:
        raise UserError(f"trainer.check_val_every_n_epoch is {every}: every generation is validated; leave it at 1")
    if 0 in (trainer.limit_val_batches, trainer.limit_train_batches):
        raise UserError("trainer.limit_train_batches and limit_val_batches must not be 0: a generation does both")
    timers = [each for each in trainer.callbacks if isinstance(each, Timer)]  # type: ignore[attr-defined]
    if any(compat.timer_interval(timer) == "step" for timer in timers):
        raise UserError(
            "trainer.max_time would stop in the middle of a generation; use the callback "
            "lightning.pytorch.callbacks.Timer with interval: epoch"
        )
