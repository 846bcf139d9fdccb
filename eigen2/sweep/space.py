"""The settings that a sweep chooses from: keys of fit, each with a range or a list of choices, in a YAML file."""

from pathlib import Path
from typing import Any

import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from eigen2.errors import UserError
from eigen2.sweep.trial import to_text

Space = dict[str, BaseDistribution]  # distribution of each key, in alphabetical order
FORMS = "{low: .., high: ..}, with log: true or step: .. if need be, or {choices: [.., ..]}"
RESERVED = ("config", "ckpt_path", "report", "trainer.default_root_dir")
"""Keys of fit that a sweep sets itself."""
LARGEST = 1e15  # largest magnitude of a number; up to it a float represents every integer


def read_mapping(option: str, file: str) -> dict[Any, Any]:
    """Return the mapping in the YAML file that an option names; raises UserError if there is none."""
    try:
        found = yaml.safe_load(Path(file).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{option} {file} cannot be read: {_short(error, 120)}; give a YAML file") from error
    if not isinstance(found, dict) or not found:
        raise UserError(f"{option} {file} holds {_short(found)}; it must map keys to values")
    return found


def read_space(file: str) -> Space:
    """Return the space in a YAML file; raises UserError if an entry is neither a range nor choices."""
    found = read_mapping("--space", file)
    for key in found:
        check_key(f"--space {file}", key)
    return {key: _distribution(f"--space {file}: {key}", found[key]) for key in sorted(found)}


def check_key(where: str, key: object) -> None:
    """Refuse, by a UserError, what is not a key of fit, and keys that a sweep sets itself."""
    if not isinstance(key, str) or not key.replace(".", "").isidentifier():
        raise UserError(f"{where}: {_short(key)} is not a key; name full keys of fit, such as model.actor_lr")
    if key in RESERVED:
        raise UserError(f"{where}: {key} is set by the sweep itself; leave it out")


def corners(space: Space) -> list[dict[str, Any]]:
    """Return settings in which each end of a range, and each choice, occurs at least once."""
    values = {
        key: each.choices if isinstance(each, CategoricalDistribution) else (each.low, each.high)  # type: ignore[attr-defined]
        for key, each in space.items()
    }
    most = max(map(len, values.values()))
    return [{key: each[min(i, len(each) - 1)] for key, each in values.items()} for i in range(most)]


def _distribution(name: str, given: object) -> BaseDistribution:
    words = set(given) if isinstance(given, dict) else set()
    if not isinstance(given, dict) or not (
        words == {"choices"} or {"low", "high"} <= words <= {"low", "high", "step", "log"}
    ):
        raise UserError(f"{name} is {_short(given)}; it must be {FORMS}")
    try:
        if "choices" in given:
            return CategoricalDistribution(_choices(f"{name}: choices", given["choices"]))
        values = {key: _number(f"{name}: {key}", value) for key, value in given.items() if key != "log"}
        if not isinstance(log := given.get("log", False), bool):
            raise UserError(f"{name}: log is {_short(log)}; it must be true or false")
        whole = all(isinstance(value, int) for value in values.values())
        kind: Any = IntDistribution if whole else FloatDistribution
        found = kind(**values, log=log)
    except UserError:
        raise
    except (ValueError, ArithmeticError) as error:  # a step that is tiny beside the range is an ArithmeticError
        raise UserError(f"{name}: {_short(error, 120).replace('`', '')}") from error
    if found.high != values["high"]:
        raise UserError(f"{name}: no step of {values['step']} from low {found.low} reaches high {values['high']}")
    return found  # type: ignore[no-any-return]


def _number(name: str, given: object) -> int | float:
    """Return a number; YAML reads 1e-4 as text because it has no point."""
    try:
        number = float(given) if isinstance(given, str) else given
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= LARGEST:
        raise UserError(f"{name} is {_short(given)}; it must be a number of at most {LARGEST:g} in size")
    return number


def _choices(name: str, given: object) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise UserError(f"{name} is {_short(given)}; it must be a list of at least one value")
    for value in given:
        if value is not None and not isinstance(value, bool | int | float | str):
            raise UserError(f"{name} has {_short(value)}; write it as text, in quotes")
        if sum(each == value or to_text(each) == to_text(value) for each in given) > 1:  # to Optuna true is 1
            raise UserError(f"{name} has {to_text(value)} twice; leave one out")
    return given


def _short(value: object, most: int = 60) -> str:
    text = " ".join(str("null" if value is None else value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
