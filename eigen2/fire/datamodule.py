"""The fuel-break workload as a data module: landscapes, environments, replay buffer, and what is measured on others."""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn

from eigen2.core.datamodule import StepTokens
from eigen2.core.randomness import Role, generator
from eigen2.core.replay import ReplayBuffer
from eigen2.errors import UserError, require_range
from eigen2.fire.collector import Cells, Collector, replay_fields
from eigen2.fire.evaluation.placements import Spec, region_spec
from eigen2.fire.landscapes.landscape import SPLITS, Landscape, Split, synthetic
from eigen2.fire.landscapes.rasters import Region, RegionFiles, read_region, tiles
from eigen2.fire.simulation.baselines import PLACEMENTS, reduction
from eigen2.fire.simulation.environment import FuelBreakEnv
from eigen2.fire.simulation.frames import Frames

SEEDS = 2**31
"""Environments are seeded with whole numbers below this."""
LANDSCAPE_BYTES = 130
"""Of a landscape's cell: its layers, how fast fire spreads, and the graph it spreads along."""
Choose = Callable[[np.ndarray], Cells]
"""Observations of several episodes, (episodes, planes, rows, columns), to an allowed cell of each."""


class FuelBreakDataModule(LightningDataModule):
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
        test_landscapes: that only `test` looks at (1 or more).
        landscape_seed: of synthetic landscapes (0 or more).
        region: rasters to cut landscapes from; null makes synthetic ones. `grid_size` is that of the tiles, each of the
            three numbers of landscapes the most that are used.
        downstream_plane: show agents how many cells burn through each cell.
        relative_rewards: learn from what a break saves of what still burned, which stays of one size through an
            episode, rather than from points of the whole map.
        num_parallel_envs: episodes played at a time, the batch of an epoch (1 or more).
        parallel_method: whether environments step in this process (sync) or each in one of its own (async); the
            results are the same.
        buffer_size: transitions the replay buffer holds (1 or more).
        warmup: transitions in it before training starts (batch_size to buffer_size).
        batch_size: transitions of a gradient step (1 or more).
        prefill: who places breaks before the agent does, to fill the buffer: domirank, downstream or none.
        prefill_episodes: episodes of each environment that are played so (1 or more).
    """

    workload = "fire"
    table_columns = (("random", "baseline/random", 1.0), ("best", "validation/max", 1.0))

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
        super().__init__()
        named = locals()
        self._settings = {name: value for name, value in named.items() if name not in ("self", "__class__")}
        _check(self._settings)
        self.counts = dict(zip(SPLITS, (num_landscapes, eval_landscapes, test_landscapes), strict=True))
        self.num_parallel_envs, self.parallel_method = num_parallel_envs, parallel_method
        self.buffer_size, self.replay_min_size, self.batch_size = buffer_size, warmup, batch_size
        self.prefill, self.prefill_episodes = prefill, prefill_episodes
        self.region = region
        self._read: Region | None = None
        self._digested: str | None = None
        self._make = partial(
            FuelBreakEnv,
            budget=budget,
            fire_simulation_max_duration=fire_simulation_max_duration,
            ignitions=ignitions,
            wind_speed=wind_speed,
            wind_from=wind_from,
            downstream_plane=downstream_plane,
        )
        self._placed: dict[tuple[str, str], list[list[int]]] = {}
        self._scored: dict[tuple[str, str], np.ndarray] = {}
        self._environments: dict[str, list[FuelBreakEnv]] = {}

    # What there is

    def landscapes(self, split: Split) -> list[Landscape]:
        """Those of train, validation or test; no two are alike."""
        size, seed, count = self._settings["grid_size"], self._settings["landscape_seed"], self.counts[split]
        if self.region is None:
            return [synthetic(size, seed, number, split) for number in range(count)]
        found = self._tiles(split)
        return [found[number] for number in _evenly(count, len(found))]

    def specs(self, split: Split) -> list[Spec]:
        """How each of them is made again, for a file of placements."""
        size, seed, count = self._settings["grid_size"], self._settings["landscape_seed"], self.counts[split]
        own: Spec = {"grid_size": size, "split": split}
        if self.region is None:
            return [{**own, "seed": seed, "number": number} for number in range(count)]
        numbers = _evenly(count, len(self._tiles(split)))
        return [{**own, "region": region_spec(self.region), "number": number} for number in numbers]

    def _tiles(self, split: Split) -> list[Landscape]:
        assert self.region is not None
        if self._read is None:
            self._read = read_region(self.region)
        return tiles(self._read, self._settings["grid_size"], split)

    def needed_bytes(self, stage: str) -> dict[str, int]:
        """Bytes by owner of what a stage keeps of landscapes and fires, at most, before any is made.

        Args:
            stage: of the Trainer: fit, validate or test.
        """
        own = self._settings
        cells, trees = own["grid_size"] ** 2, 8 if own["downstream_plane"] else 4  # bytes a fire and cell
        fires = min(own["ignitions"] or cells, cells)
        others = self.counts["test" if stage == "test" else "validation"]
        copies = 1 if self.parallel_method == "sync" else 1 + self.num_parallel_envs  # of landscapes ready to burn
        return {
            "landscapes": (self.counts["train"] * copies + others) * cells * LANDSCAPE_BYTES,
            "fires": self.num_parallel_envs * fires * cells * trees,
            "fires elsewhere": others * cells * cells * trees,
        }

    def build(self, device: torch.device) -> None:
        """Make the environments of training, of which one is for looking at, and what observations share.

        Raises:
            UserError: a landscape has fewer cells that burn than there are breaks, so that episodes would end early.
        """
        self.close()
        landscapes = self.landscapes("train")
        self.env = self._make(landscapes=landscapes)
        burning = [int(self.env.scene(number).model.burnable.sum()) for number in range(len(landscapes))]
        if min(burning) < self.env.budget:
            raise UserError(
                f"data.budget is {self._settings['budget']}, which is {self.env.budget} breaks, but only "
                f"{min(burning)} cells of landscape {int(np.argmin(burning))} burn; lower it"
            )
        # all are made now, and once: memory does not grow as landscapes are drawn
        rates = [self.env.scene(number).planes for number in range(len(landscapes))]
        make = [self.env.twin] * self.num_parallel_envs
        kind: type[VectorEnv] = SyncVectorEnv if self.parallel_method == "sync" else AsyncVectorEnv
        self.environments = kind(make, autoreset_mode=AutoresetMode.DISABLED)  # type: ignore[call-arg]
        self.frames = Frames(rates, self._settings["downstream_plane"], device)

    def allocate_replay(self, device: torch.device) -> None:
        """Take the replay buffer's memory, once: fitting again takes the same.

        Raises:
            UserError: the buffer does not hold an episode of each environment, or what is to be played into it.
        """
        least = self.num_parallel_envs * (self.env.budget + 1)
        if self.buffer_size < least:
            raise UserError(
                f"data.buffer_size is {self.buffer_size}; an episode in each of {self.num_parallel_envs} environments "
                f"has {least}: raise it to at least that"
            )
        played = self.prefill_episodes * self.num_parallel_envs * self.env.budget
        if self.prefill != "none" and played > self.buffer_size:
            raise UserError(
                f"data.prefill_episodes is {self.prefill_episodes}, which are {played} transitions in all environments "
                f"and more than data.buffer_size {self.buffer_size}; lower the one or raise the other"
            )
        fields, kept = replay_fields(self.frames), getattr(self, "buffer", None)
        if kept is not None and kept.matches(self.buffer_size, fields, device):
            kept.reset_memory()
        else:
            self.buffer = ReplayBuffer(self.buffer_size, fields, device)
        self.collector = Collector(self.environments, self.frames, self.buffer, self._settings["relative_rewards"])

    @property
    def episode_steps(self) -> int:
        """Breaks of an episode."""
        return self.env.budget

    @property
    def replay_bytes(self) -> int:
        """Bytes the replay buffer takes."""
        return self.buffer_size * sum(field.nbytes for field in replay_fields(self.frames).values())

    @property
    def ready(self) -> bool:
        """Whether the buffer is full enough to train from."""
        return len(self.buffer) >= self.replay_min_size

    # What happens with it

    def seeds(self, role: Role, epoch: int, seed: int) -> list[int]:
        """Of the episodes of an epoch, one an environment."""
        drawn = generator(seed, role, epoch).integers(SEEDS, size=self.num_parallel_envs)
        return [int(each) for each in drawn]

    def play_prefill(self, seed: int) -> None:
        """Fill the replay buffer with episodes of the expert that was chosen; nothing without one."""
        if self.prefill == "none":
            return
        place, chance = PLACEMENTS[self.prefill], generator(seed, Role.PREFILL)
        for episode in range(self.prefill_episodes):
            self.collector.begin(self.seeds(Role.PREFILL, episode, seed))
            models = [self.env.scene(number).model for number in self.collector.landscape.tolist()]
            orders = [place(model, self.episode_steps, chance) for model in models]
            for step in range(self.episode_steps):
                self.collector.step(np.array([order[step] for order in orders]))

    def play(self, choose: Choose, split: Split) -> np.ndarray:
        """Place breaks on all landscapes of a split, and return the part of the burned area saved on each.

        Args:
            choose: a cell for each observation.
            split: validation or test.
        """
        environments = self.held_out(split)
        seen = [env.reset(options={"ignitions": None}) for env in environments]
        observations, found = np.stack([each for each, _ in seen]), np.zeros(len(environments))
        playing = np.arange(len(environments))
        while len(playing):
            cells = choose(observations[playing])
            going = []
            for number, cell in zip(playing, cells, strict=True):
                observations[number], _, ended, _, info = environments[number].step(cell)
                found[number] = info["reduction"]
                if not ended:
                    going.append(number)
            playing = np.array(going, int)
        for env in environments:
            env.rest()
        return found

    def score(self, name: str, split: Split) -> np.ndarray:
        """The same of a placement that learns nothing, see `PLACEMENTS`; computed once."""
        if (name, split) not in self._scored:
            each = zip(self.held_out(split), self.placement(name, split), strict=True)
            self._scored[name, split] = np.array([reduction(env.scene(0).model, cells) for env, cells in each])
        return self._scored[name, split]

    def placement(self, name: str, split: Split) -> list[list[int]]:
        """The breaks of it on each landscape, in their order; computed once."""
        if (name, split) not in self._placed:
            self._placed[name, split] = [
                PLACEMENTS[name](env.scene(0).model, env.budget, generator(0, Role.VALIDATION, number))
                for number, env in enumerate(self.held_out(split))
            ]
        return self._placed[name, split]

    def held_out(self, split: Split) -> list[FuelBreakEnv]:
        """An environment for each landscape of a split, made when first asked for."""
        if split not in self._environments:
            self._environments[split] = [self._make(landscapes=[each]) for each in self.landscapes(split)]
            for env in self._environments[split]:
                env.scene(0)
        return self._environments[split]

    # How it hangs together with Lightning

    def train_dataloader(self) -> StepTokens:
        """One token a step of the episodes."""
        return StepTokens(self.episode_steps)

    def val_dataloader(self) -> StepTokens:
        """One token: the whole validation is one step."""
        return StepTokens(1)

    def test_dataloader(self) -> StepTokens:
        """One token: the whole test is one step."""
        return StepTokens(1)

    def settings(self) -> dict[str, Any]:
        """Everything about the data that decides what comes out of a run, as plain values."""
        plain = {name: value for name, value in self._settings.items() if name not in ("parallel_method", "region")}
        return {**plain, "region": None if self.region is None else self._digest()}

    def _digest(self) -> str:
        """A hash of the landscapes, whatever files they came from; computed once."""
        if self._digested is not None:
            return self._digested
        digest = hashlib.sha256()
        for split in SPLITS:
            for landscape in self.landscapes(split):
                for layer in landscape.layers():
                    digest.update(getattr(landscape, layer).tobytes())
        self._digested = digest.hexdigest()
        return self._digested

    def memory_owners(self) -> dict[str, object]:
        """What holds bytes, for a memory profiler."""
        return {"replay": getattr(self, "buffer", None), "frames": self.frames}

    def state_dict(self) -> dict[str, Any]:
        """The replay buffer, by reference."""
        return {"replay": self.buffer.state_dict()} if hasattr(self, "buffer") else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copy the saved replay buffer back; validation, which has none, leaves it."""
        if self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING:
            self.buffer.load_state_dict(state_dict["replay"])

    def describe(self) -> dict[str, str]:
        """What was made, in words."""
        size, env = self._settings["grid_size"], self.env
        counts = ", ".join(f"{len(self.landscapes(split))} for {split}" for split in SPLITS)
        made = "made up" if self.region is None else f"of {self.region.elevation} and further rasters"
        return {
            "landscapes": f"{counts}, {size} x {size} cells, {made}",
            "fires": f"{self._settings['ignitions'] or 'all'} an episode, "
            f"{self._settings['fire_simulation_max_duration']:g} minutes each, wind "
            f"{self._settings['wind_speed']:g} km/h from {self._settings['wind_from']:g} degrees",
            "episode": f"{env.budget} breaks; {self.num_parallel_envs} episodes at a time, {self.parallel_method}",
        }

    def close(self) -> None:
        """End the environments."""
        if (environments := getattr(self, "environments", None)) is not None:
            environments.close()
            del self.environments

    def teardown(self, stage: str) -> None:
        """End the environments."""
        self.close()


