"""What each setting of `GarbageCollector` costs and saves: `python -m benchmarks.memory.hygiene --out FILE.json`.

Every case is a run of its own process that differs in that setting alone: full scale with 48 agents and batches of 12,
where a micro-batch takes some 130 MB for a moment.
"""

import argparse
import csv
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.machine import ROOT, describe_machine
from benchmarks.memory.estimate import WORDS
from benchmarks.speed.overhead import Stopwatch
from callbacks import GarbageCollector
from eigen2.memory.process import peak_rss_bytes

MB = 1e6
GENERATIONS = 8
WARM_UP = 2
"""Generations left out of medians."""
PHASES = ["evaluate", "train", "evolve", "validate"]


@dataclass(frozen=True)
class Case:
    """A setting."""

    name: str
    settings: dict[str, Any] | None = field(default_factory=dict)
    """Of `GarbageCollector`, in place of the defaults; None leaves the callback out."""
    environment: dict[str, str] = field(default_factory=dict)


CASES = (
    Case("defaults"),
    Case("without the callback", None),
    Case("collect: false", {"collect": False}),
    Case("freeze: false", {"freeze": False}),
    Case("trim: false", {"trim": False}),
    Case("every_n_epochs: 5", {"every_n_epochs": 5}),
    Case("phases: all four", {"phases": PHASES}),
    Case("every_n_train_steps: 1", {"every_n_train_steps": 1}),
    Case("every_n_environment_steps: 10", {"every_n_environment_steps": 10}),
    Case("MALLOC_MMAP_THRESHOLD_=1000000", {}, {"MALLOC_MMAP_THRESHOLD_": "1000000"}),
)


class Cleaning(Callback):
    """Times what a run's `GarbageCollector` does and writes it to a file.

    Args:
        path: JSON file, written when training ends.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)
        self.watch = Stopwatch()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put watches in place."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, GarbageCollector):
                self.watch.wrap(callback, "clean")
        self.found = _garbage()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write."""
        found = {
            "cleaning_ms": 1e3 * self.watch.seconds / trainer.current_epoch,
            "garbage": (_garbage() - self.found) / trainer.current_epoch,
            "peak_mb": peak_rss_bytes() / MB,
        }
        self.path.write_text(json.dumps(found))


def _garbage() -> int:
    """Objects that collections freed so far."""
    return sum(int(each["collected"]) for each in gc.get_stats())


def measure(case: Case, folder: Path, generations: int = GENERATIONS) -> dict[str, Any]:
    """Run it and read what it wrote.

    Args:
        case: the setting.
        folder: of the run; panels go to `cache` beside it.
        generations: in all, more than WARM_UP.

    Returns:
        `peak_mb`; `between_mb`, resident at the end of a generation; `cleaning_ms` and `garbage` objects a generation;
        `generation_s`.
    """
    folder.mkdir(exist_ok=True)
    config, *words = WORDS["full scale, 48 agents, batches of 12"]
    settings = yaml.safe_load((ROOT / config).read_text())
    first, *others = settings["trainer"]["callbacks"]
    assert first["class_path"] == "callbacks.GarbageCollector"
    collector = [] if case.settings is None else [{**first, "init_args": case.settings}]
    timer = {"class_path": "benchmarks.memory.hygiene.Cleaning", "init_args": {"path": str(folder / "cleaning.json")}}
    settings["trainer"] |= {"callbacks": [*collector, *others, timer], "accelerator": "cpu"}
    settings["trainer"] |= {"default_root_dir": str(folder), "max_epochs": generations}
    settings["num_threads"] = 1  # two wait for each other on a busy machine
    settings["data"] |= {"cache_dir": str(folder.parent / "cache"), "replay_min_size": 1000}
    written = folder / "settings.yaml"
    written.write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [sys.executable, "-m", "eigen2.cli", "fit", "--config", str(written), *words],
        cwd=ROOT,
        env=os.environ | case.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{case.name} failed:\n{done.stderr[-2000:]}")
    rows = [row for row in _rows(folder / "memory.csv") if row["phase"] == "generation"][WARM_UP:]
    seconds = [float(row["time/generation_s"]) for row in _rows(folder / "metrics.csv")][WARM_UP:]
    return {
        "case": case.name,
        **json.loads((folder / "cleaning.json").read_text()),
        "between_mb": statistics.median(int(row["rss_bytes"]) for row in rows) / MB,
        "generation_s": statistics.median(seconds),
    }


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def main(words: Sequence[str] | None = None) -> None:
    """Measure and write.

    Args:
        words: of the command line; None takes the process's.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="JSON file to write")
    asked = options.parse_args(words)
    cases = []
    with tempfile.TemporaryDirectory(prefix="eigen2-hygiene-") as folder:
        for number, case in enumerate(CASES):
            found = measure(case, Path(folder) / str(number))
            cases.append({name: value if name == "case" else round(value, 3) for name, value in found.items()})
            print(json.dumps(cases[-1]), flush=True)
    asked.out.write_text(json.dumps({"machine": describe_machine(), "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
