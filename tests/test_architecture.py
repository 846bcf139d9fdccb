"""Imports point one way, and nothing unsafe is called."""

import ast
import inspect
from itertools import permutations
from pathlib import Path

import pytest
import yaml

from eigen2 import ERLModule, RolloutDataModule

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "eigen2").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")])
# a layer may import from itself and from those after it
LAYERS = [
    "eigen2.cli",
    "eigen2.training_cli",
    "eigen2.champion_cli",
    "eigen2.sweep",
    "eigen2.report",
    "eigen2.market",
    "eigen2.control",
    "eigen2.fire",
    "eigen2.erl",
    "eigen2.runtime",
    "eigen2.errors",
    "callbacks",
]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def layer(name: str) -> int | None:
    return next((i for i, part in enumerate(LAYERS) if name == part or name.startswith(part + ".")), None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = layer(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if own is None:  # eigen2/__init__.py gathers the public names
        return
    for name in imported(path):
        other = layer(name)
        assert other is None or other >= own, f"{path.name} imports {name}"
        assert not (LAYERS[own] == "callbacks" and name.split(".")[0] == "eigen2")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_unsafe(path: Path) -> None:
    assert not imported(path) & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}, f"{path.name}:{node.lineno}"


def test_the_algorithm_and_what_runs_it_know_no_workload() -> None:
    words = ("market", "trading", "price", "eigen2.control", "gymnasium", "pendulum", "fire", "landscape", "fuel")
    for folder in ("eigen2/erl", "eigen2/runtime", "callbacks"):
        for path in (ROOT / folder).glob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            names = {node.id for node in nodes if isinstance(node, ast.Name)} | imported(path)
            assert not [name for name in names if any(word in name.lower() for word in words)], path.name


def test_workloads_know_nothing_of_each_other() -> None:
    for one, other in permutations(("market", "control", "fire"), 2):
        for path in (ROOT / "eigen2" / one).rglob("*.py"):
            assert not [name for name in imported(path) if name.startswith(f"eigen2.{other}")], path.name


def test_the_shipped_config_says_what_python_defaults_to() -> None:
    """`make train` and the README's Python example train the same population."""
    config = yaml.safe_load((ROOT / "configs" / "erl.yaml").read_text())
    for part, cls in (("model", ERLModule), ("data", RolloutDataModule)):
        defaults = {name: p.default for name, p in inspect.signature(cls.__init__).parameters.items()}
        assert config[part] == {name: defaults[name] for name in config[part]}
