"""The replay buffer against a list, its memory, and what it lets in and out."""

import io
import sys
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eigen2.core.replay import Field, ReplayBuffer, transition_fields
from eigen2.errors import UserError
from tests.erl.reference import ListRing

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
        "action": spread(2).half() / 512,
        "reward": number.float() * 0.5,
        "terminated": number % 3 == 0,
        "truncated": number % 5 == 0,
    }


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@given(data=st.data(), capacity=st.integers(1, 9))
def test_ring_is_a_list_whose_oldest_make_room(data: st.DataObject, capacity: int) -> None:
    buffer, model = ReplayBuffer(capacity, FIELDS), ListRing(capacity)
    for count in data.draw(st.lists(st.integers(0, capacity), max_size=6)):
        buffer.add(transitions(model.added, count))
        model.add(list(range(model.added, model.added + count)))
        assert buffer["id"].tolist() == model.held
        assert len(buffer) == buffer.size == len(model.held) == min(model.added, capacity)
        assert buffer.position == model.added % capacity
        assert buffer.added == model.added
        assert sorted(model.held) == list(range(max(0, model.added - capacity), model.added))
    if model.held:
        slot = st.integers(0, len(buffer) - 1)
        slots = data.draw(st.lists(st.lists(slot, min_size=2, max_size=2), min_size=1, max_size=5))
        drawn = buffer.gather(torch.tensor(slots))
        for row, pair in enumerate(slots):
            for column, place in enumerate(pair):
                expected = transitions(model.slots[place], 1)
                assert equal({name: value[row, column][None] for name, value in drawn.items()}, expected)


def test_gathered_shapes_and_dtypes_follow_slots_and_fields() -> None:
    buffer = ReplayBuffer(10, FIELDS)
    buffer.add(transitions(0, 10))
    drawn = buffer.gather(torch.zeros(4, 3, 5, dtype=torch.int64))
    for name, field in FIELDS.items():
        assert drawn[name].shape == (4, 3, 5, *field.shape)
        assert drawn[name].dtype == field.dtype


def test_bytes_are_the_sum_of_the_fields_and_of_the_memory_held() -> None:
    fields = transition_fields({"day": Field((), torch.int32), "gain": Field((5,), torch.float16)}, (5, 2))
    # day 4, gain 10, both twice; action 10 x 2; reward 4; two flags
    assert ReplayBuffer(3, fields).bytes_per_transition == 2 * 14 + 20 + 4 + 1 + 1
    buffer = ReplayBuffer(3, fields)
    assert buffer.nbytes == 3 * 54
    assert buffer.nbytes == sum(value.nbytes for value in buffer.state_dict()["storage"].values())
    assert [Field((), torch.bool).nbytes, Field((0, 3), torch.float32).nbytes, Field((2, 3), torch.int16).nbytes] == [
        1,
        0,
        12,
    ]


def test_a_full_scale_transition_of_108_columns_takes_less_than_1700_bytes() -> None:
    position = {"held": torch.uint8, "gain": torch.float16, "target": torch.float16}
    fields = {name: Field((108,), dtype) for name, dtype in position.items()}
    market = {"day": Field((), torch.int32), "left": Field((), torch.int16)}
    assert ReplayBuffer(1, transition_fields(market | fields, (108, 2))).bytes_per_transition < 1700


def pointers(buffer: ReplayBuffer) -> dict[str, int]:
    return {name: value.data_ptr() for name, value in buffer.state_dict()["storage"].items()}


def test_memory_is_allocated_once() -> None:
    buffer = ReplayBuffer(7, FIELDS)
    before = pointers(buffer)
    for first in range(0, 40, 4):
        buffer.add(transitions(first, 4))
        buffer.gather(torch.arange(len(buffer)))
    other = ReplayBuffer(7, FIELDS)
    buffer.load_state_dict(other.state_dict())
    assert pointers(buffer) == before
    assert not set(pointers(other).values()) & set(before.values())


