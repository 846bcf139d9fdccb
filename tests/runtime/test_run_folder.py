"""What is found in the folder of a run, damaged or not."""

import errno
from pathlib import Path
from typing import Any

import pytest

from eigen2.errors import UserError
from eigen2.files import Folder
from eigen2.runtime import provenance
from eigen2.runtime.checkpoint import save_archive
from eigen2.runtime.run_folder import find_checkpoint, generations_of, move_earlier_run
from tests.runs import contents


def test_generations_are_counted_whatever_their_rows_hold(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoints" / "best.ckpt")
    assert generations_of(checkpoint) == generations_of(None) == 0
    rows = {b"": 0, b"generation,loss\n": 0, b"generation,loss\n0,1\n1,\xff\n2,tor": 2}
    resumed_elsewhere = {b"generation\n7\n8\n": 9}
    for content, count in {**rows, **resumed_elsewhere}.items():
        (tmp_path / "metrics.csv").write_bytes(content)
        assert generations_of(checkpoint) == count


def test_trainings_with_other_seeds_go_with_their_run(tmp_path: Path) -> None:
    assert move_earlier_run(tmp_path) is None
    for number in (1, 2):
        for name in ("metrics.csv", "seeds/43/checkpoints/best.ckpt", "cache/panel.npy", "notes.txt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"of run {number}")
        assert move_earlier_run(tmp_path) == tmp_path / "earlier" / str(number)
        moved = tmp_path / "earlier" / str(number) / "seeds" / "43" / "checkpoints" / "best.ckpt"
        assert moved.read_text() == f"of run {number}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "earlier", "notes.txt"]


@pytest.mark.parametrize("before", [[], ["earlier/1/metrics.csv"]])
def test_a_refused_move_leaves_everything_as_it_was(
    before: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("metrics.csv", "run.json", *before):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    there, rename = contents(tmp_path), Folder.rename

    def refuse(folder: Folder, name: str, new: str) -> None:
        if name == "run.json":
            raise OSError(errno.EBUSY, "Device or resource busy")
        rename(folder, name, new)

    monkeypatch.setattr(Folder, "rename", refuse)
    with pytest.raises(UserError, match=r"the earlier run in .* cannot be moved to .*earlier/[12] "):
        move_earlier_run(tmp_path)
    assert contents(tmp_path) == there
    assert sorted(path.name for path in tmp_path.glob("earlier*/*")) == ["1"] * bool(before)
    assert (tmp_path / "earlier").exists() == bool(before)


def test_a_damaged_checkpoint_may_lie_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "last.ckpt").write_bytes(b"damaged")
    save_archive({}, folder / "generation-00001.ckpt", 1)
    monkeypatch.setattr(Folder, "rename", refuse)
    assert find_checkpoint(tmp_path, "last", or_start=False) == str(folder / "generation-00001.ckpt")


@pytest.mark.parametrize(
    ("commit", "status", "dirty"),
    [("abc", "", False), ("abc", " M a.py", True), ("abc", None, None), (None, None, None)],
)
def test_whether_code_has_changed_may_be_unknown(
    commit: str | None, status: str | None, dirty: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_git", lambda command, *words: commit if command == "rev-parse" else status)
    assert provenance.describe_run()["dirty"] is dirty
