"""Checkpoints are whole files that hold no code."""

import os
from pathlib import Path

import pytest
import torch

from eigen2.errors import UserError
from eigen2.runtime.checkpoint import DurableCheckpointIO


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, path = DurableCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint({"a": torch.ones(3)}, path)

    def fail(*arguments: object) -> None:
        raise OSError("no space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(os, name, fail)
            with pytest.raises(OSError, match="no space"):
                io.save_checkpoint({"a": torch.zeros(3)}, path)
        assert list(tmp_path.iterdir()) == [path]
        assert torch.equal(io.load_checkpoint(path)["a"], torch.ones(3))


def test_file_has_the_rights_the_user_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        DurableCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    finally:
        os.umask(before)
    assert (tmp_path / "last.ckpt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("keep", [0, 100, 700])
def test_truncated_file_is_named(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    DurableCheckpointIO().save_checkpoint({"a": torch.ones(300)}, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"^checkpoint .*last\.ckpt cannot be read \(.*\); is it damaged"):
        DurableCheckpointIO().load_checkpoint(path)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "run"),)

    torch.save({"a": Payload()}, tmp_path / "evil.ckpt")
    with pytest.raises(UserError, match="cannot be read"):
        DurableCheckpointIO().load_checkpoint(tmp_path / "evil.ckpt", weights_only=False)
    assert not (tmp_path / "run").exists()
