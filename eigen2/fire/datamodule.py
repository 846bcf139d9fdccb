"""The fuel-break workload as a data module: landscapes, environments, validation and test."""

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from jaxtyping import Float

from eigen2.core.datamodule import TestResult
from eigen2.core.randomness import Role, generator
from eigen2.dqn.collector import Info
from eigen2.dqn.datamodule import DQNDataModule, Policy
from eigen2.errors import UserError, require_range
from eigen2.fire.evaluation import records
from eigen2.fire.evaluation.placements import PlacementFile, Spec, region_spec
from eigen2.fire.landscapes.landscape import SPLITS, Landscape, Split, synthetic
from eigen2.fire.landscapes.rasters import Region, RegionFiles, read_region, tiles
from eigen2.fire.networks import QMap
from eigen2.fire.simulation.baselines import PLACEMENTS, reduction
from eigen2.fire.simulation.environment import FuelBreakEnv, relative_reward
from eigen2.fire.simulation.frames import Frames

LANDSCAPE_BYTES = 130  # of a landscape's cell: its layers, its rates of spread, and the graph
NETWORK_LAYERS = 8  # layers of `QMap` as large as the map, nearly


class FuelBreakDataModule(DQNDataModule):
    """Landscapes on which fuel breaks are placed, a fixed number of them in each.

    Args:
        grid_size: rows, and columns, of a landscape, of 30 m each (4 or more).
        budget: share of all cells that become breaks (above 0, at most 1); the steps of an episode.
        fire_simulation_max_duration: minutes that a fire burns (above 0).
        ignitions: fires of an episode, drawn with it (1 or more; below 256 it pays to put breaks on the ignitions; null
            takes every cell that burns). Validation and test always take every cell.
        wind_speed: 10 m above the vegetation, in km/h (0 to 200).
        wind_from: where the wind comes from, in degrees clockwise from north (0 to 360).
        num_landscapes: to train on (1 or more).
        eval_landscapes: to validate on, never trained on (1 or more).
        test_landscapes: that only `test` uses (1 or more).
        landscape_seed: of synthetic landscapes (0 or more).
        region: rasters to cut landscapes from; null makes synthetic ones. `grid_size` is that of the tiles, each of the
            three numbers of landscapes the most that are used.
        downstream_plane: show agents how many cells burn through each cell; model.prior needs it.
        relative_rewards: learn from what a break saves of what still burned, which stays of one size through an
            episode as model.prior expects, rather than from points of the whole map.
        num_parallel_envs: episodes played at a time, the batch of an epoch (1 or more).
        parallel_method: whether environments step in this process (sync) or each in one of its own (async); the
            results are the same.
        buffer_size: transitions the replay buffer holds (1 or more).
        warmup: transitions in it before training starts (batch_size to buffer_size).
        batch_size: transitions of a gradient step (1 or more).
        prefill: baseline that places breaks before the agent does, to fill the buffer: domirank, downstream or none.
        prefill_episodes: episodes of each environment that are played so (1 or more).
    """

    workload = "fire"
    table_columns = (("random", "baseline/random", 1.0), ("best", "validation/max", 1.0))
    fitness_words = {"unit": "percent of the burned area saved", "over": "episodes"}  # noqa: RUF012 - never changed
    remedy = (
        "lower data.grid_size, data.buffer_size, data.batch_size, data.num_landscapes, data.eval_landscapes, "
        "data.test_landscapes, data.num_parallel_envs or model.width"
    )
    baselines = tuple(PLACEMENTS)
    default_baselines = ("random", "domirank", "in_degree", "downstream", "adaptive_downstream")
    codec: Frames

    def __init__(
        self,
        grid_size: int = 32,
        budget: float = 0.05,
        fire_simulation_max_duration: float = 240.0,
        ignitions: int | None = 256,
        wind_speed: float = 15.0,
        wind_from: float = 270.0,
        num_landscapes: int = 32,
        eval_landscapes: int = 6,
        test_landscapes: int = 12,
        landscape_seed: int = 0,
        region: RegionFiles | None = None,
        downstream_plane: bool = True,
        relative_rewards: bool = True,
        num_parallel_envs: int = 4,
        parallel_method: Literal["sync", "async"] = "sync",
        buffer_size: int = 10_000,
        warmup: int = 500,
        batch_size: int = 32,
        prefill: Literal["domirank", "downstream", "none"] = "none",
        prefill_episodes: int = 5,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        _check(given)
        super().__init__(num_parallel_envs, buffer_size, warmup, batch_size)
        self._settings = given
        self.counts = dict(zip(SPLITS, (num_landscapes, eval_landscapes, test_landscapes), strict=True))
        self.region = region
        self._region: Region | None = None
        self._digest: str | None = None
        names = "budget", "fire_simulation_max_duration", "ignitions", "wind_speed", "wind_from", "downstream_plane"
        self._make_env = partial(FuelBreakEnv, **{name: given[name] for name in names})
        self._vector_env: SyncVectorEnv | AsyncVectorEnv | None = None
        self._held_out: dict[Split, list[FuelBreakEnv]] = {}
        self._placed: dict[tuple[str, Split], list[list[int]]] = {}
        self._saved: dict[tuple[str, Split], np.ndarray] = {}

    # Landscapes

    def landscapes(self, split: Split) -> list[Landscape]:
        """Return the landscapes of a split, all different."""
        size, seed = self._settings["grid_size"], self._settings["landscape_seed"]
        if self.region is None:
            return [synthetic(size, seed, number, split) for number in range(self.counts[split])]
        found = self._tiles(split)
        return [found[number] for number in _evenly(self.counts[split], len(found))]

    def specs(self, split: Split) -> list[Spec]:
        """Return how a file of placements names each landscape of a split."""
        spec: Spec = {"grid_size": self._settings["grid_size"], "split": split}
        if self.region is None:
            spec["seed"], numbers = self._settings["landscape_seed"], list(range(self.counts[split]))
        else:
            spec["region"], numbers = region_spec(self.region), _evenly(self.counts[split], len(self._tiles(split)))
        return [{**spec, "number": number} for number in numbers]

    def _tiles(self, split: Split) -> list[Landscape]:
        assert self.region is not None
        if self._region is None:
            self._region = read_region(self.region)
        return tiles(self._region, self._settings["grid_size"], split)

    # Set-up

    def needed_bytes(self, stage: str) -> dict[str, int]:
        """Return the most bytes by owner that a stage keeps of landscapes and fires."""
        own = self._settings
        cells, per_cell = own["grid_size"] ** 2, 8 if own["downstream_plane"] else 4  # bytes of a fire in a cell
        fires = min(own["ignitions"] or cells, cells)
        held_out = self.counts["test" if stage == "test" else "validation"]
        copies = 1 if own["parallel_method"] == "sync" else 1 + self.num_parallel_envs  # of landscapes ready to burn
        return {
            "landscapes": (self.counts["train"] * copies + held_out) * cells * LANDSCAPE_BYTES,
            "fires": self.num_parallel_envs * fires * cells * per_cell,
            "fires elsewhere": held_out * cells * cells * per_cell,
        }

    def build(self, stage: str, device: torch.device) -> None:
        """Make the environments, of which `env` is for looking at, and the landscapes that the stage plays.

        Raises:
            UserError: a landscape has fewer cells that burn than there are breaks, so that episodes would end early.
        """
        self.teardown(stage)
        landscapes = self.landscapes("train")
        self.env = self._make_env(landscapes=landscapes)
        scenes = [self.env.scene(number) for number in range(len(landscapes))]  # now, so that memory does not grow
        burning = [int(scene.model.burnable.sum()) for scene in scenes]
        if min(burning) < self.env.budget:
            raise UserError(
                f"data.budget is {self._settings['budget']}, which is {self.env.budget} breaks, but only "
                f"{min(burning)} cells of landscape {int(np.argmin(burning))} burn; lower it"
            )
        kind = SyncVectorEnv if self._settings["parallel_method"] == "sync" else AsyncVectorEnv
        twins = [self.env.twin] * self.num_parallel_envs
        self.environments = self._vector_env = kind(twins, autoreset_mode=AutoresetMode.DISABLED)
        self.codec = Frames([scene.planes for scene in scenes], self._settings["downstream_plane"], device)
        self.held_out("test" if stage == "test" else "validation")

    def held_out(self, split: Split) -> list[FuelBreakEnv]:
        """Return an environment for each landscape of a split, made on the first call."""
        if split not in self._held_out:
            self._held_out[split] = [self._make_env(landscapes=[each]) for each in self.landscapes(split)]
            for env in self._held_out[split]:
                env.scene(0)
        return self._held_out[split]

    def allocate_replay(self, device: torch.device) -> None:
        """Allocate the replay buffer, if it holds the episodes that are to be played into it."""
        episodes = self._settings["prefill_episodes"]
        steps = episodes * self.num_parallel_envs * self.episode_steps
        if self._settings["prefill"] != "none" and steps > self.buffer_size:
            given = f"data.prefill_episodes is {episodes}, which are {steps} transitions in all environments"
            raise UserError(
                f"{given} and more than data.buffer_size {self.buffer_size}; lower the one or raise the other"
            )
        super().allocate_replay(device)

    @property
    def episode_steps(self) -> int:
        """Return the breaks of an episode."""
        return self.env.budget

    def make_network(self, width: int, dueling: bool, prior: bool) -> QMap:
        """Build the Q-network of the maps."""
        if prior and not self._settings["downstream_plane"]:
            raise UserError("model.prior is true, but data.downstream_plane is false: set both, or neither")
        return QMap(self.codec.planes, width, dueling, prior)

    def activation_bytes(self, width: int) -> int:
        """Return the bytes of one network's activations for a batch."""
        return 4 * self.batch_size * self.env.shape[0] * self.env.shape[1] * NETWORK_LAYERS * width

    # Episodes, validation and test

    def learned_rewards(self, before: Info, after: Info, rewards: np.ndarray) -> np.ndarray:
        """Return the relative rewards, or the environments' own."""
        if not self._settings["relative_rewards"]:
            return rewards
        cells = self.env.shape[0] * self.env.shape[1]
        burned = zip(before["burned"], after["burned"], strict=True)
        return np.array([relative_reward(had, has, cells) for had, has in burned])

    def episode_fitness(self) -> Float[np.ndarray, " environments"]:
        """Return the percentage of the burned area that each episode has saved so far."""
        saved: Float[np.ndarray, " environments"] = 100 * self.collector.info["reduction"]
        return saved

    def prefill(self, seed: int) -> None:
        """Fill the replay buffer with episodes of the chosen baseline."""
        if self._settings["prefill"] == "none":
            return
        place, chance = PLACEMENTS[self._settings["prefill"]], generator(seed, Role.PREFILL)
        for episode in range(self._settings["prefill_episodes"]):
            self.collector.begin(self.seeds(Role.PREFILL, episode, seed))
            models = [self.env.scene(int(number)).model for number in self.collector.info["landscape"]]
            orders = [place(model, self.episode_steps, chance) for model in models]
            for step in range(self.episode_steps):
                self.collector.step(np.array([order[step] for order in orders]))

    def play(self, policy: Policy, split: Split) -> Float[np.ndarray, " landscapes"]:
        """Place breaks on all landscapes of a split; return the part of the burned area saved on each (0 to 1)."""
        environments = self.held_out(split)
        observations = np.stack([env.reset(options={"ignitions": None})[0] for env in environments])
        saved, playing = np.zeros(len(environments)), np.arange(len(environments))
        while len(playing):
            going = []
            for number, cell in zip(playing, policy(observations[playing]), strict=True):
                observations[number], _, ended, _, info = environments[number].step(cell)
                saved[number] = info["reduction"]
                if not ended:
                    going.append(number)
            playing = np.array(going, int)
        for env in environments:
            env.free_fires()
        return saved

    def placement(self, name: str, split: Split) -> list[list[int]]:
        """Return the breaks of a baseline on each landscape of a split, in order; computed once."""
        if (name, split) not in self._placed:
            self._placed[name, split] = [
                PLACEMENTS[name](env.scene(0).model, env.budget, generator(0, Role.VALIDATION, number))
                for number, env in enumerate(self.held_out(split))
            ]
        return self._placed[name, split]

    def baseline_savings(self, name: str, split: Split) -> Float[np.ndarray, " landscapes"]:
        """Return the part of the burned area that a baseline saves on each landscape of a split; computed once."""
        if (name, split) not in self._saved:
            each = zip(self.held_out(split), self.placement(name, split), strict=True)
            self._saved[name, split] = np.array([reduction(env.scene(0).model, cells) for env, cells in each])
        return self._saved[name, split]

    def validation_fitness(self, policy: Policy) -> Float[np.ndarray, " landscapes"]:
        """Return the percentage of the burned area that a policy saves on each validation landscape."""
        return 100 * self.play(policy, "validation")

    def baseline_fitness(self, name: str) -> float:
        """Return the mean percentage that a baseline saves on the validation landscapes."""
        return float(100 * self.baseline_savings(name, "validation").mean())

    def test(self, policy: Policy, generation: int) -> TestResult:
        """Play the champion and every baseline on landscapes that no fit has used; save scores and placements."""
        saved = {"champion": self.play(policy, "test")}
        saved |= {name: self.baseline_savings(name, "test") for name in PLACEMENTS}
        if (folder := self._record_folder("test")) is not None:
            placements = self._placements("test", generation, tuple(PLACEMENTS))
            records.save_test(folder, placements, saved, self.fitness_words["unit"], self.settings())
        return records.make_test_result(saved, generation)

    def save_champion_record(self, generation: int, baselines: tuple[str, ...]) -> None:
        """Save where the new champion and the baselines put breaks: `champion/placements.json`."""
        if (folder := self._record_folder("validation")) is not None:
            records.save_champion(folder, self._placements("validation", generation, baselines))

    def _record_folder(self, split: Split) -> Path | None:
        """Return where the record of a split goes; None for a process that writes nothing."""
        trainer = self.trainer
        if trainer is None or not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return None
        return Path(trainer.default_root_dir) / records.FOLDERS[split]

    def _placements(self, split: Split, generation: int, baselines: tuple[str, ...]) -> PlacementFile:
        """Return the breaks of the episodes last played on a split, and those of baselines."""
        own = self._settings
        placed = {"champion": [list(env.placed) for env in self.held_out(split)]}
        placed |= {name: self.placement(name, split) for name in baselines}
        fire = {"duration": own["fire_simulation_max_duration"]}
        fire |= {name: own[name] for name in ("wind_speed", "wind_from")}
        return PlacementFile(self.specs(split), placed, fire, generation)

    # Settings and state

    def settings(self) -> dict[str, Any]:
        """Return everything about the data that determines results, as plain values; rasters by a hash."""
        plain = {name: value for name, value in self._settings.items() if name not in ("parallel_method", "region")}
        if self.region is not None and self._digest is None:
            digest = hashlib.sha256()
            landscapes = (each for split in SPLITS for each in self.landscapes(split))
            for layer in (layer for landscape in landscapes for layer in landscape.layers().values()):
                digest.update(layer.tobytes())
            self._digest = digest.hexdigest()
        return {**plain, "region": self._digest}

    def inference_spec(self) -> dict[str, Any]:
        """Return what decides the network's input, and which landscapes fit has not used."""
        return {name: self._settings[name] for name in ("downstream_plane", "landscape_seed")}

    def apply_inference_spec(self, spec: Mapping[str, Any]) -> None:
        """Refuse to play a champion on other planes than it learned from, or on landscapes of another series."""
        if (saved := spec["downstream_plane"]) != (mine := self._settings["downstream_plane"]):
            raise UserError(f"data.downstream_plane is {mine}, but the checkpoint's network has {saved}; give that")
        if (saved := spec["landscape_seed"]) != self._settings["landscape_seed"]:
            raise UserError(
                f"data.landscape_seed is not the fit's, {saved}, which determines what it has not seen; leave it out"
            )

    def describe(self) -> dict[str, str]:
        """Return name and value of what a user should see at the start."""
        own, size = self._settings, self._settings["grid_size"]
        counts = ", ".join(f"{len(self.landscapes(split))} for {split}" for split in SPLITS)
        source = "synthetic" if self.region is None else f"of {self.region.elevation} and further rasters"
        return {
            "landscapes": f"{counts}, {size} x {size} cells, {source}",
            "fires": f"{own['ignitions'] or 'all'} an episode, {own['fire_simulation_max_duration']:g} minutes each, "
            f"wind {own['wind_speed']:g} km/h from {own['wind_from']:g} degrees",
            "episode": f"{self.env.budget} breaks; {self.num_parallel_envs} episodes at a time, "
            f"{own['parallel_method']}",
        }

    def teardown(self, stage: str) -> None:
        """End the environments."""
        if self._vector_env is not None:
            self._vector_env.close()
            self._vector_env = None


def _evenly(count: int, available: int) -> list[int]:
    """Return at most `count` numbers from 0 to `available` - 1, spread evenly."""
    spread: list[int] = np.linspace(0, available - 1, min(count, available)).round().astype(int).tolist()
    return spread


def _check(given: Mapping[str, Any]) -> None:
    """Refuse settings outside their range, by full key."""
    least = {"grid_size": 4, "landscape_seed": 0, "num_landscapes": 1, "eval_landscapes": 1, "test_landscapes": 1}
    for name, smallest in {**least, "prefill_episodes": 1, "ignitions": 1}.items():
        if given[name] is not None:
            require_range(f"data.{name}", given[name], least=smallest)
    require_range("data.budget", given["budget"], above=0, most=1)
    require_range("data.fire_simulation_max_duration", given["fire_simulation_max_duration"], above=0, most=1e9)
    require_range("data.wind_speed", given["wind_speed"], least=0, most=200)
    require_range("data.wind_from", given["wind_from"], least=0, most=360)
