"""Stable-Baselines3 takes the market as it is, and the example trains on it."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from eigen2.registration import ENV_ID

ROOT = Path(__file__).parent.parent
SMALL: dict[str, Any] = {
    "synthetic": {"days": 200, "columns": 3, "missing": 0.05},
    "context_days": 20,
    "trading_days": 15,
    "settlement_days": 5,
    "validation_days": 50,
    "holdout_days": 30,
}

pytest.importorskip("stable_baselines3")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrapped", [True, False])
def test_its_checker_has_nothing_to_say(wrapped: bool) -> None:
    from stable_baselines3.common.env_checker import check_env

    env = gymnasium.make(ENV_ID, **SMALL)
    check_env(env if wrapped else env.unwrapped)


def run_example(*words: str) -> list[float]:
    """The mean returns that it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "sb3_ddpg.py"), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    returns = re.findall(r"^mean return (before|after) training: (\S+) \(standard error (\S+)\)$", done.stdout, re.M)
    assert [when for when, _, _ in returns] == ["before", "after"]
    assert all(math.isfinite(float(number)) for _, *numbers in returns for number in numbers)
    return [float(mean) for _, mean, _ in returns]


@pytest.mark.slow
def test_the_example_trains_on_a_synthetic_market() -> None:
    before, after = run_example("--steps", "600")
    # both are means over the same windows: they differ if and only if the policy does
    assert before != after


@pytest.mark.slow
def test_the_example_without_training_changes_nothing() -> None:
    before, after = run_example("--steps", "0")
    assert before == after
