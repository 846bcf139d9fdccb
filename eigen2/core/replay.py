"""The replay buffer: memory that is allocated once and shared by all agents."""

import ctypes
import math
import mmap
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigen2.core.randomness import Role, generator
from eigen2.errors import UserError, require_range
from eigen2.runtime.provenance import describe_changes

ACTION_STEPS = 32_767  # steps from 0 to 1 in a stored action


class Field(NamedTuple):
    """Shape (without the leading transition axis) and dtype of one field of a transition."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Return the bytes of one value."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


def transition_fields(observation: Mapping[str, Field], action_shape: tuple[int, ...]) -> dict[str, Field]:
    """Return the fields of a transition: observation, next observation (`next_` names), action, reward and end flags.

    Actions are those of `stored_action`.
    """
    return {
        **observation,
        **{f"next_{name}": field for name, field in observation.items()},
        "action": Field(action_shape, torch.int16),
        "reward": Field((), torch.float32),
        "terminated": Field((), torch.bool),
        "truncated": Field((), torch.bool),
    }


def rounded_action(action: Tensor) -> Tensor:
    """Return actions in [-1, 1] rounded to the steps of `stored_action`; gradients pass as if they were not rounded.

    Half precision has steps of 0.0005 near 1, where the largest orders would be equal and a draw would choose.
    """
    rounded = torch.round(action.float() * ACTION_STEPS) / ACTION_STEPS
    return action + (rounded - action).detach() if action.requires_grad else rounded


def stored_action(action: Tensor) -> Tensor:
    """Return actions as int16, as the replay buffer holds them; those beyond [-1, 1] as the environment plays them."""
    return torch.round(action.float().clamp(-1, 1) * ACTION_STEPS).to(torch.int16)


def loaded_action(stored: Tensor) -> Tensor:
    """Return the actions that `stored_action` made of them, as float32 in [-1, 1]."""
    return stored / ACTION_STEPS


class ReplayBuffer:
    """Ring of transitions: named fields of fixed size, `reward` among them, allocated and touched at the start.

    It holds up to `capacity` transitions; a further one replaces the oldest. `size` are stored now, the next goes to
    slot `position`, and `added` were added since construction or the last reset. `slots` are those in this buffer's
    memory, None for all.
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        device: torch.device | str = "cpu",
        slots: range | None = None,
    ) -> None:
        require_range("replay capacity", capacity, least=1)
        self.capacity, self.fields, self.device = capacity, dict(fields), torch.device(device)
        self.slots = range(capacity) if slots is None else slots
        self.bytes_per_transition = sum(field.nbytes for field in self.fields.values())
        self.nbytes = len(self.slots) * self.bytes_per_transition
        self.size = self.position = self.added = 0
        # fill_ touches every page now: RSS does not creep up while the buffer fills
        self._storage = {
            name: torch.empty((len(self.slots), *field.shape), dtype=field.dtype, device=device).fill_(0)
            for name, field in self.fields.items()
        }

    def __len__(self) -> int:
        return self.size

    def __str__(self) -> str:
        return f"{self.capacity:,} transitions of {self.bytes_per_transition:,} bytes, {self.nbytes / 1e6:,.1f} MB"

    def __getitem__(self, name: str) -> Tensor:
        """Return the stored field `name` of the slots in memory, shape (size, ...) if all are, as a view."""
        return self._storage[name][: self._filled]

    @property
    def _filled(self) -> int:
        """Return how many of the slots in memory hold a transition."""
        return len(range(self.slots.start, self.size, self.slots.step))

    def reset_memory(self) -> None:
        """Drop every transition and keep the memory."""
        for stored in self._storage.values():
            stored.zero_()
        self.size = self.position = self.added = 0

    def cleanup_memory(self) -> int:
        """Release the pages of empty slots to the system and return their bytes; only on Linux and the CPU."""
        return sum(_release_pages(stored[self._filled :]) for stored in self._storage.values())

    def add(self, transitions: Mapping[str, Tensor]) -> None:
        """Add `n` transitions, each field of shape (n, ...), in place of the oldest; ValueError if they do not fit."""
        count = len(next(iter(transitions.values())))
        shapes = {name: tuple(values.shape) for name, values in transitions.items()}
        if shapes != (expected := {name: (count, *field.shape) for name, field in self.fields.items()}):
            raise ValueError(f"transitions have the shapes {shapes}, not {expected}")
        if count > self.capacity:
            raise ValueError(f"{count} transitions at once exceed the capacity of {self.capacity}")
        head = min(count, self.capacity - self.position)
        for name, tensor in transitions.items():
            stored, values = self._storage[name], tensor.detach()
            stored[self.position : self.position + head] = values[:head]
            if head < count:
                stored[: count - head] = values[head:]
        self.position = (self.position + count) % self.capacity
        self.size = min(self.size + count, self.capacity)
        self.added += count

    def add_reward(self, slots: Int[np.ndarray, " parts"], amounts: Float[np.ndarray, " parts"]) -> None:
        """Add to the rewards in `slots`, which may repeat."""
        # summed here: on a GPU the order of several additions to one place is not fixed
        places, which = np.unique(slots, return_inverse=True)
        sums = np.bincount(which, amounts, minlength=len(places)).astype(np.float32)
        self._storage["reward"][torch.from_numpy(places).to(self.device)] += torch.from_numpy(sums).to(self.device)

    def gather(self, slots: Int[Tensor, "..."]) -> dict[str, Tensor]:
        """Return copies of the transitions in `slots`; a field of shape s comes out as (*slots.shape, *s)."""
        flat = slots.reshape(-1)
        return {name: stored[flat].reshape((*slots.shape, *stored.shape[1:])) for name, stored in self._storage.items()}

    def batches_at_once(self, transitions: int) -> int:
        """Return how many batches, of at most so many transitions in any process, are best gathered at once."""
        return 1

    def metrics(self) -> dict[str, float]:
        """Return size, utilization and the number of transitions added, by full metric name."""
        utilization = self.size / self.capacity
        return {"replay/size": float(self.size), "replay/utilization": utilization, "replay/added": float(self.added)}

    def state_dict(self) -> dict[str, Any]:
        """Return everything in memory, by reference: save it before the next `add`."""
        return {"size": self.size, "position": self.position, "added": self.added, "storage": dict(self._storage)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a saved buffer into this one; raise a UserError if it has another capacity or other fields.

        Of a buffer saved in n parts, `parts` holds them by number: part i has slots i, i + n, i + 2 n ... of `storage`.
        """
        saved = {name: f"{tuple(values.shape)} {values.dtype}" for name, values in state["storage"].items()}
        current = {name: f"{(self.capacity, *field.shape)} {field.dtype}" for name, field in self.fields.items()}
        if changes := describe_changes(saved, current):
            raise UserError(
                f"the checkpoint's replay buffer does not fit this configuration ({', '.join(changes.values())}); "
                "resume with the data settings of the run that wrote it, or start a new run in another "
                "--trainer.default_root_dir"
            )
        parts: Sequence[Mapping[str, Tensor]] = state.get("parts", [state["storage"]])
        stride = math.lcm(len(parts), self.slots.step)  # between slots that a part and this memory have in common
        for number, part in enumerate(parts):
            saved_slots = range(number, self.capacity, len(parts))
            first = next((slot for slot in saved_slots[: self.slots.step] if slot in self.slots), None)
            if first is None:
                continue
            here = slice(self.slots.index(first), None, stride // self.slots.step)
            there = slice(saved_slots.index(first), None, stride // len(parts))
            for name, stored in self._storage.items():
                stored[here].copy_(part[name][there])
        self.size, self.position, self.added = int(state["size"]), int(state["position"]), int(state["added"])


def sample_slots(
    stored: int, batches: int, batch_size: int, agents: range, seed: int, generation: int
) -> Int[Tensor, "batches agents batch"]:
    """Sample slots of `stored` transitions uniformly with replacement, each agent's with its own generator."""
    slots = torch.empty(batches, len(agents), batch_size, dtype=torch.int64)
    for place, agent in enumerate(agents):
        drawn = generator(seed, Role.REPLAY, generation, agent).integers(stored, size=(batches, batch_size))
        slots[:, place] = torch.from_numpy(drawn)
    return slots


def _release_pages(tensor: Tensor) -> int:
    """Release the whole pages of a contiguous CPU tensor to the system, on Linux only, and return their bytes.

    The pages read as zeros afterwards. Raises OSError if the system refuses.
    """
    page = mmap.PAGESIZE
    first = -(-tensor.data_ptr() // page) * page
    size = (tensor.data_ptr() + tensor.nbytes - first) // page * page
    if sys.platform != "linux" or tensor.device.type != "cpu" or size <= 0:
        return 0
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if advise(first, size, mmap.MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), "madvise failed")
    return size
