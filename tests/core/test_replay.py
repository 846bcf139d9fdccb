"""The replay buffer against a list, its memory, and what it lets in and out."""

import gc
import io
import sys
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eigen2.core.replay import (
    Field,
    ReplayBuffer,
    loaded_action,
    rounded_action,
    sample_slots,
    stored_action,
    transition_fields,
)
from eigen2.errors import UserError
from eigen2.memory.process import trim_malloc

FIELDS = transition_fields({"id": Field((), torch.int32), "view": Field((2, 3), torch.float16)}, (2,))


def transitions(first: int, count: int) -> dict[str, Tensor]:
    """`count` transitions, each field a function of the transition's number, different for each field."""
    number = torch.arange(first, first + count)

    def spread(*shape: int) -> Tensor:
        size = torch.Size(shape).numel()
        return (number[:, None] * 7 + torch.arange(size)).reshape(count, *shape) % 251

    return {
        "id": number.int(),
        "view": spread(2, 3).half(),
        "next_id": number.int() + 1000,
        "next_view": spread(2, 3).half() + 1,
        "action": spread(2).short(),
        "reward": number.float() * 0.5,
        "terminated": number % 3 == 0,
        "truncated": number % 5 == 0,
    }


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def held(buffer: ReplayBuffer) -> dict[str, Tensor]:
    return buffer.gather(torch.arange(len(buffer)))


def pointers(buffer: ReplayBuffer) -> dict[str, int]:
    return {name: value.data_ptr() for name, value in buffer.state_dict()["storage"].items()}


@given(data=st.data(), capacity=st.integers(1, 9))
def test_slot_n_modulo_the_capacity_holds_transition_n_until_a_later_one(data: st.DataObject, capacity: int) -> None:
    buffer, added = ReplayBuffer(capacity, FIELDS), 0
    before = pointers(buffer)
    for count in data.draw(st.lists(st.integers(0, capacity), max_size=6)):
        buffer.add(transitions(added, count))
        added += count
        assert len(buffer) == buffer.size == min(added, capacity)
        assert (buffer.position, buffer.added) == (added % capacity, added)
    numbers = range(max(0, added - capacity), added)
    assert sorted(buffer["id"].tolist()) == list(numbers)
    if added:
        drawn = data.draw(st.lists(st.lists(st.sampled_from(numbers), min_size=2, max_size=2), min_size=1))
        found = buffer.gather(torch.tensor(drawn) % capacity)
        for i, number in np.ndenumerate(np.array(drawn)):
            assert equal({name: value[i][None] for name, value in found.items()}, transitions(int(number), 1))
    buffer.reset_memory()
    assert (len(buffer), buffer.position, buffer.added) == (0, 0, 0)
    assert pointers(buffer) == before
    assert equal(buffer.state_dict()["storage"], ReplayBuffer(capacity, FIELDS).state_dict()["storage"])


def test_bytes_are_the_sum_of_the_fields_and_of_the_memory_held() -> None:
    fields = transition_fields({"day": Field((), torch.int32), "gain": Field((5,), torch.float16)}, (5, 2))
    # day 4, gain 10, both twice; action 10 x 2; reward 4; two flags
    buffer = ReplayBuffer(3, fields)
    assert buffer.bytes_per_transition == 2 * 14 + 20 + 4 + 1 + 1
    assert buffer.nbytes == 3 * 54 == sum(value.nbytes for value in buffer.state_dict()["storage"].values())
    assert Field((0, 3), torch.float32).nbytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="gives pages back on Linux")
def test_memory_is_resident_from_the_start_until_pages_of_empty_slots_are_given_back() -> None:
    process, megabytes = psutil.Process(), 64
    gc.collect()
    trim_malloc()  # free memory of the heap would be taken first
    at_first = process.memory_info().rss
    buffer = ReplayBuffer(megabytes, {"reward": Field((250_000,), torch.float32)})
    allocated = process.memory_info().rss
    assert allocated - at_first > 0.9 * buffer.nbytes
    block = torch.ones(16, 250_000)
    buffer.add({"reward": block})
    before = process.memory_info().rss
    assert before - allocated - block.nbytes < 0.1 * buffer.nbytes
    freed = buffer.cleanup_memory()
    assert 47_900_000 < freed <= 48_000_000
    assert before - process.memory_info().rss == pytest.approx(freed, rel=0.05)
    buffer.add({"reward": 2 * block})
    assert torch.equal(buffer["reward"], torch.cat([block, 2 * block]))


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20))
def test_actions_are_stored_in_equal_steps(values: list[float]) -> None:
    action = torch.tensor(values, requires_grad=True)
    rounded = rounded_action(action)
    assert torch.equal(loaded_action(stored_action(action)), rounded)
    beyond = stored_action(torch.tensor([1.2, 1.9, 3.0, -1.5]))  # as environments clip them
    assert loaded_action(beyond).tolist() == [1, 1, 1, -1]
    assert torch.equal(rounded_action(rounded), rounded)
    assert torch.equal(rounded_action(action.detach()), rounded)
    assert (rounded - action).abs().max() <= 0.5001 / 32_767
    rounded.sum().backward()
    assert action.grad is not None
    assert torch.equal(action.grad, torch.ones_like(action))


