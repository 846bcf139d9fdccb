"""Ranges of the algorithm's settings."""

import math
from typing import Any

from eigen2.errors import require_range


def check_settings(settings: dict[str, Any]) -> None:
    """Refuse settings of `ERLModule` outside their ranges.

    Args:
        settings: by name, as its constructor takes them.

    Raises:
        UserError: names the first that lies outside.
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
