"""What a run keeps of its champion: where it puts fuel breaks, and what they save beside those of the baselines."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eigen2.core.compatibility import flatten
from eigen2.errors import UserError
from eigen2.fire.evaluation.placements import Placed, write_placements
from eigen2.fire.landscapes.landscape import Split
from eigen2.runtime.files import archive_other_test, replacing

if TYPE_CHECKING:
    from eigen2.fire.module import DQNModule

log = logging.getLogger(__name__)

PLACEMENTS_FILE = "placements.json"
SCORES_FILE = "scores.json"
FOLDERS: dict[Split, str] = {"validation": "champion", "test": "test"}
"""Where in the run's folder the champion's record on a split lies."""


def keep_record(module: "DQNModule") -> None:
    """Write where the champion that just validated, and every baseline, puts breaks: `champion/placements.json`.

    A disk that refuses costs the record, not the run.
    """
    folder = _folder(module, "validation")
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_placements(folder / PLACEMENTS_FILE, _placed(module, "validation", module.hparams["baselines"]))
    except OSError as error:
        log.warning("cannot write the champion's placements to %s: %s", folder, error.strerror or error)


def keep_test(module: "DQNModule", saved: dict[str, np.ndarray]) -> None:
    """Write what a test found: `test/scores.json` and `test/placements.json`.

    A test of another champion or with other settings that lies there is moved to `test-1`, `test-2` and so on.

    Args:
        module: that just played its champion on the test's landscapes.
        saved: part of the burned area saved on each landscape, by name; the champion first, then baselines.

    Raises:
        UserError: a file cannot be written.
    """
    folder = _folder(module, "test")
    if folder is None:
        return
    summary = {
        "champion_generation": int(module.champion_generation),
        "unit": module.fitness_words["unit"],
        "cases": "landscapes",
        "scores": {name: [round(100 * float(value), 4) for value in values] for name, values in saved.items()},
        "settings": flatten({"data": module.data.settings()}),
    }
    text = json.dumps(summary, indent=1, allow_nan=False) + "\n"
    baselines = [name for name in saved if name != "champion"]
    try:
        archive_other_test(folder / SCORES_FILE, json.loads(text), ("settings", "champion_generation"))
        folder.mkdir(parents=True, exist_ok=True)
        write_placements(folder / PLACEMENTS_FILE, _placed(module, "test", baselines))
        with replacing(folder / SCORES_FILE) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the test to {folder}: {error.strerror or error}; make room there") from error


def _folder(module: "DQNModule", split: Split) -> Path | None:
    """Where the record goes; None for a process that writes nothing."""
    trainer = module.trainer
    if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
        return None
    return Path(trainer.default_root_dir) / FOLDERS[split]


def _placed(module: "DQNModule", split: Split, baselines: Sequence[str]) -> Placed:
    data, settings = module.data, module.data.settings()
    return Placed(
        specs=data.specs(split),
        placements={
            "champion": [list(env.placed) for env in data.held_out(split)],
            **{name: data.placement(name, split) for name in baselines},
        },
        fire={
            "duration": settings["fire_simulation_max_duration"],
            "wind_speed": settings["wind_speed"],
            "wind_from": settings["wind_from"],
        },
        generation=int(module.champion_generation),
    )