@pytest.mark.parametrize("slots", [[0, 1, 2], [[0], [2]], 1])
def test_what_is_added_and_gathered_is_copied_without_its_graph(slots: Any) -> None:
    buffer, batch = ReplayBuffer(5, FIELDS), transitions(0, 4)
    weight = torch.ones((), requires_grad=True)
    buffer.add({**batch, "reward": batch["reward"] * weight, "action": batch["action"] * weight})
    assert not any(value.requires_grad for value in buffer.state_dict()["storage"].values())
    expected = {name: value.clone() for name, value in batch.items()}
    for value in (*batch.values(), *buffer.gather(torch.tensor(slots)).values()):
        value.fill_(1)
    assert equal(held(buffer), expected)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward": None}, "reward"),
        ({"surprise": torch.zeros(2)}, "surprise"),
        ({"view": torch.zeros(2, 3, 2)}, r"\(2, 3, 2\)"),
        (transitions(3, 6), "6 transitions at once exceed the capacity of 5"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Any], said: str) -> None:
    buffer = ReplayBuffer(5, FIELDS)
    buffer.add(transitions(0, 3))
    before = held(buffer)
    with pytest.raises(ValueError, match=said):
        buffer.add({name: value for name, value in (transitions(0, 2) | change).items() if value is not None})
    assert (len(buffer), buffer.position) == (3, 3)
    assert equal(held(buffer), before)
    with pytest.raises(UserError, match=r"capacity is 0.*at least 1"):
        ReplayBuffer(0, FIELDS)


@pytest.mark.parametrize("added", [0, 3, 6, 17])
def test_a_saved_buffer_comes_back_and_goes_on_alike(added: int) -> None:
    buffer, restored, file = ReplayBuffer(6, FIELDS), ReplayBuffer(6, FIELDS), io.BytesIO()
    for first in range(added):
        buffer.add(transitions(first, 1))
    restored.add(transitions(500, 4))
    memory = pointers(restored)
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    for more in (0, 4):
        for each in (buffer, restored):
            each.add(transitions(added, more))
        assert (len(restored), restored.position, restored.added) == (len(buffer), buffer.position, added + more)
        assert equal(held(restored), held(buffer))
    assert pointers(restored) == memory


@pytest.mark.parametrize(
    ("capacity", "fields", "said"),
    [
        (5, FIELDS, r"action \(5, 2\) .* now \(4, 2\)"),
        (4, {k: v for k, v in FIELDS.items() if k != "view"}, r"view not set, now \(4, 2, 3\)"),
        (4, FIELDS | {"extra": Field((), torch.int8)}, r"extra \(4,\) torch.int8, now not set"),
        (4, FIELDS | {"view": Field((2, 3), torch.float32)}, "float32, now .*float16"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused_in_one_line(capacity: int, fields: dict[str, Field], said: str) -> None:
    buffer = ReplayBuffer(4, FIELDS)
    buffer.add(transitions(0, 3))
    with pytest.raises(UserError, match=rf"^the checkpoint's replay buffer does not fit.*{said}.*$"):
        buffer.load_state_dict(ReplayBuffer(capacity, fields).state_dict())
    assert equal(held(buffer), transitions(0, 3))


def test_each_agent_draws_slots_of_its_own_evenly_by_seed_and_generation() -> None:
    slots = sample_slots(7, 500, 4, range(3), seed=1, generation=2)
    assert slots.shape == (500, 3, 4)
    for agent in range(3):
        counts = torch.bincount(slots[:, agent].flatten(), minlength=7)
        assert counts.shape == (7,)
        assert (counts - 2000 / 7).abs().max() < 4 * (2000 / 7) ** 0.5
    assert not torch.equal(slots[:, 0], slots[:, 1])
    assert torch.equal(slots[:, 1:], sample_slots(7, 500, 4, range(1, 3), seed=1, generation=2)), (
        "not on who else draws"
    )
    for seed, generation in ((1, 3), (2, 2)):
        assert not torch.equal(slots, sample_slots(7, 500, 4, range(3), seed, generation))
