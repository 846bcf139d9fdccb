"""A callback that finds the containers which grow with generations."""

import contextlib
import gc
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

CONTAINERS = (list, dict, set, deque)


@contextlib.contextmanager
def tracked_objects() -> Iterator[list[Any]]:
    """List all objects that the garbage collector tracks, frozen ones (`gc.freeze`) included.

    Those are frozen again afterwards, without the garbage, which else would never be freed.
    """
    frozen = gc.get_freeze_count() > 0
    gc.disable()  # a collection in between would stop tracking a tuple that was found tracked
    if frozen:
        gc.unfreeze()
    objects = gc.get_objects()
    try:
        yield objects
    finally:
        objects.clear()
        gc.enable()
        if frozen:
            gc.collect()
            gc.freeze()


class Census:
    """Looks at every list, dictionary, set and deque of the process, each time after it may have grown."""

    def __init__(self) -> None:
        self.looks = 0
        self._lengths = np.zeros((0, 2), np.int64)  # by address; an array takes less of the memory that is measured

    def look(self) -> list[str]:
        """Those that were longer at each of at least three looks than at the one before: type, length, first item."""
        with tracked_objects() as objects:
            # a dictionary of plain values is not tracked, but known to what holds it
            plain = [each for each in gc.get_referents(*objects) if type(each) is dict and not gc.is_tracked(each)]
            found = {id(each): each for each in (*objects, *plain) if issubclass(type(each), CONTAINERS)}
            before = dict(self._lengths.tolist()) if self.looks else dict.fromkeys(found, -1)
            lengths = [(key, len(each)) for key, each in found.items() if len(each) > before.get(key, len(each))]
            self._lengths = np.array(lengths, np.int64).reshape(-1, 2)
            self.looks += 1
            ours = {id(each) for each in (objects, plain, found, before, lengths)}
            grown = [found[key] for key, _ in lengths if key not in ours] if self.looks > 2 else []
            return [f"{type(each).__name__} of {len(each)}, first {next(iter(each))!r:.60}" for each in grown]


class Grown(Callback):
    """Writes what grew between the generations given to a JSON file."""

    def __init__(self, path: str, generations: list[int]) -> None:
        self.path, self.generations = path, generations
        self.census = Census()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch in self.generations:
            Path(self.path).write_text(json.dumps(self.census.look()))
