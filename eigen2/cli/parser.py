"""A parser's message of many lines, as one line that names the key, the value and the remedy."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, get_args

from jsonargparse import Namespace

UNION = "Does not validate against any of the Union subtypes"
"""How jsonargparse begins when a value fits none of several types."""


class OneLineErrors:
    """Makes a jsonargparse parser report bad input in one line and exit with 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the cause and leave."""
        sys.stderr.write(f"error: {one_line(message, _keys(self))}\n")
        sys.exit(2)

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """Parse; refuse what jsonargparse lets through: null where a value is needed, a value where keys are."""
        config = super().parse_args(*args, **kwargs)  # type: ignore[misc]
        command = config.get("subcommand") or config.get("command")
        parser, chosen = self, config
        if command:
            parser, chosen = self._subcommands_action.choices[command], config[command]  # type: ignore[attr-defined]
        for key, value, must in _settings(parser, chosen):
            if must is not None:
                self.error(f"{key} is {'null' if value is None else value}; it must be {must}")
        return config


def _keys(parser: Any) -> list[str]:
    """Every key of a parser and of its subcommands."""
    parsers = [parser, *getattr(parser._subcommands_action, "choices", {}).values()]
    return [action.dest for one in parsers for action in one._actions]


def _settings(parser: Any, config: Any) -> Iterator[tuple[str, Any, str | None]]:
    """Groups and settings with their values, and what one must be that is wrong."""
    typed = [action for action in parser._actions if hasattr(action, "_typehint") and not action.dest.endswith(".help")]
    types = {action.dest: action._typehint for action in typed}
    defaults = {action.dest: action.default for action in typed}
    for group in sorted({key[:end] for key in types for end in range(len(key)) if key[end] == "."} - types.keys()):
        value = config.get(group)
        yield group, value, None if isinstance(value, Namespace) else "a group of keys"
    for key, kind in types.items():
        needed = defaults[key] is not None and kind is not Any and type(None) not in get_args(kind)
        value = config.get(key)
        yield key, value, _type(str(kind)) if needed and value is None else None


def one_line(message: str, keys: Iterable[str] = ()) -> str:
    """Boil a jsonargparse error down to one line.

    Args:
        message: as the parser gives it.
        keys: all keys of the command, for a suggestion where one was mistyped.
    """
    for pattern in (
        r"does not accept option '(?P<key>[^']+)'",
        r"unrecognized arguments: --(?P<key>[\w.+]+)",
        r"Option '(?P<key>[^']+)' is not accepted",
    ):
        if found := re.search(pattern, message):
            return _unknown(found["key"], keys)
    if found := re.search(r"argument (?P<key>-[^:]+): expected one argument", message):
        return f"{found['key']} has no value after it: --help says which it takes"
    found = re.search(r"Parser key \"(?P<key>[^\"]+)\":(?P<rest>.*)", message, re.DOTALL)
    if UNION in message and (refused := _refusal(message)):
        if found is None or found["key"].rsplit(".", 1)[-1] in refused:
            return refused
        return f"{found['key']} cannot be used: {refused}"
    if found:
        return f"{found['key']} {_cause(found['rest'])}"
    return _flat(message)


def _refusal(message: str) -> str | None:
    """What a class said of its own settings, among what the other types of a union expected."""
    reasons = re.findall(r"^\s*- (.+)$", message, re.MULTILINE)
    others = (
        "Expected",
        "Does not",
        "Problem with",
        "Not a valid subclass",
        "Not of type",
        "Type ",
        "a class",
        "a dict",
    )
    own = [reason for reason in reasons if not reason.startswith(others)]
    # comparing null with a bound is what a class says that does not expect it
    if own and "'NoneType'" in own[0] and (nulls := re.findall(r"(\w+)=None", message)):
        return f"{' or '.join(dict.fromkeys(nulls))} is null; it must have a value"
    return own[0] if own else None


def _unknown(key: str, keys: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(keys), n=1)
    remedy = f"did you mean {close[0]}?" if close else "--help lists the keys"
    return f"unknown key {key}: {remedy}"


def _cause(rest: str) -> str:
    """What is wrong with a key's value."""
    if found := re.search(r"Problem with given class_path '([^']+)':\s*\n\s*(.+)", rest):
        return f"names the class {found[1]}, which cannot be used: {found[2].strip()}"
    if found := re.search(r"Expected an? (.+?)\. Got value: (.*)", rest):
        return f"is {found[2].strip()}; it must be {_type(found[1])}"
    value = re.search(r"Given value: (.*)", rest)
    types = re.search(r"Subtypes: \[(.*)\]", rest)
    if value and types:
        return f"is {value[1].strip()}; it must be {_type(types[1])}"
    return _flat(rest)


def _type(text: str) -> str:
    """A type in a user's words."""
    text = re.sub(r"<class '(?:[\w]+\.)*(\w+)'>", r"\1", text)
    text = re.sub(r"typing\.Literal\[([^\]]*)\]", r"\1", text)
    return text.replace("NoneType", "null").replace("'", "")


def _flat(text: str) -> str:
    return " ".join(text.split())
