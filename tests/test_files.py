"""All files are written by one module, and never outside the folder they belong to."""

import ast
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from eigen2.errors import UserError
from eigen2.files import Folder, replacing, write
from tests.command import eigen2
from tests.runs import contents
from tests.test_architecture import FILES

SMALL = ["--config", "tests/small.yaml", "--trainer.max_epochs", 3]
METHODS = {"write_text", "write_bytes", "unlink", "rmdir", "mkdir", "symlink_to", "hardlink_to", "touch", "chmod"}
"""Of paths, all that change a disk but `open`, `rename` and `replace`."""
SAVERS = {"imsave", "savefig", "to_csv", "to_parquet", "to_feather", "to_pickle"}
"""Functions and methods that write a file if they are given a path."""
FUNCTIONS = {
    "np": {"save", "savez", "savez_compressed", "savetxt"},
    "torch": {"save"},
    "pq": {"write_table"},
    "os": {"replace", "rename", "remove", "unlink", "rmdir", "mkdir", "makedirs", "link", "symlink", "truncate"},
    "shutil": {"copyfile", "copy", "copy2", "copytree", "move", "rmtree"},
}
GATE, OTHER_PYTHON = "eigen2/files.py", "pyretechnics_worker.py"
TEMPORARY = "validator.py"  # writes in a temporary folder, for the worker


def changes(tree: ast.AST) -> list[int]:
    """Return the lines that change a disk other than by a draft, which `eigen2.files` has given."""
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and is_change(node)]


