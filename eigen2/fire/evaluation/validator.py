"""Validation of placements by pyretechnics, another fire model than the one they were chosen with.

It solves the spread of the fire front by a level set and models crown fire. It needs numpy 1.26, so a separate
environment, whose interpreter runs `pyretechnics_worker.py`.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.evaluation.placements import Cells, require_fit
from eigen2.fire.landscapes.fuels import NON_BURNABLE
from eigen2.fire.landscapes.landscape import Landscape
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
    """Fires on a landscape: weather and duration (minutes); pyretechnics burns `fires`, in cells that `seed` draws."""

    weather: Weather
    duration: float = 240.0
    fires: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        require_range("duration", self.duration, above=0, most=1e6)
        require_range("fires", self.fires, least=1, most=100_000, whole=True)
        require_range("seed", self.seed, least=0, whole=True)

    def model(self, landscape: Landscape) -> FireModel:
        """Return the fire model of a landscape."""
        return FireModel.of(landscape, self.weather, self.duration)


class Estimate(NamedTuple):
    """Share of the burned area that a placement saves (0 to 1; below 0 if more burns), estimated by `estimates`."""

    mean: float  # over landscapes
    error: float  # standard error of the mean; NaN if one fire gives no error


@dataclass(frozen=True)
class Score:
    """What a placement saves, by each model."""

    breaks: float  # cells, the mean over landscapes
    travel_time: Estimate  # by `simulation.spread`, over fires from every cell that burns
    same_fires: Estimate  # by `simulation.spread`, over the fires that pyretechnics burns
    surface: Estimate  # by pyretechnics, without the canopy
    crown: Estimate  # by pyretechnics, with the canopy and crown fire


def validate(
    landscapes: Sequence[Landscape],
    placements: Mapping[str, Cells],
    conditions: Sequence[Conditions],
    python: str,
    processes: int = 1,
    show: Callable[[float], None] = lambda done: None,
) -> dict[str, Score]:
    """Return the scores of placements by both models, the same for any number of processes.

    Each landscape has its own conditions, with as many fires. `python` is an interpreter with pyretechnics, of which
    `processes` run at a time; `show` is called with the share of their work that is done.
    """
    models = [each.model(landscape) for each, landscape in zip(conditions, landscapes, strict=True)]
    require_fit(placements, models)
    ignitions = [  # the 2 separates these draws from those of `synthetic`
        model.draw(each.fires, np.random.default_rng([each.seed, number, 2]))
        for number, (model, each) in enumerate(zip(models, conditions, strict=True))
    ]
    placed: list[Cells] = [[[] for _ in models], *placements.values()]  # the first without breaks
    breaks = [list(each) for each in zip(*placed, strict=True)]  # of each landscape, in the order of placements
    requests = [
        request(landscape, cells, each, own)
        for landscape, cells, every, own in zip(landscapes, ignitions, breaks, conditions, strict=True)
        for each in every
    ]
    replies = ask_pyretechnics(python, requests, processes, show)
    burned = {  # cells that each fire burns, of each landscape (placements, fires)
        "travel_time": [_burn(model, None, every) for model, every in zip(models, breaks, strict=True)],
        "same_fires": [_burn(*each) for each in zip(models, ignitions, breaks, strict=True)],
    }
    for model in ("surface", "crown"):
        counts = [reply[model] for reply in replies]
        burned[model] = [np.array(counts[i : i + len(placed)], float) for i in range(0, len(counts), len(placed))]
    found = {by: estimates(each, [int(model.burnable.sum()) for model in models]) for by, each in burned.items()}
    return {
        name: Score(
            breaks=float(np.mean([len(cells) for cells in placements[name]])),
            **{by: each[k] for by, each in found.items()},
        )
        for k, name in enumerate(placements)
    }


def estimates(burned: Sequence[Float64[np.ndarray, "placements _fires"]], candidates: Sequence[int]) -> list[Estimate]:
    """Estimate what each placement saves from the cells that fires burn on each landscape, in row 0 without breaks.

    Of several landscapes, these are the units, as their fires share terrain and fuel: the standard error is the
    standard deviation of their savings over the root of their number. It includes what the choice of fires adds.

    Of one landscape, fires are the units, n drawn without replacement from N `candidates`, and burn with and without
    breaks in pairs: the error is that of a ratio of means by the delta method (Cochran 1977, Sampling Techniques, 6.4),
    the standard deviation of the residuals y - R x times sqrt((1 - n / N) / n) over the mean x, where x is what a fire
    burns without breaks, y with them and R the ratio of their means. It is 0 if a fire starts in every candidate.
    """
    saved = np.array([1 - each[1:].mean(1) / each[0].mean() for each in burned])
    landscapes, fires = len(burned), burned[0].shape[1]
    if landscapes > 1:
        errors = saved.std(0, ddof=1) / np.sqrt(landscapes)
    elif fires > 1:
        (without, *breaks), share = burned[0], fires / candidates[0]
        residuals = np.array(breaks) - (1 - saved[0])[:, None] * without
        errors = residuals.std(1, ddof=1) * np.sqrt((1 - share) / fires) / without.mean()
    else:
        errors = np.full(saved.shape[1], np.nan)
    return [Estimate(*map(float, each)) for each in zip(saved.mean(0), errors, strict=True)]


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


def _run(python: str, *arguments: str, stdin: IO[str] | None = None) -> str:
    """Run the worker and return its output."""
    command = [python, "-I", str(WORKER), *arguments]
    try:
        process = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"--python {python} cannot be run ({error.strerror}); name a Python interpreter") from error
    if process.returncode:
        problem = [f"exit code {process.returncode}", *process.stderr.strip().splitlines()][-1]
        raise UserError(f"--python {python} failed ({problem}); it must be Python 3.11 with pyretechnics: {INSTALL}")
    return process.stdout


def _burn(
    model: FireModel, ignitions: NDArray[Any] | None, placed: Sequence[list[int]]
) -> Float64[np.ndarray, "placements fires"]:
    """Return how many cells each fire burns by eigen2's model."""
    return np.array([np.isfinite(model.start(ignitions, breaks).arrival).sum(1) for breaks in placed], float)


