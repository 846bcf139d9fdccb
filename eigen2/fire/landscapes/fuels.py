"""Fuel models of Scott and Burgan, and the rate of spread of fire in them by Rothermel's equations.

Sources: Scott and Burgan (2005), Standard fire behavior fuel models, USDA RMRS-GTR-153, Table 7: the parameters.
Rothermel (1972), A mathematical model for predicting fire spread in wildland fuels, USDA INT-115: the equations. Albini
(1976), Computer-based models of wildland fire behavior, USDA Forest Service: corrections to them, net load by size
class, and the live moisture of extinction. Albini and Baughman (1979), Estimating windspeeds for predicting wildland
fire behavior, USDA INT-221; Andrews (2012), RMRS-GTR-266: the wind adjustment factor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from eigen2.errors import UserError, require_range

_TABLE = np.loadtxt(Path(__file__).with_name("fuel_models.csv"), delimiter=",", usecols=range(12))
FUEL_MODELS: dict[int, Float64[np.ndarray, "parameters=11"]] = {int(row[0]): row[1:] for row in _TABLE}
"""Parameters of Scott and Burgan's 40 fuel models by number; the file names them and their units. Models with a
herbaceous load are dynamic: it cures into dead fuel."""
NON_BURNABLE = (91, 92, 93, 98, 99)  # urban, snow or ice, agriculture, water, bare ground
WATER, BARE = 98, 99

TONS_PER_ACRE = 2000 / 43560  # lb/ft2
METERS_PER_FOOT = 0.3048
KMH_IN_FEET_PER_MINUTE = 1000 / METERS_PER_FOOT / 60
DEAD = np.array([True, True, True, True, False, False])
SIZE_CLASSES = np.array([16.0, 48.0, 96.0, 192.0, 1200.0])  # bounds of the surface-to-volume ratio, 1/ft
PARTICLE_DENSITY = 32.0  # lb/ft3
TOTAL_MINERALS, EFFECTIVE_MINERALS = 0.0555, 0.010


@dataclass(frozen=True)
class Moisture:
    """Moisture of the fuels, as a fraction of their dry weight (0 to 3 each)."""

    one_hour: float = 0.05  # dead fuel below 6 mm
    ten_hour: float = 0.10  # dead fuel of 6 to 25 mm
    hundred_hour: float = 0.25  # dead fuel of 25 to 76 mm
    live_herbaceous: float = 0.90  # grasses and herbs, dead at 0.3 and below, green at 1.2 and above
    live_woody: float = 0.60  # shrubs

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require_range(f"moisture.{name}", value, least=0, most=3)


class Behavior(NamedTuple):
    """Coefficients of the spread of fire in some fuel models, one value per model.

    With a slope s (rise over run) and a midflame wind u (km/h), fire spreads at `rate * (1 + slope * s**2)` m/min
    uphill without wind, at `rate * (1 + wind * u**exponent)` downwind on flat ground. `adjustment` is the midflame wind
    over that at 20 ft above the vegetation, without shelter by a canopy.
    """

    rate: Float64[np.ndarray, " models"]
    slope: Float64[np.ndarray, " models"]
    wind: Float64[np.ndarray, " models"]
    exponent: Float64[np.ndarray, " models"]
    adjustment: Float64[np.ndarray, " models"]


def require_known(numbers: Iterable[float]) -> None:
    """Raise UserError for a number that is neither one of Scott and Burgan's 40 nor a non-burnable one."""
    if unknown := sorted(set(numbers) - FUEL_MODELS.keys() - set(NON_BURNABLE)):
        remedy = "use Scott and Burgan's 101 to 204 (LANDFIRE's FBFM40)"
        bare = ", ".join(map(str, NON_BURNABLE))
        raise UserError(f"fuel model {unknown[0]:g} is not known; {remedy}, or {bare} for what does not burn")


def behavior(numbers: Iterable[int], moisture: Moisture | None = None) -> Behavior:
    """Compute the coefficients of spread of some fuel models, in their order; raise UserError if one is unknown."""
    fuels = list(numbers)
    require_known(fuels)
    values = np.zeros((len(Behavior._fields), len(fuels)))
    values[[2, 3]] = 1  # the wind's coefficient and exponent where nothing burns
    if models := {place: FUEL_MODELS[number] for place, number in enumerate(fuels) if number in FUEL_MODELS}:
        values[:, list(models)] = _rothermel(np.stack(list(models.values())), moisture or Moisture())
    return Behavior(*values)


