"""Parser messages of many lines become one."""

import pytest

from eigen2.cli.parser import one_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Subcommand 'fit' does not accept option 'model.sise'", "unknown key model.sise: did you mean model.size?"),
        ("Option 'wach' is not accepted", "unknown key wach: --help lists the keys"),
        ("Parser key \"a.b\":\n  Expected a <class 'float'>. Got value: x", "a.b is x; it must be float"),
        ("argument --onnx: expected one argument", "--onnx has no value after it: --help says which it takes"),
        ("first\n  second   third", "first second third"),
    ],
)
def test_known_answers(message: str, line: str) -> None:
    assert one_line(message, ["model.size", "data.path"]) == line
