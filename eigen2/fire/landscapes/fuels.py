"""Fuel models of Scott and Burgan, and the rate of spread of fire in them by Rothermel's equations.

Sources:
    - Scott and Burgan (2005), Standard fire behavior fuel models, USDA RMRS-GTR-153, Table 7: the models' parameters.
    - Rothermel (1972), A mathematical model for predicting fire spread in wildland fuels, USDA INT-115: the equations.
    - Albini (1976), Computer-based models of wildland fire behavior, USDA Forest Service: corrections to them, net
      load by size class, and the live moisture of extinction.
    - Albini and Baughman (1979), Estimating windspeeds for predicting wildland fire behavior, USDA INT-221; Andrews
      (2012), RMRS-GTR-266: the wind adjustment factor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from eigen2.errors import UserError, require_range


class FuelModel(NamedTuple):
    """Parameters of a fuel model; a surface-area-to-volume ratio is 0 where the model has no such fuel."""

    code: str
    loads: tuple[float, float, float, float, float]
    """Dead 1-h, 10-h and 100-h, live herbaceous and live woody, in US tons per acre."""
    ratios: tuple[int, int, int]
    """Surface area to volume of dead 1-h, live herbaceous and live woody fuel, in 1/ft; 10-h: 109, 100-h: 30."""
    depth: float
    """Depth of the fuel bed, in ft."""
    extinction: float
    """Dead fuel moisture at which fire no longer spreads, in %."""
    heat: float = 8000.0
    """Heat of combustion, in BTU/lb."""


FUEL_MODELS: dict[int, FuelModel] = {
    # grass
    101: FuelModel("GR1", (0.10, 0.00, 0.00, 0.30, 0.00), (2200, 2000, 0), 0.4, 15),
    102: FuelModel("GR2", (0.10, 0.00, 0.00, 1.00, 0.00), (2000, 1800, 0), 1.0, 15),
    103: FuelModel("GR3", (0.10, 0.40, 0.00, 1.50, 0.00), (1500, 1300, 0), 2.0, 30),
    104: FuelModel("GR4", (0.25, 0.00, 0.00, 1.90, 0.00), (2000, 1800, 0), 2.0, 15),
    105: FuelModel("GR5", (0.40, 0.00, 0.00, 2.50, 0.00), (1800, 1600, 0), 1.5, 40),
    106: FuelModel("GR6", (0.10, 0.00, 0.00, 3.40, 0.00), (2200, 2000, 0), 1.5, 40, 9000.0),
    107: FuelModel("GR7", (1.00, 0.00, 0.00, 5.40, 0.00), (2000, 1800, 0), 3.0, 15),
    108: FuelModel("GR8", (0.50, 1.00, 0.00, 7.30, 0.00), (1500, 1300, 0), 4.0, 30),
    109: FuelModel("GR9", (1.00, 1.00, 0.00, 9.00, 0.00), (1800, 1600, 0), 5.0, 40),
    # grass and shrub
    121: FuelModel("GS1", (0.20, 0.00, 0.00, 0.50, 0.65), (2000, 1800, 1800), 0.9, 15),
    122: FuelModel("GS2", (0.50, 0.50, 0.00, 0.60, 1.00), (2000, 1800, 1800), 1.5, 15),
    123: FuelModel("GS3", (0.30, 0.25, 0.00, 1.45, 1.25), (1800, 1600, 1600), 1.8, 40),
    124: FuelModel("GS4", (1.90, 0.30, 0.10, 3.40, 7.10), (1800, 1600, 1600), 2.1, 40),
    # shrub
    141: FuelModel("SH1", (0.25, 0.25, 0.00, 0.15, 1.30), (2000, 1800, 1600), 1.0, 15),
    142: FuelModel("SH2", (1.35, 2.40, 0.75, 0.00, 3.85), (2000, 0, 1600), 1.0, 15),
    143: FuelModel("SH3", (0.45, 3.00, 0.00, 0.00, 6.20), (1600, 0, 1400), 2.4, 40),
    144: FuelModel("SH4", (0.85, 1.15, 0.20, 0.00, 2.55), (2000, 0, 1600), 3.0, 30),
    145: FuelModel("SH5", (3.60, 2.10, 0.00, 0.00, 2.90), (750, 0, 1600), 6.0, 15),
    146: FuelModel("SH6", (2.90, 1.45, 0.00, 0.00, 1.40), (750, 0, 1600), 2.0, 30),
    147: FuelModel("SH7", (3.50, 5.30, 2.20, 0.00, 3.40), (750, 0, 1600), 6.0, 15),
    148: FuelModel("SH8", (2.05, 3.40, 0.85, 0.00, 4.35), (750, 0, 1600), 3.0, 40),
    149: FuelModel("SH9", (4.50, 2.45, 0.00, 1.55, 7.00), (750, 1800, 1500), 4.4, 40),
    # timber with understory
    161: FuelModel("TU1", (0.20, 0.90, 1.50, 0.20, 0.90), (2000, 1800, 1600), 0.6, 20),
    162: FuelModel("TU2", (0.95, 1.80, 1.25, 0.00, 0.20), (2000, 0, 1600), 1.0, 30),
    163: FuelModel("TU3", (1.10, 0.15, 0.25, 0.65, 1.10), (1800, 1600, 1400), 1.3, 30),
    164: FuelModel("TU4", (4.50, 0.00, 0.00, 0.00, 2.00), (2300, 0, 2000), 0.5, 12),
    165: FuelModel("TU5", (4.00, 4.00, 3.00, 0.00, 3.00), (1500, 0, 750), 1.0, 25),
    # timber litter
    181: FuelModel("TL1", (1.00, 2.20, 3.60, 0.00, 0.00), (2000, 0, 0), 0.2, 30),
    182: FuelModel("TL2", (1.40, 2.30, 2.20, 0.00, 0.00), (2000, 0, 0), 0.2, 25),
    183: FuelModel("TL3", (0.50, 2.20, 2.80, 0.00, 0.00), (2000, 0, 0), 0.3, 20),
    184: FuelModel("TL4", (0.50, 1.50, 4.20, 0.00, 0.00), (2000, 0, 0), 0.4, 25),
    185: FuelModel("TL5", (1.15, 2.50, 4.40, 0.00, 0.00), (2000, 0, 0), 0.6, 25),
    186: FuelModel("TL6", (2.40, 1.20, 1.20, 0.00, 0.00), (2000, 0, 0), 0.3, 25),
    187: FuelModel("TL7", (0.30, 1.40, 8.10, 0.00, 0.00), (2000, 0, 0), 0.4, 25),
    188: FuelModel("TL8", (5.80, 1.40, 1.10, 0.00, 0.00), (1800, 0, 0), 0.3, 35),
    189: FuelModel("TL9", (6.65, 3.30, 4.15, 0.00, 0.00), (1800, 0, 0), 0.6, 35),
    # slash and blowdown
    201: FuelModel("SB1", (1.50, 3.00, 11.00, 0.00, 0.00), (2000, 0, 0), 1.0, 25),
    202: FuelModel("SB2", (4.50, 4.25, 4.00, 0.00, 0.00), (2000, 0, 0), 1.0, 25),
    203: FuelModel("SB3", (5.50, 2.75, 3.00, 0.00, 0.00), (2000, 0, 0), 1.2, 25),
    204: FuelModel("SB4", (5.25, 3.50, 5.25, 0.00, 0.00), (2000, 0, 0), 2.7, 25),
}
"""Scott and Burgan's 40, by number. The dynamic ones are those with herbaceous load, which cures into dead fuel."""
NON_BURNABLE: dict[int, str] = {91: "urban", 92: "snow or ice", 93: "agriculture", 98: "water", 99: "bare ground"}
"""Numbers of ground that never burns."""
WATER, BARE = 98, 99

