"""What processes exchange of their rows, against a process that has them all."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen2.distributed.communicator import Communicator
from eigen2.errors import LOST_CONTACT


def start(world: int, store: Path, plan: str, timeout_s: float = 60) -> list[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "tests.distributed.exchange"]
    return [
        subprocess.Popen([*words, str(rank), str(world), str(store), str(timeout_s), plan], stderr=-1, text=True)
        for rank in range(world)
    ]


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
    for process in start(world, tmp_path / "store", "exchange"):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


@pytest.mark.parametrize("fault", ["ended", "silent"])
def test_who_loses_contact_says_so_in_one_line_within_the_time_out(fault: str, tmp_path: Path) -> None:
    *others, broken = start(3, tmp_path / "store", fault, timeout_s=3)
    for rank, process in enumerate(others):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == LOST_CONTACT, errors
        line = errors.strip().splitlines()[-1]
        assert line.startswith(
            f"process {rank} of 0 to 2 lost contact with the others, sharing fitness in generation 7"
        )
        assert "--ckpt_path last" in line
    Path(f"{tmp_path / 'store'}.done").touch()
    broken.communicate(timeout=60)


def test_alone_nothing_is_exchanged() -> None:
    communicator, rows = Communicator(5), {"weights": torch.arange(10.0).reshape(5, 2)}
    assert torch.equal(communicator.gather(rows, "rows")["weights"], rows["weights"])
    assert torch.equal(communicator.fetch(rows, [[1, 4]], "rows")["weights"], rows["weights"][[1, 4]])
    assert torch.equal(communicator.broadcast(rows, 3, "row")["weights"], rows["weights"][3:4])
    assert communicator.collect(rows, "rows") is not None
    assert (communicator.received_bytes, communicator.seconds) == (0, 0.0)
