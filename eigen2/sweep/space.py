"""The search space of a sweep: keys of fit, each with a range or a list of choices, in a YAML file."""

from collections.abc import Iterator
from typing import Any

import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from eigen2.errors import UserError
from eigen2.runtime.yaml_files import read_yaml
from eigen2.sweep.trial import to_text

Space = dict[str, BaseDistribution]  # distribution of each key, in alphabetical order
FORMS = "{low: .., high: ..}, with log: true or step: .. if needed, or {choices: [.., ..]}"
RESERVED = ("config", "ckpt_path", "report", "trainer.default_root_dir")
"""Keys of fit that a sweep sets itself."""
LARGEST = 1e15  # largest magnitude of a number; up to it a float represents every integer


def read_mapping(option: str, file: str) -> dict[Any, Any]:
    """Return the mapping in the YAML file of an option; raises UserError if the file holds none."""
    try:
        content = read_yaml(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or _short(error, 120)
        raise UserError(f"{option} {file} cannot be read: {reason}; give a YAML file") from error
    if not isinstance(content, dict) or not content:
        raise UserError(f"{option} {file} holds {_short(content)}; it must map keys to values")
    for key in _keys(content):
        if not isinstance(key, str):  # as YAML reads `on` and `1`
            raise UserError(f"{option} {file}: {key} is read as {type(key).__name__}, not as a key; put it in quotes")
    return content


def _keys(value: object) -> Iterator[object]:
    """Yield the keys of a mapping and of those in it."""
    for key, part in value.items() if isinstance(value, dict) else ():
        yield key
        yield from _keys(part)


def read_space(file: str) -> Space:
    """Read a space from a YAML file; raises UserError if an entry is neither a range nor choices."""
    entries = read_mapping("--space", file)
    for key in entries:
        check_key(f"--space {file}", key)
    return {key: _distribution(f"--space {file}: {key}", entries[key]) for key in sorted(entries)}


def check_key(where: str, key: object) -> None:
    """Raise UserError if `key` is not written as a key of fit, or is one that a sweep sets itself."""
    if not isinstance(key, str) or not key.replace(".", "").isidentifier():
        raise UserError(f"{where}: {_short(key)} is not a key; name full keys of fit, such as model.actor_lr")
    if key in RESERVED:
        raise UserError(f"{where}: {key} is set by the sweep itself; leave it out")


def corners(space: Space) -> list[dict[str, Any]]:
    """Return few settings that together use both bounds of every range, and every choice."""
    values = {
        key: entry.choices if isinstance(entry, CategoricalDistribution) else (entry.low, entry.high)  # type: ignore[attr-defined]
        for key, entry in space.items()
    }
    count = max(map(len, values.values()))
    return [{key: options[min(i, len(options) - 1)] for key, options in values.items()} for i in range(count)]


def _distribution(name: str, entry: object) -> BaseDistribution:
    keys = set(entry) if isinstance(entry, dict) else set()
    if not isinstance(entry, dict) or not (
        keys == {"choices"} or {"low", "high"} <= keys <= {"low", "high", "step", "log"}
    ):
        raise UserError(f"{name} is {_short(entry)}; it must be {FORMS}")
    try:
        if "choices" in entry:
            return CategoricalDistribution(_choices(f"{name}: choices", entry["choices"]))
        values = {key: _number(f"{name}: {key}", value) for key, value in entry.items() if key != "log"}
        if not isinstance(log := entry.get("log", False), bool):
            raise UserError(f"{name}: log is {_short(log)}; it must be true or false")
        whole = all(isinstance(value, int) for value in values.values())
        kind: Any = IntDistribution if whole else FloatDistribution
        distribution = kind(**values, log=log)
    except UserError:
        raise
    except (ValueError, ArithmeticError) as error:  # ArithmeticError: a step far smaller than the range
        raise UserError(f"{name}: {_short(error, 120).replace('`', '')}") from error
    if distribution.high != values["high"]:
        raise UserError(f"{name}: no step of {values['step']} from {distribution.low} reaches high {values['high']}")
    return distribution


def _number(name: str, value: object) -> int | float:
    """Return a number, also from text: YAML reads 1e-4 as text because it has no point."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= LARGEST:
        raise UserError(f"{name} is {_short(value)}; it must be a number of at most {LARGEST:g} in magnitude")
    return number


def _choices(name: str, choices: object) -> list[Any]:
    if not isinstance(choices, list) or not choices:
        raise UserError(f"{name} is {_short(choices)}; it must be a list of at least one value")
    for value in choices:
        if value is not None and not isinstance(value, bool | int | float | str):
            raise UserError(f"{name} has {_short(value)}; write it as text, in quotes")
        if sum(other == value or to_text(other) == to_text(value) for other in choices) > 1:  # to Optuna true equals 1
            raise UserError(f"{name} has {to_text(value)} twice; leave one out")
    return choices


def _short(value: object, most: int = 60) -> str:
    text = " ".join(str("null" if value is None else value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