def request(landscape: Landscape, ignitions: NDArray[Any], breaks: list[int], conditions: Conditions) -> dict[str, Any]:
    """Return the arrays of a request, which the worker's module describes."""
    weather, layers = conditions.weather, landscape.layers()
    fuel = layers.pop("fuel").copy()
    fuel.flat[breaks] = NON_BURNABLE[0]
    del layers["elevation"]
    return layers | {
        "fuel": fuel,
        "cell_size": landscape.cell_size,
        "ignitions": ignitions,
        "wind_speed": weather.wind_speed,
        "wind_from": weather.wind_from,
        "moisture": [*vars(weather.moisture).values(), FOLIAR_MOISTURE],
        "duration": conditions.duration,
    }


def ask_pyretechnics(
    python: str,
    requests: Sequence[Mapping[str, Any]],
    processes: int = 1,
    show: Callable[[float], None] = lambda done: None,
) -> list[dict[str, list[int]]]:
    """Return how many cells each fire of each request burns in pyretechnics, by model.

    Some workers run at a time. All end as soon as one fails, or this process ends for whatever reason.
    """
    stdin, kept = os.pipe()  # a worker ends with its standard input, which nobody writes to
    with (
        open(stdin, encoding="utf-8") as alive,
        tempfile.TemporaryDirectory(prefix="eigen2-") as folder,
        ThreadPoolExecutor(processes) as pool,
        ExitStack() as first,  # ended first
    ):
        first.callback(os.close, kept)
        files = [Path(folder, f"{number}.npz") for number in range(len(requests))]
        futures = [pool.submit(_ask, python, *each, alive) for each in zip(files, requests, strict=True)]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                show(done / len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _ask(python: str, file: Path, request: Mapping[str, Any], alive: IO[str]) -> dict[str, list[int]]:
    """Run a worker on a request and return its reply."""
    reply = file.with_suffix(".json")
    np.savez(file, **request)
    _run(python, str(file), str(reply), stdin=alive)
    return json.loads(reply.read_text(encoding="utf-8"))
