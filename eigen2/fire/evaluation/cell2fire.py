"""Instance folders of Cell2Fire, another simulator of fires: a landscape, its weather and the breaks of a placement.

They are for C2F-W 1.0, run with `--sim S`: ESRI ASCII grids with north at the top, and tables. It numbers cells from 1
in the north-west, row by row; a row of weather lasts an hour; wind comes from its direction, in whole degrees.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from numpy.typing import NDArray

from eigen2.errors import UserError
from eigen2.fire.evaluation.validator import Conditions
from eigen2.fire.landscapes.fuels import FUEL_MODELS
from eigen2.fire.landscapes.landscape import Landscape

SCENARIO = 2  # fuel moisture, from 1 (dry) to 4 (moist): the option --scenario, before that a column of the weather


def instance_files(landscape: Landscape, breaks: Iterable[int], conditions: Conditions) -> dict[str, str]:
    """Return the files of an instance by name, `breaks.csv` for its option --FirebreakCells among them."""
    if landscape.cell_size % 1:
        raise UserError(
            f"cells are {landscape.cell_size:g} m wide, and Cell2Fire takes whole metres; resample the rasters"
        )
    grids = {
        "fuels": landscape.fuel,  # numbers of Scott and Burgan
        "elevation": landscape.elevation,  # m
        "slope": 100 * landscape.slope,  # %
        "saz": (landscape.aspect + 180) % 360,  # direction uphill, degrees clockwise from north
        "ccf": landscape.canopy_cover,  # fraction
        "hm": landscape.canopy_height,  # m
        "cbh": landscape.canopy_base_height,  # m
        "cbd": landscape.canopy_bulk_density,  # kg/m3
    }
    return {
        **{f"{name}.asc": _grid(layer, landscape.cell_size) for name, layer in grids.items()},
        "spain_lookup_table.csv": _fuels(),
        "Weather.csv": _weather(conditions),
        "breaks.csv": f"Year,Ncell\n{','.join(map(str, [1, *(cell + 1 for cell in breaks)]))}\n",
    }


def _grid(layer: NDArray[Any], cell_size: float) -> str:
    """Return an ESRI ASCII grid whose south-western corner is the origin."""
    rows, columns = layer.shape
    head = f"ncols {columns}\nnrows {rows}\nxllcorner 0\nyllcorner 0\ncellsize {cell_size:g}\nNODATA_value -9999\n"
    return head + "".join(" ".join(f"{value:g}" for value in row) + "\n" for row in layer.tolist())


def _fuels() -> str:
    """Return the table of fuel models that burn: any other number in the grid of fuels does not burn."""
    head = "grid_value,export_value,descriptive_name,fuel_type,r,g,b,h,s,l\n"
    return head + "".join(f"{number},{number},{number},{number},0,0,0,0,0,0\n" for number in FUEL_MODELS)


def _weather(conditions: Conditions) -> str:
    """Return the same weather for each hour of a fire."""
    wind, hours = conditions.weather, ceil(conditions.duration / 60)
    times = (datetime(2000, 1, 1) + timedelta(hours=hour) for hour in range(hours))
    row = f"{wind.wind_speed:g},{round(wind.wind_from) % 360}"
    return "Scenario,datetime,WS,WD,FireScenario\n" + "".join(
        f"1,{time.isoformat()},{row},{SCENARIO}\n" for time in times
    )
