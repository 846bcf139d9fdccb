"""Champions of synthetic landscapes on the tiles of real regions that no fit has seen."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import nn

from benchmarks.harness import Benchmark, Figures, Row, Settings, Task
from benchmarks.pages import interval, table
from benchmarks.runs import fit
from eigen2.dqn.collector import Actions
from eigen2.dqn.datamodule import Policy
from eigen2.dqn.losses import best_actions
from eigen2.errors import UserError
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.landscapes.rasters import RegionFiles
from eigen2.fire.networks import load_champion

CONFIG = "configs/dqn_fuel_breaks.yaml"
VARIABLE = "EIGEN2_GROUND"  # names the folders of the regions' rasters, as PATH does
LAYERS = {"elevation": "elevation.asc", "fuel": "fuels.asc"}
TINY = ("trainer.max_epochs=1", "model.validate_every=1", "data.buffer_size=200", "data.warmup=50")
BASELINES, CHAMPION = "baselines", "champion"
OTHERS = "adaptive_downstream", "greedy"
COLUMNS = {name: f"{{{name}}}" for name in ("region", "minutes", "seeds", "tiles")} | {CHAMPION: "{champion:.1f}"}


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Return percent saved on the regions' tiles by the baselines, or by a fit of the seed on synthetic landscapes.

    They are `scores` by region, minutes and policy, a number for each tile.
    """
    network = None if task.case == BASELINES else fitted(task.seed, settings, folder)
    scores: dict[str, dict[str, dict[str, list[float]]]] = {}
    for region in regions():
        for minutes in settings["minutes"]:
            data = region_data(region, float(minutes), settings["tile"])
            if network is None:
                found = {name: data.baseline(name, "test")[1] for name in settings["against"]}
            else:
                found = {CHAMPION: data.play(policy(network, data), "test")}
            percent = {name: [round(100 * float(each), 4) for each in part] for name, part in found.items()}
            scores.setdefault(region.name, {})[str(minutes)] = percent
    return {"scores": scores}


def fitted(seed: int, settings: Settings, folder: Path) -> nn.Module:
    """Fit a seed on synthetic landscapes, and return its champion."""
    run, words = folder / str(seed), ["--trainer.precision=32-true", *(f"--{word}" for word in settings["words"])]
    fit(run, CONFIG, {"seed_everything": seed, "data.landscape_seed": seed}, words)
    return load_champion(run / "checkpoints" / "best.ckpt")[0]


def region_data(folder: Path, minutes: float, tile: int) -> FuelBreakDataModule:
    """Return the data of a test on all tiles of a region, with fires of some minutes."""
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
        return best_actions(network(seen).float(), data.codec.allowed(seen)).numpy()

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
    """Return a task for the baselines, and one for each seed; raise UserError without rasters, or for no baseline."""
    regions()
    if unknown := [name for name in settings["against"] if name not in OTHERS]:
        raise UserError(f"--against {unknown[0]!r}: there is none; choose from {', '.join(OTHERS)}")
    return [Task(BASELINES), *(Task(CHAMPION, seed) for seed in range(1, settings["seeds"] + 1))]


def ground_table(figures: Figures) -> str:
    """Return what champions and baselines save on the tiles, and the differences with intervals over tiles."""
    (others,), champions, lines = figures["runs"][BASELINES], figures["runs"][CHAMPION], []
    names = [*others["scores"]]
    minutes_known = others["scores"][names[0]]
    against = [*next(iter(minutes_known.values()))]
    for minutes in minutes_known:
        for region, chosen in [*((name, [name]) for name in names), ("all", names)]:
            # one number for each tile: champions of all seeds play the same ones
            runs = [saved(run, chosen, minutes, CHAMPION) for run in champions]
            champion, by_name = np.mean(runs, axis=0), {name: saved(others, chosen, minutes, name) for name in against}
            less = {f"less_{name}": interval(champion - values) for name, values in by_name.items()}
            means = {CHAMPION: champion.mean(), **{name: values.mean() for name, values in by_name.items()}}
            line = {"region": region, "minutes": minutes, "seeds": len(champions), "tiles": len(champion)}
            lines.append({**line, **less, **means})
    columns = {name: f"{{{name}:.1f}}" for name in against}
    return table(COLUMNS | columns | {f"champion less {name}": f"{{less_{name}}}" for name in against}, lines)


def saved(row: Row, chosen: Sequence[str], minutes: str, policy: str) -> np.ndarray:
    """Return what a policy saves on all tiles of the chosen regions."""
    return np.concatenate([row["scores"][region][minutes][policy] for region in chosen])


BENCHMARK = Benchmark(
    measure,
    tasks,
    {"seeds": 2, "minutes": [240, 960], "tile": 32, "against": [*OTHERS], "words": []},
    {"seeds": 1, "minutes": [60], "tile": 8, "words": [*TINY]},
)
