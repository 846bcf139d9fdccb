"""What placements of fuel breaks save by another fire model, pyretechnics, beside what they save by the one here.

Breaks are chosen under `eigen2.fire.simulation.spread`, a model made to be fast. Pyretechnics solves the spread of the
fire front by a level set, and can let crowns burn. Placements that are good only under the model they were chosen with
would lose their lead there.

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
from jaxtyping import Int
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.evaluation.placements import Cells
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.simulation.baselines import reduction
from eigen2.fire.simulation.spread import FireModel, Weather

WORKER = Path(__file__).with_name("pyretechnics_worker.py")
NEWEST = "2026.8.10"
"""Last version of pyretechnics under the EPL-2.0; later ones forbid commercial use without a paid licence."""
VARIABLE = "EIGEN2_PYRETECHNICS_PYTHON"
"""Environment variable that names the interpreter."""
INSTALL = (
    f"python3.11 -m venv ~/pyretechnics && ~/pyretechnics/bin/pip install 'pyretechnics=={NEWEST}' (which needs a C "
    f"compiler and a minute or two), then give --python ~/pyretechnics/bin/python, or set {VARIABLE} to it"
)
FOLIAR_MOISTURE = 0.9
"""Of the needles and leaves of crowns; crown fire alone asks for it."""


@dataclass(frozen=True)
class Conditions:
    """What all fires have in common.

    Args:
        weather: wind and moistures.
        duration: of a fire, in minutes (above 0).
        fires: burned on each landscape by pyretechnics, from cells drawn by lot (1 or more).
        seed: of that lot (0 or more).

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
        """Of a landscape."""
        return FireModel.of(landscape, self.weather, self.duration)


@dataclass(frozen=True)
class Score:
    """What a placement saves of the burned area, the mean over landscapes (0 to 1; below 0 where more burns).

    Args:
        breaks: cells that are breaks, the mean over landscapes.
        travel_time: by `eigen2.fire.simulation.spread`, over fires from every cell that burns.
        same_fires: by the same, over the fires that pyretechnics burns.
        surface: by pyretechnics, without the canopy.
        crown: by pyretechnics, with the canopy and crown fire.
    """

    breaks: float
    travel_time: float
    same_fires: float
    surface: float
    crown: float


@dataclass(frozen=True)
class Validation:
    """Placements under both models.

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
        """Names of the placements, the one that saves least first, by `travel_time`, `surface` and so on."""
        return sorted(self.scores, key=lambda name: float(getattr(self.scores[name], by)))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: rounded to 4 digits."""
        return {
            "pyretechnics": self.pyretechnics,
            "cells_burned_without_breaks": {name: round(value, 1) for name, value in self.cells.items()},
            "fires_agree": round(self.fires_agree, 4) if np.isfinite(self.fires_agree) else None,
            "order_kept": {by: self.order(by) == self.order("travel_time") for by in ("surface", "crown")},
            "reduction": {
                name: {key: round(value, 4) for key, value in vars(score).items()}
                for name, score in self.scores.items()
            },
        }


def validate(
    landscapes: Sequence[Landscape],
    placements: Mapping[str, Cells],
    conditions: Conditions,
    python: str | None,
    quiet: bool = True,
) -> Validation:
    """Score placements by both models.

    Args:
        landscapes: one or more.
        placements: the breaks of each placement on each landscape, by name.
        conditions: of all fires.
        python: interpreter of an environment that has pyretechnics; None refuses, and says how to install it.
        quiet: do not say how far it is.

    Raises:
        UserError: the interpreter or its pyretechnics cannot be used, a placement does not fit the landscapes, or
            nothing burns on one of them.
    """
    version = require_pyretechnics(python)
    models = [conditions.model(landscape) for landscape in landscapes]
    for number, model in enumerate(models):
        if not model.burnable.any():
            raise UserError(f"nothing burns in landscape {number}; leave it out, or look at its fuel and the moistures")
    _check(placements, models)
    # the 2 tells these draws from those that made a landscape
    ignitions = [
        model.draw(conditions.fires, np.random.default_rng([conditions.seed, number, 2]))
        for number, model in enumerate(models)
    ]
    unplaced: Cells = [[] for _ in models]
    every = [unplaced, *placements.values()]
    by_model = {
        "same_fires": [
            _travel_time(m, cells, [each[i] for each in every])
            for i, (m, cells) in enumerate(zip(models, ignitions, strict=True))
        ],
        **_pyretechnics(str(python), _request(landscapes, ignitions, every, conditions), quiet),
    }
    saved = {
        name: np.mean([1 - each.mean(1) / each[0].mean() for each in burned], 0) for name, burned in by_model.items()
    }
    scores = {
        name: Score(
            breaks=float(np.mean([len(cells) for cells in placed])),
            travel_time=float(np.mean([reduction(m, cells) for m, cells in zip(models, placed, strict=True)])),
            **{key: float(values[k + 1]) for key, values in saved.items()},
        )
        for k, (name, placed) in enumerate(placements.items())
    }
    alone = {name: np.concatenate([each[0] for each in burned]) for name, burned in by_model.items()}
    with np.errstate(invalid="ignore"):
        agree = float(np.corrcoef(alone["same_fires"], alone["surface"])[0, 1]) if len(alone["surface"]) > 1 else np.nan
    return Validation(scores, {name: float(each.mean()) for name, each in alone.items()}, agree, version)


