"""Control tasks: configurations trained to their end, and plain DDPG against Stable-Baselines3's on Pendulum.

Both sides have the same networks, batches, steps and threads. The first half of the steps is random and without
training; after the second half both are tested in the same episodes without noise.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, median

import gymnasium
import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import ROOT, Benchmark, Figures, Row, Settings, Task, csv_rows, rows_by_case, train
from benchmarks.pages import Block, Page, spread, table
from benchmarks.runs import eigen2
from eigen2.control.datamodule import ControlDataModule
from eigen2.control.environment import ControlEnvironment
from eigen2.control.networks import MLPActor, MLPCritic
from eigen2.core.environment import play
from eigen2.erl import learners
from eigen2.erl.module import ERLModule

PENDULUM, EPISODE = "Pendulum-v1", 200
HIDDEN = 400, 300
DDPG = {"gamma": 0.98, "tau": 0.005, "batch": 256, "lr": 1e-3, "noise": 0.1, "replay": 200_000}
"""Settings of the RL Baselines3 Zoo for DDPG on Pendulum-v1."""
TEST_EPISODES = 100


def to_the_end(config: str, goal: float, seeds: int) -> Benchmark:
    """Return the benchmark that trains a configuration to its end with `seeds` seeds; `goal` is a fitness."""
    settings = {"goal": goal, "seeds": seeds, "words": []}
    smallest = {"seeds": 1, "words": ["--trainer.max_epochs=2"]}
    return Benchmark(
        fit_seed, lambda options: [Task(config, seed) for seed in range(1, options["seeds"] + 1)], settings, smallest
    )


def fit_seed(task: Task, settings: Settings, folder: Path) -> Row:
    """Train a seed in lightning_logs, or resume it; return its curve and when the champion reached the goal."""
    runs = folder if settings["words"] else ROOT / "lightning_logs" / f"{Path(task.case).stem}-seeds"
    run = runs / str(task.seed)
    options = {"seed_everything": task.seed, "trainer.default_root_dir": run, "ckpt_path": "last"}
    eigen2("fit", task.case, options, *settings["words"])
    return curve(run / "metrics.csv", settings["goal"])


def curve(metrics: Path, goal: float) -> Row:
    """Return environment steps and champion's validation by generation, and the steps to the goal: None if not reached.

    Values are rounded to one decimal, and None if missing.
    """
    columns = {"env_steps": "replay/added", "champion": "champion/validation_fitness"}
    series = {name: [_number(row[column]) for row in csv_rows(metrics)] for name, column in columns.items()}
    pairs = zip(series["env_steps"], series["champion"], strict=True)
    reached = next((step for step, value in pairs if value is not None and value >= goal), None)
    return {**series, "goal": goal, "goal_at_env_steps": reached}


def _number(text: str) -> float | None:
    value = float(text or "nan")
    return round(value, 1) if math.isfinite(value) else None


def mean_return(act: Callable[[dict[str, Tensor]], Tensor]) -> float:
    """Return the mean return of a policy in the test episodes."""
    env = ControlEnvironment(PENDULUM, 1, TEST_EPISODES)
    return float(play(env, act, {"seeds": list(range(10**6, 10**6 + TEST_EPISODES))}).mean())


def eigen2_run(seed: int, steps: int, folder: Path) -> dict[str, float]:
    """Train an agent with eigen2; return its mean return in the test, and environment steps per second of training."""
    module = ERLModule(
        population_size=1,
        evolution=None,
        gradient_steps=EPISODE,
        accumulate=1,
        gamma=DDPG["gamma"],
        tau=DDPG["tau"],
        actor_lr=DDPG["lr"],
        critic_lr=DDPG["lr"],
        max_grad_norm=float("inf"),
        reward_scale=1.0,
        noise=DDPG["noise"],
        noise_decay=1.0,
        noise_min=DDPG["noise"],
        random_warmup=True,
        validate_every=steps // EPISODE,  # Stable-Baselines3 does not validate
        learner=learners.DDPG(),
        actor=partial(MLPActor, hidden=HIDDEN),
        critic=partial(MLPCritic, hidden=HIDDEN),
    )
    data = ControlDataModule(
        PENDULUM,
        windows_per_generation=0,
        exploration_windows=1,
        validation_windows=1,
        replay_capacity=int(DDPG["replay"]),
        replay_min_size=steps // 2 + 1,  # a generation trains after its episode, Stable-Baselines3 during it
        batch_size=int(DDPG["batch"]),
    )
    seconds = train(module, data, seed, steps // EPISODE, folder)
    with torch.inference_mode():
        mean = mean_return(lambda observation: module.population.act({"state": observation["state"]}))
    return {"return": mean, "steps_per_s": steps / seconds}


def sb3_run(seed: int, steps: int, folder: Path) -> dict[str, float]:
    """Train an agent with Stable-Baselines3; return the same measures."""
    from stable_baselines3 import DDPG as Agent
    from stable_baselines3.common.noise import NormalActionNoise

    env = gymnasium.make(PENDULUM)
    shape = env.action_space.shape
    assert shape is not None
    agent = Agent(
        "MlpPolicy",
        env,
        learning_rate=DDPG["lr"],
        buffer_size=int(DDPG["replay"]),
        learning_starts=steps // 2,
        batch_size=int(DDPG["batch"]),
        tau=DDPG["tau"],
        gamma=DDPG["gamma"],
        action_noise=NormalActionNoise(np.zeros(shape), np.full(shape, DDPG["noise"])),
        policy_kwargs={"net_arch": list(HIDDEN)},
        seed=seed,
        device="cpu",
    )
    start = time.perf_counter()
    agent.learn(steps)
    seconds = time.perf_counter() - start

    def act(observation: dict[str, Tensor]) -> Tensor:
        action, _ = agent.predict(observation["state"][0].numpy(), deterministic=True)
        low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
        return torch.from_numpy(2 * (action - low) / (high - low) - 1)[None]

    return {"return": mean_return(act), "steps_per_s": steps / seconds}


SIDES = {"eigen2": eigen2_run, "Stable-Baselines3": sb3_run}


def side_tasks(settings: Settings) -> list[Task]:
    """Return a run of each side for every seed, with alternating order."""
    seeds = range(1, settings["seeds"] + 1)
    return [Task(side, seed) for seed in seeds for side in list(SIDES)[:: 1 if seed % 2 else -1]]


def fit_side(task: Task, settings: Settings, folder: Path) -> Row:
    """Train one side with one seed."""
    return {**SIDES[task.case](task.seed, settings["steps"], folder), "steps": settings["steps"]}


def side_figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the runs of both sides, and the median ratio of speeds over seeds."""
    pairs = [[measured[Task(side, seed)]["steps_per_s"] for side in SIDES] for seed in {task.seed for task in measured}]
    ratio = median(ours / theirs for ours, theirs in pairs)
    return {"settings": {**DDPG, "hidden": HIDDEN}, **rows_by_case(measured), "ratio": ratio}


