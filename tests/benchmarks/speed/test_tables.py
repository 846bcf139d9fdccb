"""docs/results.md says what was measured, and what measures it is right at tiny size."""

import json
import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.memory import full_run, resident
from benchmarks.memory import tables as memory_results
from benchmarks.speed import families, limit
from benchmarks.speed import tables as results
from benchmarks.speed.full_scale import FullScale
from tests.benchmarks.conftest import SMALL

TINY = ["--trainer.max_epochs=2", "--model.gradient_steps=1", "--model.population_size=3", "--data.replay_min_size=4"]
TINY += ["--data.synthetic.days=1000", "--data.synthetic.columns=6", "--data.investable.top=4", "--data.context_days=8"]


class TestPage:
    @pytest.fixture(scope="class")
    def found(self) -> dict[str, str]:
        return results.tables(results.load())

    def test_every_figure_in_its_place_is_the_measured_one(self, found: dict[str, str]) -> None:
        places = re.findall(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", results.PAGE.read_text(), re.DOTALL)
        assert dict(places) == found

    def test_no_table_has_other_figures(self, found: dict[str, str]) -> None:
        measured = {line for text in found.values() for line in text.splitlines()}
        assert [
            line for line in results.PAGE.read_text().splitlines() if line[:1] == "|" and line not in measured
        ] == []


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
        assert torch.allclose(moved, torch.full_like(moved, step.settings.actor_lr), rtol=0.01)

    def test_the_study_has_a_figure_for_everything(self, small: FullScale) -> None:
        found = limit.study(small, runs=1, compile_too=False)
        assert found["share_of_rate"] == pytest.approx(found["step_gflops_per_s"] / found["matrix_gflops_per_s"])
        assert all(value > 0 for value in found["describe_days"].values())
        assert found["compile"] is None
        json.dumps(found)


def _operands(shapes: list[list[int]]) -> tuple[list[int], list[int]]:
    """The two factors: the last two of the arguments that are matrices."""
    left, right = [shape for shape in shapes if len(shape) >= 2][-2:]
    return left, right


class TestFullRun:
    def test_kinds_of_memory_add_up_to_what_the_system_says(self) -> None:
        found = resident.resident_mb("/none")
        assert sum(found[kind] for kind in resident.KINDS) == pytest.approx(found["rss"], abs=0.01)
        assert found["rss"] == pytest.approx(psutil.Process().memory_info().rss / 1e6, rel=0.05)
        assert found["panel"] == 0

    def test_mapped_pages_count_as_the_panel_once_they_were_read(self, tmp_path: Path) -> None:
        path = tmp_path / "cache" / "features.npy"
        path.parent.mkdir()
        path.write_bytes(os.urandom(8_000_000))
        mapped = torch.from_file(str(path), size=8_000_000, dtype=torch.uint8)
        before = resident.resident_mb(str(path.parent))["panel"]
        int(mapped.sum())
        after = resident.resident_mb(str(path.parent))["panel"]
        assert before < 1
        assert after - before == pytest.approx(8, abs=1)

    @pytest.mark.slow  # takes half a minute
    def test_a_run_is_measured_end_to_end(self, tmp_path: Path) -> None:
        found = full_run.measure(tmp_path, threads=1, words=TINY)
        assert found["generations"] == 2
        assert found["trained"] == 2
        assert found["seconds"]["generation"] < found["fit_s"]
        assert found["imports_mb"]["rss"] < found["start_mb"]["rss"] <= found["peak_mb"]
        assert found["end_mb"]["panel"] > 0
        assert {"replay", "population", "optimizer", "environments", "panel", "encoder"} <= found["owners_mb"].keys()


def test_families_are_measured_with_their_own_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FullScale", lambda device, words: FullScale(SMALL, device, words))
    found: dict[str, Any] = {name: families.measure(name, "cpu", "32-true", runs=1) for name in families.FAMILIES}
    assert len({each["weights"] for each in found.values()}) == len(families.FAMILIES)
    assert found["cnn-lstm"]["weights"] > 500_000
    assert all(each["act_ms"] > 0 < each["learn_ms"] for each in found.values())


def test_the_page_of_memory_says_what_was_measured() -> None:
    found = memory_results.tables(memory_results.load())
    places = re.findall(r"<!-- measured: (\w+) -->\n(.*?)\n<!-- end -->", memory_results.PAGE.read_text(), re.DOTALL)
    assert dict(places) == found
    kept = memory_results.load()
    assert all(0.85 <= case["ratio"] <= 1.15 for case in kept["estimate"]["cases"])
    assert kept["soak"]["kept"]
