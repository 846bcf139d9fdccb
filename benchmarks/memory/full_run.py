"""The full-scale run itself, all 25 generations: `python -m benchmarks.memory.full_run --out FILE.json`.

It is `python -m eigen2.cli fit --config configs/full_scale.yaml` in a process and a folder of its own, with a callback
that asks the kernel who holds the resident memory.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.machine import ROOT, describe_machine
from benchmarks.memory.resident import MB, SMAPS, memory_mb, resident_mb
from benchmarks.scale.scaling import rows_of
from benchmarks.speed.full_scale import CONFIG
from eigen2.memory.growth import theil_sen
from eigen2.memory.process import BLOCK_BYTES
from eigen2.runtime.phases import PHASES


class Account(Callback):
    """Asks who holds the resident memory when training starts and when it ends.

    Args:
        path: JSON file, written when training ends.
        cache: folder of panels.
    """

    def __init__(self, path: str, cache: str) -> None:
        super().__init__()
        self.path, self.cache = Path(path), cache
        self._seen: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask when everything is allocated and nothing has run."""
        self._seen["start_s"] = time.time() - psutil.Process().create_time()
        self._seen["start_mb"] = resident_mb(self.cache)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask again and write the file."""
        self._seen["end_mb"], self._seen["end_peak_mb"] = resident_mb(self.cache), memory_mb()["peak"]
        self.path.write_text(json.dumps(self._seen))


def measure(folder: Path, threads: int, words: Sequence[str] = ()) -> dict[str, Any]:
    """Run it and read what it wrote.

    Args:
        folder: of the run and its panel.
        threads: of torch.
        words: further ones of the command line.

    Returns:
        `fit_s`, from the start of the process to its end; `stolen_share`, processor seconds a second that a virtual
        machine's host gave to others meanwhile; `start_s`, to the first generation; `seconds` of each phase
        and the generation, medians of those that trained; `imports_mb`, the kinds of memory of a process that has
        imported eigen2; `start_mb`, `end_mb`: resident memory by `KINDS`; `peak_mb`; `owners_mb`;
        `live_mb`, at the end of each generation, what the C library and Python's allocator have given out; its
        `live_slope_kb` a generation over the last half, and `replay_size`, by generation.
    """
    callbacks = {
        "trainer.callbacks+": "benchmarks.memory.full_run.Account",
        "trainer.callbacks.path": folder / "account.json",
        "trainer.callbacks.cache": folder / "cache",
    }
    settings = {"num_threads": threads, "trainer.default_root_dir": folder, "data.cache_dir": folder / "cache"}
    settings |= {"trainer.accelerator": "cpu", **callbacks}
    command = ["-m", "eigen2.cli", "fit", "--config", str(CONFIG)]
    begun, stolen = time.perf_counter(), psutil.cpu_times().steal
    _python(*command, *(f"--{name}={value}" for name, value in settings.items()), *words)
    seconds, stolen = time.perf_counter() - begun, psutil.cpu_times().steal - stolen
    rows = rows_of(folder / "metrics.csv")
    trained = [row for row in rows if row["train/actor_loss"] not in ("", "nan")]
    ends = [row for row in rows_of(folder / "memory.csv") if row["phase"] == "generation"]
    last = ends[-1]
    live = [int(row["heap_bytes"] or 0) + BLOCK_BYTES * int(row["python_blocks"]) for row in ends]
    account = json.loads((folder / "account.json").read_text())
    imports = (
        "import eigen2.cli.training; from benchmarks.memory.resident import resident_mb; print(resident_mb('/none'))"
    )
    return {
        "machine": {**describe_machine(), "threads": threads},
        "generations": len(rows),
        "trained": len(trained),
        "fit_s": round(seconds, 1),
        "stolen_share": round(stolen / seconds, 3),
        "start_s": round(account["start_s"], 1),
        "seconds": {
            name: round(statistics.median(float(row[f"time/{name}_s"]) for row in trained), 3)
            for name in (*PHASES, "generation")
        },
        "imports_mb": _rounded(json.loads(_python("-c", imports).replace("'", '"'))),
        "start_mb": _rounded(account["start_mb"]),
        "end_mb": _rounded(account["end_mb"]),
        "peak_mb": round(account["end_peak_mb"], 1),
        "owners_mb": {
            key.removeprefix("owner_").removesuffix("_bytes"): round(int(value) / MB, 2)
            for key, value in last.items()
            if key.startswith("owner_")
        },
        "replay_size": [int(float(row["replay/size"])) for row in rows],
        "live_mb": [round(each / MB, 2) for each in live],
        "live_slope_kb": round(theil_sen(live[len(live) // 2 :]).median / 1e3, 2) if len(live) > 3 else None,
    }


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in figures.items()}


def _python(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def main(words: Sequence[str] | None = None) -> None:
    """Run and write.

    Args:
        words: of the command line; None takes the process's.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    options.add_argument("word", nargs="*", help="more for the run's command line, after --")
    asked = options.parse_args(words)
    if not SMAPS.exists():
        options.error(f"there is no {SMAPS} to read memory from: measure on Linux")
    with tempfile.TemporaryDirectory(prefix="eigen2-full-run-") as folder:
        found = measure(Path(folder), asked.threads, asked.word)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
