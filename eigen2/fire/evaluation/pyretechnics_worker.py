"""Burn fires with pyretechnics in a separate interpreter, as its pinned versions conflict with eigen2's.

`validator` runs `python -I pyretechnics_worker.py version`, which prints the version of pyretechnics in JSON, null if
it is not installed, or `... REQUEST REPLY`, which burns what the .npz REQUEST asks for and writes the JSON file REPLY.

A request holds `wind_speed` (km/h at 10 m), `wind_from` (degrees clockwise from north), `moisture` (dead 1-h, 10-h,
100-h, live herbaceous and woody, foliage; fractions), `duration` (minutes), the layers of a `Landscape` but elevation,
with breaks as fuel model 91, `cell_size` (m) and `ignitions`, cell numbers (fires,).

The reply is `{"surface": burned, "crown": burned}`: without the canopy, and with it and crown fire. `burned[j]` is how
many cells fire j burns, including the cell it starts in; 0 if that is a break.

The worker ends as soon as its standard input does, which the validator keeps open.
"""

import json
import os
import sys
import threading
from importlib import metadata
from typing import Any

import numpy as np

NON_BURNABLE = 91  # fuel model of a break
MOISTURES = ("dead_1hr", "dead_10hr", "dead_100hr", "live_herbaceous", "live_woody")
CANOPY = ("canopy_cover", "canopy_height", "canopy_base_height", "canopy_bulk_density")


def burn(request: dict[str, Any]) -> dict[str, list[int]]:
    """Burn all fires of a request, arrays by name, and return the reply."""
    cubes = {"surface": _cubes(request, canopy=False), "crown": _cubes(request, canopy=True)}
    return {
        model: [_burned(each, request, int(cell)) for cell in request["ignitions"]] for model, each in cubes.items()
    }


def _cubes(request: dict[str, Any], canopy: bool) -> dict[str, Any]:
    """Return the inputs of pyretechnics, whose rows begin in the south."""
    from pyretechnics.space_time_cube import SpaceTimeCube

    shape = request["fuel"].shape
    layers = {"slope": request["slope"], "aspect": request["aspect"], "fuel_model": request["fuel"]}
    layers |= {name: request[name] if canopy else np.zeros(shape) for name in CANOPY}
    *fuels, foliage = request["moisture"].tolist()
    inputs: dict[str, Any] = {
        **{name: np.ascontiguousarray(layer[::-1], dtype=np.float32) for name, layer in layers.items()},
        "wind_speed_10m": float(request["wind_speed"]),
        "upwind_direction": float(request["wind_from"]),
        **{f"fuel_moisture_{name}": value for name, value in zip(MOISTURES, fuels, strict=True)},
        "foliar_moisture": foliage,
    }
    return {name: SpaceTimeCube((1, *shape), base) for name, base in inputs.items()}


def _burned(cubes: dict[str, Any], request: dict[str, Any], cell: int) -> int:
    """Return how many cells a fire burns, including the first."""
    from pyretechnics import eulerian_level_set as fire

    rows, columns = request["fuel"].shape
    row, column = divmod(cell, columns)
    start = (rows - 1 - row, column)
    if cubes["fuel_model"].get(0, *start) == NON_BURNABLE:
        return 0
    size, duration = float(request["cell_size"]), float(request["duration"])
    state = fire.SpreadState((1, rows, columns)).ignite_cell(start)
    ended = fire.spread_fire_with_phi_field(cubes, state, (duration, size, size), 0.0, duration)["spread_state"]
    return int(np.isfinite(ended.get_full_matrices(["time_of_arrival"])["time_of_arrival"]).sum())


def _end_with_input() -> None:
    """End this process when its standard input ends."""
    os.read(0, 1)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Run the command line."""
    if arguments == ["version"]:
        print(json.dumps(next((each.version for each in metadata.distributions(name="pyretechnics")), None)))
        return
    threading.Thread(target=_end_with_input, daemon=True).start()
    with np.load(arguments[0], allow_pickle=False) as arrays:
        burned = burn(dict(arrays))
    with open(arguments[1], "w", encoding="utf-8") as file:
        json.dump(burned, file)


if __name__ == "__main__":
    main(sys.argv[1:])
