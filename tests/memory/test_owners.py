"""Bytes by owner: every storage once, mapped files apart, compared with the sizes of the arrays."""

import mmap
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from eigen2.memory.owners import Filling, Held, account, arrays_in, owners_of, spans_of


def anonymous(**owners: object) -> dict[str, int]:
    held = account(owners)
    assert all(each.mapped == each.gpu == 0 for each in held.values())
    return {name: each.anonymous for name, each in held.items()}


def test_arrays_and_tensors_count_with_their_bytes() -> None:
    assert anonymous(a=np.zeros((3, 5)), b=torch.zeros(7, dtype=torch.int16), c=12) == {"a": 120, "b": 14, "c": 12}
    assert anonymous(a=None, b=[], c="text", d=np.zeros(0), e=torch.zeros(0)) == dict.fromkeys("abcde", 0)


def test_a_view_counts_with_the_whole_array_it_keeps_alive() -> None:
    whole = np.zeros(1000)
    assert anonymous(view=whole[::100]) == {"view": 8000}
    assert anonymous(view=torch.zeros(1000)[5:6]) == {"view": 4000}
    assert anonymous(view=np.broadcast_to(np.zeros(1), (50, 50))) == {"view": 8}


def test_memory_held_by_several_counts_for_the_first() -> None:
    array = np.zeros(100)
    tensor = torch.from_numpy(array)
    assert anonymous(first=array, second=[tensor, array[10:]], third=np.zeros(2)) == dict(first=800, second=0, third=16)


def test_attributes_containers_and_modules_are_searched() -> None:
    @dataclass(slots=True)
    class Slots:
        array: np.ndarray

    class Owner:
        def __init__(self) -> None:
            self.own = np.zeros(1)
            self.inner = {"list": [np.zeros(2), (np.zeros(4), deque([np.zeros(8)]))], "slots": Slots(np.zeros(16))}
            self.objects = np.array([np.zeros(32), None], dtype=object)
            self.itself = self

    assert anonymous(owner=Owner()) == {"owner": 8 * (1 + 2 + 4 + 8 + 16 + 32) + 16}
    layer = nn.Linear(3, 2)
    layer.register_buffer("steps", torch.zeros(5))
    assert anonymous(layer=layer) == {"layer": 4 * (6 + 2 + 5)}
    layer(torch.ones(3)).sum().backward()
    assert anonymous(gradients=[p.grad for p in layer.parameters()], layer=layer) == {"gradients": 32, "layer": 52}


def test_mapped_files_stand_apart(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(100_000))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    tensor = torch.from_numpy(np.load(tmp_path / "a.npy", mmap_mode="c"))
    for owner in (mapped, tensor, [mapped[5:], mapped]):
        (held,) = account({"panel": owner}).values()
        assert held.anonymous == 0
        # numpy maps from the start of a page, so that the header is not counted
        assert held.mapped == pytest.approx(800_000, abs=mmap.PAGESIZE)
    both = account({"panel": mapped, "copy": np.array(mapped)})
    assert both["copy"] == Held(anonymous=800_000)


def test_anonymous_and_shared_mappings_are_not_files() -> None:
    pages = mmap.mmap(-1, 40_960)
    shared = torch.zeros(10_240).share_memory_()
    held = account({"pages": np.frombuffer(pages, np.uint8), "shared": shared})
    assert held == {"pages": Held(anonymous=40_960), "shared": Held(anonymous=40_960)}


def test_tensors_without_a_storage_count_as_zero() -> None:
    with FakeTensorMode():  # as torch.export and torch.compile trace with
        fake = torch.zeros(10)
    without = {"fake": fake, "meta": torch.zeros(10, device="meta"), "sparse": torch.eye(4).to_sparse()}
    assert anonymous(**without) == dict.fromkeys(without, 0)


def test_a_filling_counts_as_its_value() -> None:
    assert anonymous(buffer=Filling([np.zeros(3)], full=False), count=Filling(7, full=True)) == dict(buffer=24, count=7)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), max_size=12))
def test_overlapping_pieces_count_as_their_union(pieces: list[tuple[int, int]]) -> None:
    """Compared with a set of bytes; tensors made from slices of one array share no storage object."""
    memory = np.zeros(100, np.uint8)
    tensors = [torch.frombuffer(memory.data, dtype=torch.uint8, count=n, offset=first) for first, n in pieces]
    seen: set[int] = set()
    expected = {}
    for place, tensor in enumerate(tensors):
        ((_, start, stop),) = spans_of(tensor)
        expected[str(place)] = len({*range(start, stop)} - seen)
        seen |= {*range(start, stop)}
    assert anonymous(**{str(place): tensor for place, tensor in enumerate(tensors)}) == expected


def test_a_walk_ends_at_functions_types_and_modules() -> None:
    held_by_function: Any = np.zeros(5)
    assert list(arrays_in([lambda: held_by_function, np, type("Holder", (), {"array": held_by_function})])) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_on_a_gpu_counts_as_gpu_memory() -> None:
    assert account({"weights": torch.zeros(100, device="cuda")}) == {"weights": Held(gpu=400)}


def test_the_dummy_logger_of_a_fast_dev_run_owns_nothing() -> None:
    assert owners_of([DummyLogger()]) == {}
