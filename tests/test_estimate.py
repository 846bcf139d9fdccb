"""What is said before a run about its memory is what it takes."""

import csv
import json
from pathlib import Path

import pytest

from benchmarks.memory import estimate, hygiene, soak
from tests.command import eigen2

SMALL = "tests/small.yaml"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([SMALL, "--data.replay_min_size=300", "--data.replay_capacity=1000"], marks=pytest.mark.slow),
        pytest.param([SMALL, "--data.replay_capacity=3000000"], marks=pytest.mark.slow),
        pytest.param(
            [
                SMALL,
                "--model.population_size=64",
                "--data.batch_size=300",
                "--data.replay_min_size=300",
                "--data.replay_capacity=1000",
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["small", "much replay", "large batches"],
)
def test_the_estimate_is_within_15_percent_of_the_peak(tmp_path: Path, words: list[str]) -> None:
    found = estimate.measure(tmp_path / "run", words, generations=3)
    assert found["ratio"] == pytest.approx(1, abs=0.15), found


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in estimate.WORDS if "resumed" not in name])
def test_the_estimate_holds_for_each_case_of_the_page(tmp_path: Path, case: str) -> None:
    found = estimate.measure(tmp_path / "run", estimate.WORDS[case])
    assert found["ratio"] == pytest.approx(1, abs=0.15), found


def test_a_run_that_cannot_fit_is_refused_before_it_allocates(tmp_path: Path) -> None:
    command = ["fit", "--config", SMALL, "--trainer.default_root_dir", tmp_path]
    done = eigen2(*command, "--data.replay_capacity=2000000000", "--budget.memory_budget_gb=1")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "this run needs replay " in line
    assert "GB available; lower data.replay_capacity, data.batch_size" in line


def soaked(rss: list[float], heap: float = 1e8, agents: int = 5) -> list[dict[str, str]]:
    return [
        {"generation": str(n), "rss_bytes": str(int(each)), "heap_bytes": str(int(heap))}
        | {"python_blocks": "0", "count_Agent": str(agents)}
        for n, each in enumerate(rss)
    ]


def test_the_soak_is_judged_by_slope_counts_containers_and_verdict() -> None:
    noise = [3e6 * (n % 3) for n in range(300)]
    start = [1e6 * min(n, 40) for n in range(300)]  # warms up within the first 50
    flat = [5e8 + a + b for a, b in zip(noise, start, strict=True)]
    rising = [each + 2000 * n for n, each in enumerate(flat)]
    healthy = "memory  verdict: healthy\n"
    judged = soak.judge(soaked(flat), healthy, [])
    assert judged["kept"]
    assert judged["rss_slope"]["median"] == pytest.approx(0, abs=1)
    risen = soak.judge(soaked(rising), healthy, [])
    assert risen["rss_slope"]["median"] == pytest.approx(2000, rel=0.05)
    assert not risen["kept"]
    assert not soak.judge([*soaked(flat), *soaked(flat[:1], agents=6)], healthy, [])["kept"]
    assert not soak.judge(soaked(flat), "memory  leak in train: something kept\n", [])["kept"]
    assert not soak.judge(soaked(flat), healthy, ["list of 300  module.kept"])["kept"]


@pytest.mark.slow
def test_a_short_soak_runs_and_is_drawn(tmp_path: Path) -> None:
    soak.main(["--generations", "60", "--out", str(tmp_path / "soak.json")])
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["generations"] == 60
    assert found["containers_grown"] == []
    assert (tmp_path / "soak.png").stat().st_size > 5000


@pytest.mark.slow
def test_each_setting_of_the_collector_is_measured(tmp_path: Path) -> None:
    found = hygiene.measure(hygiene.Case("defaults"), tmp_path / "run", generations=3)
    assert found["cleaning_ms"] > 0
    assert found["peak_mb"] > found["between_mb"] > 300
    with (tmp_path / "run" / "memory.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 1 + 3 * 5
    without = hygiene.measure(hygiene.Case("without the callback", None), tmp_path / "other", generations=3)
    assert without["cleaning_ms"] == 0
