"""The parts of the full-scale run, configured by the command line; its panel is built once."""

import contextlib
import io
import tempfile
import warnings
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from benchmarks.harness import ROOT
from benchmarks.runs import fill, memory_mb
from eigen2.cli.training import TRAINER_DEFAULTS, EigenCLI
from eigen2.core.environment import play
from eigen2.core.replay import ReplayBuffer, sample_slots
from eigen2.distributed.communicator import Communicator
from eigen2.erl.estimate import batches_together, workspace_bytes
from eigen2.erl.learners import Batch
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Population
from eigen2.erl.row_adam import RowAdam
from eigen2.erl.state import SLOTS, make_batch
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.environment import TradingEnvironment

CONFIG = ROOT / "configs" / "full_scale.yaml"
OWN = {"model.representation": "own", "model.actor": "null"}
"""Changes of it that give every agent weights of its own, which all learn."""


class FullScale:
    """Parts of a run of `fit` whose agents have weights of their own, created on first use.

    A context manager that removes the temporary folder of runs.
    """

    def __init__(self, config: Path = CONFIG, device: str = "cpu", cache: Path | None = None) -> None:
        self.config, self.device = config, torch.device(device)
        self._folder = tempfile.TemporaryDirectory(prefix="eigen2-bench-")
        self.folder = Path(self._folder.name)
        self._cache = cache or self.folder / "cache"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def start(self, *args: str) -> EigenCLI:
        """Return a command line with `trainer`, `model` and `datamodule` of a run in a new folder, ready to fit."""
        settings = {
            "config": self.config,
            "num_threads": torch.get_num_threads(),
            "trainer.default_root_dir": tempfile.mkdtemp(dir=self.folder),
            "trainer.accelerator": "cpu",
            "data.cache_dir": self._cache,
            **OWN,
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
            return EigenCLI(
                ERLModule,
                MarketDataModule,
                run=False,
                save_config_callback=None,
                trainer_defaults=TRAINER_DEFAULTS,
                auto_configure_optimizers=False,
                args=[*(f"--{name}={value}" for name, value in settings.items()), *args],
            )

    @cached_property
    def _parts(self) -> tuple[ERLModule, MarketDataModule]:
        # keep no reference to the command line, whose objects would slow down every garbage collection
        cli = self.start()
        module: ERLModule = cli.model
        data: MarketDataModule = cli.datamodule
        data.setup("fit")
        data.exploration_windows = 0
        data.build(module.population_size, self.device)
        data.allocate_replay(self.device, Communicator(module.population_size))
        return module, data

    @property
    def module(self) -> ERLModule:
        """Return the configured algorithm without a Trainer, for its settings."""
        return self._parts[0]

    @property
    def data(self) -> MarketDataModule:
        """Return the configured market with `eval_env`, encoder and replay buffer; it has no exploration windows."""
        return self._parts[1]

    def population(self) -> Population:
        """Return a new population, always with the same weights."""
        makers = self.module.network_makers(self.data)
        return Population(Communicator(self.module.population_size), *makers, seed=0, noise=0.0).to(self.device)

    def optimizer(self, population: Population) -> RowAdam:
        """Return eigen2's optimizer of the population's weights."""
        networks = {"actor_lr": population.actor, "critic_lr": population.critic}
        return RowAdam([{"params": [rows], "lr": self.module.hparams[name]} for name, rows in networks.items()])

    def environment(self, agents: int) -> TradingEnvironment:
        """Return an environment of one window for `agents`."""
        prices = self.data.panel.prices[:, self.data.investable_columns]
        return TradingEnvironment(torch.tensor(prices), self.data.rules, agents, device=self.device)

    @cached_property
    def replay(self) -> ReplayBuffer:
        """Return the full buffer of `data`: random actions in the windows of the first generation, repeated."""
        data, generator = self.data, torch.Generator().manual_seed(0)
        shape = (self.module.population_size, data.eval_env.windows, *data.eval_env.action_shape)

        def act(observation: dict[str, Tensor]) -> Tensor:
            return (2 * torch.rand(shape, generator=generator) - 1).to(self.device)

        play(data.eval_env, act, data.training_options(0, seed=0), data.buffer)
        fill(data.buffer)
        return data.buffer

    def play(self, population: Population, generation: int) -> Tensor:
        """Play a generation without exploration into the buffer of `data`; return the returns, (agents, windows)."""
        data = self.data

        def act(observation: dict[str, Tensor]) -> Tensor:
            return population.act(data.network_inputs(observation)).float()

        return play(data.eval_env, act, data.training_options(generation, seed=0), data.buffer)

    def slots(self) -> Tensor:
        """Return the replay slots of one optimizer step with a full buffer, (training steps, agents, batch)."""
        accumulate, makers = self.module.hparams["accumulate"], self.module.network_makers(self.data)
        workspace = max(workspace_bytes(self.data, self.module.learner, self.device, *makers, nullcontext))
        together = batches_together(accumulate, self.module.population_size * workspace)
        sizes = len(self.replay), accumulate // together, together * self.data.batch_size
        return sample_slots(*sizes, range(self.module.population_size), seed=0, generation=0).to(self.device)

    def batch(self, slots: Tensor) -> Batch:
        """Return the batch of the transitions in `slots` (agents, batch_size)."""
        scale = self.module.hparams["reward_scale"]
        return make_batch(self.data, {SLOTS: slots}, self.data.discount, scale)


def imports_mb() -> dict[str, float]:
    """Return the memory of this process, which has imported this module and with it all that a run imports."""
    return memory_mb()


def fit(cli: EigenCLI) -> None:
    """Fit a run and discard its output."""
    sink: Any = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        warnings.simplefilter("ignore")
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
