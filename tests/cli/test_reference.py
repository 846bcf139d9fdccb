"""The documentation names every key and every module."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from eigen2.cli.reference import module_table, reference, with_modules
from tests.command import ROOT

PAGE = reference()
KEYS = re.findall(r"^\| `([^`]+)` \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)


def test_every_module_is_listed_in_the_architecture() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert page == with_modules(page, module_table(ROOT)), "run make reference"
    lines = re.findall(r"^\| `((?:eigen2|callbacks)/[^`]+)` \| (.*) \|$", page, re.MULTILINE)
    assert len(lines) > 100
    assert [name for name, line in lines if not line.endswith((".", ":"))] == []


def test_every_key_has_a_type_and_a_description() -> None:
    assert len(KEYS) > 120
    for key, kind, text in KEYS:
        assert kind, key
        assert len(text) > 10, key
        assert "typing" not in kind, key


def keys_of(config: Any, prefix: str = "") -> set[str]:
    """Return the full keys that a configuration sets; a list counts as one value."""
    keys = set()
    for name, value in config.items():
        keys |= keys_of(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name}
    return keys


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_key_of_the_shipped_configs_is_listed(path: Path) -> None:
    known = {key for key, *_ in KEYS}
    config = yaml.safe_load(path.read_text())
    keys = {key for key in keys_of(config) if key.startswith(("model.", "data.", "budget.", "stop."))}
    init_args = {key for key in keys if ".init_args." in key or key.endswith(".class_path")}
    assert keys - init_args <= known
    for callback in config["trainer"].get("callbacks", []):
        assert f"| **`{callback['class_path']}`** |" in PAGE
        for key in callback.get("init_args", {}):
            assert key in known