TONS_PER_ACRE = 2000 / 43560  # lb/ft2
METERS_PER_FOOT = 0.3048
KMH_IN_FEET_PER_MINUTE = 1000 / METERS_PER_FOOT / 60
DEAD = np.array([True, True, True, True, False, False])
SIZE_CLASSES = np.array([16.0, 48.0, 96.0, 192.0, 1200.0])  # bounds of the ratio, 1/ft
PARTICLE_DENSITY = 32.0  # lb/ft3
TOTAL_MINERALS, EFFECTIVE_MINERALS = 0.0555, 0.010


@dataclass(frozen=True)
class Moisture:
    """Moisture of the fuels, as a fraction of their dry weight.

    Args:
        one_hour: of dead fuel below 6 mm (0 to 3).
        ten_hour: of dead fuel of 6 to 25 mm (0 to 3).
        hundred_hour: of dead fuel of 25 to 76 mm (0 to 3).
        live_herbaceous: of grasses and herbs; they are dead at 0.3 and below, green at 1.2 and above (0 to 3).
        live_woody: of shrubs (0 to 3).

    Raises:
        UserError: one lies outside its range.
    """

    one_hour: float = 0.05
    ten_hour: float = 0.10
    hundred_hour: float = 0.25
    live_herbaceous: float = 0.90
    live_woody: float = 0.60

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require_range(f"moisture.{name}", value, least=0, most=3)


