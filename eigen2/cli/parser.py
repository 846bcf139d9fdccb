"""The parser of all commands: options, configuration files, and errors of one line."""

import argparse
import difflib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from itertools import zip_longest
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from eigen2.compat import option_type, parser_options, subparsers
from eigen2.errors import UserError, causes, printable
from eigen2.runtime.yaml_files import read_yaml

UNKNOWN = re.compile(r"(?:does not accept option '|unrecognized arguments: --|Option ')([\w.+]+)")
DOTTED = re.compile(r"\w+(?:\.\w+)*")
WORD = re.compile(r"unrecognized arguments: ([^-\s]\S*)")
YAML_FILE = re.compile(r"[^\s'\"(:]+\.ya?ml\b")
MISSING = re.compile(r"the following arguments are required: ([\w.]+)")
KEY = re.compile(r"Parser key \"([^\"]+)\"")
VALUE = re.compile(r"(?:Got|Given) value: (.*)|Unable to load config \"(.*)\"|import path string: (.*)")
"""Patterns of jsonargparse's messages, since its exceptions carry neither key nor value as attributes."""

set_parsing_settings(docstring_parse_attribute_docstrings=True)  # a setting's docstring is its help


class Parser(ArgumentParser):
    """Parser that takes whole option names only and refuses bad input in one line, with exit code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})
        self.files: dict[str, set[str]] = {}  # keys of the configuration files that are being read

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the cause in one line and exit with code 2."""
        parsers = (self, *subparsers(self).values())
        if 'expected "command"' in message:
            self.refuse(f"a command is missing; choose from {', '.join(subparsers(self))}: see --help")
        command, _, name = match[1].partition(".") if (match := MISSING.search(message)) else ("", "", "")
        if positional := parser_options(subparsers(self).get(command, self)).get(name):
            self.refuse(f"{command} needs {positional.metavar or name}: see --help")
        types = {key: option_type(option) for parser in parsers for key, option in parser_options(parser).items()}
        self.refuse(explain(message, ex, types))

    def add_options(self, options: Mapping[str, tuple[Any, Any, str]]) -> None:
        """Add options by name, each with its type, its default (... for one that must be given) and its help."""
        for name, (kind, default, text) in options.items():
            given: dict[str, Any] = {"required": True} if default is ... else {"default": default}
            self.add_argument(f"--{name}", type=kind, help=text, **given)

    def add_subcommands(self, *args: Any, **kwargs: Any) -> Any:
        """Add subcommands that --help lists by the descriptions of their parsers."""
        action: Any = super().add_subcommands(*args, **kwargs)
        add = action.add_subcommand
        action.add_subcommand = lambda name, parser, **_: add(name, parser, help=parser.description)
        return action

    def refuse(self, line: str) -> NoReturn:
        """Print a line and exit at once: jsonargparse catches exceptions while it tries the types of a union.

        The line begins with the configuration file that has its key, if one does.
        """
        named = {*DOTTED.findall(line.partition(": ")[0])}
        file = next((f"{name}: " for name, keys in reversed(self.files.items()) if named & keys), "")
        sys.stderr.write(f"error: {printable(f'{file}{line}')}\n")
        sys.exit(2)

    def parse_args(self, args: Sequence[str] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Parse; also refuse null where a value is needed, and a value for a group, which jsonargparse accepts.

        Configuration files are read first, for errors that name the file.
        """
        words = sys.argv[1:] if args is None else args
        options = {option.removeprefix("--") for option, _ in options_of(words)}
        try:
            files = {name: keys - options for name, keys in _files(words)}
        except UserError as error:
            self.refuse(str(error))
        for each in (self, *subparsers(self).values()):
            vars(each)["files"] = files
        try:
            config = super().parse_args(args, **kwargs)
        except OverflowError:  # by jsonargparse's float()
            self.refuse("a setting is a whole number beyond 1e308; write a smaller one")
        command = config.get("subcommand") or config.get("command")
        parser, settings = (subparsers(self)[command], config[command]) if command else (self, config)
        typed = {key: option for key, option in parser_options(parser).items() if option_type(option) is not None}
        groups = {key[:end] for key in typed for end in range(len(key)) if key[end] == "."} - typed.keys()
        for group in sorted(groups):
            if not isinstance(value := settings.get(group), Namespace):
                self.refuse(f"{group} is {'null' if value is None else value}; it must be a group of keys")
        for key, option in typed.items():
            for null, hint in _nulls(key, option_type(option), option.default, settings.get(key)):
                self.refuse(f"{null} is null; it must be {type_text(hint)}")
        return config


def options_of(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each argument that may be an option with its value, which stands behind a = or is the next argument."""
    for arg, following in zip_longest(args, args[1:], fillvalue=""):
        option, _, value = arg.partition("=")
        yield option, value or following


def _files(args: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield name and keys of each configuration file; raise UserError for one that is missing or has no settings."""
    for option, name in options_of(args):
        if option not in ("--config", "-c") or name.lstrip().startswith("{"):
            continue
        if not name:
            raise UserError("--config needs a file: see --help")
        try:
            settings = read_yaml(name)
        except yaml.MarkedYAMLError as error:
            mark, what = error.problem_mark, _flat(error.problem)
            place = "" if mark is None else f" line {mark.line + 1}, column {mark.column + 1}"
            raise UserError(f"--config {name}{place} is not YAML: {what}; compare with --print_config") from error
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"--config {name} cannot be read: {why}; name another file") from error
        if not isinstance(settings, Mapping):
            raise UserError(f"--config {name} has no settings: write keys and values as --print_config does")
        yield name, {*_keys(settings)}


def _keys(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of groups and values."""
    for name, value in settings.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")


def explain(message: str, error: BaseException | None = None, keys: Mapping[str, Any] | None = None) -> str:
    """Return one line with the key, the problem and the remedy; `keys` are all known ones with their types."""
    keys, chain = keys or {}, list(causes(error))
    key = match[1] if (match := KEY.search(message)) else None
    for reason in (_flat(cause) for cause in chain if isinstance(cause, UserError)):
        return reason if key is None or key.rpartition(".")[2] in reason else f"{key}: {reason}"
    if match := UNKNOWN.search(message):
        name, near = match[1], closest_key(match[1], list(keys))
        told = f"unknown key {name}: {f'did you mean {near}?' if near else '--help lists the keys'}"
        return f"{name} is no option: give its value without --{name}" if name in keys else told
    if match := WORD.search(message):
        hint = f": did you mean --config {match[1]}?" if match[1].endswith((".yaml", ".yml")) else ": see --help"
        return f"{match[1]} belongs to no option{hint}"
    if match := MISSING.search(message):
        option = "--" * ("." in match[1] or match[1] == "config")
        return f"{option}{match[1]} is missing: see --help"
    if isinstance(error, argparse.ArgumentError) and error.message == "expected one argument":
        return f"{error.argument_name} needs a value: see --help"
    if key is None:
        # a union's message lists the error of every type it tried; the one by a class about its settings is wanted
        reasons = [line[4:] for line in message.splitlines() if line.startswith("  - ")]
        reasons = [line for line in reasons if not line.startswith(("Expected a", "Not a valid subclass"))]
        return reasons[0] if reasons else _flat(next((cause for cause in chain if not is_union_error(cause)), message))
    if (match := YAML_FILE.search(message)) and not Path(match[0]).is_file():
        return f"{key} is {match[0]}, which is no file; name a YAML file, or give its keys one by one"
    if "Problem with given class_path" in message or isinstance([error, *chain][-1], (ImportError, AttributeError)):
        return f"{key} names a class that cannot be used: {_flat(chain[-1])}"
    if values := VALUE.findall(message):
        value = "".join(values[-1]).strip()
        kind = type_text(keys[key]) if keys.get(key) is not None else "a group of keys"
        return f"{key} is {({'': 'empty', 'None': 'null'}).get(value, value)}; it must be {kind}"
    return f"{key}: {_flat(chain[-1] if chain else message)}"


def closest_key(name: str, keys: Sequence[str]) -> str | None:
    """Return the key that is most like a name, in its last part as well: groups alone make any two keys alike."""
    if same := [key for key in keys if key.endswith(f".{name}")]:
        return min(same, key=len)
    for key in difflib.get_close_matches(name, keys, n=3):
        if difflib.get_close_matches(name.rpartition(".")[2], [key.rpartition(".")[2]]):
            return key
    return None


def is_union_error(error: BaseException) -> bool:
    """Return whether jsonargparse failed to create a value of every type of a union."""
    return str(error).startswith("Does not validate against any of the Union subtypes")


def type_text(hint: Any) -> str:
    """Return a type in the words of a YAML file: `float or null`, `next_open or close`."""
    kinds, origin = get_args(hint), get_origin(hint)
    if hint is None or hint is NoneType:
        return "null"
    if origin is Literal:
        return " or ".join(map(str, kinds))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(type_text, kinds)))
    if origin is Callable:
        return "class"
    if origin in (list, Sequence):
        return f"list of {type_text(kinds[0])}"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(type_text, kinds))}]" if kinds else str(name)


def _nulls(key: str, hint: Any, default: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield key and type of each null that its type does not allow, within groups and classes too."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None:
        if default is not None and not {Any, NoneType, None} & set(kinds):
            yield key, hint
    elif isinstance(value, list):
        for item in value:
            yield from _nulls(key, Any, None, item)
    elif isinstance(value, Namespace):
        factory: Any = next((kind for kind in kinds if is_dataclass(kind)), None)
        if "class_path" in value:
            factory, value = pkgutil.resolve_name(value.class_path), value.get("init_args", {})
            key = key if is_dataclass(factory) else f"{key}.init_args"
        if factory is None:
            return
        hints: dict[str, Any] = {}
        with suppress(NameError):  # a type imported for type checking only
            hints = get_type_hints(vars(factory).get("__init__", factory) if isinstance(factory, type) else factory)
        for name, parameter in inspect.signature(factory).parameters.items():
            inner = value.get(name, parameter.default)
            yield from _nulls(f"{key}.{name}", hints.get(name, Any), parameter.default, inner)


def _flat(text: object) -> str:
    return " ".join(str(text).split())