def require_pyretechnics(python: str | None) -> str:
    """The version of pyretechnics that an interpreter has.

    Raises:
        UserError: there is no such interpreter, it has none, or one that came after the last open-source version.
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
        raise UserError(f"--python {python} did not run as Python 3.11 does ({_last(done)}); name an interpreter of it")
    if found is None:
        raise UserError(f"--python {python} has no pyretechnics: {INSTALL}")
    if _numbers(found) > _numbers(NEWEST):
        raise UserError(
            f"--python {python} has pyretechnics {found}, whose licence forbids use in for-profit organizations unless "
            f"paid for; {NEWEST} and before are under the EPL-2.0: {INSTALL}"
        )
    return str(found)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _last(done: "subprocess.CompletedProcess[str]") -> str:
    lines = (done.stderr or "").strip().splitlines()
    return lines[-1] if lines else f"it said nothing, and exited with {done.returncode}"


def _check(placements: Mapping[str, Cells], models: Sequence[FireModel]) -> None:
    """Refuse placements that the landscapes cannot have."""
    for name, placed in placements.items():
        if len(placed) != len(models):
            raise UserError(
                f"placements.{name} has breaks for {len(placed)} landscapes; it must have a list for each of "
                f"the {len(models)}"
            )
        for number, (cells, model) in enumerate(zip(placed, models, strict=True)):
            where = f"placements.{name}[{number}]"
            for cell in cells:
                if not 0 <= cell < model.cells:
                    raise UserError(f"{where} holds cell {cell}; landscape {number} has cells 0 to {model.cells - 1}")
                if not model.burnable[cell]:
                    raise UserError(f"{where} holds cell {cell}, which does not burn anyway; leave it out")
            if len(set(cells)) < len(cells):
                twice = next(cell for cell in cells if cells.count(cell) > 1)
                raise UserError(f"{where} holds cell {twice} twice; a cell becomes a break once")


def _travel_time(model: FireModel, ignitions: Int[np.ndarray, " fires"], placed: Cells) -> NDArray[np.float64]:
    """Cells that each fire burns (placements, fires)."""
    counts = [np.isfinite(model.start(ignitions, breaks).arrival).sum(1) for breaks in placed]
    return np.array(counts, float)


def _request(
    landscapes: Sequence[Landscape],
    ignitions: Sequence[Int[np.ndarray, " fires"]],
    placed: Sequence[Cells],
    conditions: Conditions,
) -> dict[str, NDArray[Any]]:
    """What the worker reads; its module says what is what."""
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
        request |= {f"{i}/{name}": getattr(landscape, name) for name in landscape.layers() if name != "elevation"}
        request |= {f"{i}/cell_size": landscape.cell_size, f"{i}/ignitions": cells, f"{i}/breaks": breaks}
    return {name: np.asarray(value) for name, value in request.items()}


def _pyretechnics(python: str, request: Mapping[str, Any], quiet: bool) -> dict[str, list[NDArray[np.float64]]]:
    """Cells that each fire burns, by model: of each landscape (placements, fires)."""
    with tempfile.TemporaryDirectory(prefix="eigen2-") as folder:
        asked, answered = Path(folder, "request.npz"), Path(folder, "reply.json")
        np.savez(asked, **request)
        command = [python, "-I", str(WORKER), str(asked), str(answered)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None, text=True, check=False
        )
        if done.returncode != 0 or not answered.is_file():
            raise UserError(f"pyretechnics failed ({_last(done)}); run it by hand: {' '.join(command[:3])} version")
        reply = json.loads(answered.read_text(encoding="utf-8"))
    found = {}
    for canopy in ("surface", "crown"):
        found[canopy] = [np.array(counts, float) for counts in reply[canopy]]
        wanted = [
            (len(request[f"{i}/breaks"]), len(request[f"{i}/ignitions"])) for i in range(int(request["landscapes"]))
        ]
        if [each.shape for each in found[canopy]] != wanted:
            raise UserError(f"the worker of {python} replied with arrays of another shape than it was asked for")
    return found
