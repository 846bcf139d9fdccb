"""Time and memory of the full-scale run, from the start of its process to its end, and by owner."""

import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import MB, Benchmark, Row, Settings, Task, only_row, workers
from benchmarks.runs import fit, require_linux
from benchmarks.speed.full_scale import CONFIG, OWN, imports_mb
from eigen2.memory.growth import theil_sen

TINY = (
    *("--trainer.max_epochs=2", "--model.gradient_steps=1", "--model.population_size=3", "--data.replay_min_size=4"),
    *("--data.synthetic.days=1000", "--data.synthetic.columns=6", "--data.investable.top=4", "--data.context_days=8"),
)


def tasks(settings: Settings) -> list[Task]:
    """Return the only task."""
    require_linux()
    return [Task("run")]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Return seconds of the run, and memory in MB by kind, by owner and by generation."""
    run = Path(tempfile.mkdtemp(dir=folder))
    options = {"num_threads": settings["threads"], "data.cache_dir": run / "cache"}
    result = fit(run, CONFIG, options, settings["words"])
    with workers(1) as pool:
        imported = pool.submit(imports_mb).result()
    middle = len(result.live) // 2
    return {
        "generations": len(result.metrics),
        "trained": len(result.trained),
        "fit_s": round(result.seconds, 1),
        "start_s": round(result.probe["start_s"], 1),
        "seconds": result.phase_seconds(),
        "imports_mb": imported,
        "end_mb": result.probe["memory_mb"],
        "peak_mb": round(result.probe["peak_mb"], 1),
        "owners_mb": result.owners_mb(),
        "live_mb": [round(size / MB, 2) for size in result.live],
        "live_slope_kb": round(theil_sen(result.live[middle:]).median / 1e3, 2) if middle > 1 else None,
    }


FULL_RUN = Benchmark(measure, tasks, {"words": []}, {"words": list(TINY)}, only_row, fresh=True)
TWO = replace(FULL_RUN, settings={"words": [], "threads": 2})
OWN_RUN = replace(FULL_RUN, settings={"words": [f"--{name}={value}" for name, value in OWN.items()]})
MANY = {agents: (f"--model.population_size={agents}", "--trainer.max_epochs=6") for agents in (256, 1000)}
BENCHMARKS = {
    **{"full-run-1": FULL_RUN, "full-run-2": TWO, "full-own": OWN_RUN},
    **{f"full-{agents}": replace(FULL_RUN, settings={"words": [*words]}) for agents, words in MANY.items()},
}
