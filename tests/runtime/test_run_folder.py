"""What is found in the folder of a run, damaged or not."""

import errno
from pathlib import Path
from typing import Any

import pytest

from eigen2.files import Folder
from eigen2.runtime.checkpoint import save_archive
from eigen2.runtime.run_folder import find_checkpoint, generations_of


def test_generations_are_counted_whatever_their_rows_hold(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoints" / "best.ckpt")
    assert generations_of(checkpoint) == generations_of(None) == 0
    for content, count in ((b"", 0), (b"generation,loss\n", 0), (b"generation,loss\n0,1\n1,\xff\n2,tor", 2)):
        (tmp_path / "metrics.csv").write_bytes(content)
        assert generations_of(checkpoint) == count


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
