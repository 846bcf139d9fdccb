"""A write_checksum tells a whole file from any other."""

import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.runtime.checksums import DamagedFile, generation_of, verify_checksum, write_checksum


def sealed(path: Path, generation: int = 12) -> bytes:
    torch.save({"a": torch.arange(50.0), "b": "text"}, path)
    write_checksum(path, generation)
    return path.read_bytes()


@pytest.mark.parametrize("generation", [-1, 0, 12, 123_456_789])
def test_a_sealed_file_says_its_generation_and_loads_as_before(tmp_path: Path, generation: int) -> None:
    path = tmp_path / "a.ckpt"
    sealed(path, generation)
    assert verify_checksum(path) == generation_of(path) == generation
    assert torch.equal(torch.load(path, weights_only=True)["a"], torch.arange(50.0))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"eigen2 generation")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sealed") / "whole.ckpt"
    sealed(path)
    return path


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_changed_byte_is_found(whole: Path, data: st.DataObject) -> None:
    content = bytearray(whole.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    other = whole.with_name("other.ckpt")
    other.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"end is missing|checksum"):
        verify_checksum(other)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_cut_is_found(whole: Path, data: st.DataObject) -> None:
    content = whole.read_bytes()
    other = whole.with_name("cut.ckpt")
    other.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(DamagedFile, match=r"empty|end is missing|checksum"):
        verify_checksum(other)


def test_what_is_no_archive_is_not_sealed(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    sealed(path)
    with pytest.raises(ValueError, match="no zip archive without a comment"):
        write_checksum(path, 1)
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match="no zip archive without a comment"):
        write_checksum(path, 1)
