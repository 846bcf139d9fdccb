"""What processes exchange of their rows, against a process that has them all."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.distributed.communicator import Communicator
from tests.command import server
from tests.distributed.exchange import check_exchange


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 40))
def test_every_row_belongs_to_one_process_and_none_has_many_more_than_another(total: int, world: int) -> None:
    communicators = [Communicator(total, rank, world) for rank in range(world)]
    assert [row for communicator in communicators for row in communicator.rows] == list(range(total))
    sizes = [len(communicator.rows) for communicator in communicators]
    assert max(sizes) - min(sizes) <= 1
    for row in range(total):
        owners = [communicator.rank for communicator in communicators if communicator.local_index(row) is not None]
        assert owners == [communicators[0].owner(row)]
        assert communicators[owners[0]].rows[communicators[owners[0]].local_index(row)] == row


@pytest.mark.parametrize("world", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_processes_exchange_rows_of_all_kinds(world: int, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    processes = [server.Process(target=check_exchange, args=(rank, world, store)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * world


def test_alone_nothing_is_exchanged() -> None:
    check_exchange(0, 1, "")


def test_gathered_rows_lie_side_by_side_as_from_several_processes() -> None:
    sums = torch.arange(12.0).reshape(4, 3).T
    gathered = Communicator(3).gather({"sums": sums}, "sums")["sums"]
    assert gathered.is_contiguous()
    assert torch.equal(gathered, sums)
