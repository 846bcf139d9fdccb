"""DDPG and TD3 of one agent against Stable-Baselines3's.

Both sides have the same networks, batches, steps and threads. The first steps are random and without training; at the
end both are tested in the same episodes without noise.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

import gymnasium
import numpy as np
import torch
from lightning.pytorch.profilers import SimpleProfiler
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task, rows_by_case, train
from benchmarks.learning.mujoco_tables import draw, mujoco_table, parity_table, swimmer_table
from benchmarks.pages import Block, Page, machines, spread, table
from benchmarks.speed.timing import median_seconds
from eigen2.control.datamodule import ControlDataModule
from eigen2.control.environment import ControlEnvironment
from eigen2.control.networks import MLPActor, MLPCritic
from eigen2.core.environment import play
from eigen2.erl import learners
from eigen2.erl.module import ERLModule
from eigen2.erl.state import SLOTS, make_batch
from eigen2.errors import UserError


@dataclass(frozen=True)
class Duel:
    """A task on which one agent of eigen2 and one of Stable-Baselines3 train with the same settings."""

    env_id: str
    episode: int  # steps of an episode
    learner: str  # name of the algorithm in both libraries
    hidden: tuple[int, ...]
    gamma: float
    tau: float = 0.005
    batch: int = 256
    lr: float = 1e-3
    noise: float = 0.1
    replay: int = 200_000
    random_steps: int = 10_000  # the first ones, without training; at most half of all
    test_episodes: int = 100
    compile: bool = False
    matmul_precision: str = "highest"  # of float32 products, for both


PENDULUM = Duel("Pendulum-v1", 200, "DDPG", (400, 300), gamma=0.98)
"""Settings of the RL Baselines3 Zoo for DDPG on Pendulum-v1."""
HALFCHEETAH = Duel("HalfCheetah-v5", 1000, "TD3", (256, 256), gamma=0.99, test_episodes=10, compile=True)
"""Those for TD3 on HalfCheetah, with smaller networks."""
ROUNDED = replace(HALFCHEETAH, matmul_precision="medium")
"""The same with factors of products rounded to bfloat16, where the processor multiplies these faster."""
SIDE = 256  # rows and columns of the matrices whose product measures the machine's rate: a hidden layer on a batch


def mean_return(duel: Duel, act: Callable[[dict[str, Tensor]], Tensor]) -> float:
    """Return the mean return of a policy in the test episodes."""
    env = ControlEnvironment(duel.env_id, 1, duel.test_episodes)
    return float(play(env, act, {"seeds": list(range(10**6, 10**6 + duel.test_episodes))}).mean())


def eigen2_run(duel: Duel, seed: int, steps: int, folder: Path) -> Row:
    """Train an agent with eigen2; return its mean return in the test, its times and where they go.

    What is compiled is compiled anew, as in a user's first run.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=folder)
    module = ERLModule(
        population_size=1,
        evolution=None,
        gradient_steps=duel.episode,
        accumulate=1,
        gamma=duel.gamma,
        tau=duel.tau,
        actor_lr=duel.lr,
        critic_lr=duel.lr,
        max_grad_norm=float("inf"),
        reward_scale=1.0,
        noise=duel.noise,
        noise_decay=1.0,
        noise_min=duel.noise,
        random_warmup=True,
        validate_every=steps // duel.episode,  # a champion at the end; Stable-Baselines3 does not validate
        learner=getattr(learners, duel.learner)(saturation_penalty=0.0),
        compile=duel.compile,
        actor=partial(MLPActor, hidden=duel.hidden),
        critic=partial(MLPCritic, hidden=duel.hidden),
    )
    data = ControlDataModule(
        duel.env_id,
        windows_per_generation=0,
        exploration_windows=1,
        validation_windows=1,
        replay_capacity=duel.replay,
        replay_min_size=min(duel.random_steps, steps // 2)
        + 1,  # a generation trains after its episode, Stable-Baselines3 during it
        batch_size=duel.batch,
    )
    profiler, cpu = SimpleProfiler(), cpu_seconds()
    seconds = train(module, data, seed, steps // duel.episode, folder, profiler=profiler)
    times = {"steps_per_s": steps / seconds, "cpu_ms": 1e3 * (cpu_seconds() - cpu) / steps}
    parts = parts_of(profiler.recorded_durations, duel.episode, data.training_steps) | matrix_products(module, data)
    with torch.inference_mode():
        mean = mean_return(duel, lambda observation: module.population.act({"state": observation["state"]}))
    return {"return": mean, **times, "parts": parts}


def cpu_seconds() -> float:
    """Return the seconds of processor that this process has used, and the compiler and others that it waited for."""
    return sum(os.times()[:4])


def parts_of(durations: Mapping[str, list[float]], updates: int, tokens: int) -> Row:
    """Return the last generation's milliseconds of an environment step, an update, and an update with Lightning's loop.

    `durations` are those of Lightning's profiler. A generation has as many environment steps as `updates`, which
    Lightning makes in `tokens` training steps.
    """
    names = {"play_ms": "ERLModule.on_train_epoch_start", "update_ms": "Strategy.training_step"}
    names["batch_ms"] = "run_training_batch"
    found = {
        name: next(each for action, each in durations.items() if action.endswith(end)) for name, end in names.items()
    }
    sums = {name: sum(each[-1:] if name == "play_ms" else each[-tokens:]) for name, each in found.items()}
    return {name: 1e3 * seconds / updates for name, seconds in sums.items()}


def matrix_products(module: ERLModule, data: ControlDataModule) -> Row:
    """Return the operations of an update's matrix products, and the machine's rate at such products, in G."""
    a, b = torch.randn(2, SIDE, SIDE)
    rate = 2 * SIDE**3 / median_seconds(lambda: a @ b, 50)
    slots = torch.arange(data.batch_size)[None]
    batch, delay = make_batch(data, {SLOTS: slots}, 1.0, 1.0), getattr(module.learner, "policy_delay", 1)
    with FlopCounterMode(display=False) as counter:
        for number in range(delay):
            losses = module.learner.losses(module.population, batch, module.learner.trains_actor(number))
            (losses.actor + losses.critic).sum().backward()
    return {"operations_gflop": counter.get_total_flops() / delay / 1e9, "matrix_gflops_per_s": rate / 1e9}


def sb3_run(duel: Duel, seed: int, steps: int, folder: Path) -> Row:
    """Train an agent with Stable-Baselines3; return the same measures without parts."""
    import stable_baselines3
    from stable_baselines3.common.noise import NormalActionNoise

    start, cpu = time.perf_counter(), cpu_seconds()
    env = gymnasium.make(duel.env_id)
    shape = env.action_space.shape
    assert shape is not None
    agent = getattr(stable_baselines3, duel.learner)(
        "MlpPolicy",
        env,
        learning_rate=duel.lr,
        buffer_size=duel.replay,
        learning_starts=min(duel.random_steps, steps // 2),
        batch_size=duel.batch,
        tau=duel.tau,
        gamma=duel.gamma,
        action_noise=NormalActionNoise(np.zeros(shape), np.full(shape, duel.noise)),
        policy_kwargs={"net_arch": list(duel.hidden)},
        seed=seed,
        device="cpu",
    )
    agent.learn(steps)
    seconds, used = time.perf_counter() - start, cpu_seconds() - cpu

    def act(observation: dict[str, Tensor]) -> Tensor:
        action, _ = agent.predict(observation["state"][0].numpy(), deterministic=True)
        low, high = env.action_space.low, env.action_space.high
        return torch.from_numpy(2 * (action - low) / (high - low) - 1)[None]

    return {"return": mean_return(duel, act), "steps_per_s": steps / seconds, "cpu_ms": 1e3 * used / steps}


SIDES = {"eigen2": eigen2_run, "Stable-Baselines3": sb3_run}


def side_tasks(settings: Settings, duel: Duel) -> list[Task]:
    """Return a run of each side for every seed, with alternating order; raises UserError for part of an episode."""
    if settings["steps"] % duel.episode:
        raise UserError(f"--steps is {settings['steps']}: give a multiple of an episode, {duel.episode} steps")
    seeds = range(1, settings["seeds"] + 1)
    return [Task(side, seed) for seed in seeds for side in list(SIDES)[:: 1 if seed % 2 else -1]]


def fit_side(task: Task, settings: Settings, folder: Path, duel: Duel) -> Row:
    """Train one side with one seed."""
    torch.set_float32_matmul_precision(duel.matmul_precision)
    return {**SIDES[task.case](duel, task.seed, settings["steps"], folder), "steps": settings["steps"]}


def side_figures(measured: Mapping[Task, Row], duel: Duel) -> Figures:
    """Return the runs of both sides, and the median over seeds of the ratio of our speed to theirs."""
    pairs = [[measured[Task(side, seed)] for side in SIDES] for seed in {task.seed for task in measured}]
    ratio = median(ours["steps_per_s"] / theirs["steps_per_s"] for ours, theirs in pairs)
    return {"settings": asdict(duel), **rows_by_case(measured), "ratio": ratio}


def duel_table(figures: Figures) -> str:
    """Return mean returns and speeds of both sides, and the ratio of speeds."""
    columns = {"": "{side}", "mean return": "{mean:,.1f}", "each seed": "{each}", "steps a second": "{speed!n}"}
    rows: list[Row] = []
    for side, runs in figures["runs"].items():
        returns, speed = [run["return"] for run in runs], median(run["steps_per_s"] for run in runs)
        rows.append({"side": side, "mean": fmean(returns), "each": spread(returns, ".0f"), "speed": speed})
    ratio = {"side": "speed ratio, median over seeds", "mean": None, "each": None, "speed": figures["ratio"]}
    return table(columns, [*rows, ratio])


def parts_table(figures: Figures) -> str:
    """Return where the time of a step with an update goes, the median of eigen2's runs."""
    runs = [run["parts"] for run in figures["runs"]["eigen2"]]
    play, update, batch, operations, rate = (median(run[name] for run in runs) for name in runs[0])
    products = operations / rate * 1e3
    times = {
        f"matrix products, {operations:.2f} GF at the machine's {rate:.0f} GF/s": products,
        "all else of an update: sampling, activations, Adam, calls": update - products,
        "Lightning's loop": batch - update,
        "a step of the environment: acting, simulating, storing": play,
    }
    total = sum(times.values())
    rows = [{"part": part, "ms": ms, "share": ms / total} for part, ms in [*times.items(), ("sum", total)]]
    return table({"part of a step": "{part}", "ms": "{ms:.2f}", "share": "{share:.0%}"}, rows)


def against_sb3(duel: Duel, steps: int, seeds: int, smallest: int) -> Benchmark:
    """Return the benchmark of a duel; with the steps of its smallest size."""
    settings, small = {"seeds": seeds, "steps": steps}, {"seeds": 1, "steps": smallest}
    measure, tasks, figures = (partial(each, duel=duel) for each in (fit_side, side_tasks, side_figures))
    return Benchmark(measure, tasks, settings, small, figures, fresh=True)


BENCHMARKS = {
    "control": against_sb3(PENDULUM, steps=20_000, seeds=5, smallest=800),
    "control-td3": against_sb3(HALFCHEETAH, steps=100_000, seeds=3, smallest=4_000),
    "control-td3-medium": against_sb3(ROUNDED, steps=60_000, seeds=3, smallest=4_000),
}
DUELS = ("Pendulum", "TD3 on HalfCheetah", "the same with medium products")
PAGE = Page(
    {
        "mujoco": Block(mujoco_table, ("mujoco",)),
        "mujoco_machine": Block(partial(machines, ["MuJoCo"]), ("mujoco",)),
        "parity": Block(parity_table, ("parity",)),
        "parity_machine": Block(partial(machines, ["TD3"]), ("parity",)),
        "swimmer": Block(swimmer_table, ("swimmer",)),
        "swimmer_machine": Block(partial(machines, ["Swimmer"]), ("swimmer",)),
        "pendulum": Block(duel_table, ("control",)),
        "td3": Block(duel_table, ("control-td3",)),
        "parts": Block(parts_table, ("control-td3",)),
        "td3_medium": Block(duel_table, ("control-td3-medium",)),
        "parts_medium": Block(parts_table, ("control-td3-medium",)),
        "duel_machines": Block(partial(machines, DUELS), ("control", "control-td3", "control-td3-medium")),
    },
    {f"images/control-{name}.png": Block(draw, (name,)) for name in ("mujoco", "parity")},
)
