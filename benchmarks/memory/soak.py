"""A thousand generations of a small run, or five hundred episodes of fuel breaks, whose memory must stay flat.

Not kept if RSS or live memory rises by more than MOST_SLOPE a generation after the first 50, if a count of live objects
changes, if a container grows with generations, or if the profiler finds a leak.
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

WORKLOADS: Mapping[str, tuple[str, dict[str, Any]]] = {  # configuration, and settings in place of its own
    "market": ("tests/small.yaml", {}),
    # of 7 breaks, on landscapes of 12 x 12 cells; the buffer is full after 29
    "fire": ("tests/fire/small.yaml", {"data.num_parallel_envs": 1, "data.buffer_size": 200}),
}
WARM_UP = 50
MOST_SLOPE = 1000.0  # bytes a generation


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Run a workload and judge its memory."""
    run, generations = Path(tempfile.mkdtemp(dir=folder)), settings["generations"]
    config, own = WORKLOADS[task.case]
    looks = [WARM_UP + (generations - WARM_UP) * part // 5 for part in range(5)]
    grown = run / "grown.json"
    words = ["--trainer.callbacks+=tests.containers.Grown", f"--trainer.callbacks.path={grown}"]
    words += [f"--trainer.callbacks.generations={looks}"]
    done = fit(run, config, {**own, "trainer.max_epochs": generations}, words)
    return judge(done.memory, done.rss, done.live, done.printed, json.loads(grown.read_text()))


def judge(
    rows: Sequence[dict[str, str]], rss: Sequence[int], live: Sequence[int], printed: str, grown: Sequence[str]
) -> dict[str, Any]:
    """Return what a run shows by memory.csv's `rows`, bytes by generation, and the containers that grew."""
    counted = [name for name in rows[0] if name.startswith("count_")]
    slopes = {f"{name}_slope": theil_sen(sizes[WARM_UP:])._asdict() for name, sizes in (("rss", rss), ("live", live))}
    flat = all(slope["median"] < MOST_SLOPE for slope in slopes.values())
    constant = all(len({row[name] for row in rows}) == 1 for name in counted)
    shown = (WARM_UP, len(rows) // 2, len(rows) - 1)
    return {
        "generations": len(rows),
        **slopes,
        "rss_mb": {f"{n}": round(rss[n] / MB, 1) for n in shown},
        "counts": {name.removeprefix("count_"): int(rows[-1][name]) for name in counted},
        "containers_grown": list(grown),
        "kept": flat and constant and not grown and "verdict: healthy" in printed,
    }


SETTINGS = {"workload": "market", "generations": 1000}
SOAK = Benchmark(
    measure, lambda own: [Task(own["workload"])], SETTINGS, {"generations": 60}, figures=only_row, fresh=True
)
BENCHMARKS = {"soak": SOAK, "soak-fire": replace(SOAK, settings={"workload": "fire", "generations": 500})}
