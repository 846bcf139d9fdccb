"""What a sweep chooses from: a YAML file of full keys of fit, each with a range or a list of choices."""

import json
import math
from pathlib import Path
from typing import Any

import yaml

from eigen2.errors import UserError

Space = dict[str, dict[str, Any]]
"""By full key, in alphabetical order: `low`, `high`, `step` and `log` of a range, or `choices`."""

FORMS = "{low: .., high: ..}, with log: true or step: .. if need be, or {choices: [.., ..]}"
TAKEN = ("config", "ckpt_path", "report", "trainer.default_root_dir")
"""Keys of fit that a sweep sets itself."""

LARGEST = 1e15
"""Size of a number up to which a float counts every whole one."""


def read_mapping(option: str, file: str) -> dict[Any, Any]:
    """What a YAML file maps.

    Args:
        option: that names the file.
        file: to read.

    Raises:
        UserError: it cannot be read, or maps nothing.
    """
    try:
        found = yaml.safe_load(Path(file).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{option} {file} cannot be read: {reason}; give a YAML file") from error
    if not isinstance(found, dict) or not found:
        raise UserError(f"{option} {file} holds {_short(found)}; it must map keys to values")
    return found


def read_space(file: str) -> Space:
    """Read and check a space.

    Args:
        file: YAML.

    Raises:
        UserError: it cannot be read, or an entry is neither a range nor choices; in one line.
    """
    found = read_mapping("--space", file)
    for key in found:
        check_key(f"--space {file}", key)
    return {key: _entry(f"--space {file}: {key}", found[key]) for key in sorted(found)}


def check_key(where: str, key: object) -> None:
    """Refuse what is no key, and keys that a sweep sets itself.

    Args:
        where: it is named.
        key: to look at.

    Raises:
        UserError: it cannot be set.
    """
    if not isinstance(key, str) or not key.replace(".", "").isidentifier():
        raise UserError(f"{where}: {_short(key)} is no key; name full keys of fit, such as model.actor_lr")
    if key in TAKEN:
        raise UserError(f"{where}: {key} is set by the sweep itself; leave it out")


def word(value: Any) -> str:
    """A value as a word of the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def suggest(trial: Any, space: Space) -> dict[str, Any]:
    """A value for each key.

    Args:
        trial: Optuna's, which chooses.
        space: of the sweep.
    """
    return {key: _suggest(trial, key, entry) for key, entry in space.items()}


def corners(space: Space) -> list[dict[str, Any]]:
    """Settings in which each end of a range, and each choice, stands at least once."""
    listed = {key: entry.get("choices") or [entry["low"], entry["high"]] for key, entry in space.items()}
    most = max(len(values) for values in listed.values())
    return [{key: values[min(i, len(values) - 1)] for key, values in listed.items()} for i in range(most)]


def _suggest(trial: Any, key: str, entry: dict[str, Any]) -> Any:
    if "choices" in entry:
        return trial.suggest_categorical(key, entry["choices"])
    if isinstance(entry["low"], int):
        return trial.suggest_int(key, entry["low"], entry["high"], step=entry["step"] or 1, log=entry["log"])
    return trial.suggest_float(key, entry["low"], entry["high"], step=entry["step"], log=entry["log"])


def _entry(name: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise UserError(f"{name} is {_short(given)}; it must be {FORMS}")
    words = set(given)
    if words == {"choices"}:
        return {"choices": _choices(f"{name}: choices", given["choices"])}
    if not {"low", "high"} <= words <= {"low", "high", "step", "log"}:
        raise UserError(f"{name} has {', '.join(sorted(map(str, words))) or 'no words'}; it must be {FORMS}")
    low, high = (_number(f"{name}: {end}", given[end]) for end in ("low", "high"))
    step = None if given.get("step") is None else _number(f"{name}: step", given["step"])
    log = given.get("log", False)
    if not all(isinstance(number, int) for number in (low, high, step or 1)):
        low, high, step = float(low), float(high), None if step is None else float(step)
    if low > high:
        raise UserError(f"{name}: low {low} is more than high {high}; swap them")
    if not isinstance(log, bool):
        raise UserError(f"{name}: log is {_short(log)}; it must be true or false")
    if log and low <= 0:
        raise UserError(f"{name}: low is {low}; with log: true it must be above 0")
    if log and step is not None:
        raise UserError(f"{name} has log and step {step}; leave one out")
    if step is not None and not _divides(step, high - low):
        raise UserError(f"{name}: step is {step}; it must be above 0 and lead from low {low} to high {high}")
    return {"low": low, "high": high, "step": step, "log": log}


def _divides(step: float, reach: float) -> bool:
    if step <= 0 or not math.isfinite(steps := reach / step):
        return False
    return math.isclose(steps, round(steps), abs_tol=1e-9)


def _number(name: str, given: object) -> int | float:
    """A number; YAML takes 1e-4 for a text, as it has no point."""
    try:
        number = float(given) if isinstance(given, str) else given
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= LARGEST:
        raise UserError(f"{name} is {_short(given)}; it must be a number of at most {LARGEST:g} in size")
    return number


def _choices(name: str, given: object) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise UserError(f"{name} is {_short(given)}; it must be a list of one value or more")
    for value in given:
        if value is not None and not isinstance(value, bool | int | float | str):
            raise UserError(f"{name} has {_short(value)}; write it as one text, in quotes")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} has {value}; numbers must be finite")
        if sum(each == value or word(each) == word(value) for each in given) > 1:  # to Optuna true is 1
            raise UserError(f"{name} has {word(value)} twice; leave one out")
    return given


def _short(value: object) -> str:
    text = " ".join(str("null" if value is None else value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
