"""The peak of memory told before a run against the one it had: `python -m benchmarks.memory.estimate --out FILE.json`.

Every case is a run of its own process, of a few generations.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.machine import ROOT, describe_machine
from eigen2.erl.module import ERLModule
from eigen2.memory.process import peak_rss_bytes

MB = 1e6
WORDS: dict[str, Sequence[str]] = {
    "the sample": ["configs/erl.yaml"],
    "full scale, its panel built first": ["configs/full_scale.yaml"],
    "full scale": ["configs/full_scale.yaml"],
    "full scale, 48 agents, batches of 12": [
        "configs/full_scale.yaml",
        "--model.population_size=48",
        "--data.batch_size=12",
        "--data.windows_per_generation=2",
        "--model.gradient_steps=4",
        "--model.accumulate=2",
    ],
    "the sample, 6 million transitions": ["configs/erl.yaml", "--data.replay_capacity=6000000"],
    "the same, resumed": ["configs/erl.yaml", "--data.replay_capacity=6000000", "--ckpt_path=last"],
    "the sample, networks that read windows": [
        "configs/erl.yaml",
        "--data.encoding=windows",
        "--data.windows_per_generation=2",
        "--model.population_size=8",
        "--model.gradient_steps=4",
    ],
}
"""Of the command line, the configuration first."""
GENERATIONS = 5


class Peak(Callback):
    """Writes the estimate and the peak to a file.

    Args:
        path: JSON file, written when training ends.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write."""
        assert isinstance(pl_module, ERLModule)
        found = {"estimate_mb": pl_module.memory.peak_bytes / MB, "peak_mb": peak_rss_bytes() / MB}
        self.path.write_text(json.dumps(found))


def measure(folder: Path, words: Sequence[str], generations: int = GENERATIONS) -> dict[str, float]:
    """Run it and read what it wrote.

    Args:
        folder: of the run; panels go to `cache` beside it.
        words: of the command line, the configuration first.
        generations: in all.

    Returns:
        `estimate_mb`, `peak_mb`, and `ratio` of the one to the other.
    """
    settings = {
        "trainer.callbacks+": "benchmarks.memory.estimate.Peak",
        "trainer.callbacks.path": folder / "peak.json",
        "trainer.default_root_dir": folder,
        "trainer.accelerator": "cpu",
        "trainer.max_epochs": generations,
        "data.cache_dir": folder.parent / "cache",
        "data.replay_min_size": 1000,
        "num_threads": 1,
    }
    folder.mkdir(exist_ok=True)
    options = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "eigen2.cli", "fit", "--config", words[0], *options, *words[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads((folder / "peak.json").read_text())
    return {**found, "ratio": found["estimate_mb"] / found["peak_mb"]}


def main(words: Sequence[str] | None = None) -> None:
    """Measure and write.

    Args:
        words: of the command line; None takes the process's.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, required=True, help="JSON file to write")
    asked = options.parse_args(words)
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="eigen2-estimate-") as folder:
        for number, (name, case) in enumerate(WORDS.items()):
            resumes = any(word.startswith("--ckpt_path") for word in case)
            run, generations = number - resumes, GENERATIONS + resumes
            found = measure(Path(folder) / str(run), case, generations)
            cases.append({"case": name, **{key: round(value, 3) for key, value in found.items()}})
            print(json.dumps(cases[-1]), flush=True)
    asked.out.write_text(json.dumps({"machine": describe_machine(), "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