class Behavior(NamedTuple):
    """Coefficients of the spread of fire in some fuel models, one value each.

    With a slope s (rise over run) and a midflame wind u (km/h), fire spreads at `rate * (1 + slope * s**2)` uphill
    without wind, and at `rate * (1 + wind * u**exponent)` downwind on flat ground.
    """

    rate: Float64[np.ndarray, " models"]
    """Without wind and slope, m/min; 0 for what does not burn."""
    slope: Float64[np.ndarray, " models"]
    wind: Float64[np.ndarray, " models"]
    exponent: Float64[np.ndarray, " models"]
    adjustment: Float64[np.ndarray, " models"]
    """Midflame wind over wind at 20 ft above the vegetation, without shelter by a canopy."""


def require_known(numbers: Iterable[int]) -> None:
    """Raise UserError for a number that is neither one of Scott and Burgan's 40 nor a non-burnable one."""
    if unknown := sorted(set(numbers) - FUEL_MODELS.keys() - NON_BURNABLE.keys()):
        remedy = "use Scott and Burgan's 101 to 204 (LANDFIRE's FBFM40)"
        bare = ", ".join(map(str, NON_BURNABLE))
        raise UserError(f"fuel model {unknown[0]} is not known; {remedy}, or {bare} for what does not burn")


def behavior(numbers: Iterable[int], moisture: Moisture | None = None) -> Behavior:
    """Compute the coefficients of spread of some fuel models, in their order.

    Ones that do not burn get rate 0, and 1 for the wind's coefficient and exponent.

    Raises:
        UserError: a number is of no fuel model.
    """
    given = list(numbers)
    require_known(given)
    burns = np.array([number in FUEL_MODELS for number in given], bool)
    values = np.zeros((len(Behavior._fields), len(given)))
    values[[2, 3]] = 1
    if models := [FUEL_MODELS[number] for number in given if number in FUEL_MODELS]:
        values[:, burns] = _rothermel(models, moisture or Moisture())
    return Behavior(*values)


def _rothermel(models: list[FuelModel], moisture: Moisture) -> Float64[np.ndarray, "values models"]:
    """Return the fields of `Behavior` for models that burn, computed in Rothermel's feet, pounds, minutes and BTU.

    The six fuel classes (columns) are dead 1-h, 10-h, 100-h, dead herbaceous, live herbaceous and live woody.
    """
    load, ratio = _classes(models, moisture)
    one, ten, hundred, herbs, woody = vars(moisture).values()
    wet = np.array([one, ten, hundred, one, herbs, woody], float)
    depth = np.array([model.depth for model in models])
    heat = np.array([model.heat for model in models])

    area = ratio * load / PARTICLE_DENSITY
    area_of = np.stack([(area * DEAD).sum(1), (area * ~DEAD).sum(1)])  # of dead and of live fuel
    share = area / np.where(area_of > 0, area_of, 1)[np.where(DEAD, 0, 1)].T  # of a class in dead, or in live fuel
    dead_share, live_share = area_of / area_of.sum(0)
    weight = share * np.where(DEAD, dead_share[:, None], live_share[:, None])
    sigma = (weight * ratio).sum(1)
    bulk = load.sum(1) / depth
    packing = bulk / PARTICLE_DENSITY
    relative = packing / (3.348 * sigma**-0.8189)

    damped = _damped_load(load, ratio, share, wet, np.array([model.extinction / 100 for model in models]))
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


def _classes(
    models: list[FuelModel], moisture: Moisture
) -> tuple[Float64[np.ndarray, "models 6"], Float64[np.ndarray, "models 6"]]:
    """Return loads (lb/ft2) and surface-area-to-volume ratios (1/ft), with the herbs cured by their moisture."""
    load, ratio = np.zeros((2, len(models), 6))
    cured = np.clip(1 - (moisture.live_herbaceous - 0.3) / 0.9, 0, 1)
    for i, (_, (one, ten, hundred, herbs, woody), (fine, herbaceous, shrubs), *_) in enumerate(models):
        load[i] = one, ten, hundred, herbs * cured, herbs * (1 - cured), woody
        ratio[i] = fine, 109, 30, herbaceous, herbaceous, shrubs
    return load * TONS_PER_ACRE, ratio


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
        own = share * part
        same = (size[:, :, None] == size[:, None, :]) & part  # a class is weighted by the area of its size class
        net = ((same * own[:, None, :]).sum(2) * load * part).sum(1) * (1 - TOTAL_MINERALS)
        dampness = (own * wet).sum(1) / limit
        total += net * np.where(dampness < 1, 1 - 2.59 * dampness + 5.11 * dampness**2 - 3.52 * dampness**3, 0)
    return total
