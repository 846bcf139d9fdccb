"""Benchmarks of learning at tiny size, and their tables for known rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness import FIGURES, Task
from benchmarks.learning import control, planted, tables
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError
from eigen2.market.datamodule import MarketDataModule

TINY = {"trading_days": 15, "settlement_days": 2, "replay_capacity": 4000, "replay_min_size": 100, "batch_size": 4}


def row(seed: int, champion: float) -> dict[str, Any]:
    rules = {"random": 0.0, "momentum": 60.0, "ridge": 80.0, "filtered": 100.0, "informed": 200.0}
    return {"seed": seed, "champion": champion, "agents": champion - 10, "seconds": 120.0, **rules}


def test_tables_of_known_rows() -> None:
    runs = {"erl": [row(0, 90.0), row(1, 100.0)], "gradients alone": [row(0, 70.0), row(1, 90.0)]}
    fitness = tables.fitness_table({"runs": runs}).splitlines()
    assert "| erl | 95.0 | 119 % | 95 % | 85.0 |" in fitness
    difference = "+15.0 (-48.5 to +78.5)"  # 5 is the standard error, 12.71 the quantile of one degree of freedom
    against = tables.against_table({"runs": runs}).splitlines()
    own, other = ({"runs": {name: runs[name]}} for name in ("erl", "gradients alone"))
    halves = tables.variants_table("ERL", own, other).splitlines()
    assert halves[2:] == [f"| gradients alone | {difference} | {difference} | 2 and 2 of 2 |"]
    assert f"| ridge | {difference} | +5.0 (-58.5 to +68.5) | 2 and 1 of 2 |" in against
    assert "| filtered | -5.0 (-68.5 to +58.5) | -15.0 (-78.5 to +48.5) | 0 and 0 of 2 |" in against
    changes = tables.ablation_table({"runs": {**runs, "better": [row(0, 91.0)]}}).splitlines()
    assert changes[2:] == ["| better | +1.0 | +1.0 |", "| gradients alone | -20.0 | -20.0 |"]


def test_sides_alternate_and_are_compared_in_pairs() -> None:
    tasks = control.side_tasks({"seeds": 2, "steps": 400}, control.PENDULUM)
    assert [task.case for task in tasks] == ["eigen2", "Stable-Baselines3", "Stable-Baselines3", "eigen2"]
    speeds = {"eigen2": 30.0, "Stable-Baselines3": 20.0}
    measured = {
        task: {"return": -140.0 - 10 * task.seed, "steps_per_s": speeds[task.case] * task.seed} for task in tasks
    }
    lines = control.duel_table(control.side_figures(measured, control.PENDULUM)).splitlines()
    assert lines[2] == "| eigen2 | -155.0 | -150, -160 | 45.0 |"
    assert lines[-1] == "| speed ratio, median over seeds |  |  | 1.50 |"
    with pytest.raises(UserError, match="200 steps"):
        control.side_tasks({"seeds": 2, "steps": 401}, control.PENDULUM)


def test_the_parts_of_a_step_are_those_of_the_last_generation_and_add_up() -> None:
    durations = {
        "[LightningModule]ERLModule.on_train_epoch_start": [9.0, 0.004],
        "[Strategy]SingleDeviceStrategy.training_step": [9.0, 0.016],
        "run_training_batch": [9.0, 0.02],
    }
    parts = control.parts_of(durations, updates=4, tokens=1)
    assert parts == pytest.approx({"play_ms": 1.0, "update_ms": 4.0, "batch_ms": 5.0})
    runs = [{"parts": {**parts, "operations_gflop": 0.2, "matrix_gflops_per_s": 100.0}}]
    lines = control.parts_table({"runs": {"eigen2": runs}}).splitlines()
    cells = [line.strip("| ").split(" | ")[1:] for line in lines[2:]]
    assert cells == [["2.00", "33%"], ["2.00", "33%"], ["1.00", "17%"], ["1.00", "17%"], ["6.00", "100%"]]


def test_both_sides_are_tested_in_the_same_episodes() -> None:
    duel = replace(control.PENDULUM, test_episodes=2)
    first, second = (
        control.mean_return(duel, lambda inputs: torch.zeros(1, len(inputs["state"][0]), 1)) for _ in range(2)
    )
    assert -2000 < first == second < 0


@pytest.mark.parametrize("name", [name for name in planted.BENCHMARKS if (FIGURES / f"{name}.json").exists()])
def test_figures_have_the_variants_and_seeds_of_the_benchmark(name: str) -> None:
    figures = json.loads((FIGURES / f"{name}.json").read_text())
    measured = [(variant, row["seed"]) for variant, rows in figures["runs"].items() for row in rows]
    assert sorted(measured) == sorted(planted.BENCHMARKS[name].tasks({}))


def test_every_variant_can_be_created() -> None:
    for variant in planted.VARIANTS.values():  # invalid settings fail here, not after an hour of measuring
        ERLModule(**variant.get("model", {}))
        assert MarketDataModule(**{**planted.SIZES, **variant.get("data", {})}).context_days in (64, 504)


def test_a_run_measures_champion_agents_and_rules(tmp_path: Path) -> None:
    settings = planted.BENCHMARKS["planted"].smallest
    row = planted.measure(Task("erl", 5), settings, tmp_path)
    assert row["informed"] > row["random"]
    assert row["agents"] != row["champion"]
