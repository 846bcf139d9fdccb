"""A run of fuel breaks that many tests look at, and simple landscapes."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eigen2.cli.main import main
from eigen2.fire.landscapes.landscape import RANGES, Landscape
from eigen2.fire.simulation import local_search
from eigen2.fire.simulation.spread import FireModel

ROOT = Path(__file__).parents[2]
SMALL = ["--config", "tests/fire/small.yaml"]
PLOT = ["--trainer.callbacks+=eigen2.fire.pictures.BreaksPlot", "--trainer.callbacks.every_n_epochs=4"]


def command(name: str, root: Path, *more: str) -> None:
    """Run a command on the small configuration in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", ["cli.py"])
        patch.setattr(local_search, "EVALUATIONS", 100)  # of thousand: a test takes seconds less
        torch.set_num_threads(1)
        main([name, *SMALL, f"--trainer.default_root_dir={root}", *more])


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts, and a test of its champion; nobody may write to it."""
    root = tmp_path_factory.mktemp("whole")
    command("fit", root, *PLOT)
    command("test", root, "--ckpt_path=best")
    return root


def flat(shape: tuple[int, int], fuel: Any = 101, **layers: Any) -> Landscape:
    """Level ground without trees, of one fuel model or of a map of them, with other layers in place of its own."""
    own = {name: np.zeros(shape, np.float32) for name in RANGES}
    given = {name: np.broadcast_to(np.asarray(layer), shape) for name, layer in layers.items()}
    return Landscape(**{**own, "fuel": np.broadcast_to(np.asarray(fuel, np.int16), shape), **given})


def uniform(shape: tuple[int, int], rate: float = 30.0, duration: float = 1e6, holes: Iterable[int] = ()) -> FireModel:
    """The same rate everywhere and in all directions, in cells of 30 m; `holes` do not burn."""
    rates = np.full((4, *shape), rate, np.float32)
    rates.reshape(4, -1)[:, list(holes)] = 0
    return FireModel(rates, 30.0, duration)
