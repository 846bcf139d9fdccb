"""Champions of synthetic landscapes on the tiles of real regions that no fit has seen."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import nn

from benchmarks.harness import ROOT, Benchmark, Figures, Row, Settings, Task
from benchmarks.pages import interval, table
from benchmarks.runs import fit
from eigen2.core.randomness import Role, generator
from eigen2.dqn.collector import Actions
from eigen2.dqn.datamodule import Policy
from eigen2.dqn.losses import best_actions
from eigen2.errors import UserError
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.landscapes.rasters import RegionFiles
from eigen2.fire.networks import load_champion
from eigen2.fire.simulation.baselines import reduction
from eigen2.runtime.yaml_files import read_yaml

CONFIG = "configs/dqn_fuel_breaks.yaml"
VARIABLE = "EIGEN2_GROUND"  # names the folders of the regions' rasters, as PATH does
LAYERS = {"elevation": "elevation.asc", "fuel": "fuels.asc"}
TINY = ("trainer.max_epochs=1", "model.validate_every=1", "data.replay_capacity=200", "data.replay_min_size=50")
BASELINE, CHAMPION, PLACED = "adaptive_downstream", "champion", "better of both"
FIRES = 256  # drawn to choose between champion and baseline, as by `fire place`
Scores = dict[str, dict[str, list[float]]]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Return percent saved on the regions' tiles by the baselines, or by a fit of the seed on synthetic landscapes.

    They are `scores` by region and minutes, a number for each tile; `drawn` are the same of a few fires alone, by which
    `fire place` chooses between champion and baseline.
    """
    network = None if task.case == BASELINE else fitted(task.seed, settings, folder)
    scores: Scores = {}
    drawn: Scores = {}
    for region in regions():
        for minutes in settings["minutes"]:
            data = region_data(region, float(minutes), settings["tile"])
            if network is None:
                cells, shares = data.baseline(BASELINE, "test")
            else:
                shares = data.play(policy(network, data), "test")
                cells = [env.placed for env in data.held_out("test")]
            for kept, values in ((scores, shares.tolist()), (drawn, of_drawn(data, cells))):
                kept.setdefault(region.name, {})[str(minutes)] = [round(100 * each, 4) for each in values]
    return {"scores": scores, "drawn": drawn}


def of_drawn(data: FuelBreakDataModule, cells: Sequence[Sequence[int]]) -> list[float]:
    """Return what breaks save on each tile of fires in 256 random cells."""
    models = [env.scenes[0].model for env in data.held_out("test")]
    return [
        reduction(model, [*breaks], model.draw(FIRES, generator(0, Role.VALIDATION, number)))
        for number, (model, breaks) in enumerate(zip(models, cells, strict=True))
    ]


def fitted(seed: int, settings: Settings, folder: Path) -> nn.Module:
    """Fit a seed on synthetic landscapes, and return its champion."""
    run, words = folder / str(seed), ["--trainer.precision=32-true", *(f"--{word}" for word in settings["words"])]
    fit(run, CONFIG, {"seed_everything": seed, "data.landscape_seed": seed}, words)
    return load_champion(run / "checkpoints" / "best.ckpt")[0]


def region_data(folder: Path, minutes: float, tile: int) -> FuelBreakDataModule:
    """Return the data of a test on up to twelve tiles of a region, with fires of some minutes."""
    region = RegionFiles(**{layer: str(folder / file) for layer, file in LAYERS.items()})
    data = FuelBreakDataModule(
        grid_size=tile, fire_simulation_max_duration=minutes, wind_speed=15.0, wind_from=270.0, region=region
    )
    data.build("test", torch.device("cpu"))
    return data


def policy(network: nn.Module, data: FuelBreakDataModule) -> Policy:
    """Return the policy that takes the best allowed action by a network."""

    @torch.inference_mode()
    def act(observation: UInt8[np.ndarray, "batch ..."]) -> Actions:
        seen = torch.from_numpy(observation)
        return best_actions(data.codec.values(network, seen), data.codec.allowed(seen)).numpy()

    return act


def regions() -> list[Path]:
    """Return the folders of the rasters; raise UserError if none is named, two share a name, or one lacks a raster."""
    files = " and ".join(LAYERS.values())
    if not (named := os.environ.get(VARIABLE)):
        raise UserError(f"set {VARIABLE} to folders of {files}, see docs/fire.md")
    folders = [Path(folder).resolve() for folder in named.split(os.pathsep)]
    if len({folder.name for folder in folders}) < len(folders):
        raise UserError(f"{VARIABLE} is {named}: two folders have one name, which is their region's; rename one")
    for folder in folders:
        for file in LAYERS.values():
            if not (folder / file).is_file():
                raise UserError(f"{VARIABLE} names {folder}, which lacks {file}; name folders of {files}")
    return folders


def tasks(settings: Settings) -> list[Task]:
    """Return a task for the baselines, and one for each seed; raise UserError without rasters."""
    regions()
    return [Task(BASELINE), *(Task(CHAMPION, seed) for seed in range(1, settings["seeds"] + 1))]


def key(task: Task, settings: Settings) -> object:
    """Return what rows depend on beside the settings: the configuration, and the regions' rasters by their hash."""
    return read_yaml(ROOT / CONFIG), {
        folder.name: [hashlib.blake2b((folder / file).read_bytes()).hexdigest() for file in LAYERS.values()]
        for folder in regions()
    }


def ground_table(figures: Figures) -> str:
    """Return what policies save on the tiles, and what they save more than the baseline, with intervals over tiles."""
    (baseline,), champions, lines = figures["runs"][BASELINE], figures["runs"][CHAMPION], []
    names = [*baseline["scores"]]
    for minutes in baseline["scores"][names[0]]:
        for region, chosen in [*((name, [name]) for name in names), ("all", names)]:
            theirs = saved(baseline["scores"], chosen, minutes)
            # one number for each tile: champions of all seeds play the same ones
            ours = {
                CHAMPION: np.mean([saved(run["scores"], chosen, minutes) for run in champions], axis=0),
                PLACED: np.mean([by_place(run, baseline, chosen, minutes) for run in champions], axis=0),
            }
            means = {name: f"{values.mean():.1f}" for name, values in {BASELINE: theirs, **ours}.items()}
            minus = {f"{name} minus {BASELINE}": interval(values - theirs) for name, values in ours.items()}
            line = {"region": region, "minutes": minutes, "seeds": len(champions), "tiles": len(theirs)}
            lines.append({**line, **means, **minus})
    return table({name: f"{{{name}}}" for name in lines[0]}, lines)


def saved(scores: Scores, chosen: Sequence[str], minutes: str) -> np.ndarray:
    """Return what is saved on all tiles of the chosen regions."""
    return np.concatenate([scores[region][minutes] for region in chosen])


def by_place(champion: Row, baseline: Row, chosen: Sequence[str], minutes: str) -> np.ndarray:
    """Return what is saved on each tile by those breaks, of the champion or the baseline, that save more of `drawn`."""
    better = saved(champion["drawn"], chosen, minutes) >= saved(baseline["drawn"], chosen, minutes)
    return np.where(better, *(saved(row["scores"], chosen, minutes) for row in (champion, baseline)))


BENCHMARK = Benchmark(
    measure,
    tasks,
    {"seeds": 2, "minutes": [240, 960], "tile": 32, "words": []},
    {"seeds": 1, "minutes": [60], "tile": 8, "words": [*TINY]},
    key=key,
)
