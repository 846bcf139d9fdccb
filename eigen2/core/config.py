"""Settings as plain values, in the form that configuration files of the command line have."""

import datetime
import difflib
import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from eigen2.errors import UserError

Settings = TypeVar("Settings")


def from_settings(cls: type[Settings], name: str, value: Settings | Mapping[str, Any] | None) -> Settings:
    """Return an instance unchanged, or make one from settings; raise UserError if these are not its."""
    if isinstance(value, cls):
        return value
    if value is not None and not isinstance(value, Mapping):
        raise UserError(f"{name} is {value!r}; give {cls.__name__} or a dictionary of its settings")
    require_known(name, value or (), inspect.signature(cls).parameters, see=cls.__name__)
    try:
        return cls(**(value or {}))
    except TypeError as error:
        raise UserError(f"{name} is {dict(value or {})}; give settings of {cls.__name__}: {error}") from error


def require_known(owner: str, names: Iterable[str], known: Collection[str], see: str) -> None:
    """Raise UserError for the first of names that `owner` has no setting for; `see` is where all are described."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), sorted(known), 1)
            raise UserError(f"{owner} has no setting {name}{f': did you mean {near[0]}?' if near else f'; see {see}'}")


def plain_values(value: Any) -> Any:
    """Return a value with Python's numbers and lists in place of NumPy's and pandas', and dates as text."""
    if isinstance(value, Mapping):
        return {name: plain_values(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain_values, value))
    if isinstance(value, np.datetime64 | datetime.date):  # pandas' timestamps are dates
        return str(value)[:10]
    return plain_values(value.tolist()) if hasattr(value, "tolist") and not isinstance(value, Tensor) else value


def to_config(value: object) -> Any:
    """Return a setting as a value of YAML: a dataclass becomes a group of keys, what has no such form its text."""
    if isinstance(value, np.generic | np.ndarray | datetime.date):
        value = plain_values(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {name if isinstance(name, int) else str(name): to_config(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_config(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_config(getattr(value, field.name)) for field in fields(value) if field.init}
    return str(value)


def class_config(value: object) -> dict[str, Any]:
    """Return an object as its class and the arguments that it was made with, see `arguments_of`."""
    return {"class_path": f"{type(value).__module__}.{type(value).__qualname__}", "init_args": arguments_of(value)}


def arguments_of(value: object) -> dict[str, Any]:
    """Return the arguments that an object was made with, as far as it keeps them as attributes of their names."""
    names = inspect.signature(type(value)).parameters
    return {name: to_config(getattr(value, name)) for name in names if hasattr(value, name)}
