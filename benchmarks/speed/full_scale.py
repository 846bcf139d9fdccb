"""The run that most rows measure: its configuration read as the command line reads it, its panel built once."""

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

from eigen2.cli.training import EigenCLI
from eigen2.core.environment import play
from eigen2.core.replay import ReplayBuffer
from eigen2.erl.learners import ddpg
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Population
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.environment import TradingEnvironment

CONFIG = Path(__file__).parents[2] / "configs" / "full_scale.yaml"
TRAINER: dict[str, Any] = {
    "devices": 1,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
}
"""The command line's own defaults."""


class FullScale:
    """What a configuration describes, made on first use; a context manager, as runs write to a temporary folder.

    Args:
        config: of `python -m eigen2.cli fit`.
        device: where population, encoder and replay buffer lie.
        words: of the command line, beyond the configuration.
    """

    def __init__(self, config: Path = CONFIG, device: str = "cpu", words: Sequence[str] = ()) -> None:
        self.config, self.words = config, tuple(words)
        self.device = torch.device(device)
        self._folder = tempfile.TemporaryDirectory(prefix="eigen2-bench-")
        self._runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """The temporary folder."""
        return Path(self._folder.name)

    @cached_property
    def _parts(self) -> tuple[ERLModule, MarketDataModule]:
        # the command line itself is let go: what a garbage collection has to look at should be a single run's
        cli = self._instantiate()
        module: ERLModule = cli.model
        data: MarketDataModule = cli.datamodule
        data.setup("fit")
        data.exploration_windows = 0
        data.build(module.population_size, self.device)
        data.allocate_replay(self.device)
        return module, data

    @property
    def module(self) -> ERLModule:
        """The configured algorithm, not attached to a Trainer: for its settings."""
        return self._parts[0]

    @property
    def data(self) -> MarketDataModule:
        """The configured market with `eval_env`, encoder and replay buffer; its windows are those of fitness alone."""
        return self._parts[1]

    def start(self, *words: str) -> EigenCLI:
        """A run of its own, ready for `fit`; it finds the panel in the cache.

        Args:
            words: of the command line, beyond the configuration.

        Returns:
            `trainer`, `model` and `datamodule` of the run; it writes to a folder of its own.
        """
        return self._instantiate(*words)

    def population(self) -> Population:
        """A new population, always of the same weights."""
        data = self.data
        make_actor, make_critic = self.module.network_makers(data)
        population = Population(self.module.population_size, make_actor, make_critic, seed=0, noise=0.0)
        return population.to(self.device)

    def environment(self, agents: int) -> TradingEnvironment:
        """One window of the market for so many agents."""
        data = self.data
        prices = data.panel.prices[:, data.investable_columns]
        return TradingEnvironment(torch.tensor(prices), data.rules, agents, device=self.device)

    @cached_property
    def replay(self) -> ReplayBuffer:
        """The buffer of `data`, full: of random actions in the first generation's windows, again and again."""
        data, chance = self.data, torch.Generator().manual_seed(0)
        shape = (self.module.population_size, data.eval_env.windows, *data.eval_env.action_shape)

        def act(observation: dict[str, torch.Tensor]) -> torch.Tensor:
            return (2 * torch.rand(shape, generator=chance) - 1).to(self.device)

        play(data.eval_env, act, data.training_options(0, seed=0), data.buffer)
        fill(self.data.buffer)
        return self.data.buffer

    def play(self, population: Population, generation: int) -> torch.Tensor:
        """Returns (agents, windows) of a generation without exploration; the transitions go to the buffer of `data`."""
        data = self.data

        def act(observation: dict[str, torch.Tensor]) -> torch.Tensor:
            with torch.no_grad():
                return population.act(data.network_inputs(observation)).float()

        return play(data.eval_env, act, data.training_options(generation, seed=0), data.buffer)

    def slots(self) -> torch.Tensor:
        """Replay slots of one optimizer step, (accumulate, agents, batch_size)."""
        module, capacity = self.module, len(self.replay)
        assert capacity == self.data.replay_capacity, "slots are drawn from a full buffer"
        slots = self.data.draw_slots(module.population_size, module.accumulate, generation=0, seed=0)
        return slots.to(self.device)

    def batch(self, slots: torch.Tensor) -> ddpg.Batch:
        """What an agent learns from, of the transitions in `slots` (agents, batch_size)."""
        stored = self.replay.gather(slots)
        now, then = self.inputs(stored)
        return ddpg.Batch(
            inputs=now,
            next_inputs=then,
            action=stored["action"].float(),
            reward=stored["reward"] * self.module.reward_scale,
            terminated=stored["terminated"],
        )

    def inputs(self, stored: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Network inputs of the observations and of the next ones."""
        names = self.data.eval_env.observation_fields
        return (
            self.data.network_inputs({name: stored[name] for name in names}),
            self.data.network_inputs({name: stored[f"next_{name}"] for name in names}),
        )

    def _instantiate(self, *words: str) -> EigenCLI:
        self._runs += 1
        settings = {
            "config": self.config,
            "num_threads": torch.get_num_threads(),
            "trainer.default_root_dir": self.folder / str(self._runs),
            "trainer.accelerator": "cpu",
            "data.cache_dir": self.folder / "cache",
        }
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
            return EigenCLI(
                ERLModule,
                MarketDataModule,
                run=False,
                save_config_callback=None,
                trainer_defaults=TRAINER,
                auto_configure_optimizers=False,
                args=[*(f"--{name}={value}" for name, value in settings.items()), *self.words, *words],
            )


def fit(cli: EigenCLI) -> None:
    """Fit a run; what it prints goes to memory."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)


def fill(buffer: ReplayBuffer) -> None:
    """Repeat what the buffer holds until it is full."""
    held = {name: buffer[name].clone() for name in buffer.fields}
    while len(buffer) < buffer.capacity:
        buffer.add(held)