def goal_table(figures: Figures) -> str:
    """Return each seed's final champion, and the environment steps until it reached the goal."""
    (runs,) = figures["runs"].values()
    columns = {"seed": "{seed}", "champion's validation fitness at the end": "{champion:,.1f}"}
    columns |= {"environment steps": "{env_steps:,.0f}"}
    columns |= {f"{runs[0]['goal']:,.0f} reached after": "{goal_at_env_steps:,.0f}"}
    return table(columns, [{**run, "champion": run["champion"][-1], "env_steps": run["env_steps"][-1]} for run in runs])


def pendulum_table(figures: Figures) -> str:
    """Return mean returns and speeds of both sides, and the ratio of speeds."""
    columns = {"": "{side}", "mean return": "{mean:.1f}", "each seed": "{each}"}
    columns["steps a second"] = "{speed:.1f}"
    rows = []
    for side, runs in figures["runs"].items():
        returns = [run["return"] for run in runs]
        speed = median(run["steps_per_s"] for run in runs)
        rows.append({"side": side, "mean": fmean(returns), "each": spread(returns, ".0f"), "speed": speed})
    return f"{table(columns, rows)}\n| ours over theirs, median of pairs |  |  | {figures['ratio']:.2f} |"


STEPS = {"seeds": 5, "steps": 20_000}
BENCHMARKS = {
    "control": Benchmark(fit_side, side_tasks, STEPS, {"seeds": 1, "steps": 800}, side_figures, fresh=True),
    "swimmer": to_the_end("configs/control_swimmer.yaml", goal=300.0, seeds=3),
    "halfcheetah": to_the_end("configs/control_halfcheetah.yaml", goal=8000.0, seeds=1),
}
PAGE = Page(
    {
        "swimmer": Block(goal_table, ("swimmer",)),
        "halfcheetah": Block(goal_table, ("halfcheetah",)),
        "pendulum": Block(pendulum_table, ("control",)),
    }
)
