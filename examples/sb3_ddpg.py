"""Trains Stable-Baselines3's DDPG on the market; prints its mean return on validation days before and after."""

import argparse

import gymnasium
import numpy as np
from stable_baselines3 import DDPG
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise


def main() -> None:
    """Train on windows of training days, evaluate on windows of validation days."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000, help="days to train for")
    parser.add_argument("--path", help="prices, Parquet or CSV; without it, a synthetic market")
    arguments = parser.parse_args()
    market = {"path": arguments.path} if arguments.path else {"synthetic": {"columns": 5, "signal": 0.5}}
    market |= {"context_days": 64, "trading_days": 40, "rules": {"max_coefficient": 2.0}}

    env = gymnasium.make("eigen2.registration:eigen2/Trading-v0", **market)
    unseen = Monitor(gymnasium.make("eigen2/Trading-v0", split="validation", **market))
    noise = NormalActionNoise(np.zeros(env.action_space.shape), np.full(env.action_space.shape, 0.3))
    settings = {"learning_rate": 1e-4, "learning_starts": 500, "policy_kwargs": {"net_arch": [64, 64]}}
    model = DDPG("MlpPolicy", env, action_noise=noise, seed=0, **settings)

    def report(when: str, windows: int = 20) -> None:
        unseen.reset(seed=0)  # the same windows each time
        mean, deviation = evaluate_policy(model, unseen, n_eval_episodes=windows)
        print(f"mean return {when}: {mean:.2f} (standard error {deviation / windows**0.5:.2f})")

    report("before training")
    model.learn(arguments.steps)
    report("after training")


if __name__ == "__main__":
    main()
