"""Validation of placements by pyretechnics, another fire model than the one they were chosen with.

It solves the spread of the fire front by a level set and models crown fire. It needs numpy 1.26, so a separate
environment, whose interpreter runs `pyretechnics_worker.py`.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.evaluation.placements import Cells
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.simulation.baselines import reduction
from eigen2.fire.simulation.spread import FireModel, Weather

WORKER = Path(__file__).with_name("pyretechnics_worker.py")
NEWEST = "2026.8.10"  # the last under the EPL-2.0; later ones forbid commercial use without a paid licence
VARIABLE = "EIGEN2_PYRETECHNICS_PYTHON"  # path of the interpreter
INSTALL = (
    f"python3.11 -m venv ~/pyretechnics && ~/pyretechnics/bin/pip install 'pyretechnics=={NEWEST}' (which needs a C "
    f"compiler), then give --python ~/pyretechnics/bin/python, or set {VARIABLE} to it"
)
FOLIAR_MOISTURE = 0.9  # moisture of needles and leaves, for crown fire


@dataclass(frozen=True)
class Conditions:
    """Weather and fire duration (minutes); pyretechnics burns `fires` per landscape, in cells that `seed` draws."""

    weather: Weather
    duration: float = 240.0
    fires: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        require_range("duration", self.duration, above=0, most=1e6)
        require_range("fires", self.fires, least=1, most=100_000)
        require_range("seed", self.seed, least=0)

    def model(self, landscape: Landscape) -> FireModel:
        """Return the fire model of a landscape."""
        return FireModel.of(landscape, self.weather, self.duration)


@dataclass(frozen=True)
class Score:
    """Share of the burned area that a placement saves, the mean over landscapes (0 to 1; below 0 if more burns)."""

    breaks: float  # cells
    travel_time: float  # by `simulation.spread`, over fires from every cell that burns
    same_fires: float  # by `simulation.spread`, over the fires that pyretechnics burns
    surface: float  # by pyretechnics, without the canopy
    crown: float  # by pyretechnics, with the canopy and crown fire


def validate(
    landscapes: Sequence[Landscape], placements: Mapping[str, Cells], conditions: Conditions, python: str
) -> dict[str, Score]:
    """Return the scores of placements by both models; `python` is an interpreter with pyretechnics."""
    models = [conditions.model(landscape) for landscape in landscapes]
    travel_time = {name: _savings(name, placed, models) for name, placed in placements.items()}
    fires, seed = conditions.fires, conditions.seed  # the 2 separates these draws from those of `synthetic`
    ignitions = [model.draw(fires, np.random.default_rng([seed, i, 2])) for i, model in enumerate(models)]
    every: list[Cells] = [[[] for _ in models], *placements.values()]  # the first without breaks
    same_fires = [  # cells that each fire burns, of each landscape (placements, fires)
        np.array([np.isfinite(model.start(cells, breaks[i]).arrival).sum(1) for breaks in every], float)
        for i, (model, cells) in enumerate(zip(models, ignitions, strict=True))
    ]
    burned = {"same_fires": same_fires} | ask_pyretechnics(python, _request(landscapes, ignitions, every, conditions))
    saved = {by: np.mean([1 - each.mean(1) / each[0].mean() for each in found], 0) for by, found in burned.items()}
    return {
        name: Score(
            breaks=float(np.mean([len(cells) for cells in placed])),
            travel_time=travel_time[name],
            **{by: float(values[k]) for by, values in saved.items()},
        )
        for k, (name, placed) in enumerate(placements.items(), 1)
    }


def require_pyretechnics(python: str) -> str:
    """Return an interpreter's version of pyretechnics; raise UserError if it has none or one later than NEWEST."""
    if not python:
        raise UserError(f"fire validate needs pyretechnics in an environment of its own: {INSTALL}")
    output = _run(python, "version")
    try:
        version = json.loads(output)
    except ValueError as error:
        raise UserError(f"--python {python} did not run as Python 3.11 does; name an interpreter of it") from error
    if version is None:
        raise UserError(f"--python {python} has no pyretechnics: {INSTALL}")
    numbers, newest = ([int(part) for part in re.findall(r"\d+", text)] for text in (str(version), NEWEST))
    if numbers > newest:
        paid = "whose licence forbids use in for-profit organizations unless paid for"
        older = f"{NEWEST} and before are under the EPL-2.0: {INSTALL}"
        raise UserError(f"--python {python} has pyretechnics {version}, {paid}; {older}")
    return str(version)


def _run(python: str, *arguments: str) -> str:
    """Run the worker and return its output."""
    try:
        process = subprocess.run([python, "-I", str(WORKER), *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"--python {python} cannot be run ({error.strerror}); name a Python interpreter") from error
    if process.returncode:
        problem = [f"exit code {process.returncode}", *process.stderr.strip().splitlines()][-1]
        raise UserError(f"--python {python} failed ({problem}); it must be Python 3.11 with pyretechnics: {INSTALL}")
    return process.stdout


def _savings(name: str, placed: Cells, models: Sequence[FireModel]) -> float:
    """Return the share of the burned area that a placement saves; raise UserError if it does not fit the landscapes."""
    if len(placed) != len(models):
        problem = f"placements.{name} has breaks for {len(placed)} landscapes"
        raise UserError(f"{problem}; it must have a list for each of the {len(models)}")
    saved = []
    for number, (model, cells) in enumerate(zip(models, placed, strict=True)):
        try:
            saved.append(reduction(model, cells))
        except ValueError as error:
            raise UserError(f"placements.{name}[{number}] does not fit landscape {number}: {error}") from error
    return float(np.mean(saved))


def _request(
    landscapes: Sequence[Landscape], ignitions: Sequence[NDArray[Any]], placed: Sequence[Cells], conditions: Conditions
) -> dict[str, Any]:
    """Return the arrays of a request, which the worker's module describes."""
    weather = conditions.weather
    request: dict[str, Any] = {
        "wind_speed": weather.wind_speed,
        "wind_from": weather.wind_from,
        "moisture": [*vars(weather.moisture).values(), FOLIAR_MOISTURE],
        "duration": conditions.duration,
        "landscapes": len(landscapes),
    }
    for i, (landscape, cells) in enumerate(zip(landscapes, ignitions, strict=True)):
        breaks = np.zeros((len(placed), landscape.fuel.size), bool)
        for row, each in zip(breaks, placed, strict=True):
            row[each[i]] = True
        request |= {f"{i}/{name}": layer for name, layer in landscape.layers().items() if name != "elevation"}
        request |= {f"{i}/cell_size": landscape.cell_size, f"{i}/ignitions": cells, f"{i}/breaks": breaks}
    return request


def ask_pyretechnics(python: str, request: Mapping[str, Any]) -> dict[str, list[NDArray[np.float64]]]:
    """Return how many cells each fire burns in pyretechnics: by model, for each landscape (placements, fires)."""
    with tempfile.TemporaryDirectory(prefix="eigen2-") as folder:
        request_file, reply_file = Path(folder, "request.npz"), Path(folder, "reply.json")
        np.savez(request_file, **request)
        _run(python, str(request_file), str(reply_file))
        reply = json.loads(reply_file.read_text(encoding="utf-8"))
    return {model: [np.array(counts, float) for counts in reply[model]] for model in ("surface", "crown")}
