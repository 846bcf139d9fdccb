"""Deep Q-learning on the Lightning Trainer: an epoch is a batch of episodes."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from eigen2.core.adam import Adam
from eigen2.core.datamodule import TestResult
from eigen2.core.module import GenerationModule
from eigen2.core.networks import MOST_MEMBERS, Ensemble, require_width, weight_bytes
from eigen2.core.randomness import Role, generator, torch_seed
from eigen2.core.saved_run import require_champion
from eigen2.dqn import losses
from eigen2.dqn.collector import Actions, draw_batch, draw_slots, replay_fields
from eigen2.dqn.datamodule import DQNDataModule, Policy
from eigen2.errors import ALL_AGENTS_FAILED, RunStopped, UserError, require_range
from eigen2.memory.estimate import checkpoint_bytes
from eigen2.memory.owners import Filling


class DQNModule(GenerationModule[DQNDataModule]):
    """Deep Q-learning with double Q-learning and a slowly moving target network.

    An epoch: an episode in each of several environments, every step of which goes into the replay buffer and is
    followed by gradient steps from it (train); now and then the agent plays cases that it never learned from, and
    becomes champion if it does better than the one before (validate).

    Args:
        width: channels of the network's layers (1 or more).
        networks: networks that play and learn in turn, an epoch each, from the same replay buffer (1 to 100); the
            agent acts by the mean of their values.
        prior: start from action values that the workload suggests, and learn corrections.
        learning_rate: Adam's learning rate (above 0).
        gamma: discount per step (0 to 1).
        tau: fraction by which the target network moves to the network after each gradient step (above 0, at most 1).
        max_grad_norm: longer gradients are scaled down to this norm (above 0).
        train_frequency: environment steps for each gradient step (1 or more).
        initial_epsilon: share of random actions at first (0 to 1).
        final_epsilon: share of random actions in the end (0 to 1).
        epsilon_decay_steps: environment steps over which epsilon falls linearly (0 or more).
        validate_every: epochs from one validation to the next (1 or more).
        baselines: policies without learning whose fitness is logged beside the agent's; null takes the workload's.
    """

    phases = ("train", "validate")
    loss_columns = (("loss", "train/loss"), ("error", "train/td_error"))
    data_class = DQNDataModule
    online: Ensemble
    target: Ensemble
    champion: Ensemble
    champion_fitness: Tensor
    champion_generation: Tensor
    LOSSES: ClassVar = ("loss", "q_mean", "td_error")

    def __init__(
        self,
        width: int = 32,
        networks: int = 1,
        prior: bool = True,
        learning_rate: float = 5e-4,
        gamma: float = 0.9,
        tau: float = 0.005,
        max_grad_norm: float = 10.0,
        train_frequency: int = 2,
        initial_epsilon: float = 1.0,
        final_epsilon: float = 0.05,
        epsilon_decay_steps: int = 3000,
        validate_every: int = 5,
        baselines: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        require_width("model.width", width)
        require_range("model.networks", networks, least=1, most=MOST_MEMBERS, whole=True)
        for name in ("train_frequency", "validate_every"):
            require_range(f"model.{name}", self.hparams[name], least=1, whole=True)
        for name in ("learning_rate", "max_grad_norm"):
            require_range(f"model.{name}", self.hparams[name], above=0)
        for name in ("gamma", "initial_epsilon", "final_epsilon"):
            require_range(f"model.{name}", self.hparams[name], least=0, most=1)
        require_range("model.tau", tau, above=0, most=1)
        require_range("model.epsilon_decay_steps", epsilon_decay_steps, least=0, whole=True)
        self.validate_every, self.baselines = validate_every, baselines or ()
        self.register_buffer("champion_fitness", torch.tensor(-torch.inf, dtype=torch.float64))
        self.register_buffer("champion_generation", torch.tensor(-1))
        self.environment_steps = 0
        self.sums, self.updates = torch.zeros(len(self.LOSSES)), 0
        self.earned = self.returns = np.zeros(1)  # rewards of the last step and of the epoch, (environments,)
        self.validation = np.full(1, np.nan)  # fitness on each validation case, where the epoch was validated

    def on_train_epoch_start(self) -> None:
        """Start an episode in every environment."""
        self.begin_generation()
        self.sums, self.updates = torch.zeros(len(self.LOSSES), device=self.device), 0
        self.returns, self.validation = np.zeros(self.data.num_parallel_envs), np.full(1, np.nan)
        self.clock.begin("train")
        self.data.collector.begin(generator(self.seed, Role.WINDOWS, self.generation))

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Take an epsilon-greedy step in every environment, then the gradient steps that are due."""
        collector, frequency = self.data.collector, self.hparams["train_frequency"]
        rng = generator(self.seed, Role.EXPLORATION, self.generation, batch_idx)
        values = self.values(self.online[self.turn], collector.observation)
        allowed = self.data.codec.allowed(torch.from_numpy(collector.observation)).numpy()
        self.earned = collector.step(losses.epsilon_greedy(values, allowed, self.epsilon, rng))
        self.returns += self.earned
        before, self.environment_steps = self.environment_steps, self.environment_steps + len(self.earned)
        self.clock.environment_step()
        if self.data.ready:
            rng = generator(self.seed, Role.REPLAY, self.generation, batch_idx)
            for _ in range(self.environment_steps // frequency - before // frequency):
                self.learn(rng)

    def learn(self, rng: np.random.Generator) -> None:
        """Take one gradient step of the network whose turn it is, on transitions drawn by `rng`."""
        data, hparams = self.data, self.hparams
        online, target = self.online[self.turn], self.target[self.turn]
        slots = draw_slots(data.buffer, data.num_parallel_envs, data.batch_size, rng)
        batch = data.codec.augment(draw_batch(data.buffer, data.codec, slots.to(self.device)), rng)
        step = losses.loss(online, target, batch, hparams["gamma"])
        self.optimizer.zero_grad()
        self.manual_backward(step.loss)
        nn.utils.clip_grad_norm_(online.parameters(), hparams["max_grad_norm"])
        self.optimizer.step()
        losses.update_target(target, online, hparams["tau"])
        self.sums += torch.stack([step.loss.detach(), step.q_mean, step.error])
        self.updates += 1

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        """End the training phase with the last step of the episodes; RunStopped if loss or weights are not finite."""
        if self.trainer.is_last_batch:
            weights = self.online[self.turn].parameters()
            if not self.sums.isfinite().all() or not all(weight.isfinite().all() for weight in weights):
                remedy = "resume by --ckpt_path last with a lower model.learning_rate"
                what = f"the loss or a weight is not finite in epoch {self.current_epoch}"
                raise RunStopped(f"{what}; {remedy}", ALL_AGENTS_FAILED)
            self.clock.end("train")

    def validate(self) -> None:
        """Play the validation cases; the agent becomes champion if it is better than the one before."""
        self.validation = self.data.validation_fitness(self.greedy(self.online))
        if self.validation.mean() > float(self.champion_fitness):
            self.champion.load_state_dict(self.online.state_dict())
            self.champion_fitness.fill_(self.validation.mean())
            self.champion_generation.fill_(self.generation)
            self.data.save_champion_record(self.generation, self.baselines)

    @property
    def turn(self) -> int:
        """Return the number of the network that plays and learns in this epoch."""
        return int(self.generation % self.hparams["networks"])

    @property
    def epsilon(self) -> float:
        """Return the share of random actions now: it falls linearly, then stays."""
        first, last = self.hparams["initial_epsilon"], self.hparams["final_epsilon"]
        decayed = self.environment_steps / max(1, self.hparams["epsilon_decay_steps"])
        return float(first + min(1.0, decayed) * (last - first))

    @torch.inference_mode()
    def values(self, network: nn.Module, observation: UInt8[np.ndarray, "batch ..."]) -> Tensor:
        """Return the values of all actions, (batch, actions)."""
        with self.trainer.precision_plugin.forward_context():
            return self.data.codec.values(network, torch.from_numpy(observation).to(self.device))

    def greedy(self, network: nn.Module) -> Policy:
        """Return the policy that takes the best allowed action by a network."""

        def policy(observation: UInt8[np.ndarray, "batch ..."]) -> Actions:
            allowed = self.data.codec.allowed(torch.from_numpy(observation)).to(self.device)
            return losses.best_actions(self.values(network, observation), allowed).cpu().numpy()

        return policy

    def champion_policy(self) -> Policy:
        """Return the champion's policy; UserError if there is none."""
        require_champion(int(self.champion_generation))
        return self.greedy(self.champion)

    def validate_champion(self) -> float:
        """Return the champion's mean fitness on the validation cases."""
        return float(self.data.validation_fitness(self.champion_policy()).mean())

    def play_champion_again(self) -> None:
        """Set the champion's fitness to that on the validation cases of now, and record what it does there."""
        if (found := int(self.champion_generation)) >= 0:
            self.champion_fitness.fill_(self.validate_champion())
            self.data.save_champion_record(found, self.baselines)

    def test_champion(self) -> TestResult:
        """Play the champion on cases that no fit has used."""
        return self.data.test(self.champion_policy(), int(self.champion_generation))

    def generation_metrics(self) -> dict[str, float]:
        """Return the scalars of the epoch by full name, NaN without a value; fitness in the workload's unit."""
        fitness, champion_generation = self.data.episode_fitness(), int(self.champion_generation)
        means = (self.sums / self.updates).tolist() if self.updates else [np.nan] * len(self.LOSSES)
        return {
            **{f"fitness/{name}": float(getattr(fitness, name)()) for name in ("mean", "max", "min", "std")},
            **{f"fitness/q{share}": float(np.percentile(fitness, share)) for share in (25, 50, 75)},
            "champion/validation_fitness": float(self.champion_fitness) if champion_generation >= 0 else np.nan,
            "champion/generation": champion_generation if champion_generation >= 0 else np.nan,
            "validation/mean": float(self.validation.mean()),
            "validation/max": float(self.validation.max()),
            **{f"baseline/{name}": self.data.baseline_fitness(name) for name in self.baselines},
            **{f"train/{name}": mean for name, mean in zip(self.LOSSES, means, strict=True)},
            "train/gradient_steps": float(self.updates),
            "train/epsilon": self.epsilon,
            **self.data.buffer.metrics(),
        }

    def setup(self, stage: str) -> None:
        """Copy the workload's remedy for messages, and build everything."""
        self.remedy = self.data.remedy
        super().setup(stage)

    def build(self, stage: str) -> None:
        """Build environments, networks and replay buffer, each after a check that it fits into memory."""
        data, hparams, device = self.data, self.hparams, self.trainer.strategy.root_device
        self.baselines = data.default_baselines if hparams["baselines"] is None else hparams["baselines"]
        if unknown := [name for name in self.baselines if name not in data.baselines]:
            raise UserError(f"model.baselines names {unknown[0]}; choose among {', '.join(data.baselines)}")
        self.memory.require(data.needed_bytes(stage))
        data.build(stage, device)
        data.training_steps = data.episode_steps
        with torch.device("meta"):
            weights = weight_bytes(self._initial_networks())
        if "online" not in self._modules:  # fitting or validating again continues with these networks
            self.memory.require({"networks": 3 * weights})
            self.online, self.target, self.champion = (self._initial_networks() for _ in range(3))
            self.target.requires_grad_(False)
            self.champion.requires_grad_(False)
        if stage == "fit":
            transition = sum(field.nbytes for field in replay_fields(data.codec).values())
            replay = data.replay_capacity * transition
            self.memory.require({"optimizer": 3 * weights, "replay": replay * (replay != data.buffer_bytes)})
            self.memory.require_temporary(2 * data.activation_bytes(hparams["width"]), checkpoint_bytes(self.trainer))
            data.allocate_replay(device)

    def _initial_networks(self) -> Ensemble:
        """Return the networks without training, always the same."""
        hparams, networks = self.hparams, []
        for number in range(hparams["networks"]):
            with torch_seed(self.seed, Role.WEIGHTS, agent=number):
                networks.append(self.data.make_network(hparams["width"], hparams["prior"]))
        return Ensemble(networks)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam of the online networks; target networks and champion only follow them."""
        return Adam(self.online.parameters(), lr=self.hparams["learning_rate"])

    def model_settings(self) -> dict[str, Any]:
        """Return the algorithm's settings, with the baselines by name."""
        return {**self.hparams, "baselines": self.baselines}

    def saved_state(self) -> dict[str, Any]:
        """Return the environment steps so far, on which epsilon depends."""
        return {"environment_steps": self.environment_steps}

    def restore_state(self, saved: Mapping[str, Any]) -> None:
        """Restore the environment steps."""
        self.environment_steps = int(saved["environment_steps"])

    def check_shapes(self, checkpoint: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of a network with other settings."""
        saved = checkpoint["eigen2"]["settings"]
        for name in ("width", "networks", "prior"):
            if (old := saved[f"model.{name}"]) != (new := self.hparams[name]):
                raise UserError(f"model.{name} is {new}, but it was {old} in the checkpoint's fit; give that")

    def memory_owners(self) -> dict[str, object]:
        """Return the objects that hold memory, by owner name, for a memory profiler."""
        weights, moments = [*self.online.parameters()], self.optimizer.state
        full = sum(map(bool, moments.values())) == len(weights)  # a network gets its moments in its first turn
        optimizer = Filling(([weight.grad for weight in weights], moments), full)
        return {"optimizer": optimizer, "networks": (self.online, self.target, self.champion)}

    def reset_memory(self) -> None:
        """Start over in the same memory: initial networks, no champion, no replay; else a further fit continues."""
        for network in (self.online, self.target, self.champion):
            network.load_state_dict(self._initial_networks().state_dict())
        self.champion_fitness.fill_(-torch.inf)
        self.champion_generation.fill_(-1)
        self.environment_steps = self.generations_run = 0
        self.data.buffer.reset_memory()

    def cleanup_memory(self) -> int:
        """Free gradients and the pages of empty replay slots until the next fit, and return their bytes."""
        freed = sum(parameter.grad.nbytes for parameter in self.online.parameters() if parameter.grad is not None)
        self.online.zero_grad(set_to_none=True)
        return freed + self.data.buffer.cleanup_memory()

    def describe(self) -> dict[str, str]:
        """Return names and values to show to the user at the start of a run."""
        networks = self.hparams["networks"]
        weights = sum(parameter.numel() for parameter in self.online[0].parameters())
        return {
            "network": f"{networks} Q-network{'s' * (networks > 1)} of {weights:,} parameters",
            "replay": f"{self.data.buffer}; training starts at {self.data.replay_min_size:,}",
            "memory": str(self.memory),
        }
