"""Whatever a configuration says, it is refused in one line that names the key, or it runs; nothing is left behind."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.configs import NETWORKS, VALUES, Key, Outcome, Worker, changed, every_key, small, small_fire
from tests.fuzz.conftest import LONG, few

LONG_RUN = settings.get_current_profile_name() == LONG
RUNS = 60
"""Of the configurations that are taken, so many are run for a generation."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("configs"))
    yield worker
    worker.close()


def judge(outcome: Outcome, name: str) -> None:
    """A refusal says what was wrong: the last part of the key."""
    fault = outcome.fault()
    assert fault is None, f"{name}: {fault}"
    if outcome.code == 2:
        assert name.rsplit(".", 1)[-1] in outcome.lines[0], f"{name}: {outcome.lines[0]}"


def spoken(config: dict[str, Any], key: Key) -> str:
    """A key as messages name it."""
    return ".".join(str(name) for name in key if not isinstance(name, int))


INF, NAN = math.inf, math.nan
PINNED: list[tuple[str, Any]] = [
    # each of these once ended in a traceback, took all memory or hung
    *(("model", value) for value in (-1, None)),
    *(("data", value) for value in (0, ["a"])),
    *(("trainer", value) for value in (NAN, None)),
    *((f"model.{name}", None) for name in ("gamma", "tau", "population_size", "reward_scale", "noise")),
    *((f"model.{name}", 2**63) for name in ("population_size", "gradient_steps", "accumulate")),
    ("model.population_size", 10**12),
    ("budget.memory_budget_gb", INF),
    ("model.gradient_steps", 10**9),
    *(
        (f"model.{name}", INF)
        for name in ("actor_lr", "reward_scale", "noise", "noise_min", "evolution.mutation_scale")
    ),
    *((f"data.synthetic.{name}", value) for name in ("days", "columns") for value in (10**12, 2**63)),
    *((f"trainer.{name}", "a\nb") for name in ("accelerator", "strategy")),
    *((f"trainer.{name}", None) for name in ("accelerator", "max_steps", "overfit_batches", "detect_anomaly")),
    ("trainer.default_root_dir", None),
    *((f"trainer.{name}", {"a": 1}) for name in ("max_time", "val_check_interval")),
    ("num_threads", 2**63),
    *(("model.evolution", value) for value in (-1, ["a"])),
    *((f"model.evolution.{name}", None) for name in ("elite_fraction", "tournament_size")),
    ("model.evolution.hyperparameters.names", None),
    *((f"data.synthetic.{name}", None) for name in ("days", "volatility")),
    *((f"model.{name}", -1) for name in ("actor", "critic")),
]


@pytest.mark.parametrize(
    ("callback", "setting", "value"),
    [
        *(("MetricsPlot", name, None) for name in ("every_n_epochs", "max_history")),
        *((name, "max_history", 2**63) for name in ("MetricsPlot", "MemoryProfiler")),
        *(("MemoryProfiler", name, None) for name in ("top_objects", "least_leak_kb", "watch")),
        *(("MemoryProfiler", "watch", value) for value in (["a"], ["a\nb"], [""])),
    ],
)
def test_callbacks_refuse_in_one_line(callback: str, setting: str, value: Any, worker: Worker) -> None:
    settings = {"metrics": ["fitness/mean"], "tag": "fitness"} if callback == "MetricsPlot" else {}
    one = {"class_path": f"callbacks.{callback}", "init_args": {**settings, setting: value}}
    outcome = worker.try_config(changed(small(), (("trainer", "callbacks"), [one])), 1)
    judge(outcome, setting)
    assert outcome.code == 2


@pytest.mark.parametrize(
    ("network", "setting", "value"),
    [
        *((name, "hidden", value) for name in ("actor", "critic") for value in (-1, 10**12, 2**63, None)),
        ("critic", "choice", {"sharpness": -1}),
        ("critic", "choice", {"orders": 0}),
    ],
)
def test_networks_refuse_in_one_line(network: str, setting: str, value: Any, worker: Worker) -> None:
    one = changed(NETWORKS[network], (("init_args", setting), value))
    outcome = worker.try_config(changed(small(), (("model", network), one)), 1)
    judge(outcome, setting)
    assert outcome.code == 2


@pytest.mark.parametrize(("name", "value"), PINNED)
def test_what_once_went_wrong_is_refused_in_one_line(name: str, value: Any, worker: Worker) -> None:
    outcome = worker.try_config(changed(small(), (tuple(name.split(".")), value)), 1)
    judge(outcome, name)
    assert outcome.code == 2, name


