"""The power curve: what an information coefficient is, and its tables for known rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learning import power, power_tables
from benchmarks.learning.power import CELLS, Cell
from eigen2.market.synthetic.generator import SyntheticMarket


@pytest.mark.parametrize("coefficient", power.COEFFICIENTS)
def test_the_information_coefficient_is_the_correlation_of_drift_and_return(coefficient: float) -> None:
    market = SyntheticMarket(days=1500, columns=400, signal=power.signal_of(coefficient), seed=1, gap=0.7)
    close = np.log(market.prices()[..., 3].astype(np.float64))
    found = np.corrcoef(market.drift()[:-1].ravel(), np.diff(close, axis=0).ravel())[0, 1]
    assert found == pytest.approx(coefficient, abs=0.006)  # four standard errors of 600,000 returns


def test_cells_are_read_back_from_their_names() -> None:
    assert [power._cell(str(cell)) for cell in CELLS] == CELLS
    assert len({str(cell) for cell in CELLS}) == 36


def test_windows_do_not_overlap_and_the_history_is_that_of_the_cell() -> None:
    _, data = power.market_data(Cell(0.1, 30, 1000), 0, small=False)
    assert power.WINDOWS * data.window_days <= power.HOLDOUT_DAYS < (power.WINDOWS + 1) * data.window_days
    assert data.synthetic is not None
    assert data.synthetic.days - data.holdout_days == 1000


@pytest.mark.parametrize("name", power.BENCHMARKS)
def test_a_market_is_measured(name: str, tmp_path: Path) -> None:
    benchmark = power.BENCHMARKS[name]
    settings = {**benchmark.settings, **benchmark.smallest}
    row = benchmark.measure(benchmark.tasks(settings)[0], settings, tmp_path)
    assert row["filter"] > row["random"]
    assert row["ic"].keys() == {*power.SCORES, *(["champion"] if name == "weak" else [])}
    if name == "weak":
        assert row["champion"] != row["agents"]


def figures(**fitness: list[float]) -> dict[str, Any]:
    """Return figures of every cell with the fitness of each rule, by seed."""
    ic = dict.fromkeys(power.SCORES, 0.05)
    rows = [dict(zip(fitness, values, strict=True)) for values in zip(*fitness.values(), strict=True)]
    return {"runs": {str(cell): [{**row, "ic": ic} for row in rows] for cell in CELLS}}


def test_gains_are_those_beyond_random_orders_in_the_same_markets() -> None:
    clear = figures(random=[1, 2], filter=[11, 10], ridge=[5, 7], momentum=[1, 2])
    lines = power_tables.power_table(clear).splitlines()
    assert lines[2] == "| 0.02 | 30 | 1,000 | 9.0 | 50 % | 0 % | 0.050 | 0.050 | 0.050 |"
    assert len(lines) == 2 + 36
    weak = figures(random=[0, 0], filter=[1, 2], ridge=[5, 7], momentum=[0, 0])
    assert power_tables.power_table(weak).splitlines()[2] == (
        "| 0.02 | 30 | 1,000 | 1.5 |  |  | 0.050 | 0.050 | 0.050 |"
    )


def test_weak_edges_beside_ridge_by_hand() -> None:
    fitness = {"random": [1, 2], "filter": [11, 12], "ridge": [5, 6], "champion": [6, 9], "agents": [3, 4]}
    ic = [{"filter": 0.05, "ridge": 0.03, "momentum": 0, "champion": champion} for champion in (0.04, 0.03)]
    rows = [{**{name: values[seed] for name, values in fitness.items()}, "ic": ic[seed]} for seed in range(2)]
    figures = {"runs": {"0.02 100 3000": rows, "0.05 100 3000": rows}}
    lines = power_tables.weak_table(figures).splitlines()
    assert len(lines) == 2 + 2 * 4
    assert lines[3] == "| 0.02 | ridge | 4.0 | 40 % |  | +0.0300 (+0.0300 to +0.0300) |  |"
    # Student's t of one degree of freedom is 12.7: 2 times 1 / 2, and 0.005 times 1 / 2
    assert lines[4] == (
        "| 0.02 | champions of ERL | 6.0 | 60 % | +2.0 (-10.7 to +14.7) | +0.0350 (-0.0285 to +0.0985) "
        "| +0.0050 (-0.0585 to +0.0685) |"
    )
    assert lines[5] == "| 0.02 | all agents of ERL | 2.0 | 20 % | -2.0 (-2.0 to -2.0) |  |  |"
    assert lines[6].startswith("| 0.05 | Kalman filter | 10.0 | 100 % |")
    chance = [{**row, "filter": 2 + 2 * seed} for seed, row in enumerate(rows)]  # gains of 1 and 2, 1.5 +- 0.5
    lucky = [{**row, "filter": 2 + 4 * seed} for seed, row in enumerate(rows)]  # of 1 and 4, 2.5 +- 1.5
    parts = [power_tables.weak_table({"runs": {"0.02 100 3000": each}}).splitlines()[2] for each in (chance, lucky)]
    assert [line.split(" | ")[3] for line in parts] == ["100 %", ""]
    del rows[0]["ic"]["champion"], rows[1]["ic"]["champion"]
    assert power_tables.weak_table(figures).splitlines()[4].endswith("(-10.7 to +14.7) |  |  |")
