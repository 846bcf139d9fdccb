"""Read what a checkpoint says of its run, and compare that with the run that loads it."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from eigen2.errors import UserError, is_shortage, one_line
from eigen2.runtime.provenance import describe_changes

log = logging.getLogger(__name__)

# settings, and groups of them, that may change between a checkpoint and its resume
MAY_CHANGE = (
    *("model.actor_lr", "model.critic_lr", "model.learning_rate"),
    *("num_threads", "matmul_precision", "trainer.precision"),
)
# parts of a checkpoint that `validate`, `test`, `predict` and `export` need, and what they hold
REQUIRED = {
    "config": "its configuration",
    "data_used": "which data its fit used",
    "inference": "how its networks see the data",
}


def flatten(settings: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return plain values by full key, `rules.fee` for the key `fee` within `rules`; tuples become lists."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return flat


def saved_run(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what eigen2 saved about the run that wrote a checkpoint; raise a UserError if eigen2 did not write it."""
    if "eigen2" not in checkpoint:
        raise UserError("the checkpoint was not written by eigen2; give one that was, or none")
    return checkpoint["eigen2"]


@contextmanager
def altered_as_user_error(what: str = "the checkpoint") -> Iterator[None]:
    """Turn what unexpected content of a checkpoint or an exported champion raises into a UserError of one line."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, UserError) or is_shortage(error):
            raise
        reason = one_line(f"{type(error).__name__}: {error}", most=120)
        raise UserError(f"{what} holds what eigen2 did not write ({reason}); give another one") from error


def saved_part(saved: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of what a run saved, one of `REQUIRED`; raise a UserError if an earlier version did not save it."""
    part = saved.get(name)
    if not isinstance(part, Mapping):
        raise UserError(f"the checkpoint is by an earlier version, which did not save {REQUIRED[name]}; fit again")
    return part


def require_champion(generation: int, what: str = "the checkpoint") -> int:
    """Return the generation in which a champion was found; raise a UserError if it is -1, that of none."""
    if generation < 0:
        raise UserError(f"{what} has no champion: none was validated before it was written; fit longer")
    return generation


def require_same_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse to resume with settings, by full key, that differ from the checkpoint's; log those that `MAY_CHANGE`."""
    changed = describe_changes(saved, current)
    allowed = {key for key in changed for group in MAY_CHANGE if f"{key}.".startswith(f"{group}.")}
    if refused := [text for key, text in changed.items() if key not in allowed]:
        raise UserError(
            f"the checkpoint's run had other settings: {'; '.join(refused)}; resume with "
            "its settings (config.yaml in its folder), or start a new run in another --trainer.default_root_dir"
        )
    if changed:
        log.warning("resumed with other settings: %s", "; ".join(changed.values()))


def log_data_differences(saved: Mapping[str, Any], current: Mapping[str, Any], action: str) -> None:
    """Log the data settings in which a run that `tested` or `validated` differs from the fit of its checkpoint."""
    if changed := describe_changes(saved, current, "data."):
        log.warning("%s with other settings than those of the fit: %s", action, "; ".join(changed.values()))
