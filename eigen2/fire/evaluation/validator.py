"""Validation of placements by pyretechnics, another fire model, beside the one they were chosen with.

Breaks are chosen under `simulation.spread`, a model made to be fast. Pyretechnics solves the spread of the fire front
by a level set, and can let crowns burn. Placements that are good only under the model they were chosen with would lose
their lead there.

Pyretechnics needs numpy 1.26 and so an environment of its own, whose interpreter runs `pyretechnics_worker.py`.
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
VARIABLE = "EIGEN2_PYRETECHNICS_PYTHON"
"""Environment variable that names the interpreter."""
INSTALL = (
    f"python3.11 -m venv ~/pyretechnics && ~/pyretechnics/bin/pip install 'pyretechnics=={NEWEST}' (which needs a C "
    f"compiler and a minute or two), then give --python ~/pyretechnics/bin/python, or set {VARIABLE} to it"
)
FOLIAR_MOISTURE = 0.9  # of the needles and leaves of crowns, for crown fire


@dataclass(frozen=True)
class Conditions:
    """Conditions of fires of a duration in minutes (above 0), `fires` of them on a landscape by pyretechnics.

    Those start in random cells, drawn from `seed`.

    Raises:
        UserError: a value lies outside its range.
    """

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
    """Part of the burned area that a placement saves, the mean over landscapes (0 to 1; below 0 where more burns)."""

    breaks: float  # cells
    travel_time: float  # by `simulation.spread`, over fires from every cell that burns
    same_fires: float  # by the same, over the fires that pyretechnics burns
    surface: float  # by pyretechnics, without the canopy
    crown: float  # by pyretechnics, with the canopy and crown fire


@dataclass(frozen=True)
class Validation:
    """Scores of placements under both models.

    Args:
        scores: of each placement, by name.
        cells: burned on average by a fire without breaks, by model: `same_fires`, `surface` and `crown`.
        fires_agree: correlation over fires without breaks between the cells burned by the model here and by
            pyretechnics without the canopy (-1 to 1); NaN where all are the same.
        pyretechnics: its version.
    """

    scores: dict[str, Score]
    cells: dict[str, float]
    fires_agree: float
    pyretechnics: str

    def order(self, by: str) -> list[str]:
        """Return the names of the placements, the worst first, by `travel_time`, `surface` and so on."""
        return sorted(self.scores, key=lambda name: float(vars(self.scores[name])[by]))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, rounded to 4 digits."""
        return {
            "pyretechnics": self.pyretechnics,
            "cells_burned_without_breaks": {name: round(value, 1) for name, value in self.cells.items()},
            "fires_agree": round(self.fires_agree, 4) if np.isfinite(self.fires_agree) else None,
            "order_kept": {by: self.order(by) == self.order("travel_time") for by in ("surface", "crown")},
            "reduction": {n: {by: round(v, 4) for by, v in vars(score).items()} for n, score in self.scores.items()},
        }


def validate(
    landscapes: Sequence[Landscape],
    placements: Mapping[str, Cells],
    conditions: Conditions,
    python: str | None,
    quiet: bool = True,
) -> Validation:
    """Score placements by both models; `python` is that of an environment with pyretechnics, `quiet` hides progress.

    Raises:
        UserError: the interpreter or its pyretechnics cannot be used, a placement does not fit the landscapes, or
            nothing burns on one of them.
    """
    version = require_pyretechnics(python)
    models = [conditions.model(landscape) for landscape in landscapes]
    _check(placements, models)
    fires, seed = conditions.fires, conditions.seed  # the 2 separates these draws from those that made a landscape
    ignitions = [model.draw(fires, np.random.default_rng([seed, i, 2])) for i, model in enumerate(models)]
    every: list[Cells] = [[[] for _ in models], *placements.values()]  # the first without breaks
    same_fires = [  # cells that each fire burns, of each landscape (placements, fires)
        np.array([np.isfinite(model.start(cells, breaks[i]).arrival).sum(1) for breaks in every], float)
        for i, (model, cells) in enumerate(zip(models, ignitions, strict=True))
    ]
    request = _request(landscapes, ignitions, every, conditions)
    burned = {"same_fires": same_fires, **_pyretechnics(str(python), request, quiet)}
    saved = {by: np.mean([1 - each.mean(1) / each[0].mean() for each in found], 0) for by, found in burned.items()}
    scores = {
        name: Score(
            breaks=float(np.mean([len(cells) for cells in placed])),
            travel_time=float(np.mean([reduction(*each) for each in zip(models, placed, strict=True)])),
            **{by: float(values[k]) for by, values in saved.items()},
        )
        for k, (name, placed) in enumerate(placements.items(), 1)
    }
    alone = {by: np.concatenate([each[0] for each in found]) for by, found in burned.items()}
    with np.errstate(invalid="ignore"):
        agree = float(np.corrcoef(alone["same_fires"], alone["surface"])[0, 1]) if len(alone["surface"]) > 1 else np.nan
    return Validation(scores, {by: float(each.mean()) for by, each in alone.items()}, agree, version)


