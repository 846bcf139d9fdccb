"""A run that cannot fit into memory is refused."""

from pathlib import Path

from tests.command import eigen2

SMALL = "tests/small.yaml"


def test_a_run_that_cannot_fit_is_refused_before_it_allocates(tmp_path: Path) -> None:
    command = ["fit", "--config", SMALL, "--trainer.default_root_dir", tmp_path]
    done = eigen2(*command, "--data.replay_capacity=2000000000", "--budget.memory_budget_gb=1")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "this run needs replay " in line
    assert "GB available; lower data.replay_capacity, data.batch_size" in line
