"""A checksum distinguishes an intact checkpoint from any other file."""

import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.runtime.checksums import DamagedFile, generation_of, verify_checksum, write_checksum


def checksummed(path: Path, generation: int = 12) -> Path:
    torch.save({"a": torch.arange(50.0), "b": "text"}, path)
    write_checksum(path, generation)
    return path


@pytest.mark.parametrize("generation", [-1, 0, 12, 123_456_789])
def test_a_file_holds_its_generation_and_loads_as_before(tmp_path: Path, generation: int) -> None:
    path = checksummed(tmp_path / "a.ckpt", generation)
    assert verify_checksum(path) == generation_of(path) == generation
    assert torch.equal(torch.load(path, weights_only=True)["a"], torch.arange(50.0))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"eigen2 generation")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checksummed(tmp_path_factory.mktemp("checksummed") / "whole.ckpt")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_changed_byte_and_any_truncation_is_found(whole: Path, data: st.DataObject) -> None:
    content, other = bytearray(whole.read_bytes()), whole.with_name("other.ckpt")
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.integers(0, 255))  # 0: a truncation
    content[at] ^= change
    other.write_bytes(content if change else content[:at])
    with pytest.raises(DamagedFile, match=r"empty|end is missing|checksum"):
        verify_checksum(other)


@pytest.mark.parametrize("content", [b"", b"x", None])
def test_only_an_archive_with_an_empty_comment_gets_a_checksum(content: bytes | None, tmp_path: Path) -> None:
    path = checksummed(tmp_path / "a.ckpt")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="not a zip archive with an empty comment"):
        write_checksum(path, 1)
