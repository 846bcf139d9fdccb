"""Checkpoints whose parts lie in files of their own are complete or damaged, never mixed."""

import errno
from pathlib import Path

import pytest
import torch

from eigen2.errors import UserError
from eigen2.runtime import checkpoint
from eigen2.runtime.checkpoint import (
    DurableCheckpointIO,
    keep_earlier,
    listed_parts,
    newest_intact,
    part_files,
    read_part,
    verify_checkpoint,
    write_part,
)
from tests.runtime.test_checkpoint import damage


def write(folder: Path, generation: int, world: int = 2, name: str = "last.ckpt") -> Path:
    """Write what processes of one run do, one after the other."""
    path = folder / name
    parts = [
        write_part(path, {"rows": torch.full((300,), 10 * generation + rank)}, rank, generation)
        for rank in range(world)
    ]
    DurableCheckpointIO().save_checkpoint({"epoch": generation, "parts": parts}, path)
    return path


def written(folder: Path) -> set[str]:
    return {path.name for path in (folder / "parts").iterdir()}


def test_parts_come_back_and_live_as_long_as_a_checkpoint_lists_them(tmp_path: Path) -> None:
    last = write(tmp_path, 1)
    best = write(tmp_path, 1, name="best.ckpt")
    assert len(written(tmp_path)) == 2  # both list the same
    (tmp_path / "parts" / "mine.txt").write_text("a user's")
    (tmp_path / "parts" / ".1.draft").write_text("torn")
    for generation in (2, 3):
        keep_earlier(last)
        write(tmp_path, generation, world=3)
    kept = {file.name for path in tmp_path.glob("*.ckpt") for file in listed_parts(path)}
    assert len(kept) == 2 + 3 + 3
    assert written(tmp_path) == kept | {"mine.txt"}
    for path, generation in ((best, 1), (tmp_path / "generation-00002.ckpt", 2), (last, 3)):
        verify_checkpoint(path)
        rows = [read_part(file)["rows"] for file in listed_parts(path)]
        assert [part.unique().tolist() for part in rows] == [[10 * generation + rank] for rank in range(len(rows))]
    DurableCheckpointIO().save_checkpoint({"epoch": 4}, last)  # by one process
    assert len(written(tmp_path)) == 2 + 3 + 1


def test_a_checkpoint_that_the_disk_refuses_leaves_no_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)
    before = written(tmp_path)

    def refuse(*args: object) -> None:
        assert len(written(tmp_path)) == len(before) + 1
        raise OSError(errno.ENOSPC, "No space left on device")

    write_part(tmp_path / "last.ckpt", {"rows": torch.zeros(9)}, 0, 2)
    monkeypatch.setattr(checkpoint, "save_archive", refuse)
    with pytest.raises(OSError, match="No space left"):
        DurableCheckpointIO().save_checkpoint({"epoch": 2}, tmp_path / "last.ckpt")
    assert written(tmp_path) == before


def test_no_file_is_renamed_in_a_linked_folder(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    run.mkdir()
    keep_earlier(write(outside, 1))
    damage(write(outside, 2), "flipped")
    (run / "checkpoints").symlink_to(outside)
    before = {path.name for path in outside.iterdir()}
    with pytest.raises(UserError, match="remove the link"):
        newest_intact(run / "checkpoints", put_aside=True)
    assert {path.name for path in outside.iterdir()} == before


@pytest.mark.parametrize("kind", ["flipped", "cut", "empty", "gone", "other"])
def test_a_damaged_missing_or_exchanged_part_is_named_and_the_checkpoint_before_used(kind: str, tmp_path: Path) -> None:
    last = write(tmp_path, 1)
    keep_earlier(last)
    write(tmp_path, 2)
    assert newest_intact(tmp_path) == last
    one, other = listed_parts(last)
    if kind == "gone":
        one.unlink()
    elif kind == "other":  # intact, but another's
        one.write_bytes(other.read_bytes())
    else:
        damage(one, kind)
    with pytest.raises(UserError, match=r"^part .*\.part of the checkpoint cannot be read .*folder parts beside it"):
        read_part(one)
    assert newest_intact(tmp_path) == tmp_path / "generation-00001.ckpt"


def test_no_name_of_a_part_is_a_path(tmp_path: Path) -> None:
    for name in ("../../outside", "a" * 63, "A" * 64, "a" * 64 + "\n", "/etc/passwd"):
        with pytest.raises(UserError, match="lists parts that eigen2 did not write"):
            part_files(tmp_path / "last.ckpt", {"parts": ["a" * 64, name]})


def test_code_in_a_part_is_not_run(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(tmp_path / "run"),)

    checksum = write_part(tmp_path / "last.ckpt", {"rows": Payload()}, 0, 1)
    with pytest.raises(UserError, match="cannot be read"):
        read_part(tmp_path / "parts" / f"{checksum}.part")
    assert not (tmp_path / "run").exists()
