"""The model of a cluster against known answers and against measured runs."""

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import FIGURES
from benchmarks.scale import processes_tables
from benchmarks.scale.cluster import Costs, Link, Plan, Timing, expected_parents, simulate
from benchmarks.scale.processes_tables import FREE, simulate_plan

ROUND_S, BYTE_S, AGENT_S = 1e-4, 2e-9, 0.05


def synthetic_figures(deviation: float = 0.0) -> dict[str, Any]:
    """Return figures with work proportional to agents, and messages of known cost."""

    def run(agents: int) -> dict[str, Any]:
        seconds = AGENT_S * agents
        sizes = {"weights": 1000, "actor_weights": 400, "transition_bytes": 1530, "transitions": 288}
        return {
            **{"agents": agents, "optimizer_steps": 8, **sizes},
            **{"evaluate": seconds, "train": 8 * seconds, "evolve": 0.0, "validate": seconds},
            **{"generation": 10 * seconds, "rest": 0.0, "deviation": deviation},
            **{"peak_mb": 500.0 + agents, "replay_capacity": 50_000},
        }

    messages = [
        {"processes": world, "received": size, "seconds": (world - 1) * ROUND_S + size * BYTE_S}
        for world in (2, 4)
        for size in (100, 10_000, 10_000_000)
    ]
    return {
        "messages": [{"messages": messages, "transition_exchange": {"transitions": 1000, "seconds": 0.0}}],
        "alone": [run(agents) for agents in (1, 2, 4, 8, 16, 32, 64)],
    }


def timing(costs: Costs, plan: Plan, link: Link = FREE) -> Timing:
    return simulate(costs, plan, link, np.random.default_rng(0))


def test_costs_of_work_and_messages_are_recovered() -> None:
    costs = Costs(synthetic_figures())
    for agents in (3, 16, 640):  # between measured numbers and beyond them
        assert costs.phase_s("train", agents, 8) == pytest.approx(8 * AGENT_S * agents)
    assert costs.message_s(1, 0, FREE) == pytest.approx(ROUND_S, rel=1e-6)
    assert costs.message_s(0, 1, FREE) == pytest.approx(BYTE_S, rel=1e-6)
    assert costs.message_s(3, 0, Link(latency_s=1e-3)) == pytest.approx(3 * (ROUND_S + 1e-3))
    assert costs.message_s(0, 1e9, Link(gbit=1)) == pytest.approx(8)


@pytest.mark.parametrize("devices", [1, 10, 100, 1000])
def test_without_messages_and_noise_time_is_divided_by_devices(devices: int) -> None:
    measured = synthetic_figures()
    for message in measured["messages"][0]["messages"]:
        message["seconds"] = 1e-15 * message["received"]
    result = timing(Costs(measured), Plan(1000, devices))
    assert result.seconds == pytest.approx((2 + 32) * AGENT_S * 1000 / devices, rel=1e-3)
    assert result.computing == pytest.approx(1, rel=1e-3)
    assert sum(result.parts.values()) == pytest.approx(result.seconds, rel=1e-9)
    assert result.parts.get("waiting", 0) == pytest.approx(0, abs=1e-9)


def test_a_device_with_fewer_agents_waits() -> None:
    result = timing(Costs(synthetic_figures()), Plan(3, 2))
    assert result.parts["waiting"] == pytest.approx((2 + 32) * AGENT_S / 2, rel=1e-6)  # one of two, for one agent


def test_waiting_grows_with_noise_and_devices() -> None:
    few, many = (timing(Costs(synthetic_figures(0.05)), Plan(8 * devices, devices)) for devices in (2, 200))
    assert 0 < few.parts["waiting"] < many.parts["waiting"]
    # on average the slowest of 200 takes exp(2.75 x 0.05) times the median in each phase
    assert many.parts["waiting"] == pytest.approx((2 + 32) * AGENT_S * 8 * (np.exp(0.05 * 2.75) - 1), rel=0.1)


def test_expected_parents_of_limiting_cases() -> None:
    assert expected_parents(1, 1000, 1000) == pytest.approx(2, rel=0.01)
    assert expected_parents(500, 1000, 2) == pytest.approx(500 * (1 - 2.718281828**-1), rel=0.01)
    assert expected_parents(4, 8, 1) == 0


def test_bytes_received_by_hand() -> None:
    """Of 3 agents, process 0 of 2 has one; messages are sized for the two of process 1."""
    received = Costs(synthetic_figures()).received(Plan(3, 2))
    assert received["transitions"] == 1.5 * 288 * 1538 / 2 + 8 * 144  # half of those of one and a half agents
    assert received["draws"] == 1.5 * 32 * 24 * 1538 / 2
    assert received["elites"] == 0.5 * 2 * 4 * 400
    assert received["fitness"] == 2 * (8 + 1 + 2 * 8)
    assert received["curves"] == 2 * 140 + 2 * 4 * 400
    assert received["parents"] == pytest.approx((16 * 1000 + 4) * 2 * (1 - (2 / 3) ** 2))


def test_predictions_agree_with_measured_processes() -> None:
    measured = json.loads((FIGURES / "processes.json").read_text())
    costs = Costs(measured)
    assert {run["processes"] for run in measured["together"]} == {1, 2, 4}
    for run in measured["together"]:
        plan = Plan(run["agents"], run["processes"], run["optimizer_steps"])
        if run["processes"] <= measured["usable_cores"]:
            seconds = run["generation"] + run["rest"]
            assert simulate_plan(costs, plan, FREE).seconds == pytest.approx(seconds, rel=0.2), plan


def test_the_command_simulates_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    processes_tables.main(["--agents", "1000", "--devices", "100"])
    stdout = capsys.readouterr().out
    assert all(f"{name} " in stdout for name in ("seconds", "limit", "messages", "waiting", "train", "memory_gb"))
    with pytest.raises(SystemExit):
        processes_tables.main(["--agents", "10", "--devices", "100"])
    assert "--devices is 100" in capsys.readouterr().err
