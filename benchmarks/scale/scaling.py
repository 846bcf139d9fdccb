"""Time and memory of full-scale runs as one size varies at a time.

Every point is a run of its own process: `fit --config configs/full_scale.yaml` with the sizes of the point, few
optimizer steps and a panel that lies in the cache already. It reads the run's metrics.csv and memory.csv and what the
kernel says of the process.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.machine import ROOT, describe_machine
from benchmarks.memory.resident import MB, STATUS, memory_mb
from benchmarks.scale import scaling_plot
from benchmarks.speed.full_scale import CONFIG, fill
from eigen2.cli.training import run
from eigen2.erl.module import ERLModule
from eigen2.market.data.universe import Universe
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime.phases import PHASES

GENERATIONS = 3
"""Of a run, whose medians are taken. A run with a filled buffer plays one more, before it fills the buffer."""
OPTIMIZER_STEPS = 4
"""Of a generation, in place of the 32 of full scale; each has the micro-batches of full scale."""
WINDOW_DAYS, VALIDATION_DAYS, HOLDOUT_DAYS = 145, 252, 252
"""Of configs/full_scale.yaml."""

Point = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What a run is measured at; the defaults are those of configs/full_scale.yaml."""

    agents: int = 16
    columns: int = 669
    """Of the panel."""
    investable: int = 108
    """Columns agents may buy."""
    days: int = 3781
    """Of the panel."""
    context: int = 504
    """Days of the past an agent sees."""
    replay: int = 50_000
    """Transitions the replay buffer holds."""
    filled: bool = False
    """Whether the buffer is filled after a first generation, with copies of what it holds then."""

    @property
    def holdout(self) -> int:
        """Days of the holdout: what few days leave beside one context, a window and the validation days."""
        return max(0, min(HOLDOUT_DAYS, self.days - VALIDATION_DAYS - (self.context - 1 + WINDOW_DAYS)))

    @property
    def cached(self) -> tuple[int, ...]:
        """What the cache's files depend on: the panel, and its days described for the networks."""
        return self.days, self.columns, self.holdout, self.investable, self.context


CURVES: dict[str, list[Sizes]] = {
    "agents": [Sizes(agents=n) for n in (4, 8, 16, 32, 64, 128, 256)],
    "columns": [Sizes(columns=n, investable=min(n, 108)) for n in (50, 100, 200, 400, 669, 1500, 3000)],
    "investable": [Sizes(investable=n) for n in (8, 16, 32, 64, 108, 216)],
    "days": [Sizes(days=n) for n in (1000, 2000, 3781, 7500, 15000)],
    "context": [Sizes(context=n) for n in (32, 63, 126, 252, 504, 1008)],
    "replay": [Sizes(replay=n, filled=True) for n in (10_000, 31_623, 100_000, 316_228, 1_000_000)],
    "panel": [Sizes(), Sizes(columns=3000, days=15000)],
}
"""The size a curve varies is the field of its name; `panel` sets a large mapped panel beside the usual one."""


