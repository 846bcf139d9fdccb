"""A callback that finds the containers which grow with generations."""

import gc
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from eigen2.memory.objects import describe_held, everything

CONTAINERS = (list, dict, set, deque)


class Census:
    """Looks at every list, dictionary, set and deque of the process, each time after it may have grown."""

    def __init__(self) -> None:
        self.looks = 0
        self._ids = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)

    def look(self) -> list[str]:
        """Those that were longer at each look than at the one before, by type, length and path."""
        with everything() as objects:
            found = {id(each): each for each in _containers(objects)}
            ids = np.fromiter(found, np.int64, len(found))
            lengths = np.fromiter(map(len, found.values()), np.int64, len(found))
            if self.looks:
                keep = self._grown(ids, lengths)
                ids, lengths = ids[keep], lengths[keep]
            self.looks += 1
            self._ids, self._lengths = ids, lengths
            grown = [found[each] for each in ids] if self.looks > 2 else []
            held = describe_held([((each,), 0) for each in grown], ignore=[objects, found, grown, locals()])
            return [f"{each.type}  {each.path}" for each in held]

    def _grown(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        if not len(self._ids):
            return np.zeros(len(ids), bool)
        order = np.argsort(self._ids)
        at = np.searchsorted(self._ids, ids, sorter=order).clip(max=len(order) - 1)
        before = order[at]
        return (self._ids[before] == ids) & (lengths > self._lengths[before])


def _containers(objects: Sequence[Any]) -> list[Any]:
    # a dictionary of plain values is not tracked, but known to what holds it
    plain = [each for each in gc.get_referents(*objects) if type(each) is dict and not gc.is_tracked(each)]
    return [each for each in (*objects, *plain) if issubclass(type(each), CONTAINERS) and each is not objects]


class Grown(Callback):
    """Writes what grew between the generations given to a JSON file."""

    def __init__(self, path: str, generations: list[int]) -> None:
        self.path, self.generations = path, generations
        self.census = Census()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch in self.generations:
            Path(self.path).write_text(json.dumps(self.census.look()))
