"""A thousand generations of a small run, whose memory must stay flat: `python -m benchmarks.memory.soak`, `make soak`.

With `--workload fire` five hundred episodes of fuel breaks, one a generation. Exits with 1 if RSS or live memory rises
by more than MOST_SLOPE a generation after the first 50, if a count of live objects changes, if a container grows with
generations, or if the profiler finds a leak.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.image import imsave

from benchmarks.machine import ROOT, describe_machine
from callbacks.plots import draw_lines
from eigen2.memory.growth import theil_sen
from eigen2.memory.process import BLOCK_BYTES

WORKLOADS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "market": ("tests/small.yaml", 1000, {}),
    # of 7 breaks, on landscapes of 12 x 12 cells; the buffer is full after 29
    "fire": ("tests/fire/small.yaml", 500, {"data.num_parallel_envs": 1, "data.buffer_size": 200}),
}
"""Configuration, generations, and settings that are not the configuration's."""
WARM_UP = 50
MOST_SLOPE = 1000.0
"""Bytes a generation."""
MB = 1e6


def run(folder: Path, generations: int, workload: str = "market") -> tuple[list[dict[str, str]], str, list[str]]:
    """Run it in a process of its own.

    Args:
        folder: of the run.
        generations: in all.
        workload: one of WORKLOADS.

    Returns:
        Rows of memory.csv at the ends of generations, what it printed, and containers that grew.
    """
    looks = [WARM_UP + (generations - WARM_UP) * part // 5 for part in range(5)]
    config, _, own = WORKLOADS[workload]
    settings = own | {
        "trainer.default_root_dir": folder,
        "trainer.max_epochs": generations,
        "trainer.callbacks+": "tests.containers.Grown",
        "trainer.callbacks.path": folder / "grown.json",
        "trainer.callbacks.generations": looks,
    }
    words = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", config, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-2000:])
    with (folder / "memory.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "generation"]
    return rows, done.stdout, json.loads((folder / "grown.json").read_text())


def judge(rows: Sequence[dict[str, str]], printed: str, grown: Sequence[str]) -> dict[str, Any]:
    """What the run shows.

    Args:
        rows: of memory.csv at the ends of generations.
        printed: by the run.
        grown: containers that grew.
    """
    rss = [int(row["rss_bytes"]) for row in rows]
    heap = [int(row["heap_bytes"] or 0) for row in rows]
    counted = [name for name in rows[0] if name.startswith("count_")]
    live = [size + BLOCK_BYTES * int(row["python_blocks"]) for size, row in zip(heap, rows, strict=True)]
    slopes = {
        f"{name}_slope": {"median": slope.median, "low": slope.low, "high": slope.high}
        for name, slope in (
            ("rss", theil_sen(rss[WARM_UP:])),
            ("heap", theil_sen(heap[WARM_UP:])),
            ("live", theil_sen(live[WARM_UP:])),
        )
    }
    flat = all(slopes[name]["median"] < MOST_SLOPE for name in ("rss_slope", "live_slope"))
    constant = all(len({row[name] for row in rows}) == 1 for name in counted)
    healthy = "verdict: healthy" in printed
    return {
        "generations": len(rows),
        **slopes,
        "rss_mb": {f"{n}": round(rss[n] / MB, 1) for n in (WARM_UP, len(rows) // 2, len(rows) - 1)},
        "counts": {name.removeprefix("count_"): int(rows[-1][name]) for name in counted},
        "counts_constant": constant,
        "containers_grown": list(grown),
        "verdict_healthy": healthy,
        "live_mb": {f"{n}": round(live[n] / MB, 1) for n in (WARM_UP, len(rows) // 2, len(rows) - 1)},
        "kept": flat and constant and not grown and healthy,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run, judge, write and draw.

    Args:
        words: of the command line; None takes the process's.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workload", choices=list(WORKLOADS), default="market")
    options.add_argument("--generations", type=int, help="in all (default 1000 of the market, 500 of fire)")
    options.add_argument("--out", type=Path, help="JSON file to write; a picture goes beside it")
    asked = options.parse_args(words)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="eigen2-soak-") as folder:
        generations = asked.generations or WORKLOADS[asked.workload][1]
        rows, printed, grown = run(Path(folder), generations, asked.workload)
    found = judge(rows, printed, grown)
    told = json.dumps({**found, "seconds": round(time.perf_counter() - begun), "machine": describe_machine()}, indent=1)
    print(told)
    if asked.out is not None:
        asked.out.write_text(told + "\n")
        drawn = draw_lines(
            [int(row["generation"]) for row in rows],
            {
                "RSS": [int(row["rss_bytes"]) / MB for row in rows],
                "heap": [int(row["heap_bytes"] or 0) / MB for row in rows],
            },
            title="A small run",
            ylabel="MB",
            band=None,
        )
        imsave(asked.out.with_suffix(".png"), drawn)
    return 0 if found["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