def _evenly(count: int, of: int) -> list[int]:
    """At most so many numbers from 0 to `of` - 1, spread evenly."""
    spread: list[int] = np.linspace(0, of - 1, min(count, of)).round().astype(int).tolist()
    return spread


def _check(given: Mapping[str, Any]) -> None:
    """Refuse settings outside their range, by their full key.

    Raises:
        UserError: names the setting, its value and the remedy.
    """
    at_least = {"grid_size": 4, "landscape_seed": 0, "batch_size": 1, "warmup": 1, "buffer_size": 1, "ignitions": 1}
    for name in ("num_landscapes", "eval_landscapes", "test_landscapes", "num_parallel_envs", "prefill_episodes"):
        at_least[name] = 1
    for name, least in at_least.items():
        if name != "ignitions" or given[name] is not None:
            require_range(f"data.{name}", given[name], least=least)
    require_range("data.budget", given["budget"], above=0, most=1)
    require_range("data.fire_simulation_max_duration", given["fire_simulation_max_duration"], above=0, most=1e9)
    require_range("data.wind_speed", given["wind_speed"], least=0, most=200)
    require_range("data.wind_from", given["wind_from"], least=0, most=360)
    for less, more in (("batch_size", "warmup"), ("warmup", "buffer_size")):
        if given[less] > given[more]:
            raise UserError(
                f"data.{less} is {given[less]}, more than data.{more} {given[more]}: training would never start; "
                "lower the one or raise the other"
            )
