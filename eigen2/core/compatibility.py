"""What a checkpoint was made with against what it is resumed with."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.states import TrainerFn

from eigen2.core.export import call_of
from eigen2.errors import UserError
from eigen2.runtime.provenance import describe_changes

if TYPE_CHECKING:
    from eigen2.erl.module import ERLModule

log = logging.getLogger(__name__)

FREE = ("model.actor_lr", "model.critic_lr", "model.learning_rate", "num_threads", "trainer.precision", "data.account")
"""Settings, and groups of them, that may change between a checkpoint and its resume."""
DONE = {TrainerFn.TESTING: "tested", TrainerFn.VALIDATING: "validated"}
NOTES = {"seen": "what its fit has seen", "acting": "how its agents act"}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Plain values by full key, `rules.fee` for the key `fee` within `rules`; tuples as lists."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = list(value) if isinstance(value, tuple) else value
    return found


def check_drift(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Refuse other settings than the checkpoint's; say which of those that may change did.

    Args:
        saved: settings by full key, of the run that wrote the checkpoint.
        mine: the same of this run.

    Raises:
        UserError: names every setting that differs and may not, with both values.
    """
    changed = describe_changes(saved, mine)
    refused = [word for key, word in changed.items() if not _is_free(key)]
    if refused:
        raise UserError(
            f"the checkpoint is of a run with other settings: {'; '.join(refused)}; resume with "
            "its settings (config.yaml in its folder), or start a new run in another --trainer.default_root_dir"
        )
    if changed:
        log.warning("resumed with other settings: %s", "; ".join(changed.values()))


def tell_other_data(saved: Mapping[str, Any], mine: Mapping[str, Any], doing: TrainerFn | None) -> None:
    """Say in which settings of the data a test or a validation differs from the fit of its checkpoint.

    Args:
        saved: settings by full key, of the run that wrote the checkpoint.
        mine: the same of this test or validation.
        doing: which of them; of a fit nothing is said, see `check_drift`.
    """
    if doing in DONE and (changed := describe_changes(saved, mine, "data.")):
        log.warning("%s with other settings than those of the fit: %s", DONE[doing], "; ".join(changed.values()))


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def word_of(factory: object | None) -> str | None:
    """What builds a user's networks, by its name and arguments; None for the workload's own."""
    if factory is None:
        return None
    call = call_of(factory)
    if call is None:
        return str(getattr(factory, "__qualname__", type(factory).__qualname__))
    arguments = ", ".join(f"{name}={value!r}" for name, value in sorted(call["init_args"].items()))
    return f"{call['class_path']}({arguments})"


def noted(checkpoint: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """What the fit that wrote a checkpoint has noted for later use.

    Args:
        checkpoint: as it was loaded.
        what: `seen`, what it has looked at, or `acting`, how its agents act.

    Raises:
        UserError: it does not say.
    """
    found = checkpoint["eigen2"].get(what)
    if not isinstance(found, Mapping):
        raise UserError(f"the checkpoint is of an earlier version, which did not note {NOTES[what]}; fit again")
    return found


def require_workload(saved: str | None, mine: str) -> None:
    """Refuse a checkpoint of another workload; one that does not say is taken.

    Raises:
        UserError: it is of another.
    """
    if saved is not None and saved != mine:
        raise UserError(f"the checkpoint is of the workload {saved}, not {mine}; give --workload {saved}")


def check_checkpoint(module: "ERLModule", checkpoint: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another population, or to resume with other settings.

    Raises:
        UserError: the checkpoint is not of this module, of another population size or other networks, or of a run with
            settings that must not change.
    """
    if "population" not in module._modules:
        raise UserError(
            "ERLModule is built by a Trainer together with its data: give ckpt_path to trainer.fit or validate"
        )
    if "eigen2" not in checkpoint:
        raise UserError("the checkpoint was not written by eigen2; give one that was, or none")
    fits = module.trainer.state.fn == TrainerFn.FITTING
    acting = checkpoint["eigen2"].get("acting", {}) if fits else noted(checkpoint, "acting")
    require_workload(acting.get("workload"), module.data.workload)
    if fits:
        check_drift(checkpoint["eigen2"]["settings"], module.settings())
    for network in ("actor", "critic"):
        rows = checkpoint["state_dict"].get(f"population.{network}", torch.empty(0, 0))
        saved, mine = tuple(rows.shape), (module.share.total, getattr(module.population, network).shape[1])
        if saved != mine:
            raise UserError(
                f"the checkpoint holds {saved[0]} agents with {saved[1]} {network} weights, this configuration "
                f"makes {mine[0]} with {mine[1]}; use the settings of the run that wrote it (config.yaml in its folder)"
                f"{_sizes(checkpoint, module)}"
            )


def _sizes(checkpoint: Mapping[str, Any], module: "ERLModule") -> str:
    """Settings that differ, of which some decide sizes."""
    changed = [
        key for key in describe_changes(checkpoint["eigen2"]["settings"], module.settings()) if not _is_free(key)
    ]
    return f"; other there: {', '.join(changed)}" if changed else ""
