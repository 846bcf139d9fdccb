"""YAML files that ask for more than they look like."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eigen2.cli.main import main
from eigen2.runtime import yaml_files
from eigen2.runtime.yaml_files import MOST_BYTES, MOST_DEPTH, read_yaml, yaml_line
from tests.command import ROOT, eigen2

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
HOSTILE = {
    "laughs": (LAUGHS, "more than 100,000 values"),
    "itself": ("a: &a [*a]\n", "more than 100,000 values"),
    "deep": ("a: " + "[" * 5000 + "]" * 5000, "nested more than 50 deep"),
    "long": ("# " + "x" * MOST_BYTES, "more than 1 MB"),
    "large": ("a: 0x" + "f" * 4000, "a value of more than 3,000 characters"),
    "binary": ("a: 1\0", "it is no text"),
    "int": ('a: !!int ""', "a value that is not of the type of its tag"),
    "bool": ("a: !!bool maybe", "a value that is not of the type of its tag"),
    "timestamp": ("a: !!timestamp soon", "a value that is not of the type of its tag"),
}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="ascii", categories=["L"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=4),
)


@given(PLAIN)
def test_plain_values_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("yaml") / "file.yaml"
    path.write_text(yaml.safe_dump(value))
    assert read_yaml(path) == value


def test_the_bounds_themselves_are_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_files, "MOST_VALUES", 1000)

    def read(text: str) -> object:
        (tmp_path / "a.yaml").write_text(text)
        return read_yaml(tmp_path / "a.yaml")

    assert read("[" * (MOST_DEPTH - 1) + "]" * (MOST_DEPTH - 1)) is not None
    with pytest.raises(ValueError, match="deep"):
        read("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    half = 1000 // 2 - 3  # the two lists are values too, as are the keys and the mapping
    assert read(f"a: &a [{'1,' * half}]\nb: *a")
    with pytest.raises(ValueError, match="values"):
        read(f"a: &a [{'1,' * (half + 1)}]\nb: *a")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", ["fit", "sweep"])
def test_commands_refuse_what_is_beyond_in_one_line(
    tmp_path: Path, name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = HOSTILE[name]
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    more = ["--space", str(path), "--folder", str(tmp_path / "sweep")] if command == "sweep" else []
    with pytest.raises(SystemExit) as refused:
        main([command, "--config", str(path), *more])
    assert refused.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path} cannot be read: it " in line
    assert words in line


def test_aliases_of_a_usual_size_are_fine(tmp_path: Path) -> None:
    small = (ROOT / "tests" / "small.yaml").read_text()
    (tmp_path / "aliased.yaml").write_text(f"shared: &shared 3\n{small}")
    done = eigen2("fit", "--config", tmp_path / "aliased.yaml", "--print_config")
    assert "unknown key shared" in done.stderr  # read, though the key is no setting


class Loader(yaml.SafeLoader):
    """Knows floats without a point, as YAML 1.2 and the command line do."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"-?\d+e[-+]?\d+$"), list("-0123456789"))
TEXTS = st.text(st.characters(categories=["L", "N", "P", "S"]) | st.sampled_from(" \n\t")) | st.sampled_from(
    ["1e5", "NaN"]
)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=8,
    )
)
def test_a_value_is_the_same_read_from_its_line(value: Any) -> None:
    line = yaml_line(value)
    assert "\n" not in line
    assert repr(yaml.load(line, Loader)) == repr(value)