class Probe(Callback):
    """Writes what metrics.csv and memory.csv do not say: kinds of memory, share of a processor, start, draws.

    Args:
        path: JSON file, written when training ends.
        fill: whether to fill the replay buffer after the first generation.
    """

    def __init__(self, path: str, fill: bool = False) -> None:
        super().__init__()
        self.path, self.fill = Path(path), fill
        self._start_s = 0.0
        self._processor_s = self._passed_s = 0.0
        self._memory: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the time from the start of the process."""
        self._start_s = time.time() - psutil.Process().create_time()
        self._processor_s, self._passed_s = time.process_time(), time.perf_counter()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fill the buffer once it holds transitions to copy."""
        if self.fill and trainer.current_epoch == 1 and isinstance(pl_module, ERLModule):
            fill(pl_module.data.buffer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask for the memory after the generation."""
        self._memory = memory_mb()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Time draws and write the file."""
        assert isinstance(pl_module, ERLModule)
        share = (time.process_time() - self._processor_s) / (time.perf_counter() - self._passed_s)
        seen = {
            "start_s": self._start_s,
            "processor_share": share,
            "draw_ms": draw_ms(pl_module),
            "memory_mb": self._memory,
        }
        self.path.write_text(json.dumps(seen))


def draw_ms(module: ERLModule, generations: int = 5) -> float:
    """Milliseconds to draw the slots of a micro-batch of all agents and to gather its transitions; the median."""
    data, seconds = module.data, []
    for generation in range(generations):
        begun = time.perf_counter()
        for slots in data.draw_slots(module.population_size, module.micro_batches, generation, module.seed):
            data.buffer.gather(slots)
        seconds.append((time.perf_counter() - begun) / module.micro_batches)
    return 1e3 * statistics.median(seconds)


def command_line(sizes: Sizes, folder: Path, cache: Path, threads: int) -> list[str]:
    """The words of a point's run."""
    settings = {
        "num_threads": threads,
        "trainer.accelerator": "cpu",
        "trainer.default_root_dir": folder,
        "trainer.max_epochs": sizes.filled + GENERATIONS,
        "model.population_size": sizes.agents,
        "model.gradient_steps": OPTIMIZER_STEPS,
        "data.synthetic.days": sizes.days,
        "data.synthetic.columns": sizes.columns,
        "data.investable.top": sizes.investable,
        "data.context_days": sizes.context,
        "data.holdout_days": sizes.holdout,
        "data.replay_capacity": sizes.replay,
        "data.replay_min_size": 4,  # a micro-batch: the first generation trains
        "data.cache_dir": cache,
        "trainer.callbacks+": "benchmarks.scale.scaling.Probe",
        "trainer.callbacks.path": folder / "probe.json",
        "trainer.callbacks.fill": str(sizes.filled).lower(),
    }
    return ["fit", "--config", str(CONFIG), *(f"--{name}={value}" for name, value in settings.items())]


def measure(sizes: Sizes, folder: Path, cache: Path, threads: int) -> Point:
    """Run a point in this process.

    Args:
        sizes: of the run.
        folder: of the run.
        cache: folder of panels.
        threads: of torch.

    Returns:
        The sizes; `seconds` of each phase and of the generation, medians of the measured generations; `memory_mb`
        after the last one, with the peak of the process; `owners_mb`; `start_s` from the start of the process to the
        first generation; `processor_share`, processor seconds a second of the generations, below 1 where other
        processes took turns or files were waited for; `draw_ms` of a micro-batch of all agents.
    """
    run(command_line(sizes, folder, cache, threads))
    peak = memory_mb()["peak"]
    seen = json.loads((folder / "probe.json").read_text())
    rows = rows_of(folder / "metrics.csv")[int(sizes.filled) :]
    assert all(row["train/actor_loss"] not in ("", "nan") for row in rows), "a measured generation did not train"
    last = rows_of(folder / "memory.csv")[-1]
    owners = {key: int(value) / MB for key, value in last.items() if key.startswith("owner_")}
    return {
        **asdict(sizes),
        "seconds": {
            name: round(statistics.median(float(row[f"time/{name}_s"]) for row in rows), 5)
            for name in (*PHASES, "generation")
        },
        "start_s": round(seen["start_s"], 2),
        "processor_share": round(seen["processor_share"], 3),
        "draw_ms": round(seen["draw_ms"], 4),
        "memory_mb": {name: round(value, 1) for name, value in {**seen["memory_mb"], "peak": peak}.items()},
        "owners_mb": {
            key.removeprefix("owner_").removesuffix("_bytes"): round(value, 4) for key, value in owners.items()
        },
    }


def rows_of(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open() as file:
        return list(csv.DictReader(file))


def build(points: Sequence[Sizes], cache: Path) -> list[Point]:
    """Put what points need into the cache, panels and their days described, in this process.

    Args:
        points: sizes, ascending where the peak is to say something.
        cache: folder of panels.

    Returns:
        `seconds` of each, and `peak_mb`, the peak of the process so far.
    """
    settings = yaml.safe_load(CONFIG.read_text())["data"]
    built = []
    for sizes in points:
        begun = time.perf_counter()
        data = MarketDataModule(
            synthetic=SyntheticMarket(**settings["synthetic"] | {"days": sizes.days, "columns": sizes.columns}),
            context_days=sizes.context,
            validation_days=VALIDATION_DAYS,
            holdout_days=sizes.holdout,
            investable=Universe(top=sizes.investable),
            cache_dir=str(cache),
        )
        data.setup("fit")
        data.build(agents=1, device=torch.device("cpu"))
        seconds = time.perf_counter() - begun
        built.append({"seconds": round(seconds, 2), "peak_mb": round(memory_mb()["peak"], 1)})
    return built


class Sweep:
    """Measures points one after another, each in a process of its own, no point twice and no panel built twice.

    Args:
        folder: takes panels, and each run while it lasts.
        threads: of torch.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder, threads
        # asked before the first result is written, which changes the work tree
        self.machine = {**describe_machine(), "threads": threads}
        self._points: dict[Sizes, Point] = {}
        self._builds: dict[tuple[int, ...], Point] = {}
        self._imports: dict[str, float] = {}

    def curve(self, points: Sequence[Sizes]) -> dict[str, Any]:
        """All points of a curve, with the machine, and the memory of a process that has imported eigen2."""
        self._imports = self._imports or self._child("imports", [])
        missing = {sizes.cached: sizes for sizes in points if sizes.cached not in self._builds}
        if missing:
            built = self._child("build", list(missing.values()))
            self._builds |= zip(missing, built, strict=True)
        measured = [{**self._point(sizes), "build": self._builds[sizes.cached]} for sizes in points]
        return {"machine": self.machine, "imports_mb": self._imports, "points": measured}

    def _point(self, sizes: Sizes) -> Point:
        if sizes not in self._points:
            point = self._points[sizes] = self._child("measure", [sizes])
            figures = "  ".join(f"{name} {value:.3f}" for name, value in point["seconds"].items())
            print(f"{sizes}\n    s: {figures}  RSS {point['memory_mb']['rss']:.0f} MB", file=sys.stderr)
        return self._points[sizes]

    def _child(self, job: str, points: Sequence[Sizes]) -> Any:
        """What a job writes in a process and a folder of its own."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            out = Path(folder) / "result.json"
            sizes = json.dumps([asdict(point) for point in points])
            options = ["--job", job, sizes, "--folder", self.folder, "--out", out, "--threads", self.threads]
            command = [sys.executable, "-m", "benchmarks.scale.scaling", *map(str, options)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode != 0 or not out.exists():  # Lightning exits with 0 when it is terminated
                raise SystemExit(f"{job} of {points} failed:\n{done.stderr[-2000:]}")
            return json.loads(out.read_text())


def work(job: str, points: Sequence[Sizes], out: Path, cache: Path, threads: int) -> None:
    """What a process of the sweep does; writes its result to `out` and its run beside it."""
    del sys.argv[1:]  # Lightning warns of words that are not its own
    if job == "build":
        found: Any = build(points, cache)
    elif job == "measure":
        found = measure(points[0], out.parent, cache, threads)
    else:
        found = memory_mb()
    out.write_text(json.dumps(found))


def main(words: Sequence[str] | None = None) -> None:
    """Measure and write, or draw what was measured.

    Args:
        words: of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write; curves it has and that are not measured stay")
    parser.add_argument("--curve", action="append", choices=CURVES, help="measure this one alone; may be repeated")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--folder", type=Path, help="where temporary files go, 12 GB; default: the system's folder")
    parser.add_argument("--draw", type=Path, help="JSON file to draw, and to put into docs/scaling.md")
    parser.add_argument("--job", nargs=2, metavar=("NAME", "SIZES"), help="of a process of the sweep")
    asked = parser.parse_args(words)
    if asked.draw is not None:
        print(scaling_plot.draw(asked.draw, ROOT / "docs"))
        return
    if asked.out is None:
        parser.error("name a file: --out or --draw")
    if not STATUS.exists():
        parser.error(f"there is no {STATUS} to read memory from: measure on Linux")
    if asked.job is not None:
        job, points = asked.job
        sizes = [Sizes(**point) for point in json.loads(points)]
        work(job, sizes, asked.out, asked.folder / "panels", asked.threads)
        return
    written = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="eigen2-scaling-", dir=asked.folder) as folder:
        sweep = Sweep(Path(folder), asked.threads)
        for name in asked.curve or CURVES:
            # written after each curve, so that a long sweep that is cut keeps what it has
            written[name] = sweep.curve(CURVES[name])
            asked.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
