"""What a run counts of its messages is what the formula says."""

import csv
from pathlib import Path

import pytest
import torch

from benchmarks.scale.traffic import Sizes, expected_parents, received
from eigen2.market.simulation.rules import CLOSE_REASONS
from tests.distributed.test_processes import RUN, fit

COUNTS = 6 + len(CLOSE_REASONS)
"""Of an episode's summary, int64."""
SUMS = 5
"""Of it, float32."""


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_receives_what_the_formula_says(world: int, tmp_path: Path) -> None:
    root = fit(world, tmp_path, RUN, 4)
    checkpoint = torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)
    weights, replay = checkpoint["state_dict"], checkpoint["MarketDataModule"]["replay"]
    sizes = Sizes(
        agents=8,
        actor_weights=weights["population.actor"].shape[1],
        critic_weights=weights["population.critic"].shape[1],
        transition_bytes=sum(values[0].nbytes for values in replay["storage"].values()),
        steps=20,
        transitions=replay["added"] // 4 // 8,
        curve_bytes=8 * COUNTS + 4 * SUMS + 2 * 4 * 4 + 1 + 1 + 4,
    )
    always = sum(received(sizes, 0, world).values())
    with (root / "metrics.csv").open() as file:
        counted = [round(1e6 * float(row["exchange/received_mb"])) for row in csv.DictReader(file)]
    for generation, total in enumerate(counted):
        left = total - always
        parents, champion = divmod(left, sizes.parent_bytes)
        assert champion in (0, sizes.champion_bytes), (generation, left)
        assert 0 <= parents <= 6  # of two children, or three, two each


def test_a_process_wants_few_of_many_parents() -> None:
    assert expected_parents(1, 1000, 1000) == pytest.approx(2, rel=0.01)
    assert expected_parents(500, 1000, 2) == pytest.approx(500 * (1 - 2.718281828**-1), rel=0.01)
    assert expected_parents(4, 8, 1) == 0