def is_change(call: ast.Call) -> bool:
    on, _, name = ast.unparse(call.func).rpartition(".")
    given = [ast.unparse(argument) for argument in call.args]
    if on == "draft" or given[:1] == ["draft"]:
        return False
    if name == "open":
        modes = [*given[not on :][:1], *(ast.unparse(each.value) for each in call.keywords if each.arg == "mode")]
        return any(bool(set(mode) & {*"wax+"}) if mode[0] in "\"'" else not on for mode in modes)
    if name in SAVERS:
        return bool(given)  # without a path they return text
    if name in ("rename", "replace") and on not in FUNCTIONS:  # tables have them too, with keywords or dictionaries
        return len(given) == 1 and not call.keywords and not isinstance(call.args[0], ast.Dict | ast.Constant)
    if (on, name) == ("torch", "save"):
        return given[1:] != ["file"]  # opened by `eigen2.files`
    return name in METHODS or name in FUNCTIONS.get(on, ()) or (not on and name in FUNCTIONS["shutil"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_files_are_changed_in_one_module_only(path: Path) -> None:
    found = changes(ast.parse(path.read_text()))
    assert bool(found) == (path.match(GATE) or path.name in (OTHER_PYTHON, TEMPORARY)), found


@pytest.mark.parametrize(
    "line",
    [
        "path.write_text('')",
        "self.path.unlink(missing_ok=True)",
        "os.replace(a, b)",
        "a.replace(b)",
        "open(path, 'w')",
        "path.open('ab')",
        "shutil.rmtree(path)",
        "frame.to_csv(path)",
        "folder.path.mkdir()",
        "path.rename(other / name)",
        "path.rename(str(other))",
        "open(path, mode)",
        "np.save(path, numbers)",
        "np.savez(file, a=numbers)",
        "torch.save(state, path)",
        "figure.savefig(path)",
        "rmtree(path)",
    ],
)
def test_a_planted_write_is_found(line: str) -> None:
    assert changes(ast.parse(line)) == [1]


WRITERS: dict[str, Callable[[Folder], object]] = {
    "write": lambda folder: folder.write("name", "new"),
    "append": lambda folder: folder.append("name").append(b"new"),
    "lock": lambda folder: folder.lock("name"),
    "log": lambda folder: folder.open_log("name").write(b"new"),
    "delete": lambda folder: folder.delete("name"),
    "rename": lambda folder: folder.rename("other", "name"),
    "rename away": lambda folder: folder.rename("name", "other"),
    "copy": lambda folder: folder.copy("other", "name"),
    "library": lambda folder: folder.unlinked("name").write_text("new"),
}


@pytest.mark.parametrize("linked", ["name", ".name.draft", "the folder"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_follows_a_link(writer: str, linked: str, tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "run"
    (root / "part").mkdir(parents=True)
    outside.mkdir()
    for name in ("name", "other"):
        (root / "part" / name).write_text("own")
        (outside / name).write_text("somebody's")
    if linked == "the folder":
        shutil.rmtree(root / "part")
        (root / "part").symlink_to(outside)
    else:
        (root / "part" / linked).unlink(missing_ok=True)
        (root / "part" / linked).symlink_to(outside / "name")
    if linked == "the folder":
        with pytest.raises(UserError, match="remove the link"):
            WRITERS[writer](Folder(root) / "part")
    else:
        with suppress(UserError, OSError):
            WRITERS[writer](Folder(root) / "part")
    assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(("name", "other"), "somebody's")


@pytest.mark.parametrize("name", ["../name", "{outside}/name", "part/../../name", ".."])
def test_a_name_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.make()
    (tmp_path / "name").write_text("somebody's")
    for change in (folder.delete, folder.append, folder.lock, lambda name: folder.write(name, "new")):
        with pytest.raises(UserError, match="outside"):
            change(name.format(outside=tmp_path))
    assert (tmp_path / "name").read_text() == "somebody's"


def test_two_processes_that_write_one_file_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "orders.csv"
    with replacing(file) as first:
        first.write_text("half")
        with monkeypatch.context() as other:
            other.setattr("os.getpid", lambda: 1)
            write(file, "of the other")
        assert file.read_text() == "of the other"
        first.write_text("whole")
    assert file.read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["orders.csv"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short run."""
    root = tmp_path_factory.mktemp("trained") / "run"
    for command in ("fit", "test"):
        options = ("--ckpt_path", "best") if command == "test" else ()
        done = eigen2(command, *SMALL, "--trainer.max_epochs", 2, "--trainer.default_root_dir", root, *options)
        assert done.returncode == 0, done.stderr
    return root


def commands(root: Path) -> list[int]:
    """Resume a run and test it; return the exit codes."""
    codes = []
    for command in ("fit", "test"):
        done = eigen2(command, *SMALL, "--ckpt_path", "last", "--trainer.default_root_dir", root)
        assert "Traceback" not in done.stderr
        codes.append(done.returncode)
    return codes


def linked_to(trained: Path, tmp_path: Path, names: list[str]) -> tuple[Path, Path]:
    """Copy a run, move some of what it wrote outside its folder, and link it there."""
    root, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained, root)
    outside.mkdir()
    for name in names:
        target = outside / name.replace("/", "-")
        (root / name).rename(target)
        (root / name).symlink_to(target)
    return root, outside


def test_files_of_a_received_run_that_are_links_are_not_written_to(trained: Path, tmp_path: Path) -> None:
    found = [str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()]
    names = [name for name in found if not name.startswith("cache/")]
    assert {"checkpoints/last.ckpt", "checkpoints/best.ckpt", "metrics.csv", "test/summary.json", ".lock"} <= {*names}
    root, outside = linked_to(trained, tmp_path, [name for name in names if name != ".lock"])
    for name in ("checkpoints/.last.ckpt.draft", ".metrics.csv.draft", "champion/.equity.csv.draft"):
        (root / name).symlink_to(outside / "metrics.csv")
    before = contents(outside)
    assert commands(root) == [0, 0]
    assert contents(outside) == before
    assert not (root / "metrics.csv").is_symlink()


@pytest.mark.parametrize(
    "name",
    ["checkpoints", "champion", *(pytest.param(name, marks=pytest.mark.slow) for name in ("test", "tensorboard"))],
)
def test_folders_of_a_received_run_that_are_links_are_refused(name: str, trained: Path, tmp_path: Path) -> None:
    root, outside = linked_to(trained, tmp_path, [name])
    before = contents(outside)
    assert (2 in commands(root)) == (name != "test")  # an earlier test is renamed
    assert contents(outside) == before
