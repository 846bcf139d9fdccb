"""Training on a GPU: one agent, populations, the full-scale run, and a run that is killed and resumed.

With `--device cpu` the same code runs without a GPU, and steps are repeated in place of CUDA graphs: its figures say
nothing, but that it runs.
"""

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task, train
from benchmarks.runs import eigen2, fit
from benchmarks.speed.full_scale import CONFIG
from benchmarks.speed.tables import gpu_table
from eigen2.control.datamodule import ControlDataModule
from eigen2.control.networks import MLPActor, MLPCritic
from eigen2.erl.graphs import CudaGraph, StepRunner
from eigen2.erl.learners import TD3
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError
from eigen2.runtime.trainer_checks import PRECISIONS

STEPS_PER_S = 936  # of one agent with the environment on the CPU: LeanRL on an H100
RATIOS = {16: 1.3, 200: 5.7}  # time of an update of so many agents to that of one: rejax on an A100
RUN_S = 45.0  # of the whole run
EPISODES = 3  # generations of one episode each; the last one is measured
GRAPHS = {"with CUDA graphs": True, "without": False}
RESUMED, KILLED = 4, 2  # generations of the run that is killed, and the one in which it is


def tasks(settings: Settings) -> list[Task]:
    """Return all measurements; raises UserError without a GPU."""
    if settings["device"] not in ("cpu", "cuda"):
        raise UserError(f"--device is {settings['device']!r}; it must be cuda, or cpu to try the benchmark")
    if settings["device"] == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no GPU here: measure on a machine with one, or try it by --smallest --device cpu")
    sizes = [f"update: {agents} agents, {precision}" for precision, agents in product(PRECISIONS, settings["agents"])]
    runs = [f"{what}: {precision}" for precision in PRECISIONS for what in ("run", "resume")]
    return [Task(case) for case in (*(f"one agent: {name}" for name in GRAPHS), *sizes, *runs)]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Return the figures of a task."""
    what, case = task.case.split(": ")
    accelerator = "gpu" if settings["device"] == "cuda" else "cpu"
    if what == "one agent":
        return one_agent(settings, folder, accelerator, GRAPHS[case])
    if what == "update":
        agents, precision = case.split(" agents, ")
        return {"update_ms": 1e3 * trained(settings, folder, accelerator, int(agents), precision)["train"]}
    options = {"trainer.accelerator": accelerator, "trainer.precision": case, "num_threads": settings["threads"]}
    options["trainer.devices"], own = 1, Path(tempfile.mkdtemp(dir=folder))
    options["data.cache_dir"] = own / "cache"
    if what == "resume":
        return resume(settings, own, options)
    run = fit(own / "run", settings["config"], {**options, "trainer.max_epochs": settings["generations"]})
    return {"fit_s": run.seconds, "start_s": run.probe["start_s"], "seconds": run.phase_seconds(skip=1)}


def one_agent(settings: Settings, folder: Path, accelerator: str, recorded: bool) -> Row:
    """Return the environment steps a second of an agent that takes as many gradient steps."""
    seconds = trained(settings, folder, accelerator, 1, "32-true", settings["episode"], recorded)
    return {"steps_per_s": 1 / (seconds["evaluate"] + seconds["train"]), "ms": {k: 1e3 * s for k, s in seconds.items()}}


def trained(
    settings: Settings,
    folder: Path,
    accelerator: str,
    agents: int,
    precision: str,
    episode: int | None = None,
    recorded: bool = True,
) -> dict[str, float]:
    """Train agents that all learn; return the last generation's seconds of each phase by gradient step."""
    steps, shorter = settings["episode"], settings["short_episode"]
    module = ERLModule(
        population_size=agents,
        evolution=None,
        gradient_steps=steps,
        accumulate=1,
        gamma=0.99,
        tau=0.005,
        max_grad_norm=float("inf"),
        reward_scale=1.0,
        noise=0.1,
        validate_every=EPISODES,
        learner=TD3(saturation_penalty=0.0),
        actor=partial(MLPActor, hidden=[int(width) for width in settings["hidden"]]),
        critic=partial(MLPCritic, hidden=[int(width) for width in settings["hidden"]]),
    )
    data = ControlDataModule(
        settings["env_id"],
        max_episode_steps=episode or shorter,
        windows_per_generation=0,
        exploration_windows=1,
        validation_windows=1,
        replay_min_size=settings["batch"],
        batch_size=settings["batch"],
    )
    module.make_step_runner = partial(_step_runner, recorded)
    train(module, data, 1, EPISODES, folder, accelerator=accelerator, precision=precision)
    return {phase: module.clock.seconds[phase] / steps for phase in ("evaluate", "train")}