def require_pyretechnics(python: str | None) -> str:
    """Return the version of pyretechnics that an interpreter has.

    Raises:
        UserError: the interpreter does not exist, has none, or one that came after the last open-source version.
    """
    if not python:
        raise UserError(f"fire validate needs pyretechnics in an environment of its own: {INSTALL}")
    try:
        done = subprocess.run([python, "-I", str(WORKER), "version"], capture_output=True, text=True, check=False)
        found = json.loads(done.stdout)["pyretechnics"] if done.returncode == 0 else ""
    except OSError as error:
        raise UserError(f"--python {python} cannot be run ({error.strerror}); name a Python interpreter") from error
    except (ValueError, KeyError, TypeError):
        found = ""
    if found == "":
        problem = _last_line(done)
        raise UserError(f"--python {python} did not run as Python 3.11 does ({problem}); name an interpreter of it")
    if found is None:
        raise UserError(f"--python {python} has no pyretechnics: {INSTALL}")
    numbers, newest = ([int(part) for part in re.findall(r"\d+", version)] for version in (found, NEWEST))
    if numbers > newest:
        licence = "whose licence forbids use in for-profit organizations unless paid for"
        older = f"{NEWEST} and before are under the EPL-2.0: {INSTALL}"
        raise UserError(f"--python {python} has pyretechnics {found}, {licence}; {older}")
    return str(found)


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    lines = (done.stderr or "").strip().splitlines()
    return lines[-1] if lines else f"no output, exit code {done.returncode}"


def _check(placements: Mapping[str, Cells], models: Sequence[FireModel]) -> None:
    """Refuse landscapes on which nothing burns, and placements that do not fit the landscapes."""
    for number, model in enumerate(models):
        if not model.burnable.any():
            raise UserError(f"nothing burns in landscape {number}; leave it out, or look at its fuel and the moistures")
    for name, placed in placements.items():
        if len(placed) != (count := len(models)):
            has = f"placements.{name} has breaks for {len(placed)} landscapes"
            raise UserError(f"{has}; it must have a list for each of the {count}")
        for number, (cells, model) in enumerate(zip(placed, models, strict=True)):
            for place, cell in enumerate(cells):
                holds = f"placements.{name}[{number}] holds cell {cell}"
                if not 0 <= cell < model.cells:
                    raise UserError(f"{holds}; landscape {number} has cells 0 to {model.cells - 1}")
                if not model.burnable[cell]:
                    raise UserError(f"{holds}, which does not burn anyway; leave it out")
                if cell in cells[:place]:
                    raise UserError(f"{holds} twice; a cell becomes a break once")


def _request(
    landscapes: Sequence[Landscape], ignitions: Sequence[NDArray[Any]], placed: Sequence[Cells], conditions: Conditions
) -> dict[str, NDArray[Any]]:
    """Return what the worker reads, as its module describes."""
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
    return {name: np.asarray(value) for name, value in request.items()}


def _pyretechnics(python: str, request: Mapping[str, Any], quiet: bool) -> dict[str, list[NDArray[np.float64]]]:
    """Return the cells that each fire burns by pyretechnics, by model: of each landscape (placements, fires)."""
    with tempfile.TemporaryDirectory(prefix="eigen2-") as folder:
        asked, answered = Path(folder, "request.npz"), Path(folder, "reply.json")
        np.savez(asked, **request)
        command = [python, "-I", str(WORKER), str(asked), str(answered)]
        errors = subprocess.PIPE if quiet else None
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
        if done.returncode != 0 or not answered.is_file():
            by_hand = f"{' '.join(command[:3])} version"
            raise UserError(f"pyretechnics failed ({_last_line(done)}); run it by hand: {by_hand}")
        reply = json.loads(answered.read_text(encoding="utf-8"))
    numbers = range(int(request["landscapes"]))
    shapes = [(len(request[f"{i}/breaks"]), len(request[f"{i}/ignitions"])) for i in numbers]
    found = {model: [np.array(counts, float) for counts in reply[model]] for model in ("surface", "crown")}
    if any([each.shape for each in counts] != shapes for counts in found.values()):
        raise UserError(f"the worker of {python} replied with arrays of another shape than it was asked for")
    return found
