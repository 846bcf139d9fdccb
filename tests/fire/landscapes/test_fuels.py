"""Fuel models and Rothermel's equations, against numbers of another implementation and against what they must do."""

import numpy as np
import pytest

from eigen2.errors import UserError
from eigen2.fire.landscapes.fuels import FUEL_MODELS, NON_BURNABLE, Moisture, behavior

REFERENCE = {  # rate m/min, slope, wind, exponent, adjustment, by another implementation
    101: (0.1260, 37.58, 0.9191, 1.553, 0.307),
    102: (0.2267, 36.54, 1.1475, 1.455, 0.362),
    104: (0.4757, 36.79, 1.1501, 1.457, 0.418),
    122: (0.3750, 31.88, 0.9611, 1.458, 0.393),
    145: (1.0203, 33.75, 2.1282, 1.189, 0.547),
    165: (0.3950, 17.04, 0.7757, 1.174, 0.362),
    183: (0.0642, 15.71, 0.5090, 1.326, 0.293),
    188: (0.2736, 13.89, 0.3583, 1.433, 0.293),
}
TOTAL_LOADS = {  # lb/ft2 of all fuels, from a table in these units
    101: 0.0184, 102: 0.0505, 103: 0.0919, 104: 0.0987, 105: 0.1332, 106: 0.1607, 107: 0.2938, 108: 0.4041, 109: 0.5050,
    121: 0.0620, 122: 0.1194, 123: 0.1493, 124: 0.5877,
    141: 0.0896, 142: 0.3834, 143: 0.4431, 144: 0.2181, 145: 0.3948, 146: 0.2640, 147: 0.6611, 148: 0.4889, 149: 0.7117,
    161: 0.1699, 162: 0.1928, 163: 0.1492, 164: 0.2984, 165: 0.6428,
    181: 0.3122, 182: 0.2709, 183: 0.2526, 184: 0.2847, 185: 0.3696, 186: 0.2203, 187: 0.4500, 188: 0.3811, 189: 0.6474,
    201: 0.7117, 202: 0.5854, 203: 0.5165, 204: 0.6428,
}  # fmt: skip


def test_rates_are_those_of_another_implementation() -> None:
    found = np.stack(behavior(REFERENCE))
    for value, expected in zip(found.T, REFERENCE.values(), strict=True):
        assert value == pytest.approx(expected, rel=0.01)


def test_all_forty_models_are_there() -> None:
    assert len(FUEL_MODELS) == 40
    loads = {number: sum(model[:5]) * 2000 / 43560 for number, model in FUEL_MODELS.items()}
    assert loads == pytest.approx(TOTAL_LOADS, abs=2e-4)


def test_wet_fuel_burns_slowly_and_then_not_at_all() -> None:
    dry, damp, wet = (behavior(FUEL_MODELS, Moisture(m, m, m, 1.5, 1.5)).rate for m in (0.03, 0.1, 0.5))
    assert (dry > damp).all()
    assert (damp > 0).all()
    assert (wet == 0).all()


def test_cured_grass_burns_faster_than_green() -> None:
    grass = range(101, 110)
    green, half, cured = (behavior(grass, Moisture(live_herbaceous=m)).rate for m in (1.2, 0.9, 0.3))
    assert (green < half).all()
    assert (half < cured).all()
    assert behavior(grass, Moisture(live_herbaceous=0.1)).rate == pytest.approx(cured)


def test_what_does_not_burn_has_no_rate() -> None:
    found = behavior([*NON_BURNABLE, 101])
    assert found.rate.tolist() == [0, 0, 0, 0, 0, behavior([101]).rate[0]]


@pytest.mark.parametrize("number", [0, 1, 14, 100, 110, 205, -9999])
def test_an_unknown_model_is_refused(number: int) -> None:
    with pytest.raises(UserError, match=rf"^fuel model {number} is not known; use [^\n]*$"):
        behavior([101, number])


def test_moisture_in_percent_is_refused() -> None:
    with pytest.raises(UserError, match=r"moisture\.one_hour is 5"):
        Moisture(one_hour=5)