def _step_runner(recorded: bool, device: torch.device, compiled: bool) -> StepRunner:
    record = CudaGraph if device.type == "cuda" else lambda run: run
    return StepRunner(record) if recorded else StepRunner()


def resume(settings: Settings, folder: Path, options: Mapping[str, Any]) -> Row:
    """Kill a run, resume it, and return the names of tensors that differ from those of an unbroken run."""
    words = [*settings["words"], f"--trainer.max_epochs={RESUMED}"]
    kill = ("--trainer.callbacks+=benchmarks.runs.Kill", f"--trainer.callbacks.generation={KILLED}")
    folders = [folder / name for name in ("whole", "killed")]
    whole, killed = ({**options, "trainer.default_root_dir": each} for each in folders)
    eigen2("fit", settings["config"], whole, *words)
    try:
        eigen2("fit", settings["config"], killed, *words, *kill)
    except SystemExit:
        pass
    else:
        raise SystemExit(f"the run to kill in generation {KILLED} ended: no row")
    eigen2("fit", settings["config"], killed, *words, "--ckpt_path=last")
    one, two = (dict(tensors(torch.load(each / "checkpoints" / "last.ckpt", weights_only=True))) for each in folders)
    different = [name for name in one.keys() | two.keys() if not same(one.get(name), two.get(name))]
    return {"tensors": len(one), "different": sorted(different)}


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of nested containers by its path."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from tensors(part, f"{name}/{key}")


def same(one: Tensor | None, two: Tensor | None) -> bool:
    """Return whether two tensors are equal bit for bit, NaN included."""
    if one is None or two is None or one.shape != two.shape or one.dtype != two.dtype:
        return False
    return torch.equal(*(part.cpu().contiguous().flatten().view(torch.uint8) for part in (one, two)))


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return a row for each figure, with its goal and whether it is kept."""
    rows: list[Row] = []

    def add(what: str, measured: str, goal: str | None = None, kept: bool | None = None) -> None:
        rows.append({"what": what, "measured": measured, "goal": goal, "kept": kept})

    ones: dict[str, float] = {}
    for task, row in measured.items():
        what, case = task.case.split(": ")
        if what == "one agent":
            rate, goal = row["steps_per_s"], f"at least {STEPS_PER_S}" if GRAPHS[case] else None
            add(f"steps of one agent a second, {case}", f"{rate:,.0f}", goal, rate >= STEPS_PER_S if goal else None)
        elif what == "update":
            agents, precision = case.split(" agents, ")
            ratio = row["update_ms"] / ones.setdefault(precision, row["update_ms"])
            most = RATIOS.get(int(agents))
            figure = f"{row['update_ms']:.3f} ms, {ratio:.2f} times that of the first"
            add(f"update of {case}", figure, most and f"at most {most} times", most and ratio <= most)
        elif what == "run":
            add(f"whole run, {case}, s", f"{row['fit_s']:.1f}", f"at most {RUN_S:g}", row["fit_s"] <= RUN_S)
        else:
            figure = f"{len(row['different'])} of {row['tensors']} tensors differ"
            add(f"killed and resumed, {case}", figure, "none", not row["different"])
    return {"rows": rows, "runs": {task.case: [row] for task, row in measured.items()}}


BENCHMARKS = {
    "gpu": Benchmark(
        measure,
        tasks,
        {
            "device": "cuda",
            "env_id": "HalfCheetah-v5",
            "episode": 1000,
            "short_episode": 300,  # where only updates are timed
            "hidden": [256, 256],
            "batch": 256,
            "agents": [1, 16, 200],
            "config": str(CONFIG),
            "generations": 25,
            "words": ["--data.replay_min_size=4000"],
        },
        {
            "device": "cpu",
            "env_id": "Pendulum-v1",
            "episode": 8,
            "short_episode": 6,
            "hidden": [8],
            "batch": 4,
            "agents": [1, 2],
            "config": "tests/small.yaml",
            "generations": 3,
            "words": ["--data.replay_min_size=100"],
        },
        figures,
        show=gpu_table,
        fresh=True,
    )
}
