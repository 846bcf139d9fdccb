"""A thousand generations of a small run, or five hundred episodes of fuel breaks, whose memory must stay flat.

The row has `kept: false` if RSS or live memory rises by more than MOST_SLOPE per generation after the first 50, if a
container grows with generations, or if the profiler finds a leak.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import MB, Benchmark, Row, Settings, Task, only_row
from benchmarks.runs import fit
from eigen2.memory.growth import theil_sen

WORKLOADS: Mapping[str, tuple[str, dict[str, Any]]] = {  # configuration, and settings that override it
    "market": ("tests/small.yaml", {}),
    # 7 breaks on landscapes of 12 x 12 cells; the buffer is full after 29 episodes
    "fire": ("tests/fire/small.yaml", {"data.num_parallel_envs": 1, "data.replay_capacity": 200}),
}
WARM_UP = 50
MOST_SLOPE = 1000.0  # bytes per generation


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Run a workload and check its memory."""
    run, generations = Path(tempfile.mkdtemp(dir=folder)), settings["generations"]
    config, overrides = WORKLOADS[task.case]
    counted = [WARM_UP + (generations - WARM_UP) * part // 5 for part in range(5)]
    grown = run / "grown.json"
    args = ["--trainer.callbacks+=tests.containers.Grown", f"--trainer.callbacks.path={grown}"]
    args += [f"--trainer.callbacks.generations={counted}"]
    result = fit(run, config, {**overrides, "trainer.max_epochs": generations}, args)
    return check_memory(result.rss, result.live, result.stdout, json.loads(grown.read_text()))


def check_memory(rss: Sequence[int], live: Sequence[int], stdout: str, grown: Sequence[str]) -> dict[str, Any]:
    """Return the row of a run from its bytes by generation, what it printed, and the containers that grew."""
    slopes = {f"{name}_slope": theil_sen(sizes[WARM_UP:])._asdict() for name, sizes in (("rss", rss), ("live", live))}
    flat = all(slope["median"] < MOST_SLOPE for slope in slopes.values())
    shown = (WARM_UP, len(rss) // 2, len(rss) - 1)
    return {
        "generations": len(rss),
        **slopes,
        "rss_mb": {f"{n}": round(rss[n] / MB, 1) for n in shown},
        "containers_grown": list(grown),
        "kept": flat and not grown and "verdict: healthy" in stdout,
    }


SETTINGS = {"workload": "market", "generations": 1000}
SOAK = Benchmark(
    measure, lambda settings: [Task(settings["workload"])], SETTINGS, {"generations": 60}, figures=only_row, fresh=True
)
BENCHMARKS = {"soak": SOAK, "soak-fire": replace(SOAK, settings={"workload": "fire", "generations": 500})}
