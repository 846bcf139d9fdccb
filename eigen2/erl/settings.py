"""Check the algorithm's settings, and turn them into plain values."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from eigen2.core.config import to_config
from eigen2.erl.evolution.operator import EvolutionContext, Operator
from eigen2.erl.evolution.operators import Injection
from eigen2.erl.evolution.selection import check_operators, idle
from eigen2.erl.learners import Learner
from eigen2.errors import UserError, require_range

log = logging.getLogger(__name__)
RANGES: dict[str, dict[str, Any]] = {
    # counts beyond these fit no memory, and some beyond 2^63 no tensor's size
    "population_size": {"least": 1, "most": 10**6, "whole": True},
    "gradient_steps": {"least": -1, "most": 10**9, "whole": True},
    "accumulate": {"least": 1, "most": 10**9, "whole": True},
    "validate_every": {"least": 1, "most": 10**9, "whole": True},
    "gamma": {"least": 0, "most": 1},
    "tau": {"above": 0, "most": 1},
    "actor_lr": {"above": 0},
    "critic_lr": {"above": 0},
    "max_grad_norm": {"above": 0, "most": math.inf},
    "reward_scale": {"above": 0},
    "noise": {"least": 0},
    "noise_decay": {"above": 0, "most": 1},
    "noise_min": {"least": 0},
}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of `ERLModule` outside their ranges, by a UserError that names the first of them."""
    for name, limits in RANGES.items():
        if settings[name] is not None or name != "gamma":
            require_range(f"model.{name}", settings[name], **limits)
    if (learners := settings["learners"]) is not None and (type(learners) is not int or learners != 1):
        raise UserError(f"model.learners is {learners!r}; set 1 if one agent learns alone, or null for all")
    if settings["representation"] not in ("own", "shared"):
        raise UserError(f"model.representation is {settings['representation']!r}; set own or shared")
    _check_objects(settings)
    require_trained_actor(settings["learner"], settings["gradient_steps"])
    if settings["evolution"] is not None:
        check_operators(settings["evolution"])


def require_trained_actor(learner: Learner, steps: int) -> None:
    """Raise UserError if a learner would never train an actor in a generation of so many gradient steps."""
    if steps > 0 and not any(map(learner.trains_actor, range(steps))):
        raise UserError(
            f"{type(learner).__name__} would never train an actor in the {steps} gradient steps of a generation; raise "
            "model.gradient_steps"
        )


def _check_objects(settings: Mapping[str, Any]) -> None:
    """Refuse what is no learner, list of operators or factory of networks, which a script may give."""
    learner, operators = settings["learner"], settings["evolution"]
    if not isinstance(learner, Learner):
        raise UserError(f"model.learner is {learner!r}; give a learner, such as TD3()")
    for name in ("actor", "critic"):
        network = settings[name]
        if network is not None and (isinstance(network, nn.Module) or not callable(network)):
            raise UserError(f"model.{name} is {network!r}; give a class or function that makes the network")
    if not isinstance(operators, list | tuple | None):
        raise UserError(f"model.evolution is {operators!r}; give a list of operators, or null")
    for operator in operators or ():
        if not (isinstance(operator, Operator) and isinstance(getattr(operator, "name", None), str)):
            raise UserError(f"model.evolution has {operator!r}; give operators, each with a name: Elitism(), ...")


def warn_of_idle_operators(operators: Sequence[Operator], agents: int, context: EvolutionContext) -> None:
    """Warn of operators that get no agent, and if no operator passes on the actor of the one agent that learns."""
    if not operators or agents == 1:
        return
    if context.first_evolving and not any(isinstance(operator, Injection) for operator in operators):
        log.warning(
            "only the first agent learns, and the others never get its actor: add eigen2.erl.evolution.Injection to "
            "model.evolution"
        )
    for operator in idle(operators, agents, context):
        log.warning(
            "model.evolution leaves no agent to %s of %d that evolve: lower the shares of the others, list it before "
            "one without a share, or raise model.population_size",
            *(type(operator).__name__, agents - context.first_evolving),
        )


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings but networks as plain values; learner and operators become class and attributes."""
    plain = {name: value for name, value in settings.items() if name not in ("actor", "critic")}
    operators = settings["evolution"]
    plain["learner"] = _plain(settings["learner"])
    plain["evolution"] = operators and {f"{i} {one.name}": _plain(one) for i, one in enumerate(operators)}
    return plain


def _plain(configured: object) -> dict[str, Any]:
    """Return an object's class and its attributes that do not begin with an underscore."""
    attributes = {name: value for name, value in vars(configured).items() if not name.startswith("_")}
    name = f"{type(configured).__module__}.{type(configured).__qualname__}"
    return {"class": name, **to_config(attributes)}
