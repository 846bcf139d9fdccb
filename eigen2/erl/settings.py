"""Check the algorithm's settings, and a checkpoint's sizes."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from eigen2.core.compatibility import refused_differences
from eigen2.erl.evolution.selection import check_operators
from eigen2.errors import UserError, require_range


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse settings of `ERLModule` outside their ranges.

    Args:
        settings: by name, as its constructor takes them.

    Raises:
        UserError: names the first that lies outside, its value and its range.
    """
    for name, least, most in (
        # counts beyond these fit no memory, and some beyond 2^63 no tensor's size
        ("population_size", 1, 10**6),
        ("gradient_steps", 0, 10**9),
        ("accumulate", 1, 10**9),
        ("validate_every", 1, 10**9),
        ("noise", 0, None),
        ("noise_min", 0, None),
    ):
        require_range(f"model.{name}", settings[name], least=least, most=most)
    if settings["learners"] is not None:
        require_range("model.learners", settings["learners"], least=1, most=settings["population_size"])
    for name in ("actor_lr", "critic_lr", "reward_scale"):
        require_range(f"model.{name}", settings[name], above=0)
    require_range("model.max_grad_norm", settings["max_grad_norm"], above=0, most=math.inf)
    for name in ("tau", "noise_decay"):
        require_range(f"model.{name}", settings[name], above=0, most=1)
    require_range("model.gamma", settings["gamma"], least=0, most=1)
    if settings["evolution"] is not None:
        check_operators(settings["evolution"])


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `ERLModule` without its networks as plain values: operators and learner by class and settings.

    Operators are keyed by their place and name, as their order counts.
    """
    plain = {name: value for name, value in settings.items() if name not in ("actor", "critic")}
    operators = settings["evolution"]
    plain["learner"] = settings["learner"].settings()
    plain["evolution"] = operators and {f"{i} {each.name}": each.settings() for i, each in enumerate(operators)}
    return plain


def check_sizes(
    checkpoint: Mapping[str, Any], total: int, weights: Mapping[str, int], settings: Mapping[str, Any]
) -> None:
    """Refuse a checkpoint of another population size or other networks.

    Args:
        checkpoint: Lightning's.
        total: agents of the population.
        weights: of one `actor` and one `critic`.
        settings: of this run, by full key.

    Raises:
        UserError: names both sizes, and the settings that differ.
    """
    for network, size in weights.items():
        saved = tuple(checkpoint["state_dict"].get(f"population.{network}", torch.empty(0, 0)).shape)
        if saved != (total, size):
            raise UserError(
                f"the checkpoint holds {saved[0]} agents with {saved[1]} {network} weights, this configuration "
                f"makes {total} with {size}; use the settings of the run that wrote it (config.yaml in its folder)"
                f"{refused_differences(checkpoint['eigen2']['settings'], settings)}"
            )
