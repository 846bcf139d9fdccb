"""The documentation names every key and every module, and shells complete the same keys."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from eigen2.cli.reference import module_table, reference, with_modules
from tests.command import ROOT, eigen2

PAGE = reference()
KEYS = re.findall(r"^\| `([^`]+)` \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)


def test_every_module_has_its_line_in_the_architecture() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert page == with_modules(page, module_table(ROOT)), "run make reference"
    lines = re.findall(r"^\| `((?:eigen2|callbacks)/[^`]+)` \| (.*) \|$", page, re.MULTILINE)
    assert len(lines) > 100
    assert [name for name, line in lines if not line.endswith((".", ":"))] == []


def test_every_key_has_a_type_and_a_text() -> None:
    assert len(KEYS) > 120
    for key, kind, words in KEYS:
        assert kind, key
        assert len(words) > 10, key
        assert "typing" not in kind, key


def keys_of(config: Any, prefix: str = "") -> set[str]:
    """Full keys of what a configuration sets; of a list its own."""
    found = set()
    for name, value in config.items():
        found |= keys_of(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name}
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_key_that_ships_is_there(path: Path) -> None:
    known = {key for key, *_ in KEYS}
    config = yaml.safe_load(path.read_text())
    named = {key for key in keys_of(config) if key.startswith(("model.", "data.", "budget.", "stop."))}
    init_args = {key for key in named if ".init_args." in key or key.endswith(".class_path")}
    assert named - init_args <= known
    for callback in config["trainer"].get("callbacks", []):
        assert f"| **`{callback['class_path']}`** |" in PAGE
        for key in callback.get("init_args", {}):
            assert key in known


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = eigen2("completion", "bash")
    assert done.returncode == 0, done.stderr
    path = tmp_path_factory.mktemp("completion") / "eigen2.bash"
    path.write_text(done.stdout)
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], {"fit", "validate", "test", "data", "predict", "export", "report", "sweep", "fire", "completion"}),
        (["fit", "--model.pop"], {"--model.population_size"}),
        (["fit", "--data.rules.cost"], {"--data.rules.cost_bps"}),
        (["test", "--data.env"], {"--data.env_id", "--data.env_settings"}),
        (["fit", "--trainer.max_ep"], {"--trainer.max_epochs"}),
        (["predict", "--data."], {"--data.path"}),
        (["data", "syn"], {"synthesize"}),
        (["fit", "--config", "pyproj"], {"pyproject.toml"}),
        (["fit", "--trainer.default_root_dir", "callb"], {"callbacks"}),
        (["sweep", "--prune_after.t"], {"--prune_after.trials"}),
        (["sweep", "--space", "pyproj"], {"pyproject.toml"}),
        (["report", "callb"], {"callbacks"}),
        (["data", "prepare", "pyproj"], {"pyproject.toml"}),
        (["completion", "b"], {"bash"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_shell_completes(script: Path, words: list[str], expected: set[str]) -> None:
    line = " ".join(f"'{word}'" for word in ["eigen2", *words])
    asked = (
        f"source {script}; complete -p eigen2 > /dev/null; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
        f"_shtab_eigen2 eigen2 '{words[-1]}' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {word.strip() for word in done.stdout.splitlines()} == expected


def test_other_shells() -> None:
    done = eigen2("completion", "zsh")
    assert done.returncode == 0
    assert "--model.population_size" in done.stdout
    assert eigen2("completion", "cmd").returncode == 2
