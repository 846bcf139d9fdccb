"""A replay buffer spread over processes against one that holds everything."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.replay import ReplayBuffer
from eigen2.core.shared_replay import SharedReplay, TransitionLog
from eigen2.distributed.communicator import Communicator
from tests.command import server
from tests.core.sharing import FIELDS, check_shared, transitions


@pytest.mark.parametrize("world", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_it_holds_and_draws_what_one_process_would(world: int, tmp_path: Path) -> None:
    args = (world, str(tmp_path / "store"))
    processes = [server.Process(target=check_shared, args=(rank, *args)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * world


def part(capacity: int, rank: int, world: int) -> SharedReplay:
    return SharedReplay(capacity, FIELDS, Communicator(world, rank, world), TransitionLog(1, 1, FIELDS))


@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 7), st.integers(0, 40))
def test_any_number_of_processes_loads_the_parts_of_any_other(capacity: int, saved: int, now: int, added: int) -> None:
    whole = ReplayBuffer(capacity, FIELDS)
    for number in range(added):
        whole.add(transitions(number, 1))
    state: dict[str, Any] = whole.state_dict()
    for first, second in ((saved, now), (now, saved)):  # one file, then parts, then parts of these
        loaded = [part(capacity, rank, first) for rank in range(first)]
        for each in loaded:
            each.load_state_dict(state)
        parts = [each.state_dict()["storage"] for each in loaded]
        state = {**state, "parts": parts}
        assert sum(each.nbytes for each in loaded) == whole.nbytes
        for rank, each in enumerate(loaded):
            for name in FIELDS:
                assert torch.equal(each[name], whole[name][rank::first]), (first, second, name)
    again = ReplayBuffer(capacity, FIELDS)
    again.load_state_dict(state)
    assert all(torch.equal(again[name], whole[name]) for name in FIELDS)
    assert (len(again), again.position, again.added) == (len(whole), whole.position, whole.added)


def test_a_log_takes_no_more_steps_than_the_longest_episode() -> None:
    log = TransitionLog(2, 3, FIELDS)
    for step in range(3):
        log.add(transitions(step, step % 2 + 1))
    with pytest.raises(ValueError, match="more steps than the 3 of the longest episode"):
        log.add(transitions(3, 1))
