"""Whatever a configuration says, it is refused in one line that names the key, or it runs; nothing is left behind."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.fuzz.configs import CLASSES, CONFIGS, VALUES, Key, Outcome, Worker, changed, every_key, small, small_fire
from tests.fuzz.conftest import LONG

LONG_RUN = settings.get_current_profile_name() == LONG
RUNS = 60
"""Of the configurations that are taken, so many are run for a generation."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("configs"))
    yield worker
    worker.close()


def check_outcome(outcome: Outcome, name: str) -> None:
    """Check that a refusal names the last part of the key that was wrong."""
    fault = outcome.fault()
    assert fault is None, f"{name}: {fault}"
    if outcome.code == 2:
        assert name.rsplit(".", 1)[-1] in outcome.lines[0], f"{name}: {outcome.lines[0]}"


def dotted(key: Key) -> str:
    """A key as messages name it."""
    return ".".join(str(name) for name in key if not isinstance(name, int))


INF, NAN, HUGE = math.inf, math.nan, 10**12
MARKET: list[tuple[str, Any]] = [
    # each of these once ended in a traceback, took all memory or hung
    *(("model", -1), ("model", None), ("data", ["a"]), ("trainer", NAN), ("trainer", None), ("num_threads", 2**63)),
    *((f"model.{name}", None) for name in ("population_size", "noise")),
    *((f"model.{name}", 2**63) for name in ("population_size", "gradient_steps", "accumulate")),
    *(("model.population_size", HUGE), ("model.gradient_steps", 10**9), ("budget.memory_budget_gb", INF)),
    *((f"model.{name}", INF) for name in ("actor_lr", "reward_scale", "noise", "noise_min")),
    *((f"data.synthetic.{name}", value) for name in ("days", "columns") for value in (HUGE, 2**63, None)),
    *((f"trainer.{name}", "a\nb") for name in ("accelerator", "strategy")),
    *((f"trainer.{name}", None) for name in ("accelerator", "max_steps", "overfit_batches", "default_root_dir")),
    *((f"trainer.{name}", {"a": 1}) for name in ("max_time", "val_check_interval")),
    *(("model.evolution", value) for value in (-1, ["a"])),
    *((f"model.{name}", -1) for name in ("actor", "critic", "learner")),
]
CLASS_SETTINGS: list[tuple[Key, Any]] = [
    *((("actor", "init_args", "hidden"), value) for value in (-1, HUGE, 2**63, None)),
    *((("learner", "init_args", "policy_delay"), value) for value in (0, None)),
    *((("evolution", 1, "init_args", "tournament_size"), value) for value in (0, None)),
    *((("evolution", 2, "init_args", "scale"), value) for value in (INF, None)),
]
CALLBACKS: list[tuple[str, str, Any]] = [
    *(("MetricsPlot", name, None) for name in ("every_n_epochs", "max_history")),
    ("MetricsPlot", "max_history", 2**63),
    ("MemoryProfiler", "least_leak_kb", None),
]
FIRE: list[tuple[str, Any]] = [
    *((f"data.{name}", HUGE) for name in ("grid_size", "num_landscapes", "num_parallel_envs")),
    *((f"data.{name}", HUGE) for name in ("replay_capacity", "replay_min_size", "batch_size")),
    *((f"data.{name}", value) for name in ("wind_speed", "wind_from", "budget") for value in (NAN, INF, -1, None)),
    *(("data.fire_simulation_max_duration", value) for value in (0, INF, 1e30)),
    ("data.region", "abc"),
    *((f"model.{name}", value) for name in ("width", "networks") for value in (0, HUGE, 2**63)),
    *((f"model.{name}", value) for name in ("gamma", "tau", "learning_rate") for value in (-1, INF)),
    *((f"model.{name}", value) for name in ("initial_epsilon", "final_epsilon") for value in (2, None)),
    *((f"model.{name}", 0) for name in ("train_frequency", "validate_every")),
    *(("model.baselines", value) for value in (["a"], "abc")),
]


def callback(name: str, setting: str, value: Any) -> dict[str, Any]:
    needed = {"metrics": ["fitness/mean"], "tag": "fitness"} if name == "MetricsPlot" else {}
    one = {"class_path": f"callbacks.{name}", "init_args": {**needed, setting: value}}
    return changed(small(), (("trainer", "callbacks"), [one]))


PINNED: list[tuple[str, dict[str, Any]]] = [
    *((name, changed(small(), (tuple(name.split(".")), value))) for name, value in MARKET),
    *((name, changed(small_fire(), (tuple(name.split(".")), value))) for name, value in FIRE),
    *(
        (
            next(iter(value)) if isinstance(value, dict) else str(key[-1]),
            changed(small(), (("model",), {**small()["model"], key[0]: changed(CLASSES, (key, value))[key[0]]})),
        )
        for key, value in CLASS_SETTINGS
    ),
    *((setting, callback(name, setting, value)) for name, setting, value in CALLBACKS),
]


def pinned() -> Iterator[Any]:
    """One value of each key; the others are slow."""
    seen: set[str] = set()
    for name, config in PINNED:
        yield pytest.param(name, config, id=name, marks=[pytest.mark.slow] if name in seen else [])
        seen.add(name)


@pytest.mark.parametrize(("name", "config"), [*pinned()])
def test_a_wrong_value_is_refused_in_one_line(name: str, config: dict[str, Any], worker: Worker) -> None:
    outcome = worker.try_config(config, 1)
    check_outcome(outcome, name)
    assert outcome.code == 2, name


def test_a_limit_without_end_is_none(worker: Worker) -> None:
    outcome = worker.try_config(changed(small(), (("model", "max_grad_norm"), INF)), 1)
    assert outcome.fault() is None
    assert outcome.code == 0


def test_every_key_set_to_anything_is_refused_in_one_line_or_runs(
    worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [(config, key, value) for config, key in every_key(CONFIGS if LONG_RUN else []) for value in VALUES]
    nested = {"model.learner.init_args.policy_delay", "model.evolution.init_args.tournament_size", "data.region"}
    assert nested <= {dotted(key) for _, key, _ in cases}
    chance = random.Random(1)
    if not LONG_RUN:
        cases = chance.sample(cases, 12)
    faults, tally, taken = [], Counter({"configurations": len(cases)}), []
    for config, key, value in cases:
        outcome = worker.try_config(changed(config, (key, VALUES[value])), 0)
        tally["refused" if outcome.code == 2 else "taken"] += 1
        if outcome.code == 0:
            taken.append((config, key, value))
        if fault := outcome.fault():
            faults.append(f"{dotted(key)} = {value}: {fault.strip()[-300:]}")
    for config, key, value in chance.sample(taken, min(RUNS if LONG_RUN else 2, len(taken))):
        tally["run"] += 1
        if fault := worker.try_config(changed(config, (key, VALUES[value])), 1).fault():
            faults.append(f"{dotted(key)} = {value}, run: {fault.strip()[-300:]}")
    with capsys.disabled():
        print("\nconfigurations:", dict(tally))
    assert not faults, "\n".join(faults)
