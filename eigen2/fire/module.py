"""Deep Q-learning of fuel breaks on the Lightning Trainer: an epoch is a batch of episodes."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import UInt8
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from eigen2.core.compatibility import check_settings, flatten, log_data_differences, require_workload
from eigen2.core.datamodule import TestResult
from eigen2.core.networks import require_width, weight_bytes
from eigen2.core.randomness import Role, generator, torch_seed
from eigen2.dqn import losses as dqn
from eigen2.errors import ALL_AGENTS_FAILED, RunStopped, UserError, require_range
from eigen2.fire.collector import Cells, draw_slots
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.fire.evaluation.records import keep_record
from eigen2.fire.evaluation.scores import epoch_metrics, require_champion, test_findings
from eigen2.fire.networks import QMap
from eigen2.fire.simulation.baselines import PLACEMENTS
from eigen2.fire.simulation.environment import DOWNSTREAM, action_mask
from eigen2.fire.simulation.frames import allowed_cells
from eigen2.memory.estimate import PeakEstimate, budget_of, checkpoint_bytes
from eigen2.runtime.phases import PhaseClock
from eigen2.runtime.trainer_checks import check_trainer

REMEDY = (
    "lower data.grid_size, data.buffer_size, data.batch_size, data.num_landscapes, data.eval_landscapes, "
    "data.test_landscapes, data.num_parallel_envs or model.width"
)
PHASES = ("train", "validate")


class DQNModule(LightningModule):
    """A Q-map that learns where to put fuel breaks.

    An epoch: an episode on each of several landscapes at a time, every step of which goes into the replay buffer and is
    followed by gradient steps from it (train); now and then the Q-map places breaks on landscapes it never learned
    from, and becomes champion if it saves more than the one before (validate).

    Args:
        width: channels of the Q-map's layers (1 or more).
        dueling: with a value of the state beside the cells' advantages.
        prior: begin with how much burns through each cell, and learn what to add; needs data.downstream_plane, and is
            made for data.relative_rewards.
        learning_rate: Adam's (above 0).
        gamma: discount a break (0 to 1).
        n_steps: rewards that are summed before the target network's value counts (1 or more).
        tau: share of the way the target network moves to the Q-map after each gradient step (above 0, at most 1).
        max_grad_norm: longer gradients are scaled down to this norm (above 0).
        reward_scale: factor on rewards, to bring returns near 1 (above 0).
        train_frequency: environment steps for each gradient step (1 or more).
        initial_epsilon: share of random breaks at first (0 to 1).
        epsilon_min: share of random breaks in the end (0 to 1).
        epsilon_decay_steps: environment steps over which it falls (0 or more).
        validate_every: epochs from one validation to the next (1 or more).
        baselines: placements that learn nothing, drawn beside the agent.
    """

    online: QMap
    target: QMap
    champion: QMap
    champion_fitness: Tensor
    champion_generation: Tensor
    fitness_words: ClassVar = {"unit": "percent of the burned area saved", "over": "episodes"}  # for the report
    max_processes = 1
    config_defaults: ClassVar[dict[str, Any]] = {}
    loss_columns = (("loss", "train/loss"), ("error", "train/td_error"))

    def __init__(
        self,
        width: int = 32,
        dueling: bool = True,
        prior: bool = True,
        learning_rate: float = 5e-4,
        gamma: float = 0.9,
        n_steps: int = 1,
        tau: float = 0.005,
        max_grad_norm: float = 10.0,
        reward_scale: float = 1.0,
        train_frequency: int = 2,
        initial_epsilon: float = 1.0,
        epsilon_min: float = 0.05,
        epsilon_decay_steps: int = 3000,
        validate_every: int = 5,
        baselines: tuple[str, ...] = ("random", "domirank", "in_degree", "downstream", "adaptive_downstream"),
    ) -> None:
        super().__init__()
        _check(locals())
        self.save_hyperparameters(logger=False)
        self.automatic_optimization = False
        self.seed = 0
        self.population_size = 1
        self.clock = PhaseClock(self, PHASES)
        self.register_buffer("champion_fitness", torch.tensor(-torch.inf, dtype=torch.float64))
        self.register_buffer("champion_generation", torch.tensor(-1))
        self.environment_steps = 0
        self.generations_run = 0
        self.sums = torch.zeros(3)
        self.updates = 0
        self.earned = self.returns = np.zeros(1)  # rewards of the last step and of the epoch, (environments,)
        self.validation = np.full(1, np.nan)
        self.test_result: TestResult | None = None
        self.metrics: dict[str, float] = {}

    # The algorithm: an epoch in the order it happens

    def on_train_epoch_start(self) -> None:
        """Start an episode in every environment."""
        self.clock.new_generation()
        self.generations_run = self.current_epoch + 1
        self.sums, self.updates = torch.zeros(3, device=self.device), 0
        self.returns = np.zeros(self.data.num_parallel_envs)
        self.clock.begin("train")
        if not len(self.data.buffer):
            self.data.play_prefill(self.seed)
        self.data.collector.begin(self.data.seeds(Role.WINDOWS, self.current_epoch, self.seed))

    def training_step(self, batch: int, batch_idx: int) -> None:
        """A break in every environment, then the gradient steps that are due."""
        before = self.environment_steps // self.hparams["train_frequency"]
        self.collect(batch_idx)
        due = self.environment_steps // self.hparams["train_frequency"] - before
        if self.data.ready:
            chance = generator(self.seed, Role.REPLAY, self.current_epoch, batch_idx)
            for _ in range(due):
                self.learn(chance)

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        """The episodes are over with the last step.

        Raises:
            RunStopped: nothing finite can be learned any more.
        """
        if self.trainer.is_last_batch:
            if not self.sums.isfinite().all():
                raise RunStopped(
                    f"the loss is not finite in epoch {self.current_epoch}; resume by --ckpt_path last with a lower "
                    "model.learning_rate, or start anew with a lower model.reward_scale",
                    ALL_AGENTS_FAILED,
                )
            self.clock.end("train")

    def validation_step(self, batch: int, batch_idx: int) -> None:
        """Place breaks on landscapes that were never trained on; outside of fit with the champion."""
        if self.trainer.sanity_checking:
            return
        if self.trainer.state.fn != TrainerFn.FITTING:
            require_champion(self)
            found = 100 * self.data.play(self.greedy(self.champion), "validation").mean()
            self.log("champion/validation_fitness", torch.tensor(found).float(), prog_bar=True, batch_size=1)
            return
        with self.clock.phase("validate"):
            self.validation = np.full(1, np.nan)
            if (self.current_epoch + 1) % self.hparams["validate_every"] == 0:
                self.validate()

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Place breaks with the champion on landscapes that no fit has looked at."""
        self.test_result = test_findings(self)
        self.log_dict({name: float(value) for name, value in self.test_result.metrics.items()}, batch_size=1)

    # Its parts

    def collect(self, step: int) -> None:
        """Place a break in every environment, by chance or by the Q-map."""
        collector, chance = self.data.collector, generator(self.seed, Role.EXPLORATION, self.current_epoch, step)
        collector.go_on()
        cells = dqn.select(self.values(self.online, collector.observation), collector.allowed, self.epsilon, chance)
        self.earned = collector.step(cells)
        self.returns += self.earned
        self.environment_steps += len(cells)
        self.clock.environment_step()

    def learn(self, chance: np.random.Generator) -> None:
        """One gradient step."""
        losses = dqn.loss(self.online, self.target, self._batch(chance))
        self.optimizer.zero_grad()
        self.manual_backward(losses.loss)
        nn.utils.clip_grad_norm_(self.online.parameters(), self.hparams["max_grad_norm"])
        self.optimizer.step()
        dqn.update_target(self.target, self.online, self.hparams["tau"])
        self.sums += torch.stack([losses.loss.detach(), losses.q_mean, losses.error])
        self.updates += 1

    def validate(self) -> None:
        """Let the Q-map place breaks on the validation landscapes; crown it if it saves most so far."""
        self.validation = 100 * self.data.play(self.greedy(self.online), "validation")
        if self.validation.mean() > float(self.champion_fitness):
            self.champion.load_state_dict(self.online.state_dict())
            self.champion_fitness.fill_(self.validation.mean())
            self.champion_generation.fill_(self.current_epoch)
            keep_record(self)

    @property
    def epsilon(self) -> float:
        """Share of random breaks now."""
        own = self.hparams
        steps = max(1, own["epsilon_decay_steps"])
        return dqn.epsilon_at(self.environment_steps, steps, own["initial_epsilon"], own["epsilon_min"], fraction=1.0)

    @torch.inference_mode()
    def values(self, network: nn.Module, observation: UInt8[np.ndarray, "batch planes rows columns"]) -> Tensor:
        """Values of all cells, (batch, cells)."""
        with self.trainer.precision_plugin.forward_context():
            found: Tensor = network(torch.from_numpy(observation).to(self.device))
        return found.float()

    def greedy(self, network: nn.Module) -> Any:
        """The choice of the best allowed cell by a network, for `FuelBreakDataModule.play`."""

        def choose(observation: UInt8[np.ndarray, "batch planes rows columns"]) -> Cells:
            allowed = torch.from_numpy(action_mask(observation)).to(self.device)
            return dqn.best_cells(self.values(network, observation), allowed).cpu().numpy()

        return choose

    def _batch(self, chance: np.random.Generator) -> dqn.Batch:
        data, own = self.data, self.hparams
        steps, gamma = own["n_steps"], own["gamma"]
        slots = draw_slots(data.buffer, data.num_parallel_envs, steps, data.batch_size, chance).to(self.device)
        first, last = data.buffer.gather(slots[0]), data.buffer.gather(slots[-1])
        following = data.frames.unpack(last)
        rewards, ended = data.buffer["reward"][slots[:-1]], data.buffer["terminated"][slots[:-1]]
        reward, terminated = dqn.discounted(rewards, ended, gamma)
        return dqn.Batch(
            observation=data.frames.unpack(first),
            action=first["action"],
            reward=reward * own["reward_scale"],
            next_observation=following,
            next_allowed=allowed_cells(following),
            terminated=terminated,
            discount=torch.full_like(reward, gamma**steps),
        )

    # How it hangs together with Lightning

    @property
    def data(self) -> FuelBreakDataModule:
        """The data module of the running trainer."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, FuelBreakDataModule):
            raise UserError("DQNModule needs a FuelBreakDataModule: trainer.fit(module, datamodule=...)")
        return data

    @property
    def optimizer(self) -> LightningOptimizer:
        """The one optimizer."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        return optimizer

    def setup(self, stage: str) -> None:
        """Build environments, networks and replay buffer, after checking that they fit into memory."""
        if stage == "fit":
            if (processes := self.trainer.world_size) > self.max_processes:
                raise UserError(f"trainer.devices makes {processes} processes; DQNModule learns in one: leave it out")
            check_trainer(self.trainer)
        device = self.trainer.strategy.root_device
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        self.memory = PeakEstimate(REMEDY, device, budget_of(self.trainer))
        self.memory.require(self.data.needed_bytes(stage))
        self.data.build(device)
        self._check_episodes(stage)
        self.data.held_out("test" if stage == "test" else "validation")  # made now: memory does not grow later
        if self.hparams["prior"] and self.data.frames.planes <= DOWNSTREAM:
            raise UserError("model.prior is true, but data.downstream_plane is false: set both, or neither")
        weights = self._weight_bytes()
        self.memory.require({"networks": 3 * weights})
        if "online" not in self._modules:  # fitting or validating again goes on with what was learned
            self.online, self.target, self.champion = (self._beginner() for _ in range(3))
            self.target.requires_grad_(False)
            self.champion.requires_grad_(False)
        if stage == "fit":
            self.memory.require({"optimizer": 3 * weights, "replay": self.data.replay_bytes})
            cells = self.data.env.shape[0] * self.data.env.shape[1]
            layers = 4 * self.data.batch_size * cells * 8 * self.hparams["width"]  # in floats of one network's layers
            self.memory.require_temporary(2 * layers, checkpoint_bytes(self.trainer))
            self.data.allocate_replay(device)

    def _beginner(self) -> QMap:
        """A Q-map that has learned nothing, always the same."""
        own = self.hparams
        with torch_seed(self.seed, Role.WEIGHTS, agent=0):
            return QMap(self.data.frames.planes, own["width"], own["dueling"], own["prior"])

    def _weight_bytes(self) -> int:
        """Of a Q-map, before one is made."""
        with torch.device("meta"):
            return weight_bytes(self._beginner())

    def _check_episodes(self, stage: str) -> None:
        """Refuse what would cut episodes, or reach over more steps than there are to draw from.

        Raises:
            UserError: names the setting, its value and the remedy.
        """
        if stage != "fit":
            return
        data, steps, most = self.data, self.hparams["n_steps"], self.trainer.limit_train_batches
        least = steps * data.num_parallel_envs + 1
        if data.replay_min_size < least:
            raise UserError(
                f"model.n_steps is {steps}, but of data.warmup {data.replay_min_size} transitions none is followed by "
                f"so many in each of {data.num_parallel_envs} environments; lower it, or raise data.warmup to {least}"
            )
        cut = most < data.episode_steps if isinstance(most, int) else most < 1.0
        if cut and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            raise UserError(
                f"trainer.limit_train_batches is {most}, or trainer.overfit_batches: it would cut episodes of "
                f"{data.episode_steps} breaks; leave it out"
            )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam of the Q-map; target network and champion only follow it."""
        return torch.optim.Adam(self.online.parameters(), lr=self.hparams["learning_rate"])

    def settings(self) -> dict[str, Any]:
        """Everything that decides what comes out of a run, as plain values by full key; the seed apart."""
        run = {"num_threads": torch.get_num_threads(), "trainer": {"precision": str(self.trainer.precision)}}
        return flatten({"model": dict(self.hparams), "data": self.data.settings(), **run})

    def on_train_start(self) -> None:
        """Set the configured learning rate, which the optimizer of a checkpoint does not know; log the settings."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.hparams["learning_rate"]
        for logger in self.loggers:
            logger.log_hyperparams({"seed": self.seed, **self.settings()})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add seed, settings and steps; weights, optimizer and buffer are saved by Lightning and the data module."""
        checkpoint["eigen2"] = {
            "seed": self.seed,
            "settings": self.settings(),
            "inference": {"workload": self.data.workload},
            "generations": self.generations_run,
            "environment_steps": self.environment_steps,
        }

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        """Take over seed and steps; refuse to resume with other settings.

        Raises:
            UserError: the checkpoint is not of this module, or of a run with settings that must not change.
        """
        noted = checkpoint.get("eigen2", {})
        workload = noted.get("inference", {}).get("workload")
        if workload is None:
            raise UserError("the checkpoint was not written by eigen2; give one that was, or none")
        require_workload(workload, self.data.workload)
        if self.trainer.state.fn == TrainerFn.FITTING:
            check_settings(noted["settings"], self.settings())
            return self._take_over(noted)
        saved, mine = noted["settings"], self.settings()
        for name in ("model.width", "model.dueling", "data.downstream_plane", "model.prior"):
            if saved[name] != mine[name]:
                raise UserError(f"{name} is {mine[name]}, but the checkpoint's Q-map has {saved[name]}; give that")
        if (seen := saved["data.landscape_seed"]) != mine["data.landscape_seed"]:
            raise UserError(
                f"data.landscape_seed is not the fit's, {seen}, which says what it has not seen; leave it out"
            )
        log_data_differences(saved, mine, "used")
        return self._take_over(noted)

    def _take_over(self, noted: Mapping[str, Any]) -> None:
        self.seed, self.environment_steps = int(noted["seed"]), int(noted["environment_steps"])
        self.generations_run = max(self.generations_run, int(noted["generations"]))

    def on_validation_epoch_end(self) -> None:
        """Put the epoch's numbers together and hand them to loggers and callbacks."""
        if self.trainer.sanity_checking or self.trainer.state.fn != TrainerFn.FITTING:
            return
        self.clock.seconds["generation"] = self.clock.elapsed("generation")
        self.metrics = epoch_metrics(self)
        for logger in self.loggers:
            logger.log_metrics(self.metrics, step=self.current_epoch)
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self.metrics.items()})

    def on_train_epoch_end(self) -> None:
        """All callbacks have logged: let the loggers write the epoch before the checkpoint is written."""
        for logger in self.loggers:
            logger.save()

    def memory_owners(self) -> dict[str, object]:
        """What holds bytes, for a memory profiler."""
        gradients = [parameter.grad for parameter in self.online.parameters()]
        return {"optimizer": (gradients, self.optimizer.state), "networks": (self.online, self.target, self.champion)}

    def reset_memory(self) -> None:
        """Start over without new memory: networks that know nothing, no champion, an empty replay buffer.

        After a fit, before the next; without it a further fit goes on with what was learned.
        """
        for network in (self.online, self.target, self.champion):
            network.load_state_dict(self._beginner().state_dict())
        self.champion_fitness.fill_(-torch.inf)
        self.champion_generation.fill_(-1)
        self.environment_steps = 0
        self.data.buffer.reset_memory()

    def cleanup_memory(self) -> int:
        """Free what a further fit makes anew, gradients and the pages of empty replay slots; return their bytes."""
        freed = sum(parameter.grad.nbytes for parameter in self.online.parameters() if parameter.grad is not None)
        self.online.zero_grad(set_to_none=True)
        return freed + self.data.buffer.cleanup_memory()

    def describe(self) -> dict[str, str]:
        """Name and value of what a user should see at the start."""
        buffer, weights = self.data.buffer, sum(parameter.numel() for parameter in self.online.parameters())
        return {
            "network": f"Q-map of {weights:,} parameters",
            "replay": f"{buffer.capacity:,} transitions of {buffer.bytes_per_transition:,} bytes, "
            f"{buffer.nbytes / 1e6:,.1f} MB; training starts at {self.data.replay_min_size:,}",
            "memory": str(self.memory),
        }


def _check(given: Mapping[str, Any]) -> None:
    require_width("model.width", given["width"])
    for name in ("train_frequency", "validate_every", "n_steps"):
        require_range(f"model.{name}", given[name], least=1)
    for name in ("learning_rate", "max_grad_norm", "reward_scale"):
        require_range(f"model.{name}", given[name], above=0)
    for name in ("gamma", "initial_epsilon", "epsilon_min"):
        require_range(f"model.{name}", given[name], least=0, most=1)
    require_range("model.tau", given["tau"], above=0, most=1)
    require_range("model.epsilon_decay_steps", given["epsilon_decay_steps"], least=0)
    if unknown := [name for name in given["baselines"] if name not in PLACEMENTS]:
        raise UserError(f"model.baselines names {unknown[0]}; choose among {', '.join(PLACEMENTS)}")
