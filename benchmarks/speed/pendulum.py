"""Plain DDPG against Stable-Baselines3's on Pendulum: the same networks, batches, steps and threads.

The first half of the steps is played at random, without training; then both play the same episodes without noise.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task, quiet_trainer, rows_by_case
from eigen2.control.datamodule import ControlDataModule
from eigen2.control.environment import ControlEnvironment
from eigen2.control.networks import MLPActor, MLPCritic
from eigen2.core.environment import play
from eigen2.erl.module import ERLModule

ENV_ID = "Pendulum-v1"
EPISODE = 200
HIDDEN = 400, 300
SETTINGS = {"gamma": 0.98, "tau": 0.005, "batch": 256, "lr": 1e-3, "noise": 0.1, "replay": 200_000}
"""Settings of the RL Baselines3 Zoo for DDPG on Pendulum-v1."""
EPISODES = 100
SPEEDS = ("steps_per_s", "steps_per_cpu_s")


def mean_return(act: Callable[[dict[str, Tensor]], Tensor]) -> float:
    """Return the mean return of a policy without noise."""
    env = ControlEnvironment(ENV_ID, 1, EPISODE)
    return float(play(env, act, {"seeds": list(range(10**6, 10**6 + EPISODES))}).mean())


def speeds(train: Callable[[], object], steps: int) -> dict[str, float]:
    """Train; return environment steps a second by the wall's clock and by the processor's, which others may use too."""
    begun = time.perf_counter(), time.process_time()
    train()
    seconds = time.perf_counter() - begun[0], time.process_time() - begun[1]
    return {name: steps / each for name, each in zip(SPEEDS, seconds, strict=True)}


def eigen2_run(seed: int, steps: int) -> dict[str, float]:
    """Return the mean return of eigen2's agent after training, and the speeds of training."""
    os.environ["PL_GLOBAL_SEED"] = str(seed)
    module = ERLModule(
        population_size=1,
        evolution=None,
        gradient_steps=EPISODE,
        accumulate=1,
        gamma=SETTINGS["gamma"],
        tau=SETTINGS["tau"],
        actor_lr=SETTINGS["lr"],
        critic_lr=SETTINGS["lr"],
        max_grad_norm=float("inf"),
        reward_scale=1.0,
        noise=SETTINGS["noise"],
        noise_decay=1.0,
        noise_min=SETTINGS["noise"],
        random_warmup=True,
        validate_every=steps // EPISODE,  # the other side has none
        actor=partial(MLPActor, hidden=HIDDEN),
        critic=partial(MLPCritic, hidden=HIDDEN),
    )
    data = ControlDataModule(
        ENV_ID,
        windows_per_generation=0,
        exploration_windows=1,
        validation_windows=1,
        replay_capacity=int(SETTINGS["replay"]),
        replay_min_size=steps // 2 + 1,  # a generation trains after its episode, the other side in it
        batch_size=int(SETTINGS["batch"]),
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = quiet_trainer(steps // EPISODE, folder)
        trained = speeds(lambda: trainer.fit(module, datamodule=data), steps)
    with torch.inference_mode():
        reached = mean_return(lambda seen: module.population.act({"state": seen["state"]}))
    return {"return": reached, **trained}


def sb3_run(seed: int, steps: int) -> dict[str, float]:
    """Return the same of Stable-Baselines3's."""
    from stable_baselines3 import DDPG
    from stable_baselines3.common.noise import NormalActionNoise

    env = gymnasium.make(ENV_ID)
    shape = env.action_space.shape
    assert shape is not None
    agent = DDPG(
        "MlpPolicy",
        env,
        learning_rate=SETTINGS["lr"],
        buffer_size=int(SETTINGS["replay"]),
        learning_starts=steps // 2,
        batch_size=int(SETTINGS["batch"]),
        tau=SETTINGS["tau"],
        gamma=SETTINGS["gamma"],
        action_noise=NormalActionNoise(np.zeros(shape), np.full(shape, SETTINGS["noise"])),
        policy_kwargs={"net_arch": list(HIDDEN)},
        seed=seed,
        device="cpu",
    )
    trained = speeds(lambda: agent.learn(steps), steps)

    def act(seen: dict[str, Tensor]) -> Tensor:
        action, _ = agent.predict(seen["state"][0].numpy(), deterministic=True)
        low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
        return torch.from_numpy(2 * (action - low) / (high - low) - 1)[None]

    return {"return": mean_return(act), **trained}


SIDES = {"eigen2": eigen2_run, "Stable-Baselines3": sb3_run}


def tasks(settings: Settings) -> list[Task]:
    """Return a run of each side for every seed; neither side is always first."""
    seeds = range(1, settings["seeds"] + 1)
    return [Task(side, seed) for seed in seeds for side in list(SIDES)[:: 1 if seed % 2 else -1]]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Train one side with one seed."""
    return {**SIDES[task.case](task.seed, settings["steps"]), "steps": settings["steps"]}


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the runs of both sides, and the median ratio of their speeds."""
    runs = rows_by_case(measured)["runs"]
    pairs = [[measured[Task(side, seed)] for side in SIDES] for seed in {task.seed for task in measured}]
    ratios = {name: float(np.median([ours[name] / theirs[name] for ours, theirs in pairs])) for name in SPEEDS}
    return {"env_id": ENV_ID, "settings": {**SETTINGS, "hidden": HIDDEN}, "runs": runs, "ratios": ratios}


BENCHMARKS = {
    "control": Benchmark(measure, tasks, {"seeds": 5, "steps": 20_000}, {"seeds": 1, "steps": 800}, figures, fresh=True)
}