def _rothermel(
    models: Float64[np.ndarray, "models columns"], moisture: Moisture
) -> Float64[np.ndarray, "values models"]:
    """Return the fields of `Behavior` for models that burn, computed in Rothermel's feet, pounds, minutes and BTU.

    The six fuel classes (columns) are dead 1-h, 10-h, 100-h, dead herbaceous, live herbaceous and live woody.
    """
    one, ten, hundred, herbs, woody, fine, herbaceous, shrubs, depth, extinction, heat = models.T
    cured = np.clip(1 - (moisture.live_herbaceous - 0.3) / 0.9, 0, 1)
    load = np.stack([one, ten, hundred, herbs * cured, herbs * (1 - cured), woody], 1) * TONS_PER_ACRE
    ratio = np.stack([fine, np.full_like(fine, 109), np.full_like(fine, 30), herbaceous, herbaceous, shrubs], 1)
    wet_1h, wet_10h, wet_100h, *live = vars(moisture).values()
    wet = np.array([wet_1h, wet_10h, wet_100h, wet_1h, *live], float)

    area = ratio * load / PARTICLE_DENSITY
    area_of = np.stack([(area * DEAD).sum(1), (area * ~DEAD).sum(1)])  # of dead and of live fuel
    share = area / np.where(area_of > 0, area_of, 1)[np.where(DEAD, 0, 1)].T  # of a class in dead, or in live fuel
    dead_share, live_share = area_of / area_of.sum(0)
    weight = share * np.where(DEAD, dead_share[:, None], live_share[:, None])
    sigma = (weight * ratio).sum(1)
    bulk = load.sum(1) / depth
    packing = bulk / PARTICLE_DENSITY
    relative = packing / (3.348 * sigma**-0.8189)

    damped = _damped_load(load, ratio, share, wet, extinction / 100)
    a = 133.0 * sigma**-0.7913
    fastest = sigma**1.5 / (495.0 + 0.0594 * sigma**1.5)
    velocity = fastest * relative**a * np.exp(a * (1 - relative))
    intensity = velocity * heat * damped * 0.174 * EFFECTIVE_MINERALS**-0.19
    flux = np.exp((0.792 + 0.681 * np.sqrt(sigma)) * (packing + 0.1)) / (192.0 + 0.2595 * sigma)
    ignition = (weight * _decay(138.0, ratio) * (250.0 + 1116.0 * wet)).sum(1)
    rate = intensity * flux / (bulk * ignition) * METERS_PER_FOOT

    slope = 5.275 * packing**-0.3
    exponent = 0.02526 * sigma**0.54
    wind = 7.47 * np.exp(-0.133 * sigma**0.55) * relative ** -(0.715 * np.exp(-3.59e-4 * sigma))
    adjustment = 1.83 / np.log((20.0 + 0.36 * depth) / (0.13 * depth))
    return np.stack([rate, slope, wind * KMH_IN_FEET_PER_MINUTE**exponent, exponent, adjustment])


def _decay(scale: float, ratio: Float64[np.ndarray, "models 6"]) -> Float64[np.ndarray, "models 6"]:
    """Return the effective heating number of fuel particles; 0 where there is no such fuel."""
    return np.where(ratio > 0, np.exp(-scale / np.where(ratio > 0, ratio, 1)), 0)


def _damped_load(
    load: Float64[np.ndarray, "models 6"],
    ratio: Float64[np.ndarray, "models 6"],
    share: Float64[np.ndarray, "models 6"],
    wet: Float64[np.ndarray, " 6"],
    extinction: Float64[np.ndarray, " models"],
) -> Float64[np.ndarray, " models"]:
    """Return the net load of dead and live fuel (lb/ft2), each damped by its moisture."""
    fine_dead, fine_live = load * _decay(138.0, ratio) * DEAD, load * _decay(500.0, ratio) * ~DEAD
    fine_wet = (fine_dead * wet).sum(1) / fine_dead.sum(1)
    live = fine_live.sum(1)
    balance = fine_dead.sum(1) / np.where(live > 0, live, 1)
    live_extinction = np.maximum(2.9 * balance * (1 - fine_wet / extinction) - 0.226, extinction)
    size = np.searchsorted(SIZE_CLASSES, ratio, side="right")
    total = np.zeros(len(load))
    for part, limit in ((DEAD, extinction), (~DEAD, live_extinction)):
        area_share = share * part
        same = (size[:, :, None] == size[:, None, :]) & part  # a class is weighted by the area of its size class
        net = ((same * area_share[:, None, :]).sum(2) * load * part).sum(1) * (1 - TOTAL_MINERALS)
        dampness = (area_share * wet).sum(1) / limit
        total += net * np.where(dampness < 1, 1 - 2.59 * dampness + 5.11 * dampness**2 - 3.52 * dampness**3, 0)
    return total
