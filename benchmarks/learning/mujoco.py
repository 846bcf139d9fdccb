"""TD3 and DDPG alone and ERL on MuJoCo tasks: the same environment steps, gradient steps and test episodes.

An arm is a configuration of `fit` and what it changes of it. Where all are by that of HalfCheetah, they take one
gradient step per environment step in total, at the ends of episodes. Every so many steps the agent that was fittest in
training plays the validation windows without noise; these steps do not count, and nothing is learned from them.
"""

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule, Trainer

from benchmarks.harness import ROOT, Benchmark, Row, Settings, Task, train
from eigen2.control.datamodule import ControlDataModule
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError
from eigen2.runtime.checkpoint import GenerationCheckpoint
from eigen2.runtime.yaml_files import read_yaml

Changes = Mapping[str, Any]
Arm = tuple[str, Changes]
"""A configuration of `fit`, and what an arm changes of it by full key."""

SHARED: Changes = {"model.representation": "shared"}
LEARNER, LINEAR = "configs/control_halfcheetah.yaml", "configs/control_swimmer.yaml"
ALONE: Changes = {
    "model.population_size": 1,
    "model.evolution": None,
    "data.windows_per_generation": 0,  # all episodes are exploration
}
DDPG: Changes = {"model.learner": {"class_path": "eigen2.erl.learners.DDPG", "init_args": {"saturation_penalty": 0.0}}}
LONG: Changes = {
    "model.gamma": 0.9999,
    "model.actor_lr": 1e-3,
    "model.critic_lr": 1e-3,
    "data.replay_min_size": 10_000,
}
"""Settings of the RL Baselines3 Zoo for TD3 on Swimmer, where the default discount looks ahead too little."""

LARGE_MUTATIONS: Changes = {
    "model.evolution": [
        {"class_path": "eigen2.erl.evolution.Elitism", "init_args": {"share": 0.2}},
        {"class_path": "eigen2.erl.evolution.Injection"},
        {"class_path": "eigen2.erl.evolution.MagnitudeMutation", "init_args": {"fraction": 1.0, "scale": 1.0}},
    ]
}
WITHOUT_GRADIENTS: Changes = {
    "model.learners": None,
    "model.gradient_steps": 0,
    "model.evolution": [
        {"class_path": "eigen2.erl.evolution.Elitism", "init_args": {"share": 0.2}},
        {
            "class_path": "eigen2.erl.evolution.MagnitudeMutation",
            "init_args": {"share": 0.4, "fraction": 1.0, "scale": 1.0},
        },
        {"class_path": "eigen2.erl.evolution.FineMutation"},
    ],
    "data.exploration_windows": 0,
}
SMALL_TRUNK: Changes = {  # which learns slowly: heads act by the observation beside its features
    "model.actor": {"class_path": "eigen2.control.networks.MLPActor", "init_args": {"hidden": [8], "skip": True}},
    "model.actor_lr": 3e-5,
    "model.evolution": [
        {"class_path": "eigen2.erl.evolution.Elitism", "init_args": {"share": 0.2}},
        {"class_path": "eigen2.erl.evolution.Injection"},
        {
            "class_path": "eigen2.erl.evolution.MagnitudeMutation",
            "init_args": {"share": 0.6, "fraction": 1.0, "scale": 1.0},
        },
        {"class_path": "eigen2.erl.evolution.FineMutation"},
    ],
}


class ERLWithCurve(ERLModule):
    """ERL that counts environment steps: it validates once in `every` of them, and ends after `steps`.

    It keeps a `curve` of environment steps, the return of the fittest, and that of the champion.
    """

    def limit(self, steps: int, every: int) -> None:
        """End training after the generation that reaches `steps` environment steps."""
        self.steps, self.every = steps, every
        self.played = self.trained = 0  # environment steps, and gradient steps of all learners
        self.curve: list[Sequence[float]] = []
        self.just_validated, self._began = False, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Return the seconds of training, those before a resume included."""
        return time.perf_counter() - self._began

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the counts and the curve."""
        super().on_save_checkpoint(checkpoint)
        counts = {"played": self.played, "trained": self.trained, "seconds": self.seconds}
        checkpoint["benchmark"] = {**counts, "curve": [[*point] for point in self.curve]}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from the counts and the curve."""
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint["benchmark"]
        self.played, self.trained, self.curve = saved["played"], saved["trained"], saved["curve"]
        self._began = time.perf_counter() - saved["seconds"]

    def validate(self) -> None:
        """Count the generation's steps, and validate if a multiple of `every` was passed."""
        before, self.played = self.played, self.data.buffer.added
        if self.state.slots is not None:
            batches, learners = self.state.slots.shape[:2]
            self.trained += batches // self.batches_per_optimizer_step * learners
        self.just_validated = self.played // self.every > before // self.every
        if self.just_validated:
            super().validate()
            fittest = float(self.state.validation.nanmean())  # no other agent was validated
            champion = float(self.population.champion_fitness)
            self.curve.append((self.played, round(fittest, 1), round(champion, 1)))
        self.trainer.should_stop = self.played >= self.steps


