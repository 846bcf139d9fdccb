"""Imports point one way, file by file; rooms are small; nothing unsafe is called."""

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain, permutations
from pathlib import Path
from pkgutil import resolve_name

import networkx
import pytest
import yaml

import eigen2
from callbacks import MemoryProfiler
from eigen2 import ERLModule, MarketDataModule

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "eigen2").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")])
LAYERS = [
    ("eigen2.cli", "eigen2.api", "eigen2.registration"),
    ("eigen2.sweep", "eigen2.report"),
    ("eigen2.market", "eigen2.control", "eigen2.fire"),
    ("eigen2.erl", "eigen2.dqn"),
    ("eigen2.core",),
    ("eigen2.distributed",),
    ("eigen2.runtime",),
    ("callbacks",),
    ("eigen2.memory",),
    ("eigen2.files",),
    ("eigen2.errors", "eigen2.compat"),
]
"""A file may import from its own layer and from those after it, for type checking too."""
MOST_MODULES = 14
"""Files in a folder, `__init__.py` and `__main__.py` not counted."""


def test_every_public_name_can_be_imported() -> None:
    assert eigen2.MemoryProfiler is MemoryProfiler
    assert {"MemoryProfiler", "ERLModule"} <= {*eigen2.__all__}
    assert [name for name in eigen2.__all__ if not inspect.isclass(getattr(eigen2, name))] == ["fit", "predict", "test"]


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in FILES}


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path: Path) -> frozenset[str]:
    """Every name imported, `from package import module` as the module; those under TYPE_CHECKING too."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name}:{node.lineno}: a relative import, which the rules below cannot follow"
            assert node.module is not None
            both = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (both & MODULES.keys()) | ({node.module} if both - MODULES.keys() else set())
    return frozenset(names)


def in_folder(folder: Path) -> list[Path]:
    """Return the modules of a folder, which must have some."""
    found = sorted(folder.rglob("*.py"))
    assert found, folder
    return found


def layer(name: str) -> int | None:
    return next((i for i, parts in enumerate(LAYERS) for part in parts if f"{name}.".startswith(f"{part}.")), None)


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = chain(project["dependencies"], *project["optional-dependencies"].values())
    declared, owners = {re.split(r"[^\w-]", line)[0].lower() for line in lines}, packages_distributions()
    used = {name.partition(".")[0] for path in FILES for name in imported(path)} - {"eigen2", "callbacks"}
    missing = {name for name in used if not {each.lower() for each in owners.get(name, [name])} & declared}
    assert missing - sys.stdlib_module_names == {"pyretechnics"}  # which has an environment of its own


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = layer(module(path))
    if module(path) == "eigen2":  # gathers the public names
        return
    assert own is not None, "a file of no layer"
    for name in imported(path):
        other = layer(name)
        assert other is None or other >= own, f"{path.name} imports {name}"
        assert other is not None or name == "eigen2" or name.split(".")[0] not in ("eigen2", "callbacks"), name


def test_no_imports_go_in_circles() -> None:
    graph = networkx.DiGraph()
    for name, path in MODULES.items():
        if path.name != "__init__.py":
            graph.add_edges_from((name, other) for other in imported(path) if other in MODULES)
    circles = [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    assert not circles


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_are_small(folder: Path) -> None:
    assert len([path for path in folder.glob("*.py") if not path.name.startswith("__")]) <= MOST_MODULES


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_unsafe(path: Path) -> None:
    assert not imported(path) & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    assert not unsafe(nodes_of(path)), path.name


def unsafe(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the calls, and imports, that would run code from a file or a string."""
    nodes = [*nodes]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    froms = [
        f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    given = [{key.arg: ast.unparse(key.value) for key in call.keywords} for call in calls]
    names = [ast.unparse(call.func) for call in calls]
    refused = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"}
    called = [
        name
        for name, options in zip(names, given, strict=True)
        if name in refused
        or (name == "torch.load" and options.get("weights_only") != "True")
        or (name == "np.load" and options.get("allow_pickle", "False") != "False")
        or options.get("shell", "False") != "False"
    ]
    return called + [name for name in froms if name in {*refused, "torch.load", "numpy.load"}]


@pytest.mark.parametrize(
    "line",
    [
        "eval(a)",
        "yaml.unsafe_load(a)",
        "torch.load(a)",
        "np.load(a, allow_pickle=True)",
        "subprocess.run(a, shell=True)",
        "from os import system",
    ],
)
def test_a_planted_danger_is_found(line: str) -> None:
    assert unsafe(ast.walk(ast.parse(line)))


def test_the_algorithms_and_what_runs_them_know_no_workload() -> None:
    words = ("market", "trading", "price", "eigen2.control", "gymnasium", "pendulum", "fire", "landscape", "fuel")
    for folder in ("core", "erl", "dqn", "distributed", "runtime", "memory", "../callbacks"):
        for path in in_folder(ROOT / "eigen2" / folder):
            names = {node.id for node in nodes_of(path) if isinstance(node, ast.Name)} | imported(path)
            names -= {"gymnasium.vector"}  # the interface of all environments that deep Q-learning plays
            assert not [name for name in names if any(word in name.lower() for word in words)], path.name


def test_workloads_know_nothing_of_each_other() -> None:
    for one, other in permutations(("market", "control", "fire"), 2):
        for path in in_folder(ROOT / "eigen2" / one):
            assert not [name for name in imported(path) if name.startswith(f"eigen2.{other}")], path.name


def test_only_the_modules_of_the_algorithm_know_lightning() -> None:
    """A part of ERL takes what it needs as arguments."""
    for path in in_folder(ROOT / "eigen2" / "erl"):
        names = imported(path)
        module = path.name in ("module.py", "base.py")
        assert module or not [name for name in names if name.startswith("lightning")], path.name


def test_the_shipped_config_says_what_python_defaults_to() -> None:
    """`make train` and the README's Python example train the same population; rules and money are the sample's."""
    config = yaml.safe_load((ROOT / "configs" / "erl.yaml").read_text())
    assert [*map(config["data"].pop, ("rules", "account"))] == [{"max_holding_days": 10}, {"unit_share": 0.02}]
    config["model"]["evolution"] = tuple(
        resolve_name(each["class_path"])(**each["init_args"]) for each in config["model"]["evolution"]
    )
    for part, cls in (("model", ERLModule), ("data", MarketDataModule)):
        defaults = {name: p.default for name, p in inspect.signature(cls.__init__).parameters.items()}
        assert config[part] == {name: defaults[name] for name in config[part]}