FIRE: list[tuple[str, Any]] = [
    *((f"data.{name}", 10**12) for name in ("grid_size", "num_landscapes", "eval_landscapes", "num_parallel_envs")),
    *((f"data.{name}", 10**12) for name in ("buffer_size", "warmup", "batch_size")),
    *((f"data.{name}", value) for name in ("wind_speed", "wind_from", "budget") for value in (NAN, INF, -1, None)),
    *(("data.fire_simulation_max_duration", value) for value in (0, INF, 1e30)),
    *((f"data.{name}", "abc") for name in ("prefill", "parallel_method", "downstream_plane", "region")),
    *((f"model.{name}", value) for name in ("width", "n_steps") for value in (0, 10**12, 2**63)),
    *((f"model.{name}", value) for name in ("gamma", "tau", "learning_rate", "reward_scale") for value in (-1, INF)),
    *((f"model.{name}", value) for name in ("initial_epsilon", "epsilon_min") for value in (2, None)),
    *((f"model.{name}", 0) for name in ("train_frequency", "validate_every")),
    *(("model.baselines", value) for value in (["a"], "abc", None)),
]


@pytest.mark.parametrize(("name", "value"), FIRE)
def test_what_fuel_breaks_cannot_be_is_refused_in_one_line(name: str, value: Any, worker: Worker) -> None:
    outcome = worker.try_config(changed(small_fire(), (tuple(name.split(".")), value)), 1)
    judge(outcome, name)
    assert outcome.code == 2, name


def test_groups_that_are_off_have_their_keys_tried_too() -> None:
    tried = {spoken({}, key) for _, key in every_key()}
    assert {
        "model.td3.policy_delay",
        "model.evolution.proximal.floor",
        "model.evolution.hyperparameters.names",
        "data.wind_from",
        "data.region",
        "trainer.callbacks.init_args.experience_buffer_size",
    } <= tried


def test_a_limit_without_end_is_none(worker: Worker) -> None:
    outcome = worker.try_config(changed(small(), (("model", "max_grad_norm"), INF)), 1)
    assert outcome.fault() is None
    assert outcome.code == 0


def test_every_key_set_to_anything_is_refused_in_one_line_or_runs(
    worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [(config, key, value) for config, key in every_key() for value in VALUES]
    chance = random.Random(0)
    if not LONG_RUN:
        cases = chance.sample(cases, 12)
    faults, tally, taken = [], Counter({"configurations": len(cases)}), []
    for config, key, value in cases:
        outcome = worker.try_config(changed(config, (key, VALUES[value])), 0)
        tally["refused" if outcome.code == 2 else "taken"] += 1
        if outcome.code == 0:
            taken.append((config, key, value))
        if fault := outcome.fault():
            faults.append(f"{spoken(config, key)} = {value}: {fault.strip()[-300:]}")
    for config, key, value in chance.sample(taken, min(RUNS if LONG_RUN else 2, len(taken))):
        tally["run"] += 1
        if fault := worker.try_config(changed(config, (key, VALUES[value])), 1).fault():
            faults.append(f"{spoken(config, key)} = {value}, run: {fault.strip()[-300:]}")
    with capsys.disabled():
        print("\nconfigurations:", dict(tally))
    assert not faults, "\n".join(faults)


KEYS = [key for _, key in (every_key() if LONG_RUN else [])]


@pytest.mark.skipif(not LONG_RUN, reason="make fuzz runs it")
def test_several_keys_at_once_are_refused_in_one_line_or_run(worker: Worker) -> None:
    flat = sorted({key for key in KEYS if "callbacks" not in key and len(key) > 1}, key=str)
    change = st.tuples(st.sampled_from(flat), st.sampled_from(sorted(VALUES)))

    @settings(few, max_examples=300)
    @given(st.lists(change, min_size=2, max_size=4, unique_by=lambda one: one[0]))
    def tried(changes: list[tuple[Key, str]]) -> None:
        config = small()
        for key, value in changes:
            if not any(isinstance(place, str) and place == "" for place in key):
                config = with_key(config, key, VALUES[value])
        fault = worker.try_config(config, 1).fault()
        assert fault is None, f"{changes}: {fault}"

    tried()


def with_key(config: dict[str, Any], key: Key, value: Any) -> dict[str, Any]:
    """The configuration with one more change, or as it was where an earlier one left no place for it."""
    place: Any = config
    for name in key[:-1]:
        if not isinstance(place, dict):
            return config
        place = place.get(name, {})
    return changed(config, (key, value)) if isinstance(place, dict) else config


def test_a_refused_run_leaves_an_earlier_one_alone(worker: Worker, tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    (root / "config.yaml").write_text("earlier")
    config = changed(small(), (("trainer", "default_root_dir"), str(root)), (("data", "replay_capacity"), 10**12))
    assert worker.try_config(config, 1).code == 2
    assert sorted(path.name for path in root.iterdir()) in (["config.yaml"], [".lock", "config.yaml"])
    assert (root / "config.yaml").read_text() == "earlier"
