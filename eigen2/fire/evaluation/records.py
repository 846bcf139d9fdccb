"""Record of a run's champion: where it puts fuel breaks, and what they save beside those of the baselines."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eigen2.core.compatibility import flatten
from eigen2.core.datamodule import TestResult
from eigen2.errors import UserError
from eigen2.fire.evaluation.placements import PlacementFile, write_placements
from eigen2.fire.landscapes.landscape import Split
from eigen2.runtime.files import archive_other_test, replacing

log = logging.getLogger(__name__)

PLACEMENTS_FILE = "placements.json"
FOLDERS: dict[Split, str] = {"validation": "champion", "test": "test"}  # of the records of a split, in the run's folder


def save_champion(folder: Path, placements: PlacementFile) -> None:
    """Write the placements of the new champion and the baselines; log a warning where the disk refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_placements(folder / PLACEMENTS_FILE, placements)
    except OSError as error:
        log.warning("cannot write the champion's placements to %s: %s", folder, error.strerror or error)


def save_test(
    folder: Path, placements: PlacementFile, saved: Mapping[str, np.ndarray], unit: str, settings: dict[str, Any]
) -> None:
    """Write the scores and placements of a test; `saved` and `settings` are as in `make_test_result` and of the data.

    A test of another champion or with other settings in the folder is moved to `test-1`, `test-2` and so on.

    Raises:
        UserError: a file cannot be written.
    """
    summary = {
        "champion_generation": placements.generation,
        "unit": unit,
        "cases": "landscapes",
        "scores": {name: [round(100 * float(value), 4) for value in values] for name, values in saved.items()},
        "settings": flatten({"data": settings}),
    }
    text = json.dumps(summary, indent=1, allow_nan=False) + "\n"
    try:
        archive_other_test(folder / "scores.json", json.loads(text), ("settings", "champion_generation"))
        folder.mkdir(parents=True, exist_ok=True)
        write_placements(folder / PLACEMENTS_FILE, placements)
        with replacing(folder / "scores.json") as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the test to {folder}: {error.strerror or error}; make room there") from error


def make_test_result(saved: Mapping[str, np.ndarray], generation: int) -> TestResult:
    """Return what placements save on the test's landscapes, as metrics and as a table.

    `saved` is the part of the burned area saved on each landscape, by name; the champion first, then baselines.
    """
    lines = [
        f"champion     of epoch {generation}, on {len(saved['champion'])} landscapes that fit has not seen",
        "saved of the burned area, percent: mean, standard error, least, most",
    ]
    for name, part in saved.items():
        error = part.std(ddof=1) / np.sqrt(len(part)) if len(part) > 1 else np.nan
        figures = (part.mean(), error, part.min(), part.max())
        lines.append(f"{name:<20}" + "".join(f"{100 * figure:>8.1f}" for figure in figures))
    return TestResult({f"test/{name}": float(100 * part.mean()) for name, part in saved.items()}, "\n".join(lines))
