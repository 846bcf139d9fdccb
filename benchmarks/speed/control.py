"""Plain DDPG against Stable-Baselines3's on a control task: `python -m benchmarks.speed.control --out FILE.json`.

The same networks, batches, steps and threads; for every seed one run of each, one after the other. The first half of
the steps is played at random, without training. Both are then played without noise in the same hundred episodes.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import Tensor

from benchmarks.learning.silent import silence, silent_trainer
from benchmarks.machine import describe_machine
from eigen2.control.datamodule import ControlDataModule
from eigen2.control.environment import ControlEnvironment
from eigen2.control.networks import MLPActor, MLPCritic
from eigen2.core.environment import play
from eigen2.erl.module import ERLModule

ENV_ID = "Pendulum-v1"
EPISODE = 200
HIDDEN = 400, 300
SETTINGS = {"gamma": 0.98, "tau": 0.005, "batch": 256, "lr": 1e-3, "noise": 0.1, "replay": 200_000}
"""Those of the RL Baselines3 Zoo for DDPG on Pendulum-v1."""
EPISODES = 100


def mean_return(act: Callable[[dict[str, Tensor]], Tensor]) -> float:
    """Of a policy without noise, over the episodes."""
    env = ControlEnvironment(ENV_ID, 1, EPISODES)
    return float(play(env, act, {"seeds": list(range(10**6, 10**6 + EPISODES))}).mean())


class Stopwatch:
    """Environment steps a second of training, by the wall's clock and by the processor's: others may use it too."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def speeds(self, steps: int) -> dict[str, float]:
        """Since it was made."""
        wall, processor = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        return {"steps_per_s": steps / wall, "steps_per_cpu_s": steps / processor}


def eigen2_run(seed: int, steps: int) -> dict[str, float]:
    """Mean return after training, and speeds of training."""
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
        trainer = silent_trainer(steps // EPISODE, folder)
        watch = Stopwatch()
        trainer.fit(module, datamodule=data)
        speeds = watch.speeds(steps)
    with torch.inference_mode():
        reached = mean_return(lambda seen: module.population.act({"state": seen["state"]}))
    return {"return": reached, **speeds}


def sb3_run(seed: int, steps: int) -> dict[str, float]:
    """The same for Stable-Baselines3."""
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
    watch = Stopwatch()
    agent.learn(steps)
    speeds = watch.speeds(steps)

    def act(seen: dict[str, Tensor]) -> Tensor:
        action, _ = agent.predict(seen["state"][0].numpy(), deterministic=True)
        low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
        return torch.from_numpy(2 * (action - low) / (high - low) - 1)[None]

    return {"return": mean_return(act), **speeds}


def main() -> None:
    """Run both and say how they compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each")
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps of a run, a multiple of 400")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    silence()
    sides = {"eigen2": eigen2_run, "Stable-Baselines3": sb3_run}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for seed in range(1, args.seeds + 1):
        for name in list(sides)[:: 1 if seed % 2 else -1]:  # neither is always first
            run = sides[name](seed, args.steps)
            found[name].append(run)
            print(
                f"seed {seed}  {name:<18} {'  '.join(f'{key} {value:.1f}' for key, value in run.items())}", flush=True
            )
    for name, runs in found.items():
        print(f"{name:<18} return {np.mean([run['return'] for run in runs]):8.1f}")
    ratios = {}
    for speed in ("steps_per_s", "steps_per_cpu_s"):
        pairs = zip(*found.values(), strict=True)
        ratios[speed] = float(np.median([ours[speed] / theirs[speed] for ours, theirs in pairs]))
        print(f"{speed}, eigen2 over Stable-Baselines3, median of seeds: {ratios[speed]:.2f}")
    if args.out is not None:
        settings = {
            "env_id": ENV_ID,
            "steps": args.steps,
            "threads": args.threads,
            "settings": {**SETTINGS, "hidden": HIDDEN},
        }
        args.out.write_text(
            json.dumps({"machine": describe_machine(), **settings, "runs": found, "ratios": ratios}, indent=1)
        )


if __name__ == "__main__":
    main()
