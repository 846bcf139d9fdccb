"""Burn fires with pyretechnics in a separate interpreter, as its pinned versions conflict with eigen2's.

`validator` runs `python -I pyretechnics_worker.py version`, which prints the version of pyretechnics in JSON, null if
it is not installed, or `... REQUEST REPLY`, which burns what the .npz REQUEST asks for and writes the JSON file REPLY.

A request holds `wind_speed` (km/h at 10 m), `wind_from` (degrees clockwise from north), `moisture` (dead 1-h, 10-h,
100-h, live herbaceous and woody, foliage; fractions), `duration` (minutes) and the number of `landscapes`. For each
landscape i it holds the layers of `Landscape` but elevation, as `i/slope`, `i/cell_size` (m), `i/ignitions`, cell
numbers (fires,), and `i/breaks`, bool (placements, cells).

The reply is `{"surface": burned, "crown": burned}`: without the canopy, and with it and crown fire. `burned[i][k][j]`
is how many cells of landscape i fire j burns under placement k, including the cell it starts in; 0 if that is a break.
"""

import json
import sys
from importlib import metadata
from typing import Any

import numpy as np

NON_BURNABLE = 91  # fuel model of a break
MOISTURES = ("dead_1hr", "dead_10hr", "dead_100hr", "live_herbaceous", "live_woody")
CANOPY = ("canopy_cover", "canopy_height", "canopy_base_height", "canopy_bulk_density")


def burn(request: dict[str, Any]) -> dict[str, list[list[list[int]]]]:
    """Burn all fires of a request, arrays by name, and return the reply."""
    reply: dict[str, list[list[list[int]]]] = {"surface": [], "crown": []}
    for number in range(int(request["landscapes"])):
        names = ("slope", "aspect", "fuel", "cell_size", "ignitions", "breaks", *CANOPY)
        scene = request | {name: request[f"{number}/{name}"] for name in names}
        for model, burned in reply.items():
            cubes = [_cubes(scene, breaks, model == "crown") for breaks in scene["breaks"]]
            burned.append([[_burned(each, scene, int(cell)) for cell in scene["ignitions"]] for each in cubes])
    return reply


def _cubes(scene: dict[str, Any], breaks: Any, canopy: bool) -> dict[str, Any]:
    """Return the inputs of pyretechnics, whose rows begin in the south."""
    from pyretechnics.space_time_cube import SpaceTimeCube

    fuel = np.where(breaks.reshape(scene["fuel"].shape), NON_BURNABLE, scene["fuel"])
    layers = {"slope": scene["slope"], "aspect": scene["aspect"], "fuel_model": fuel}
    layers |= {name: scene[name] if canopy else np.zeros(fuel.shape) for name in CANOPY}
    *fuels, foliage = scene["moisture"].tolist()
    inputs: dict[str, Any] = {
        **{name: np.ascontiguousarray(layer[::-1], dtype=np.float32) for name, layer in layers.items()},
        "wind_speed_10m": float(scene["wind_speed"]),
        "upwind_direction": float(scene["wind_from"]),
        **{f"fuel_moisture_{name}": value for name, value in zip(MOISTURES, fuels, strict=True)},
        "foliar_moisture": foliage,
    }
    return {name: SpaceTimeCube((1, *fuel.shape), base) for name, base in inputs.items()}


def _burned(cubes: dict[str, Any], scene: dict[str, Any], cell: int) -> int:
    """Return how many cells a fire burns, including the first."""
    from pyretechnics import eulerian_level_set as fire

    rows, columns = scene["fuel"].shape
    row, column = divmod(cell, columns)
    start = (rows - 1 - row, column)
    if cubes["fuel_model"].get(0, *start) == NON_BURNABLE:
        return 0
    size, duration = float(scene["cell_size"]), float(scene["duration"])
    state = fire.SpreadState((1, rows, columns)).ignite_cell(start)
    ended = fire.spread_fire_with_phi_field(cubes, state, (duration, size, size), 0.0, duration)["spread_state"]
    return int(np.isfinite(ended.get_full_matrices(["time_of_arrival"])["time_of_arrival"]).sum())


def main(arguments: list[str]) -> None:
    """Run the command line."""
    if arguments == ["version"]:
        print(json.dumps(next((each.version for each in metadata.distributions(name="pyretechnics")), None)))
        return
    with np.load(arguments[0], allow_pickle=False) as arrays:
        burned = burn(dict(arrays))
    with open(arguments[1], "w", encoding="utf-8") as file:
        json.dump(burned, file)


if __name__ == "__main__":
    main(sys.argv[1:])
