"""Compare a checkpoint's run with the one that loads it."""

import logging
from collections.abc import Mapping
from typing import Any

from eigen2.errors import UserError
from eigen2.runtime.provenance import describe_changes

log = logging.getLogger(__name__)

FREE = ("model.actor_lr", "model.critic_lr", "model.learning_rate", "num_threads", "trainer.precision", "data.account")
"""Settings, and groups of them, that may change between a checkpoint and its resume."""
REQUIRED = {"data_used": "which data its fit used", "inference": "how its networks see the data"}
"""Parts of a checkpoint that `validate`, `test`, `predict` and `export` need, and what they hold."""


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return plain values by full key, `rules.fee` for the key `fee` within `rules`; tuples become lists."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat


def saved_run(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what eigen2 saved about the run that wrote a checkpoint.

    Raises:
        UserError: eigen2 did not write it.
    """
    if "eigen2" not in checkpoint:
        raise UserError("the checkpoint was not written by eigen2; give one that was, or none")
    saved: Mapping[str, Any] = checkpoint["eigen2"]
    return saved


def saved_part(saved: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the part `name`, one of `REQUIRED`, of what a run saved.

    Raises:
        UserError: an earlier version of eigen2 wrote the checkpoint, without this part.
    """
    part = saved.get(name)
    if not isinstance(part, Mapping):
        raise UserError(f"the checkpoint is of an earlier version, which did not save {REQUIRED[name]}; fit again")
    return part


def require_workload(saved: str | None, current: str) -> None:
    """Refuse a checkpoint of another workload; one without a workload is accepted.

    Raises:
        UserError: the workloads differ.
    """
    if saved is not None and saved != current:
        raise UserError(f"the checkpoint is of the workload {saved}, not {current}; give --workload {saved}")


def check_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings than the checkpoint's, except `FREE` ones, which are logged.

    Args:
        saved: settings by full key of the run that wrote the checkpoint.
        current: settings by full key of this run.

    Raises:
        UserError: lists every setting that differs and may not, with both values.
    """
    changed = describe_changes(saved, current)
    refused = [text for key, text in changed.items() if not _is_free(key)]
    if refused:
        raise UserError(
            f"the checkpoint is of a run with other settings: {'; '.join(refused)}; resume with "
            "its settings (config.yaml in its folder), or start a new run in another --trainer.default_root_dir"
        )
    if changed:
        log.warning("resumed with other settings: %s", "; ".join(changed.values()))


def log_data_differences(saved: Mapping[str, Any], current: Mapping[str, Any], action: str) -> None:
    """Log the data settings in which a test or validation differs from the fit of its checkpoint.

    Args:
        saved: settings by full key of the fit.
        current: settings by full key of this run.
        action: `tested` or `validated`.
    """
    if changed := describe_changes(saved, current, "data."):
        log.warning("%s with other settings than those of the fit: %s", action, "; ".join(changed.values()))


def refused_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Return "; settings that differ: ..." with the keys that may not differ; empty without any."""
    changed = [key for key in describe_changes(saved, current) if not _is_free(key)]
    return f"; settings that differ: {', '.join(changed)}" if changed else ""


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE)
