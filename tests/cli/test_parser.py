"""Errors of the parser in one line, and types in the words of a YAML file."""

from collections.abc import Callable
from typing import Any, Literal, Optional

import pytest

from eigen2.cli.parser import explain, type_text
from eigen2.errors import UserError


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Subcommand 'fit' does not accept option 'model.sise'", "unknown key model.sise: did you mean model.size?"),
        ("Option 'wach' is not accepted", "unknown key wach: --help lists the keys"),
        ("Parser key \"a.b\":\n  Expected a <class 'float'>. Got value: x", "a.b is x; it must be float"),
        ('Parser key "group":\nUnable to load config "3"', "group is 3; it must be a group of keys"),
        ('Parser key "a.b": it broke\n  in two', "a.b: it broke in two"),
        ("first\n  second   third", "first second third"),
        (
            "Does not validate\nErrors:\n  - Expected a <class 'str'>\n  - size is 0; it must be 1\n"
            "  - Not a valid subclass of Callback\n    Subclass types expect one of:",
            "size is 0; it must be 1",
        ),
    ],
)
def test_messages_of_jsonargparse_become_one_line(message: str, line: str) -> None:
    error = TypeError(message.partition(": ")[2] or message)
    assert explain(message, error, {"model.size": int, "data.path": str, "a.b": float}) == line


def test_the_error_of_a_class_about_its_settings_is_the_message() -> None:
    error = TypeError("of many\nlines")
    error.__cause__ = UserError("noise is 3; it must be at most 1")
    assert explain('Parser key "model.noise": ...', error) == "noise is 3; it must be at most 1"
    assert explain('Parser key "model.actor": ...', error) == "model.actor: noise is 3; it must be at most 1"


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (float | None, "float or null"),
        (Optional[str], "str or null"),  # noqa: UP045 - as Lightning writes it
        (Literal["next_open", "close"], "next_open or close"),
        (Callable[[int], Any] | None, "class or null"),
        (list[str], "list of str"),
        (dict[str, Any] | UserError, "dict[str, Any] or UserError"),
    ],
)
def test_types_are_written_as_in_yaml(hint: Any, text: str) -> None:
    assert type_text(hint) == text
