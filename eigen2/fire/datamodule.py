"""The fuel-break workload as a data module: landscapes, environments, validation and test."""

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jaxtyping import Float

from eigen2.core.config import from_settings, to_config
from eigen2.core.datamodule import TestResult
from eigen2.core.randomness import Role, generator
from eigen2.dqn.collector import Info
from eigen2.dqn.datamodule import DQNDataModule, Policy
from eigen2.errors import UserError, require_range
from eigen2.files import Folder
from eigen2.fire.evaluation import placements
from eigen2.fire.evaluation.placements import FIRE_SETTINGS, LARGEST_GRID, Cells, PlacementFile, Spec
from eigen2.fire.evaluation.terrain import ALIKE
from eigen2.fire.landscapes.landscape import SPLITS, Landscape, Split, Terrain, synthetic
from eigen2.fire.landscapes.rasters import READ_BYTES, Region, RegionFiles, count_cells, read_region, tiles
from eigen2.fire.networks import QMap
from eigen2.fire.simulation.baselines import PLACEMENTS, reduction
from eigen2.fire.simulation.environment import FuelBreakEnv, relative_reward
from eigen2.fire.simulation.frames import Frames
from eigen2.fire.simulation.local_search import improve
from eigen2.fire.simulation.spread import FireModel

log = logging.getLogger(__name__)

LANDSCAPE_BYTES = 130  # per cell of a landscape: layers, rates of spread and graph
FIRE_BYTES = 8  # per fire and cell
FEW = 64  # fires that show how much burns on a landscape
NETWORK_LAYERS = 8  # layers of `QMap` about as large as the map

Span = float | tuple[float, float]
"""A number, or a range by its ends."""
FIRE_RANGES: Mapping[str, Mapping[str, Any]] = {
    "fire_simulation_max_duration": {"above": 0, "most": 1e9},
    "wind_speed": {"least": 0, "most": 200},
    "wind_from": {"least": 0, "most": 360},
}
"""Settings of the fires on a landscape, with their bounds."""


def ends(span: Span) -> tuple[float, float]:
    """Return the ends of a range, or a number twice."""
    return (span[0], span[1]) if isinstance(span, list | tuple) else (span, span)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise UserError for a setting of `FuelBreakDataModule` that is out of range."""
    for name in ("grid_size", "landscape_seed", "num_landscapes", "eval_landscapes", "test_landscapes"):
        least, most = {"grid_size": (4, LARGEST_GRID), "landscape_seed": (0, 2**32)}.get(name, (1, None))
        require_range(f"data.{name}", settings[name], least=least, most=most, whole=True)
    if settings["ignitions"] is not None:
        require_range("data.ignitions", settings["ignitions"], least=1, whole=True)
    require_range("data.budget", settings["budget"], above=0, most=1)
    for name, bounds in FIRE_RANGES.items():
        given = span if isinstance(span := settings[name], list | tuple) else (span, span)
        for value in given:
            require_range(f"data.{name}", value, **bounds)
        if len(given) != 2:
            raise UserError(f"data.{name} is {span}; give a number, or the two ends of a range")
        if given[0] > given[1] and name != "wind_from":  # which may turn through north
            raise UserError(f"data.{name} is {given[0]:g} to {given[1]:g}; give the lower number first")


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two extents (see `Region.extent`) share ground."""
    wide, high = min(one[2], other[2]) - max(one[0], other[0]), min(one[1], other[1]) - max(one[3], other[3])
    return wide > 0 and high > 0