class ValidatedCheckpoint(GenerationCheckpoint):
    """Saves the last checkpoint after the generations that were validated alone: it holds the whole replay buffer."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the checkpoint."""
        assert isinstance(pl_module, ERLWithCurve)
        if pl_module.just_validated:
            super().on_train_epoch_end(trainer, pl_module)


def settings_of(arm: Arm, changes: Changes) -> dict[str, dict[str, Any]]:
    """Return the settings of model and data of an arm with further changes."""
    config, own = arm
    settings = {group: read_yaml(ROOT / config)[group] for group in ("model", "data")}
    for key, value in deepcopy({**own, **changes}).items():  # jsonargparse adds to what it parses
        group, name = key.split(".")
        settings[group][name] = value
    return settings


def make(arm: Arm, changes: Changes) -> tuple[ERLWithCurve, ControlDataModule]:
    """Return module and data module of an arm with further changes."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(ERLWithCurve, "model")
    parser.add_class_arguments(ControlDataModule, "data")
    made = parser.instantiate(parser.parse_object(settings_of(arm, changes)))
    return made.model, made.data


def measure(arms: Mapping[str, Arm], task: Task, settings: Settings, folder: Path) -> Row:
    """Train an arm with a seed, or go on with that; return its learning curve, gradient steps and seconds."""
    torch.set_float32_matmul_precision(settings["matmul_precision"])
    arm, env_id = task.case.split(": ")
    test = {"model.validate_every": 1, "data.validation_windows": settings["episodes"]}
    test["model.compile"] = settings["compile"]
    module, data = make(arms[arm], {"data.env_id": env_id, **test})
    module.limit(settings["steps"], settings["every"])
    train(module, data, task.seed, -1, folder, [ValidatedCheckpoint(keep=1)])
    if module.played < settings["steps"]:
        raise SystemExit(f"training stopped after {module.played} of {settings['steps']} environment steps: no row")
    curve = dict(zip(("env_steps", "fittest", "champion"), zip(*module.curve, strict=True), strict=True))
    return {**curve, "gradient_steps": module.trained, "seconds": round(module.seconds, 1)}


def benchmark(
    env_ids: Sequence[str], arms: Mapping[str, Arm], steps: int, every: int, episodes: int, seeds: int
) -> Benchmark:
    """Return the benchmark of arms on all tasks, seed by seed, so that figures of few seeds come first."""

    def tasks(settings: Settings) -> list[Task]:
        for option, known in (("arms", arms), ("tasks", env_ids)):
            if unknown := [name for name in settings[option] if name not in known]:
                raise UserError(f"--{option} {unknown[0]!r}: there is none; choose from {', '.join(known)}")
        if settings["steps"] < settings["every"]:
            raise UserError(f"--steps is {settings['steps']}: give at least --every, {settings['every']}")
        cases = [f"{arm}: {env_id}" for env_id in settings["tasks"] for arm in settings["arms"]]
        return [Task(case, seed) for seed in range(1, settings["seeds"] + 1) for case in cases]

    def key(task: Task, settings: Settings) -> object:
        return settings_of(arms[task.case.split(": ")[0]], {})

    return Benchmark(
        partial(measure, arms),
        tasks,
        {
            **{"steps": steps, "every": every, "episodes": episodes},
            **{"seeds": seeds, "arms": [*arms], "tasks": [*env_ids]},
            **{"compile": True, "matmul_precision": "medium"},  # products in bfloat16 where the processor has it
        },
        {"steps": 2000, "every": 1000, "episodes": 1, "seeds": 1, "compile": False},
        key=key,
        uneven=True,
        resumes=True,
    )


LOCOMOTION = "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"
TD3_ALONE: Arm = (LEARNER, ALONE)

BENCHMARKS = {
    "mujoco": benchmark(
        (*LOCOMOTION, "Ant-v5"),
        {"TD3 alone": TD3_ALONE, "ERL": (LEARNER, {}), "shared": (LEARNER, SHARED)},
        steps=300_000,
        every=10_000,
        episodes=10,
        seeds=3,
    ),
    "parity": benchmark(LOCOMOTION, {"TD3 alone": TD3_ALONE}, steps=1_000_000, every=20_000, episodes=10, seeds=1),
    "swimmer": benchmark(
        ("Swimmer-v5",),
        {
            "ERL": (LINEAR, {}),
            "ERL, large mutations": (LINEAR, LARGE_MUTATIONS),
            "ERL without gradients": (LINEAR, WITHOUT_GRADIENTS),
            "shared": (LINEAR, {**SHARED, **SMALL_TRUNK}),
            "TD3 alone": (LEARNER, {**ALONE, **LONG}),
            "DDPG alone": (LEARNER, {**ALONE, **LONG, **DDPG}),
        },
        steps=900_000,
        every=60_000,
        episodes=5,
        seeds=5,
    ),
}
