"""Time and memory of runs of configs/full_scale.yaml with few optimizer steps, varying one size at a time."""

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task, workers
from benchmarks.runs import fit, memory_mb, require_linux
from benchmarks.speed.full_scale import CONFIG, OWN, imports_mb
from eigen2.market.data.universe import Universe
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.synthetic.generator import SyntheticMarket

GENERATIONS = 3
"""Measured generations, whose medians are kept; a run that fills its buffer plays one more before it does."""
OPTIMIZER_STEPS = 4  # per generation, in place of 32 at full scale; micro-batches are those of full scale
FULL = yaml.safe_load(CONFIG.read_text())
DATA = FULL["data"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run, by default those of configs/full_scale.yaml."""

    agents: int = FULL["model"]["population_size"]
    columns: int = DATA["synthetic"]["columns"]  # columns of the panel
    investable: int = DATA["investable"]["top"]  # columns that agents may buy
    days: int = DATA["synthetic"]["days"]  # days of the panel
    context: int = DATA["context_days"]  # days that an agent looks back
    replay: int = DATA["replay_capacity"]  # capacity of the replay buffer
    filled: bool = False  # whether the buffer is filled after the first generation, with copies of its transitions

    @property
    def holdout(self) -> int:
        """Return the days left for the holdout beside one context, a window and the validation days."""
        needed = self.context - 1 + DATA["trading_days"] + DATA["settlement_days"] + DATA["validation_days"]
        return max(0, min(int(DATA["holdout_days"]), self.days - int(needed)))

    @property
    def panel(self) -> str:
        """Return a name for the panel and its encoded days: the sizes that they depend on."""
        return f"{self.days}-{self.columns}-{self.holdout}-{self.investable}-{self.context}"

    @property
    def case(self) -> str:
        """Return a name for the run: the sizes that differ from full scale."""
        full = asdict(Sizes())
        return ", ".join(f"{name} {size}" for name, size in asdict(self).items() if size != full[name]) or "full scale"


CURVES: dict[str, list[Sizes]] = {
    "agents": [Sizes(agents=n) for n in (4, 8, 16, 32, 64, 128, 256)],
    "columns": [Sizes(columns=n, investable=min(n, 108)) for n in (50, 100, 200, 400, 669, 1500, 3000)],
    "investable": [Sizes(investable=n) for n in (8, 16, 32, 64, 108, 216)],
    "days": [Sizes(days=n) for n in (1000, 2000, 3781, 7500, 15000)],
    "context": [Sizes(context=n) for n in (32, 63, 126, 252, 504, 1008)],
    "replay": [Sizes(replay=n, filled=True) for n in (10_000, 31_623, 100_000, 316_228, 1_000_000)],
}
"""Runs of each curve, which varies the size of its name."""
TINY = Sizes(agents=2, columns=12, investable=6, days=1000, context=32, replay=2000, filled=True)
POINTS = {sizes.case: sizes for curve in (*CURVES.values(), [TINY]) for sizes in curve}


def build(sizes: Sizes, cache: Path) -> Row:
    """Build a run's panel and encoded days into the cache; return seconds and this process's peak memory."""
    start = time.perf_counter()
    data = MarketDataModule(
        synthetic=SyntheticMarket(**DATA["synthetic"] | {"days": sizes.days, "columns": sizes.columns}),
        context_days=sizes.context,
        validation_days=DATA["validation_days"],
        holdout_days=sizes.holdout,
        investable=Universe(top=sizes.investable),
        cache_dir=str(cache),
    )
    data.setup("fit")
    data.build(agents=1, device=torch.device("cpu"))
    return {"seconds": round(time.perf_counter() - start, 2), "peak_mb": round(memory_mb()["peak"], 1)}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Return the sizes of a run, median seconds by phase, and memory in MB, also of a process after its imports."""
    sizes, cache = POINTS[task.case], folder / "panels"
    built = folder / f"built-{sizes.panel}.json"
    with workers(1) as pool:
        if not built.exists():
            built.write_text(json.dumps(pool.submit(build, sizes, cache).result()))
        imports = pool.submit(imports_mb).result()
    options = {
        "num_threads": settings["threads"],
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
        **OWN,
    }
    run = fit(Path(tempfile.mkdtemp(dir=folder)), CONFIG, options, fill=sizes.filled)
    assert len(run.trained) == len(run.metrics), "a measured generation did not train"
    memory = {**run.probe["memory_mb"], "peak": run.probe["peak_mb"]}
    return {
        **asdict(sizes),
        "seconds": run.phase_seconds(skip=int(sizes.filled)),
        "start_s": round(run.probe["start_s"], 4),
        "memory_mb": {name: round(value, 1) for name, value in memory.items()},
        "build": json.loads(built.read_text()),
        "imports_mb": imports,
    }


def tasks(settings: Settings) -> list[Task]:
    """Return every run of the curves once, or a tiny one."""
    require_linux()
    return [Task(case) for case in POINTS if (case == TINY.case) == settings["tiny"]]


def figures(measured: Mapping[Task, Row]) -> Figures:
    """Return the rows of each curve as `points`."""
    return {
        name: {"points": points, "imports_mb": points[0]["imports_mb"]}
        for name, curve in CURVES.items()
        if (points := [measured[Task(sizes.case)] for sizes in curve if Task(sizes.case) in measured])
    }


BENCHMARKS = {"scaling": Benchmark(measure, tasks, {"tiny": False}, {"tiny": True}, figures, fresh=True)}