def _same_tiles(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two extents have the same north-western corner and cells, to a hundredth of a cell."""
    return all(abs(one[place] - other[place]) < 0.01 * one[4] for place in (0, 1)) and math.isclose(
        one[4], other[4], rel_tol=1e-6
    )


def _judged(stage: str) -> Split:
    """Return the split that a stage validates or tests on."""
    return "test" if stage == "test" else "validation"


class FuelBreakDataModule(DQNDataModule):
    """Landscapes on each of which an agent places a fixed number of fuel breaks.

    Args:
        grid_size: rows and columns of a landscape, in cells of 30 m (4 to 100).
        budget: share of all cells that become breaks (above 0, at most 1); one break per step of an episode.
        fire_simulation_max_duration: minutes that a fire burns (above 0). As wind_speed and wind_from, it may be two
            numbers: each landscape then has its own between them, so that one agent learns for all of them.
        ignitions: fires per episode, in random cells (1 or more; with fewer than 256 an agent learns to put breaks on
            the ignitions; null ignites every cell that burns). Validation and test always ignite every cell.
        wind_speed: wind speed 10 m above the vegetation, in km/h (0 to 200).
        wind_from: direction the wind comes from, in degrees clockwise from north (0 to 360; of two numbers clockwise
            from the first to the second).
        num_landscapes: landscapes to train on (1 or more).
        eval_landscapes: landscapes to validate on, never trained on (1 or more).
        test_landscapes: landscapes that only `test` uses (1 or more).
        landscape_seed: seed of the synthetic landscapes (0 to 2^32).
        region: rasters to cut landscapes from; null makes synthetic ones. `grid_size` is then the size of a tile, and
            the three numbers of landscapes are upper limits. To test a champion of synthetic landscapes, every tile
            counts.
        terrain: statistics of synthetic landscapes, in a YAML file or key by key; `fire terrain` fits them to a region.
        num_parallel_envs: episodes played at the same time, the batch of an epoch (1 or more).
        replay_capacity: transitions the replay buffer holds (1 or more).
        replay_min_size: transitions in the buffer before training starts (above num_parallel_envs, at most
            replay_capacity).
        batch_size: transitions per gradient step (1 or more).
    """

    workload = "fire"
    table_columns = (("random", "baseline/random", 1.0), ("best", "validation/max", 1.0))
    fitness_labels = {"unit": "percent of the burned area saved", "over": "episodes"}  # noqa: RUF012 - never changed
    remedy = (
        "lower data.grid_size, data.replay_capacity, data.batch_size, data.num_landscapes, data.eval_landscapes, "
        "data.test_landscapes, data.num_parallel_envs or model.width"
    )
    baselines = tuple(PLACEMENTS)
    default_baselines = ("random", "domirank", "in_degree", "downstream", "adaptive_downstream")
    codec: Frames

    def __init__(
        self,
        grid_size: int = 32,
        budget: float = 0.05,
        fire_simulation_max_duration: Span = 240.0,
        ignitions: int | None = 256,
        wind_speed: Span = 15.0,
        wind_from: Span = 270.0,
        num_landscapes: int = 32,
        eval_landscapes: int = 6,
        test_landscapes: int = 12,
        landscape_seed: int = 0,
        region: RegionFiles | None = None,
        terrain: Terrain | None = None,
        num_parallel_envs: int = 4,
        replay_capacity: int = 10_000,
        replay_min_size: int = 500,
        batch_size: int = 32,
    ) -> None:
        region = None if region is None else from_settings(RegionFiles, "data.region", region)
        terrain = None if terrain is None else from_settings(Terrain, "data.terrain", terrain)
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check_settings(given)
        super().__init__(num_parallel_envs, replay_capacity, replay_min_size, batch_size)
        self.region, self._settings = region, given
        self.counts = dict(zip(SPLITS, (num_landscapes, eval_landscapes, test_landscapes), strict=True))
        self._make_env: Callable[..., FuelBreakEnv] = partial(FuelBreakEnv, budget=budget, ignitions=ignitions)
        self._region: Region | None = None
        self._region_in_fit = False  # all of its tiles are unseen then
        self._terrain_of_fit = False  # whether its landscapes may have the statistics of the region tested
        self._burned_in_fit: list[float] = []  # cells that a fire burns without breaks, on each landscape trained on
        self._vector_env: SyncVectorEnv | None = None
        self._held_out: dict[Split, list[FuelBreakEnv]] = {}
        self._baselines: dict[tuple[str, Split], tuple[Cells, np.ndarray]] = {}

    def landscapes(self, split: Split) -> list[Landscape]:
        """Return the landscapes of a split, all different."""
        numbers, settings = self._numbers(split), self._settings
        if self.region is not None:
            available = self._tiles(split)
            return [available[number] for number in numbers]
        size, seed, terrain = (settings[name] for name in ("grid_size", "landscape_seed", "terrain"))
        return [synthetic(size, seed, number, split, terrain) for number in numbers]

    def fires(self, split: Split) -> list[dict[str, float]]:
        """Return the settings of the fires on each landscape of a split, those given as ranges drawn by its number.

        Durations are uniform in their logarithm, as a fire of twice the duration burns about four times as much.
        """
        place, drawn = SPLITS.index(split), []
        for number in self._numbers(split):
            chances = np.random.default_rng([self._settings["landscape_seed"], place, number, 1]).random(3).tolist()
            fire = {}
            for name, chance in zip(FIRE_RANGES, chances, strict=True):
                low, high = ends(self._settings[name])
                ratio = name == "fire_simulation_max_duration"
                fire[name] = low * (high / low) ** chance if ratio else low + chance * (high - low)
                if low > high:
                    fire[name] = (low + chance * (high + 360 - low)) % 360
            drawn.append(fire)
        return drawn

    def specs(self, split: Split) -> list[Spec]:
        """Return the description of each landscape of a split for a file of placements."""
        settings = self._settings
        source: Spec = {"seed": settings["landscape_seed"]}
        if settings["terrain"] is not None:
            source["terrain"] = to_config(settings["terrain"])
        if self.region is not None:
            source = {"region": {name: str(Path(path).resolve()) for name, path in self.region.given().items()}}
        if (part := self._part(split)) is not None:
            source["split"] = part
        spec = {"grid_size": settings["grid_size"], **source}
        return [
            {**spec, "number": number, "fire": {key: fire[name] for key, name in FIRE_SETTINGS.items()}}
            for number, fire in zip(self._numbers(split), self.fires(split), strict=True)
        ]

    def _numbers(self, split: Split) -> list[int]:
        """Return the numbers of the landscapes of a split in their series; the tiles of a region are picked evenly."""
        count = self.counts[split]
        if self.region is None:
            return [*range(count)]
        available = len(self._tiles(split))
        return np.linspace(0, available - 1, min(count, available)).round().astype(int).tolist()

    def _tiles(self, split: Split) -> list[Landscape]:
        assert self.region is not None
        self._region = self._region or read_region(self.region)
        return tiles(self._region, self._settings["grid_size"], self._part(split))

    def _part(self, split: Split) -> Split | None:
        """Return the split itself; None, all tiles, to test a champion on a region that its fit did not use."""
        return None if self.region is not None and split == "test" and not self._region_in_fit else split

    def needed_bytes(self, stage: str) -> dict[str, int]:
        """Return the largest number of bytes that a stage holds in landscapes and fires, by owner."""
        settings, cells = self._settings, self._settings["grid_size"] ** 2
        fires = min(settings["ignitions"] or cells, cells)
        landscapes = self.counts[_judged(stage)] + (self.counts["train"] if stage == "fit" else 0)
        unread = 0 if self.region is None or self._region is not None else count_cells(self.region.elevation)
        return {
            "region": unread * READ_BYTES,
            "landscapes": landscapes * cells * LANDSCAPE_BYTES,
            "fires": self.num_parallel_envs * fires * cells * FIRE_BYTES,
            "fires elsewhere": self.counts[_judged(stage)] * cells * cells * FIRE_BYTES,
        }

    def build(self, stage: str, device: torch.device) -> None:
        """Make the stage's held-out landscapes, and to fit the parallel environments; `env` is as each of them."""
        self.teardown(stage)
        if stage == "fit" and self.region is not None and self._settings["terrain"] is not None:
            raise UserError("data.terrain is of synthetic landscapes; leave it out, or data.region")
        if stage != "test":
            self._use_region_in_fit()
        held_out = self.held_out(_judged(stage))
        self.env = held_out[0]
        if stage == "fit":
            fires = self.fires("train")
            by_landscape = {name: [fire[name] for fire in fires] for name in FIRE_RANGES}
            self.env = self._make_env(landscapes=self.landscapes("train"), **by_landscape)
        self.episode_steps = self.env.budget
        scenes = [scene for env in (self.env, *held_out) for scene in env.scenes]
        # an episode would end before its budget is spent
        if (burning := min(int(scene.model.burnable.sum()) for scene in scenes)) < self.episode_steps:
            share = f"data.budget is {self._settings['budget']}, which is {self.episode_steps} breaks"
            raise UserError(f"{share}, but only {burning} cells of a landscape burn; lower it")
        self.codec = Frames([scene.planes for scene in self.env.scenes], device)
        if stage != "fit":
            return
        twins = [self.env.twin] * self.num_parallel_envs
        self.environments = self._vector_env = SyncVectorEnv(twins, autoreset_mode=AutoresetMode.DISABLED)
        models, rng = [scene.model for scene in self.env.scenes], generator(0, Role.WINDOWS)
        self._burned_in_fit = [model.start(model.draw(FEW, rng)).burned * model.cells for model in models]

    def _use_region_in_fit(self) -> None:
        """Play on each split's own tiles of a region from now on, not on all of them."""
        if not self._region_in_fit:
            self._region_in_fit = True
            self._held_out.clear()
            self._baselines.clear()

    def held_out(self, split: Split) -> list[FuelBreakEnv]:
        """Return an environment for each landscape of a split, made on the first call."""
        if split not in self._held_out:
            pairs = zip(self.landscapes(split), self.fires(split), strict=True)
            self._held_out[split] = [self._make_env(landscapes=[each], **fire) for each, fire in pairs]
        return self._held_out[split]

    def make_network(self, width: int, prior: bool) -> QMap:
        """Build the Q-network of the maps."""
        return QMap(width, prior)

    def activation_bytes(self, width: int) -> int:
        """Return the bytes of one network's activations for a batch."""
        return 4 * self.batch_size * self.env.shape[0] * self.env.shape[1] * NETWORK_LAYERS * width

    def learned_rewards(self, before: Info, after: Info, rewards: np.ndarray) -> np.ndarray:
        """Return the relative rewards, whose scale is the same throughout an episode."""
        burned, cells = zip(before["burned"], after["burned"], strict=True), self._settings["grid_size"] ** 2
        return np.array([relative_reward(had, has, cells) for had, has in burned])

    def episode_fitness(self) -> Float[np.ndarray, " environments"]:
        """Return the percentage of the burned area saved so far in each episode."""
        return np.asarray(100 * self.collector.info["reduction"])

    def play(self, policy: Policy, split: Split) -> Float[np.ndarray, " landscapes"]:
        """Place breaks on all landscapes of a split; return the share of the burned area saved on each (0 to 1)."""
        environments = self.held_out(split)
        results: list[Any] = [env.reset(options={"ignitions": None}) for env in environments]
        for _ in range(self.episode_steps):
            cells = policy(np.stack([observation for observation, *_ in results]))
            results = [env.step(cell) for env, cell in zip(environments, cells, strict=True)]
        for env in environments:
            env.fires = None  # fires from every cell take much memory
        return np.array([info["reduction"] for *_, info in results])

    def baseline(self, name: str, split: Split) -> tuple[Cells, Float[np.ndarray, " landscapes"]]:
        """Return the breaks of a baseline on each landscape of a split, and the share of the burned area they save."""
        if (name, split) not in self._baselines:
            place = PLACEMENTS[name]
            self._baselines[name, split] = self._score(split, lambda model, rng: place(model, self.env.budget, rng))
        return self._baselines[name, split]

    def _score(
        self, split: Split, place: Callable[[FireModel, np.random.Generator], list[int]]
    ) -> tuple[Cells, Float[np.ndarray, " landscapes"]]:
        """Return the breaks that a function places on each landscape of a split, in order, and what they save."""
        models = [env.scenes[0].model for env in self.held_out(split)]
        placed = [place(model, generator(0, Role.VALIDATION, number)) for number, model in enumerate(models)]
        return placed, np.array([reduction(model, cells) for model, cells in zip(models, placed, strict=True)])

    def validation_fitness(self, policy: Policy) -> Float[np.ndarray, " landscapes"]:
        """Return the percentage of the burned area that a policy saves on each validation landscape."""
        return 100 * self.play(policy, "validation")

    def baseline_fitness(self, name: str) -> float:
        """Return the mean percentage that a baseline saves on the validation landscapes."""
        return float(100 * self.baseline(name, "validation")[1].mean())

    def test(self, policy: Policy, generation: int) -> TestResult:
        """Play the champion, also improved by local search, and every baseline on landscapes that no fit has used."""
        saved = {"champion": self.play(policy, "test")}
        saved |= {name: self.baseline(name, "test")[1] for name in PLACEMENTS}
        file = self._placements("test", generation, tuple(PLACEMENTS))
        starts = iter(file.placements["champion"])
        swapped = self._score("test", lambda model, rng: improve(model, next(starts), rng))
        file.placements[placements.SWAPPED], saved[placements.SWAPPED] = swapped
        if (root := self._run_folder()) is not None:
            placements.save_test(root, file, saved, self.fitness_labels["unit"], self.settings())
        burned = np.array([env.start * env.scenes[0].model.cells for env in self.held_out("test")])
        least, most = min(self._burned_in_fit, default=0.0), max(self._burned_in_fit, default=np.inf)
        if not least / ALIKE <= burned.mean() <= ALIKE * most:
            log.warning(
                "a fire burns %.0f cells here on average, but %.0f to %.0f in the fit: the champion may be far from "
                "its best; fit on such ground, or with a range of durations and winds",
                *(burned.mean(), least, most),
            )
        measured = self.region is not None and self._terrain_of_fit
        return placements.make_test_result(saved, burned, generation, measured)

    def save_champion_record(self, generation: int, baselines: tuple[str, ...]) -> None:
        """Save where the new champion and the baselines put breaks: `champion/placements.json`."""
        if (root := self._run_folder()) is not None:
            folder = root / placements.FOLDERS["validation"]
            placements.save_champion(folder, self._placements("validation", generation, baselines))

    def _run_folder(self) -> Folder | None:
        """Return the run's folder; None in a process that writes nothing."""
        trainer = self.trainer
        if trainer is None or not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return None
        return Folder(trainer.default_root_dir)

    def _placements(self, split: Split, generation: int, baselines: tuple[str, ...]) -> PlacementFile:
        """Return the breaks of the episodes last played on a split, and those of baselines."""
        placed = {"champion": [list(env.placed) for env in self.held_out(split)]}
        placed |= {name: self.baseline(name, split)[0] for name in baselines}
        return PlacementFile(self.specs(split), placed, {}, generation)

    def config(self) -> dict[str, Any]:
        """Return the arguments it was made with, as the group `data` of a configuration file."""
        return to_config(self._settings)

    def settings(self) -> dict[str, Any]:
        """Return everything about the data that determines results, as plain values; rasters as a hash."""
        plain = {name: value for name, value in self._settings.items() if name != "region"}
        return {**to_config(plain), "region": self._digest}

    @cached_property
    def _digest(self) -> str | None:
        if self.region is None:
            return None
        self._region = self._region or read_region(self.region)
        layers = self._region.landscape.layers().values()
        return hashlib.sha256(b"".join(layer.tobytes() for layer in layers)).hexdigest()

    def inference_spec(self) -> dict[str, Any]:
        """Return what decides which landscapes the fit has not used, and how much fires burned in it."""
        used = {name: self._settings[name] for name in ("landscape_seed", "grid_size")}
        place = {"extent": self._region.extent, "crs": str(self._region.crs)} if self._region else {}
        used |= {"terrain": self._settings["terrain"] is not None, "region": self.region is not None}
        return {**used, **place, "burned_cells": self._burned_in_fit}

    def apply_inference_spec(self, spec: Mapping[str, Any]) -> None:
        """Refuse to play a champion on landscapes of another series; leave it only unseen tiles of a region."""
        if (saved := spec["landscape_seed"]) != self._settings["landscape_seed"]:
            remedy = "so that test landscapes may be those of its training; leave it out"
            raise UserError(f"data.landscape_seed is not the fit's, {saved}, {remedy}")
        self._burned_in_fit, self._terrain_of_fit = spec["burned_cells"], spec.get("terrain", False)
        if self.region is None or not spec["region"]:
            return
        self._region = self._region or read_region(self.region)
        own, theirs = self._region.extent, spec.get("extent")
        crs, of_fit = str(self._region.crs), spec.get("crs")
        comparable = crs == of_fit or "None" in (crs, of_fit)  # without a projection coordinates decide
        if theirs and comparable and not _overlap(own, theirs):
            return  # no tile is of the fit's region
        size = self._settings["grid_size"]
        if (saved := spec.get("grid_size", size)) != size:
            remedy = "so that test tiles may lie on those of its training; leave it out"
            raise UserError(f"data.grid_size is not the fit's, {saved}, {remedy}")
        if theirs and not comparable:
            raise UserError(
                f"data.region has the projection {crs}, that of the fit {of_fit}, so that test tiles may lie on those "
                "of its training; warp it to that of the fit: gdalwarp -t_srs"
            )
        if theirs and not _same_tiles(own, theirs):
            raise UserError(
                f"data.region begins at {own[0]:,.1f}, {own[1]:,.1f} with cells of {own[4]:g}, that of the fit, "
                f"which it overlaps, at {theirs[0]:,.1f}, {theirs[1]:,.1f} with {theirs[4]:g}, so that test tiles "
                "may lie on those of its training; give the fit's rasters, or others elsewhere"
            )
        if not self._region_in_fit:
            self._use_region_in_fit()
            self.build("test", self.codec.rates.device)

    def describe(self) -> dict[str, str]:
        """Return what to print at the start of a run, by name."""
        values, counts = self._settings, " + ".join(map(str, self.counts.values()))
        source = "synthetic" if self.region is None else f"of {self.region.elevation} and further rasters"
        spans = (dict.fromkeys(ends(values[name])) for name in FIRE_RANGES)
        minutes, speed, direction = (" to ".join(f"{end:g}" for end in span) for span in spans)
        wind = f"{speed} km/h from {direction} degrees"
        return {
            "landscapes": f"{counts} to train, validate and test on, {values['grid_size']} cells a side, {source}",
            "fires": f"{values['ignitions'] or 'all'} per episode, {minutes} minutes, wind {wind}",
            "episode": f"{self.env.budget} breaks; {self.num_parallel_envs} episodes at a time",
        }

    def memory_owners(self) -> dict[str, object]:
        """Return the objects that hold memory, by owner name, for a memory profiler."""
        return {**super().memory_owners(), "landscapes": (self._region, self.env.scenes, self._held_out)}

    def teardown(self, stage: str) -> None:
        """Close the environments."""
        if self._vector_env is not None:
            self._vector_env.close()
            self._vector_env = None
