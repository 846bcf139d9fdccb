"""Arms on MuJoCo tasks: matched steps, the same learner settings and episodes; tables of known rows."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.harness import Task
from benchmarks.learning import mujoco, mujoco_tables
from benchmarks.learning.mujoco import ALONE, BENCHMARKS, LEARNER, make
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError

SMALL = {
    "data.env_id": "Pendulum-v1",
    "data.env_settings": {},
    "data.max_episode_steps": 10,
    "data.batch_size": 4,
    "data.replay_min_size": 20,
    "data.replay_capacity": 500,
    "model.actor": {"class_path": "eigen2.control.networks.MLPActor", "init_args": {"hidden": [4]}},
    "model.critic": {"class_path": "eigen2.control.networks.MLPCritic", "init_args": {"hidden": [4]}},
}
ARMS = {
    "TD3 alone": (LEARNER, {**ALONE, **SMALL}),
    "ERL": (LEARNER, SMALL),
    "shared": (LEARNER, {**SMALL, "model.representation": "shared"}),
    "all learn": (LEARNER, {**SMALL, "model.learners": None}),
}


@pytest.mark.parametrize(
    ("arm", "untrained", "generation"),
    [("TD3 alone", 10, 10), ("ERL", 0, 50), ("shared", 0, 50), ("all learn", 0, 50)],
)
def test_gradient_steps_match_environment_steps(
    arm: str, untrained: int, generation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes have 10 steps, so that training begins in the first generation that ends with 20 or more."""
    settings, taken = {"steps": 115, "every": 50, "episodes": 2, "compile": False}, list[int]()
    settings["matmul_precision"] = "highest"

    def train_batch(module: mujoco.ERLWithCurve, index: int) -> None:
        taken.append(1 if module.one_learner else module.population_size)
        ERLModule.train_batch(module, index)

    monkeypatch.setattr(mujoco.ERLWithCurve, "train_batch", train_batch)
    row = mujoco.measure(ARMS, Task(f"{arm}: Pendulum-v1", 3), settings, tmp_path)
    played = -(-115 // generation) * generation
    assert row["gradient_steps"] == sum(taken) == played - untrained
    passed = {step // 50: step for step in range(played, 0, -generation) if step >= 50}  # the first of each fifty
    assert row["env_steps"] == tuple(sorted(passed.values()))
    assert len(row["fittest"]) == len(row["champion"]) == len(passed)
    assert list(row["champion"]) == sorted(row["champion"])
    assert max(row["fittest"]) < 0


def test_a_killed_run_goes_on_to_the_same_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"steps": 115, "every": 20, "episodes": 1, "compile": False, "matmul_precision": "highest"}
    task, validate = Task("TD3 alone: Pendulum-v1", 3), mujoco.ERLWithCurve.validate
    expected = mujoco.measure(ARMS, task, settings, tmp_path / "whole")

    def killed(module: mujoco.ERLWithCurve) -> None:
        if module.played == 70:
            raise KeyError("killed")
        validate(module)

    with monkeypatch.context() as patch:
        patch.setattr(mujoco.ERLWithCurve, "validate", killed)
        with pytest.raises(KeyError, match="killed"):
            mujoco.measure(ARMS, task, settings, tmp_path / "killed")
    began = []
    monkeypatch.setattr(mujoco.ERLWithCurve, "on_train_start", lambda module: began.append(module.played))
    row = mujoco.measure(ARMS, task, settings, tmp_path / "killed")
    assert began == [60], "from the last validation on"
    assert {**row, "seconds": 0} == {**expected, "seconds": 0}


def test_a_configuration_may_take_fewer_gradient_steps(tmp_path: Path) -> None:
    settings = {"steps": 115, "every": 50, "episodes": 1, "compile": False, "matmul_precision": "highest"}
    arms = {"ERL": (LEARNER, {**SMALL, "model.gradient_steps": 3})}
    row = mujoco.measure(arms, Task("ERL: Pendulum-v1", 3), settings, tmp_path)
    assert row["gradient_steps"] == 3 * 3  # generations of 50 environment steps


def test_arms_differ_in_nothing_but_what_they_say() -> None:
    names = {
        "gamma",
        "tau",
        "actor_lr",
        "critic_lr",
        "noise",
        "noise_min",
        "max_grad_norm",
        "reward_scale",
        "accumulate",
    }
    for benchmark in BENCHMARKS.values():
        arms: dict[str, mujoco.Arm] = benchmark.measure.args[0]
        made = {name: make(arm, {}) for name, arm in arms.items()}
        alone = [name for name in made if name.endswith("alone")]
        for module, data in [made[name] for name in alone]:
            assert (module.population_size, module.operators, data.windows_per_generation) == (1, (), 0)
        swimmer = benchmark is BENCHMARKS["swimmer"]
        for same in (alone, [name for name in made if name not in alone]) if swimmer else (made,):
            compared = names - {"actor_lr"} if "shared" in same and swimmer else names
            settings = [{name: made[arm][0].hparams[name] for name in compared} for arm in same]
            assert all(each == settings[0] for each in settings)
        modules = [module for module, _ in made.values()]
        assert {module.hparams["gamma"] for module in modules} == {0.9999 if swimmer else 0.99}
        assert {module.hparams["accumulate"] for module in modules} == {1}
        assert {vars(module.learner)["saturation_penalty"] for module in modules} == {0.0}


def test_rows_of_another_configuration_are_refused() -> None:
    benchmark = BENCHMARKS["mujoco"]
    first, *rest = (benchmark.key(task, {}) for task in benchmark.tasks({**benchmark.settings, "seeds": 1}))
    assert first == rest[2]  # the same arm on another task
    assert first not in rest[:2]


def test_arms_and_tasks_can_be_chosen() -> None:
    benchmark = BENCHMARKS["mujoco"]
    tasks = benchmark.tasks({**benchmark.settings, "seeds": 2, "arms": ["shared"]})
    assert {task.case.split(": ")[0] for task in tasks} == {"shared"}
    assert len(tasks) == 8
    assert len(benchmark.tasks({**benchmark.settings, "seeds": 1, "tasks": ["Hopper-v5"]})) == 3
    with pytest.raises(UserError, match="--arms 'TD4': there is none; choose from TD3 alone, ERL, shared"):
        benchmark.tasks({**benchmark.settings, "arms": ["TD4"]})
    with pytest.raises(UserError, match="--tasks 'Ant-v4': there is none; choose from HalfCheetah-v5, Hopper-v5, Wa"):
        benchmark.tasks({**benchmark.settings, "tasks": ["Ant-v4"]})


def run(seed: int, *returns: float, every: int = 500_000) -> dict[str, Any]:
    steps = [every * (i + 1) for i in range(len(returns))]
    return {"seed": seed, "env_steps": steps, "fittest": list(returns), "champion": list(returns)}


def runs(returns: dict[str, list[float]]) -> dict[str, list[dict[str, Any]]]:
    return {task: [run(seed, 0.0, value) for seed, value in enumerate(values)] for task, values in returns.items()}


KNOWN = {
    "HalfCheetah-v5": [0.0, 9_700.0, 9_800.0, 9_900.0, 20_000.0],
    "Hopper-v5": [3_200.0] * 5,
    "Walker2d-v5": [0.0, 0.0, 0.0, 3_982.0, 3_982.0],
}


def test_means_of_known_rows_are_those_of_the_middle_runs() -> None:
    figures = {"runs": {f"TD3 alone: {task}": rows for task, rows in runs(KNOWN).items()}}
    lines = mujoco_tables.mujoco_table(figures).splitlines()
    assert lines[4].startswith("| HalfCheetah-v5 | 9,800 (")
    assert lines[5] == "| Hopper-v5 | 3,200 (3,200 to 3,200) |"
    assert lines[6].startswith("| Walker2d-v5 | 1,327 (")
    scores = np.concatenate([np.array(values) / mujoco_tables.PUBLISHED[task] for task, values in KNOWN.items()])
    expected = f"| all, of published TD3 after a million steps | {stats.trim_mean(scores, 0.25):.2f} ("
    assert lines[7].startswith(expected)
    assert lines[8] == "| the same over that of TD3 alone | 1 |"
    assert lines[-1] == "After 1,000,000 environment steps, 5 seeds."


def test_a_single_seed_has_no_interval() -> None:
    figures = {"runs": {f"TD3 alone: {task}": rows[1:2] for task, rows in runs(KNOWN).items()}}
    lines = mujoco_tables.mujoco_table(figures).splitlines()
    assert lines[4].endswith("| 9,700 |")
    assert lines[7].endswith("| 0.62 |")  # the mean of 9,700 / 10,201, 3,200 / 3,472 and 0: a quarter is no run


def test_arms_are_compared_with_the_first_over_all_tasks() -> None:
    twice = {task: [2 * value for value in values] for task, values in KNOWN.items()}
    arms = {"TD3 alone": KNOWN, "ERL": twice}
    figures = {"runs": {f"{arm}: {task}": rows for arm, known in arms.items() for task, rows in runs(known).items()}}
    lines = mujoco_tables.mujoco_table(figures).splitlines()
    assert lines[8].startswith("| the same over that of TD3 alone | 1 | 2.00 (")
    assert not any("mean over tasks" in line for line in lines), "of means near 0"
    above = {task: [value + 1000 for value in values] for task, values in KNOWN.items()}
    by_task = {task: [(1 + place) * value for value in values] for place, (task, values) in enumerate(above.items())}
    arms = {"TD3 alone": above, "ERL": by_task}
    figures = {"runs": {f"{arm}: {task}": rows for arm, known in arms.items() for task, rows in runs(known).items()}}
    line = mujoco_tables.mujoco_table(figures).splitlines()[9]
    found = re.fullmatch(
        r"\| mean over tasks of the ratio of mean returns to TD3 alone's \| 1 \| 2\.00 \(([\d.]+) to ([\d.]+)\) \|",
        line,
    )
    assert found is not None, "of 1, 2 and 3"
    assert 0.5 < float(found[1]) < 2 < float(found[2]) < 6


def test_arms_are_compared_by_the_seeds_that_all_have_on_all_tasks() -> None:
    def rows(seeds: range) -> list[dict[str, Any]]:
        return [run(seed, 0.0, 1000.0 * seed) for seed in seeds]

    figures = {
        "runs": {
            "TD3 alone: HalfCheetah-v5": rows(range(1, 6)),
            "ERL: HalfCheetah-v5": rows(range(1, 6)),  # with seeds more than elsewhere
            "TD3 alone: Hopper-v5": rows(range(1, 5)),
            "ERL: Hopper-v5": rows(range(2, 6)),
            "TD3 alone: Ant-v5": rows(range(1, 4)),
            "ERL: Ant-v5": rows(range(1, 3)),  # not complete
        }
    }
    found = mujoco_tables.compared(figures)
    assert [(arm, *tasks) for arm, tasks in found.items()] == [
        (arm, "HalfCheetah-v5", "Hopper-v5") for arm in ("TD3 alone", "ERL")
    ]
    assert {row["seed"] for tasks in found.values() for each in tasks.values() for row in each} == {2, 3, 4}
    said = "3 seeds. Ant-v5 is not complete: TD3 alone 1,000, 2,000, 3,000; ERL 1,000, 2,000."
    assert mujoco_tables.mujoco_table(figures).endswith(said)


def test_of_few_seeds_the_tasks_with_the_most_are_compared() -> None:
    few = runs({task: values[:2] for task, values in KNOWN.items()})
    few["Hopper-v5"] = few["Hopper-v5"][:1]
    figures = {"runs": {f"TD3 alone: {task}": rows for task, rows in runs(KNOWN).items()}}
    figures["runs"] |= {f"ERL: {task}": rows for task, rows in few.items()}
    lines = mujoco_tables.mujoco_table(figures).splitlines()
    assert not [line for line in lines if "| Hopper" in line], "which has fewer seeds than other tasks"
    assert lines[4].startswith("| HalfCheetah-v5 | 4,850 (")
    assert lines[5].startswith("| Walker2d-v5 | 0 (")
    assert lines[7].startswith("| the same over that of TD3 alone | 1 | ")
    assert lines[-1].startswith("After 1,000,000 environment steps, 2 seeds. Hopper-v5 is not complete: TD3 alone 3,2")


def test_parity_needs_two_tasks_that_are_not_below_published_ones() -> None:
    def lines(returns: dict[str, list[float]]) -> list[str]:
        return mujoco_tables.parity_table({"runs": {f"TD3 alone: {t}": r for t, r in runs(returns).items()}}).split(
            "\n"
        )

    each = "3,200, 3,200, 3,200, 3,200, 3,200"
    known = lines(KNOWN)
    assert known[5] == f"| Hopper-v5 | 3,200 (3,200 to 3,200) | {each} | {each} | 3,472 | 3,100 to 3,600 | within |"
    assert [line.split(" | ")[-1] for line in known[4:7]] == ["within |", "within |", "below |"]
    assert known[-1] == "After 1,000,000 environment steps, 5 seeds: on a par on 2 of 3 tasks, parity."
    above, below = lines({**KNOWN, "Hopper-v5": [3_700.0] * 5}), lines({**KNOWN, "Hopper-v5": [3_000.0] * 5})
    assert above[5].endswith("| above |")
    assert above[-1].endswith("on 2 of 3 tasks, parity.")
    assert below[-1].endswith("on 1 of 3 tasks, no parity yet.")
    few = lines({"Hopper-v5": [3_200.0] * 2})
    assert few[-1].endswith("2 seeds: no verdict below 3 seeds.")
    noisy = mujoco_tables.parity_table({"runs": {"TD3 alone: Hopper-v5": [run(1, 3_400.0, 1_400.0)]}})
    assert "| Hopper-v5 | 1,400 | 1,400 | 3,400 | 3,472 |" in noisy


def test_curves_are_drawn_at_common_steps(tmp_path: Path) -> None:
    rows = [run(1, 0.0, 10.0), {**run(2, 0.0, 10.0), "env_steps": [0, 1_000_000]}]
    steps, curves = mujoco_tables.aligned(rows)
    assert steps.tolist() == [500_000, 1_000_000]
    assert curves.tolist() == [[0.0, 10.0], [5.0, 10.0]]
    figures = {"runs": {f"{arm}: {task}": rows for arm in ("TD3 alone", "ERL") for task in mujoco_tables.PUBLISHED}}
    mujoco_tables.draw(tmp_path / "drawn.png", figures)
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_the_goal_is_reached_when_the_fittest_first_returns_as_much() -> None:
    rows = [{**run(1, 290.0, 320.04), "champion": [310.0, 330.0]}, run(2, 7.0)]
    lines = mujoco_tables.swimmer_table({"runs": {"ERL: Swimmer-v5": rows}}).splitlines()
    assert lines[0].endswith("| the fittest at 300 after |")
    assert lines[2:4] == ["| ERL | 1 | 320.0 | 330.0 | 1,000,000 | 1,000,000 |", "| ERL | 2 | 7.0 | 7.0 | 500,000 |  |"]