def test_memory_is_resident_from_the_start() -> None:
    process, megabytes = psutil.Process(), 96
    at_first = process.memory_info().rss
    buffer = ReplayBuffer(megabytes, {"reward": Field((250_000,), torch.float32)})
    allocated = process.memory_info().rss
    block = torch.ones(8, 250_000)
    for _ in range(megabytes // 8):
        buffer.add({"reward": block})
    filled = process.memory_info().rss
    assert allocated - at_first > 0.9 * buffer.nbytes
    assert filled - allocated - block.nbytes < 0.1 * buffer.nbytes


def test_a_reset_buffer_is_a_new_one_in_the_same_memory() -> None:
    buffer = ReplayBuffer(7, FIELDS)
    buffer.add(transitions(0, 5))
    before = pointers(buffer)
    buffer.reset_memory()
    assert pointers(buffer) == before
    assert (len(buffer), buffer.position, buffer.added) == (0, 0, 0)
    assert equal(buffer.state_dict()["storage"], ReplayBuffer(7, FIELDS).state_dict()["storage"])


@pytest.mark.skipif(sys.platform != "linux", reason="gives pages back on Linux")
def test_pages_of_empty_slots_are_given_back_and_nothing_else() -> None:
    process, megabytes = psutil.Process(), 64
    buffer = ReplayBuffer(megabytes, {"reward": Field((250_000,), torch.float32)})
    block = torch.ones(16, 250_000)
    buffer.add({"reward": block})
    before = process.memory_info().rss
    freed = buffer.cleanup_memory()
    assert 47_900_000 < freed <= 48_000_000
    assert before - process.memory_info().rss == pytest.approx(freed, rel=0.05)
    assert torch.equal(buffer["reward"], block)
    buffer.add({"reward": 2 * block})
    assert torch.equal(buffer["reward"], torch.cat([block, 2 * block]))


def test_a_buffer_suits_what_it_was_made_for() -> None:
    buffer = ReplayBuffer(7, FIELDS)
    assert buffer.matches(7, FIELDS, "cpu")
    assert not buffer.matches(8, FIELDS, "cpu")
    assert not buffer.matches(7, {"reward": FIELDS["reward"]}, "cpu")
    assert not buffer.matches(7, FIELDS, "meta")


def test_what_is_added_is_copied() -> None:
    buffer, given_in = ReplayBuffer(5, FIELDS), transitions(0, 4)
    expected = {name: value.clone() for name, value in given_in.items()}
    buffer.add(given_in)
    for value in given_in.values():
        value.fill_(1)
    assert equal(buffer.gather(torch.arange(4)), expected)


@pytest.mark.parametrize("slots", [[0, 1, 2], [[0], [2]], 1])
def test_what_is_gathered_is_a_copy(slots: Any) -> None:
    buffer = ReplayBuffer(5, FIELDS)
    buffer.add(transitions(0, 3))
    before = buffer.gather(torch.arange(3))
    for value in buffer.gather(torch.tensor(slots)).values():
        value.fill_(1)
    assert equal(buffer.gather(torch.arange(3)), before)


def test_nothing_of_autograd_is_stored() -> None:
    buffer, batch = ReplayBuffer(5, FIELDS), transitions(0, 3)
    weight = torch.ones((), requires_grad=True)
    buffer.add({**batch, "reward": batch["reward"] * weight, "action": (batch["action"] * weight).half()})
    for name, value in buffer.state_dict()["storage"].items():
        assert not value.requires_grad, f"{name} keeps the graph that made it alive"
        assert value.grad_fn is None
    assert equal(buffer.gather(torch.arange(3)), batch)


def test_terminated_and_truncated_are_kept_apart() -> None:
    buffer, batch = ReplayBuffer(4, FIELDS), transitions(0, 4)
    batch["terminated"] = torch.tensor([False, False, True, True])
    batch["truncated"] = torch.tensor([False, True, False, True])
    buffer.add(batch)
    drawn = buffer.gather(torch.tensor([0, 1, 2, 3]))
    assert drawn["terminated"].tolist() == [False, False, True, True]
    assert drawn["truncated"].tolist() == [False, True, False, True]


def test_actions_lose_at_most_half_a_thousandth() -> None:
    actions = torch.linspace(-1, 1, 100_001)[:, None]
    buffer = ReplayBuffer(len(actions), {"action": Field((1,), torch.float16), "reward": Field((), torch.float32)})
    buffer.add({"action": actions, "reward": actions[:, 0]})
    assert (buffer["action"].float() - actions).abs().max() < 0.0005


@pytest.mark.parametrize("change", [{"reward": None}, {"surprise": torch.zeros(2)}])
def test_missing_and_unknown_fields_are_refused_and_change_nothing(change: dict[str, Any]) -> None:
    buffer = ReplayBuffer(5, FIELDS)
    wrong = {name: value for name, value in (transitions(0, 2) | change).items() if value is not None}
    with pytest.raises(KeyError, match=next(iter(change))):
        buffer.add(wrong)
    assert (len(buffer), buffer.position) == (0, 0)


def test_more_than_the_capacity_at_once_is_refused_and_changes_nothing() -> None:
    buffer = ReplayBuffer(5, FIELDS)
    buffer.add(transitions(0, 3))
    before = buffer.gather(torch.arange(3))
    with pytest.raises(ValueError, match="6 transitions at once exceed the capacity of 5"):
        buffer.add(transitions(3, 6))
    assert (len(buffer), buffer.position) == (3, 3)
    assert equal(buffer.gather(torch.arange(3)), before)


@pytest.mark.parametrize("capacity", [0, -3])
def test_capacity_below_one_is_refused(capacity: int) -> None:
    with pytest.raises(UserError, match=f"^.*capacity is {capacity}.*at least 1$"):
        ReplayBuffer(capacity, FIELDS)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("added", [0, 3, 6, 17])
def test_a_saved_buffer_comes_back_and_goes_on_alike(added: int) -> None:
    buffer = ReplayBuffer(6, FIELDS)
    for first in range(added):
        buffer.add(transitions(first, 1))
    restored = ReplayBuffer(6, FIELDS)
    restored.add(transitions(500, 4))
    restored.load_state_dict(through_a_file(buffer.state_dict()))
    for more in (0, 4):
        for each in (buffer, restored):
            each.add(transitions(added, more))
        assert (len(restored), restored.position, restored.added) == (len(buffer), buffer.position, added + more)
        slots = torch.arange(len(buffer))
        assert equal(restored.gather(slots), buffer.gather(slots))


def test_loading_copies() -> None:
    buffer, restored = ReplayBuffer(4, FIELDS), ReplayBuffer(4, FIELDS)
    buffer.add(transitions(0, 4))
    restored.load_state_dict(buffer.state_dict())
    buffer.add(transitions(90, 4))
    assert restored["id"].tolist() == [0, 1, 2, 3]


MISFITS = {
    "capacity": (ReplayBuffer(5, FIELDS), ["(5,", "(4,"]),
    "missing field": (ReplayBuffer(4, {k: v for k, v in FIELDS.items() if k != "view"}), ["view", "absent"]),
    "another field": (ReplayBuffer(4, FIELDS | {"extra": Field((), torch.int8)}), ["extra", "absent"]),
    "another shape": (ReplayBuffer(4, FIELDS | {"view": Field((2, 4), torch.float16)}), ["(4, 2, 4)", "(4, 2, 3)"]),
    "another dtype": (ReplayBuffer(4, FIELDS | {"view": Field((2, 3), torch.float32)}), ["float32", "float16"]),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_buffer_that_does_not_fit_is_refused_in_one_line(misfit: str) -> None:
    other, words = MISFITS[misfit]
    buffer = ReplayBuffer(4, FIELDS)
    buffer.add(transitions(0, 3))
    before = buffer.gather(torch.arange(3))
    with pytest.raises(UserError) as error:
        buffer.load_state_dict(other.state_dict())
    message = str(error.value)
    assert "\n" not in message
    assert "replay buffer" in message
    assert [word for word in words if word not in message] == [], message
    assert equal(buffer.gather(torch.arange(3)), before)
