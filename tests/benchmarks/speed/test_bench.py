"""Every comparison at tiny size; references must compute the same results as eigen2."""

import math

import pytest
import torch
from torch import nn

from benchmarks.harness import Row
from benchmarks.speed import bench, storage
from benchmarks.speed.evaluation import DenseAgent
from benchmarks.speed.full_scale import FullScale
from benchmarks.speed.tables import bench_table
from benchmarks.speed.timing import at_least, at_most
from benchmarks.speed.training import PlainAgent, limit, looped_step, population_step
from eigen2.core.replay import loaded_action
from eigen2.distributed.communicator import Communicator
from eigen2.erl.row_adam import RowAdam
from eigen2.runtime.checkpoint import DurableCheckpointIO

SETTINGS = {**bench.SETTINGS, **bench.SMALLEST, "threads": 1}
HALF = 3e-3
"""More than the rounding error of half precision for inputs within [-5, 5]."""


def test_every_part_is_measured(small: FullScale) -> None:
    figures = bench.figures({task: {"rows": bench.PARTS[task.case](small, 1)} for task in bench.tasks(SETTINGS)})
    keys = "evaluation environment training_step replay_bytes checkpoint_save checkpoint_load"
    assert [row["key"] for row in figures["rows"]] == keys.split()
    for row in figures["rows"]:
        assert set(row) == {"key", "what", "ours", "reference", "ratio", "bound", "unit", "kept"}
        for name in ("ours", "reference", "ratio", "bound"):
            assert math.isfinite(row[name]), f"{name} of {row['key']}"
            assert row[name] > 0, f"{name} of {row['key']}"
    for line, row in zip(bench_table(figures).splitlines()[2:], figures["rows"], strict=True):
        assert line.startswith(f"| {row['what']} | ")
    state = DurableCheckpointIO().load_checkpoint(small.folder / "bench.ckpt")
    replay_state = next(part["replay"] for part in state.values() if isinstance(part, dict) and "replay" in part)
    assert replay_state["size"] == len(replay_state["storage"]["reward"]) == small.data.replay_capacity
    moments = state["optimizer_states"][0]["state"]  # of Adam, of actors and critics
    assert {name for rows in moments.values() for name in rows} >= {"exp_avg", "exp_avg_sq"}
    assert all(rows["exp_avg"].abs().sum() > 0 for rows in moments.values())


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (at_least("k", "w", 1.0, 50.0, 50.0, bound=50.0), True),
        (at_least("k", "w", 1.0, 49.0, 49.0, bound=50.0), False),
        (at_least("k", "w", math.nan, 1.0, math.nan, bound=50.0), False),
        (at_most("k", "w", 5.0, 5.0), True),
        (at_most("k", "w", 5.1, 5.0), False),
        (at_most("k", "w", math.nan, 1.0), False),
    ],
)
def test_bounds(row: Row, kept: bool) -> None:
    assert row["kept"] == kept


def test_the_share_of_the_matrix_rate(small: FullScale) -> None:
    row = limit(small, runs=1)
    assert row["share_of_rate"] == pytest.approx(row["step_gflops_per_s"] / row["matrix_gflops_per_s"])
    assert row["step_ms"] * row["step_gflops_per_s"] == pytest.approx(1e3 * row["operations_gflop"])


def test_dense_agents_play_as_the_population(small: FullScale, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions and rewards agree agent by agent; initial weights are scaled up so that actions differ."""
    data, population = small.data, small.population()
    data.allocate_replay(small.device, Communicator(small.module.population_size))
    small.__dict__.pop("replay", None)  # other tests need the new buffer filled
    monkeypatch.setattr(data.eval_env, "credit_steps", 0)  # store rewards when the environment pays them
    population.actor.data.mul_(3)
    small.play(population, generation=2)
    days = data.window_days - 1
    stored = {
        name: data.buffer[name].reshape(days, population.size, data.eval_env.windows, -1)
        for name in ("day", "action", "reward")
    }
    for row in range(population.size):
        steps = DenseAgent(small, population, row).play(generation=2, days=days)
        days_seen, actions, rewards = (stored[name][:, row, 0] for name in ("day", "action", "reward"))
        assert days_seen.flatten().tolist() == [step.window.day for step in steps]
        assert [step.next_window.day for step in steps] == [step.window.day + 1 for step in steps]
        expected = torch.stack([step.action for step in steps]).flatten(1)
        torch.testing.assert_close(loaded_action(actions), expected, atol=2 * HALF, rtol=0)
        assert expected.std(0).max() > 20 * HALF  # days differ by more than the tolerance
        # positions are the same up to sizes, which differ by the error of actions; another position changes about 1
        expected_rewards = torch.tensor([step.reward for step in steps])
        torch.testing.assert_close(rewards.flatten(), expected_rewards, atol=HALF, rtol=HALF)
    assert stored["reward"].unique().numel() > days


def test_separate_modules_learn_the_same_weights_as_the_population(small: FullScale) -> None:
    """Two steps, as the first does not depend on the gradient's size, by which Adam divides."""
    population, gathering = small.population(), small.population()
    agents = [PlainAgent(small, population, row) for row in range(population.size)]
    before = population.actor.detach().clone()
    batches = [small.batch(slots) for slots in small.slots()]
    steps = (
        population_step(small, population, batches),
        population_step(small, gathering),
        looped_step(small, agents, batches),
    )
    assert isinstance(small.optimizer(population), RowAdam)  # the optimizer that is timed is eigen2's
    for _ in range(2):
        for step in steps:
            step()
    assert (population.actor.detach() - before).abs().amax(1).min() > 1e-4
    assert torch.equal(population.actor, gathering.actor)
    for name, rows in (
        ("actor", population.actor),
        ("critic", population.critic),
        ("target_actor", population.actor_target),
        ("target_critic", population.critic_target),
    ):
        expected = torch.stack([nn.utils.parameters_to_vector(getattr(agent, name).parameters()) for agent in agents])
        error = (rows.detach() - expected.detach()).abs()
        # a gradient of rounding noise moves a weight by the learning rate in either direction
        assert (error > 2e-5).float().mean() < 1e-3, name


def test_dense_bytes_at_full_scale() -> None:
    assert storage.dense_bytes(investable=108, days=504, columns=669, features=9) == 24_277_542
