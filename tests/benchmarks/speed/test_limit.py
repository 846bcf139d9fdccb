"""Distance from the limit, and families of networks, at tiny size."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.harness import Task
from benchmarks.speed import families, limit
from benchmarks.speed.full_scale import FullScale


class TestLimit:
    def test_operations_are_those_of_every_matrix_product(self, small: FullScale) -> None:
        step = limit.Step(small)
        counted = limit.operations(step)
        _, products = limit.profiled(step, runs=2)
        by_hand = 0.0
        for _, shapes, count in products:
            left, right = _operands(shapes)
            by_hand += count * 2 * torch.Size(left).numel() * right[-1]
        assert counted == by_hand > 0

    def test_shares_of_the_time_are_shares(self, small: FullScale) -> None:
        shares, _ = limit.profiled(limit.Step(small), runs=2)
        assert all(0 < share < 1 for share in shares.values())
        assert sum(shares.values()) == pytest.approx(1, abs=0.02)
        assert {"matrix products", "Python and calls into torch", *limit.PASSES} <= shares.keys()

    def test_a_step_learns_what_the_module_learns(self, small: FullScale) -> None:
        step = limit.Step(small)
        before = step.population.actor.detach().clone()
        step()
        moved = (step.population.actor.detach() - before).abs().amax(1)
        # the first step of Adam is as large as its rate
        assert torch.allclose(moved, torch.full_like(moved, step.settings["actor_lr"]), rtol=0.01)

    def test_the_study_has_a_figure_for_everything(self, small: FullScale) -> None:
        found = limit.distance(small, runs=1, compile_too=False)
        assert found["share_of_rate"] == pytest.approx(found["step_gflops_per_s"] / found["matrix_gflops_per_s"])
        assert all(value > 0 for value in found["describe_days"].values())
        assert found["compile"] is None
        json.dumps(found)


def _operands(shapes: list[list[int]]) -> tuple[list[int], list[int]]:
    """The two factors: the last two of the arguments that are matrices."""
    left, right = [shape for shape in shapes if len(shape) >= 2][-2:]
    return left, right


def test_families_are_measured_with_their_own_networks(tmp_path: Path) -> None:
    settings = {**families.SETTINGS, **families.SMALLEST}
    tasks = families.tasks(settings)
    assert [task.case for task in tasks] == list(families.FAMILIES)
    found = families.figures({task: families.measure(task, settings, tmp_path) for task in tasks})["families"]
    assert len({each["weights"] for each in found}) == len(families.FAMILIES)
    assert found[-1]["weights"] > 500_000
    assert all(each["act_ms"] > 0 < each["learn_ms"] for each in found)
    assert Task(f"columns{families.HALF}") in families.tasks({**settings, "device": "cuda"})
