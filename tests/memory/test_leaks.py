"""Planted leaks of the common kinds are identified; healthy runs raise no alarm."""

import copy
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from callbacks.memory import get_profiler
from eigen2.cli.main import main
from eigen2.erl.module import ERLModule
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.memory.leaks import Leak
from tests.command import in_fork

START = 5  # the first generation that leaks
Plant = Callable[[ERLModule, list[Any]], None]


def an_environment_per_agent(module: ERLModule, kept: list[Any]) -> None:
    env = module.data.eval_env
    assert isinstance(env, TradingEnvironment)
    prices = np.ones((env.num_days, env.num_columns, 4), np.float32)
    kept.extend(TradingEnvironment(prices, env.rules, 1, 200) for _ in range(module.population_size))


PLANTS: dict[str, Plant] = {
    "an environment per agent": an_environment_per_agent,
    "a loss with its graph": lambda module, kept: kept.append(module.population.actor.exp().sum()),
    "the old population": lambda module, kept: kept.append(copy.deepcopy(module.population)),
    "an array": lambda module, kept: kept.append(np.ones(40_000)),
    "a figure": lambda module, kept: plt.figure().add_subplot().plot([1, 2]),
}


def run(root: Path, generations: int, *options: str) -> tuple[Leak | None, str]:
    """Return the leak that a run finds in this process, and what is printed."""
    folder = ["--trainer.max_epochs", str(generations), "--trainer.default_root_dir", str(root)]
    with redirect_stdout(io.StringIO()) as printed:
        main(["fit", "--config", "tests/small.yaml", *folder, *options])
    return get_profiler().leak, printed.getvalue()


def run_with_leak(root: Path, method: str, plant: str) -> tuple[Leak | None, str]:
    kept: list[Any] = []
    original = getattr(ERLModule, method)

    def leaky(module: ERLModule, *arguments: Any) -> Any:
        result = original(module, *arguments)
        if module.current_epoch >= START:
            PLANTS[plant](module, kept)
        return result

    plt.switch_backend("agg")
    setattr(ERLModule, method, leaky)
    return run(root, START + 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "plant", "phase"),
    [
        ("begin_generation", "an environment per agent", "evaluate"),
        ("training_step", "a loss with its graph", "train"),
        ("evolve", "the old population", "evolve"),
        ("validate", "an array", "validate"),
        ("validate", "a figure", "validate"),
    ],
)
def test_a_planted_leak_is_named_with_its_line(method: str, plant: str, phase: str, tmp_path: Path) -> None:
    leak, printed = in_fork(run_with_leak, tmp_path, method, plant)
    assert leak is not None
    assert leak.phase == phase
    assert abs(leak.growth.since - START) <= 2
    assert 50e3 < leak.growth.slope.low <= leak.growth.slope.median <= leak.growth.slope.high < 2e6
    assert "test_leaks.py" in leak.trace.sites[0].line
    assert printed.index(f"leak in {phase}: ") < printed.index("holder  ")  # not only at the end
    if plant == "an array":
        assert leak.trace.sites[0].nbytes == pytest.approx(320_000, rel=0.01)


SHAPES: dict[str, dict[str, Any]] = {
    "progress bar": {"trainer.enable_progress_bar": "true"},
    "sixteen agents": {"model.population_size": 16, "data.replay_capacity": 2000},
    "no evolution": {"model.evolution": "null"},
    "long context": {"data.context_days": 120, "data.synthetic.days": 400},
    "slowly filling": {"data.replay_capacity": 20_000, "data.replay_min_size": 2_000},
    "windows": {"data.encoding": "windows"},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_healthy_run_raises_no_alarm(shape: str, tmp_path: Path) -> None:
    leak, printed = in_fork(run, tmp_path, 30, *(f"--{key}={value}" for key, value in SHAPES[shape].items()))
    assert leak is None
    assert "verdict: healthy" in printed
