"""The estimate of peak memory before a run, against the peak in the run; each case runs a few generations."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task
from benchmarks.runs import fit

SAMPLE, FULL = "configs/erl.yaml", "configs/full_scale.yaml"
LARGE = (
    *("--model.population_size=48", "--data.batch_size=12", "--data.windows_per_generation=2"),
    *("--model.gradient_steps=4", "--model.accumulate=2"),
)
MUCH_REPLAY = ("--data.replay_capacity=6000000",)
BUILT_FIRST, RESUMED = "full scale, its panel built first", "the same, resumed"
CASES: dict[str, tuple[str, Sequence[str]]] = {  # configuration, and options of the command line
    "the sample": (SAMPLE, ()),
    BUILT_FIRST: (FULL, ()),
    "full scale": (FULL, ()),
    "full scale, 48 agents, batches of 12": (FULL, LARGE),
    "the sample, 6 million transitions": (SAMPLE, MUCH_REPLAY),
    RESUMED: (SAMPLE, MUCH_REPLAY),
}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Run a case, if needed after a run that builds its panel or writes the checkpoint to resume from."""
    config, args = CASES[task.case]
    generations, run = settings["generations"], Path(tempfile.mkdtemp(dir=folder))
    cache = run / "cache" if task.case == BUILT_FIRST else folder / "cache"
    if config == FULL and task.case != BUILT_FIRST:
        estimate(folder / "builds", cache, config, args, 1)
    if task.case == RESUMED:
        estimate(run, cache, config, args, generations)
        args, generations = [*args, "--ckpt_path=last"], generations + 1
    return estimate(run, cache, config, args, generations)


def estimate(folder: Path, cache: Path, config: str, args: Sequence[str], generations: int) -> Row:
    """Run `fit`; return `estimate_mb`, `peak_mb`, and their `ratio`."""
    options = {"trainer.max_epochs": generations, "data.cache_dir": cache, "data.replay_min_size": 1000}
    probe = fit(folder, config, options, args).probe
    estimated, peak = probe["estimate_mb"], probe["peak_mb"]
    return {"estimate_mb": round(estimated, 3), "peak_mb": round(peak, 3), "ratio": round(estimated / peak, 3)}


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the rows as `cases`."""
    return {"cases": [{"case": task.case, **row} for task, row in measured.items()]}


TASKS = [Task(case) for case in CASES]
BENCHMARKS = {
    "estimate": Benchmark(measure, lambda _: TASKS, {"generations": 5}, {"generations": 2}, figures, fresh=True)
}
