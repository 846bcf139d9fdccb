"""ERL on the Lightning Trainer: an epoch is a generation."""

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from eigen2.core.compatibility import check_checkpoint, flat, noted, tell_other_data, word_of
from eigen2.core.datamodule import Findings, RolloutDataModule, play
from eigen2.core.networks import Sizes, weight_bytes
from eigen2.core.randomness import Role, generator, torch_seed
from eigen2.core.transition_exchange import share_journal
from eigen2.distributed.communicator import Communicator
from eigen2.distributed.strategy import check_processes
from eigen2.erl.champion import come_to, how_to_act, keep_record, validation_fitness
from eigen2.erl.checkpoint_rows import collect_rows, keep_own_rows
from eigen2.erl.evolution.breeding import breed
from eigen2.erl.evolution.hyperparameters import discount, exploration_noise, rate_factors
from eigen2.erl.evolution.plateau import adapted, plateau_metrics, reinjects
from eigen2.erl.evolution.selection import Evolution, plan, rank
from eigen2.erl.evolution.statistics import note_operators
from eigen2.erl.exploration import Draws, ExplorationNoise
from eigen2.erl.learners import ddpg
from eigen2.erl.metrics import CRITIC_LOSSES, LOSS_NAMES, generation_metrics
from eigen2.erl.population import DDPGAgent, Population
from eigen2.erl.quarantine import Quarantine, conclude
from eigen2.erl.row_adam import RowAdam
from eigen2.erl.settings import check_settings
from eigen2.erl.workspace import REMEDY, require_fit
from eigen2.errors import UserError
from eigen2.memory.estimate import PeakEstimate, budget_of, processes_here
from eigen2.runtime.phases import PhaseClock
from eigen2.runtime.trainer_checks import check_trainer


class ERLModule(LightningModule):
    """Evolutionary reinforcement learning of a population of DDPG agents.

    A generation: every agent plays the same windows (evaluate), learns from the shared replay buffer (train), the less
    fit give way to children of the fitter (evolve), all play the validation windows and the best may become champion
    (validate).

    Args:
        population_size: agents (1 or more; evolution needs 2).
        gradient_steps: optimizer steps a generation (0 or more; 0 is evolution alone).
        accumulate: micro-batches of data.batch_size whose gradients are averaged for one optimizer step (1 or more).
        gamma: discount a step (0 to 1).
        tau: share of the way a target network moves to its network after each optimizer step (above 0, at most 1).
        actor_lr: Adam's learning rate of the actors (above 0).
        critic_lr: Adam's learning rate of the critics (above 0).
        max_grad_norm: largest norm of one agent's actor or critic gradient; longer ones are scaled down (above 0).
        reward_scale: factor on rewards in the critic's target, to bring returns near 1 (above 0).
        noise: standard deviation of the exploration noise at first, in action units of [-1, 1] (0 or more).
        noise_decay: factor on an agent's exploration noise after each generation (above 0, at most 1).
        noise_min: exploration noise does not fall below this (0 or more).
        random_warmup: whether exploration windows are played with random actions, even in [-1, 1], until training
            starts.
        validate_every: generations from one validation to the next (1 or more); before the first there is no champion.
        learners: agents that learn by gradients, the first ones; the others only evolve, and neither explore nor give
            way to learners but by injection (1 to population_size; null: all learn and evolve).
        td3: twin critics, delayed actors and smoothed targets; null is plain DDPG.
        evolution: how rows are replaced; null trains the agents without evolution.
        actor: class of the actor network, with its arguments but for `sizes`; null takes the workload's.
        critic: class of the critic network, with its arguments but for `sizes`; null takes the workload's.
    """

    population: Population

    def __init__(
        self,
        population_size: int = 16,
        gradient_steps: int = 96,
        accumulate: int = 2,
        gamma: float = 0.9,
        tau: float = 0.01,
        actor_lr: float = 1e-3,
        critic_lr: float = 1e-3,
        max_grad_norm: float = 1.0,
        reward_scale: float = 0.1,
        noise: float = 0.3,
        noise_decay: float = 0.95,
        noise_min: float = 0.1,
        random_warmup: bool = False,
        validate_every: int = 1,
        learners: int | None = None,
        td3: ddpg.TD3 | None = None,
        evolution: Evolution | None = Evolution(),  # noqa: B008 - read, never changed
        actor: Callable[[Sizes], nn.Module] | None = None,
        critic: Callable[[Sizes], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check_settings(settings)
        plain = {name: value for name, value in settings.items() if name not in ("actor", "critic")}
        groups = {"evolution": asdict(evolution) if evolution else None, "td3": asdict(td3) if td3 else None}
        self.save_hyperparameters({**plain, **groups}, logger=False)
        self.automatic_optimization = False
        self.population_size = population_size
        self.gradient_steps, self.accumulate = gradient_steps, accumulate
        self.gamma, self.tau = gamma, tau
        self.actor_lr, self.critic_lr, self.max_grad_norm = actor_lr, critic_lr, max_grad_norm
        self.reward_scale = reward_scale
        self.noise, self.noise_decay, self.noise_min = noise, noise_decay, noise_min
        self.random_warmup, self.validate_every = random_warmup, validate_every
        self.learners = population_size if learners is None else learners
        self.td3 = td3
        self.evolution = evolution
        self._actor, self._critic = actor, critic
        self.seed = 0
        self.share = Communicator(population_size)
        self.clock = PhaseClock(self)
        self.fitness = torch.zeros(population_size, dtype=torch.float64)
        self.slots: Tensor | None = None
        self.train_sums = torch.zeros(len(LOSS_NAMES), population_size)
        self.train_count = torch.zeros(len(LOSS_NAMES), population_size)
        self.draws: Draws | None = None
        self.quarantine = Quarantine(population_size)
        self.validation = torch.zeros(population_size, dtype=torch.float64)
        self.operators: dict[str, float] = {}
        self.generations_run = 0  # of the run whose checkpoint this is, which may have gone on after it
        self.tested: Findings | None = None
        self.metrics: dict[str, float] = {}

    # The algorithm: a generation in the order it happens

    def on_train_epoch_start(self) -> None:
        """Evaluate, then draw what the generation trains on."""
        self.clock.new_generation()
        self.generations_run = self.current_epoch + 1
        self.share.start_generation(self.current_epoch)
        self.quarantine = Quarantine(self.population.size, self.device, self.share.rows.start)
        with self.clock.phase("evaluate"):
            self.fitness = self.evaluate()
        self.clock.begin("train")
        self.train_sums = torch.zeros(len(LOSS_NAMES), self.population.size, device=self.device)
        self.train_count = torch.zeros_like(self.train_sums)
        self.slots = None
        if self.data.ready and self.micro_batches:
            learners, first, generation = self.population.learners, self.share.rows.start, self.current_epoch
            self.slots = self.data.draw_slots(learners, self.micro_batches, generation, self.seed, first)
            shape = (self.data.batch_size, *self.data.eval_env.action_shape)
            self.draws = Draws(Role.TARGET, learners, shape, self.seed, generation, first) if self.td3 else None

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One micro-batch for every agent that learns; every `accumulate`-th one steps the optimizer."""
        if self.slots is not None:
            number, part = divmod(batch_idx, self.accumulate)
            actor = self.td3 is None or (number + 1) % self.td3.policy_delay == 0
            self.learn(self.slots[batch_idx], step=part + 1 == self.accumulate, actor=actor)

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        """After the last micro-batch: evolve, so that validation sees the next generation's agents."""
        if self.trainer.is_last_batch:
            self.clock.end("train")
            with self.clock.phase("evolve"):
                self.evolve()

    def validation_step(self, batch: int, batch_idx: int) -> None:
        """Validate every agent during fit; the champion alone otherwise."""
        if self.trainer.sanity_checking:
            return
        if self.trainer.state.fn == TrainerFn.FITTING:
            with self.clock.phase("validate"):
                if (self.current_epoch + 1) % self.validate_every == 0:
                    self.validate()
                else:
                    self.validation = torch.full_like(self.validation, torch.nan)
        else:
            self.data.watch(0)
            act = self.policy(self.population.champion)
            returns = play(self.data.val_env, act, self.data.validation_options())
            self.data.keep_record(int(self.population.champion_generation))
            self.log("champion/validation_fitness", returns[0].mean().float(), prog_bar=True, batch_size=1)

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Play the champion on what no fit has looked at."""
        self.tested = self.data.test(come_to(self))
        self.log_dict({name: float(value) for name, value in self.tested.metrics.items()}, batch_size=1)

    # Its parts

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Play the generation's windows with every agent, fill the replay buffer, return fitness (agents,) float64."""
        env, counted = self.data.eval_env, self.data.windows_per_generation
        options = self.data.training_options(self.current_epoch, self.seed)
        if self.learners < self.population_size:
            options["playing"] = torch.ones(env.agents, env.windows, dtype=torch.bool)
            options["playing"][self.population.learners :, counted:] = False
        noise = ExplorationNoise(
            exploration_noise(self.population),
            env.windows - counted,
            env.action_shape,
            self.seed,
            self.current_epoch,
            uniform=self.random_warmup and not self.data.ready,
            first=self.share.rows.start,
        )

        policy = self.policy()

        def act(observation: dict[str, Tensor]) -> Tensor:
            return noise.add(policy(observation))

        journal = self.data.journal
        taker = self.data.buffer if journal is None else journal
        returns = play(env, act, options, taker, self.clock.environment_step)
        if journal is not None:
            share_journal(journal, self.data.buffer, self.share)
        self.quarantine.misplayed = ~torch.isfinite(returns).all(1)
        own = returns[:, self.data.fitness_windows].mean(1).cpu()
        return self.share.gather({"fitness": own}, "fitness")["fitness"]

    def learn(self, slots: Tensor, step: bool, actor: bool = True) -> None:
        """Add a micro-batch's gradients; with `step`, clip each agent's, update networks and targets.

        An agent with numbers that are not finite sits the step out, bit for bit.

        Args:
            slots: (learners, batch) places in the replay buffer.
            step: whether this is the last micro-batch of an optimizer step.
            actor: whether the actors and the targets take part in that step.
        """
        learners = self.population.learners  # none, perhaps, of those that belong to this process
        if learners:
            gamma = discount(self.population, self.gamma)
            losses = ddpg.losses(self.population, self._batch(slots), gamma, actor)
            values, sound = self.quarantine.heed(losses)
            self.train_sums[:, :learners] += values
            self.train_count[slice(None) if actor else CRITIC_LOSSES, :learners] += sound
            self.manual_backward((losses.actor + losses.critic).sum() / self.accumulate)
        if step:
            faults = ddpg.step(self.population, self.optimizer, self.max_grad_norm, self.quarantine.loss, actor)
            broken = self.quarantine.note(faults)
            ddpg.clear_gradients(self.population)
            if actor:
                ddpg.update_targets(self.population, self.tau, broken)

    @torch.no_grad()
    def evolve(self) -> None:
        """Replace the less fit rows, with targets, critics, moments and scalars, by children of the fitter."""
        population = self.population
        self.fitness[conclude(self)] = torch.nan  # an agent that failed is no parent, and gives way to a mutant
        if self.evolution is not None and self.population_size > 1:
            settings = adapted(self.evolution, population)
            fixed = self.learners if self.learners < self.population_size else 0
            inject = (self.current_epoch + 1) % self.evolution.inject_every == 0
            reinject = reinjects(settings, population, validated=self.current_epoch % self.validate_every == 0)
            chance = generator(self.seed, Role.SELECTION, self.current_epoch)
            children = plan(self.fitness.numpy(), settings, chance, fixed, inject, reinject)
            breed(self, children, settings)
            self.operators = note_operators(self, children, fixed) | plateau_metrics(settings, population)
        decayed = (population.noise * self.noise_decay).clamp(min=self.noise_min)
        population.noise.copy_(torch.minimum(population.noise, decayed))  # noise that starts below the least stays

    @torch.no_grad()
    def validate(self) -> None:
        """Play the validation windows with every agent; the fittest in training, if it beats the champion, becomes it.

        One candidate a generation, chosen on other days: the best of all agents on the validation days would be the
        luckiest as often as the best.
        """
        fittest = rank(self.fitness.numpy())[0]
        self.validation = validation_fitness(self, fittest)
        self.population.validations_since_champion += 1
        if torch.isfinite(self.fitness[fittest]) and self.validation[fittest] > self.population.champion_fitness.cpu():
            self.population.crown(fittest, float(self.validation[fittest]), self.current_epoch)
            keep_record(self, fittest)

    def policy(self, agent: DDPGAgent | None = None) -> Callable[[dict[str, Tensor]], Tensor]:
        """Observations to actions, of every agent or of one, which then acts wherever the environment has agents."""
        act, inputs = self.population.policy(agent), self.data.network_inputs

        @torch.inference_mode()
        def actions(observation: dict[str, Tensor]) -> Tensor:
            with self.trainer.precision_plugin.forward_context():
                action = act(inputs(observation)).float()
            return action if agent is None else action.expand(self.data.val_env.agents, *action.shape[1:])

        return actions

    def _batch(self, slots: Tensor) -> ddpg.Batch:
        stored = self.data.buffer.gather(slots.to(self.device))
        names = self.data.eval_env.observation_fields
        return ddpg.Batch(
            inputs=self.data.network_inputs({name: stored[name] for name in names}),
            next_inputs=self.data.network_inputs({name: stored[f"next_{name}"] for name in names}),
            action=stored["action"].float(),
            reward=stored["reward"] * self.reward_scale,
            terminated=stored["terminated"],
            smoothing=self.td3.smoothing(self.draws.next().to(self.device)) if self.td3 and self.draws else None,
        )

    # How it hangs together with Lightning

    @property
    def data(self) -> RolloutDataModule:
        """The data module of the running trainer."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, RolloutDataModule):
            raise UserError("ERLModule needs a RolloutDataModule: trainer.fit(module, datamodule=...)")
        return data

    @property
    def optimizer(self) -> LightningOptimizer:
        """The one optimizer."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        return optimizer

    @property
    def micro_batches(self) -> int:
        """Training steps a generation."""
        return self.gradient_steps * self.accumulate

    def setup(self, stage: str) -> None:
        """Build environments, population and replay buffer, after checking that they fit into memory."""
        if stage == "fit":
            check_trainer(self.trainer)
            check_processes(self.trainer, self.population_size)
        device = self.trainer.strategy.root_device
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        self.data.micro_batches = max(1, self.micro_batches)
        if self.learners < self.population_size and not self.data.windows_per_generation:
            raise UserError(
                "data.windows_per_generation is 0; with model.learners set, who only evolves needs 1 or more"
            )
        self.share = share = Communicator(self.population_size, self.trainer.global_rank, self.trainer.world_size)
        agents, learners = len(share.rows), len(range(self.learners)[share.rows.start : share.rows.stop])
        self.memory = PeakEstimate(REMEDY, device, budget_of(self.trainer), processes_here(self.trainer))
        self.memory.require(self.data.needed_bytes(agents))
        self.data.build(agents, device)
        make_actor, make_critic = self.network_makers(self.data)
        with torch_seed(self.seed, Role.WEIGHTS, agent=0):
            weights = weight_bytes(make_actor()) + weight_bytes(make_critic())
        if stage == "fit":
            require_fit(self, self.memory, weights, make_actor, make_critic)
            self.data.allocate_replay(device, share)
        if "population" not in self._modules:  # fitting or validating again goes on with what was learned
            own = self.evolution is not None and self.evolution.hyperparameters is not None
            self.population = Population(agents, make_actor, make_critic, self.seed, self.noise, learners, own, share)
        elif weights != 4 * self.population.weights_per_agent:
            raise UserError("this module was fitted to data of other sizes; make a new ERLModule for these")

    def network_makers(self, data: RolloutDataModule) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        """What builds one agent's actor and critic: the networks that were configured, else the data's own."""
        make_actor = partial(self._actor, data.sizes) if self._actor else data.make_actor
        make_critic = partial(self._critic, data.sizes) if self._critic else data.make_critic
        return make_actor, partial(ddpg.TwinCritic, make_critic) if self.td3 else make_critic

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One Adam for the whole population; its moments have a row an agent."""
        groups = [
            {"params": [self.population.actor], "lr": self.actor_lr},
            {"params": [self.population.critic], "lr": self.critic_lr},
        ]
        own = self.population.hyperparameters is not None
        return RowAdam(groups, partial(rate_factors, self.population) if own else None)

    def settings(self) -> dict[str, Any]:
        """Everything that decides what comes out of a run, as plain values by full key; the seed apart."""
        networks = {"actor": word_of(self._actor), "critic": word_of(self._critic)}
        run = {"num_threads": torch.get_num_threads(), "trainer": {"precision": str(self.trainer.precision)}}
        return flat({"model": {**self.hparams, **networks}, "data": self.data.settings(), **run})

    def on_train_start(self) -> None:
        """Set the configured learning rates, which the optimizer of a checkpoint does not know; log the settings."""
        for group, rate in zip(self.optimizer.param_groups, (self.actor_lr, self.critic_lr), strict=True):
            group["lr"] = rate
        for logger in self.loggers:
            logger.log_hyperparams({"seed": self.seed, **self.settings()})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add seed and settings; weights, champion, optimizer and buffer are saved by Lightning and the data module."""
        checkpoint["eigen2"] = {
            "seed": self.seed,
            "settings": self.settings(),
            "seen": self.data.seen(),
            "acting": how_to_act(self, self._actor),
            "generations": self.generations_run,
        }
        collect_rows(checkpoint, self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the seed; refuse a checkpoint of another population, or to resume with other settings.

        Raises:
            UserError: the checkpoint is not of this module, of another population size or other networks, or of a run
                with settings that must not change.
        """
        check_checkpoint(self, checkpoint)
        if self.trainer.state.fn != TrainerFn.FITTING:
            self.data.see_as(noted(checkpoint, "acting")["data"])
        if self.trainer.state.fn == TrainerFn.TESTING:
            self.data.require_unseen(noted(checkpoint, "seen"))
        tell_other_data(checkpoint["eigen2"]["settings"], self.settings(), self.trainer.state.fn)
        keep_own_rows(checkpoint, self)
        self.seed = int(checkpoint["eigen2"]["seed"])
        self.generations_run = max(self.generations_run, int(checkpoint["eigen2"].get("generations", 0)))

    def on_validation_epoch_end(self) -> None:
        """Put the generation's numbers together, once they are all known, and hand them to loggers and callbacks."""
        if self.trainer.sanity_checking or self.trainer.state.fn != TrainerFn.FITTING:
            return
        self.clock.seconds["generation"] = self.clock.elapsed("generation")
        self.metrics = generation_metrics(self)
        for logger in self.loggers:
            logger.log_metrics(self.metrics, step=self.current_epoch)
        # for callbacks such as checkpoints and early stopping; log_dict would take as long as two optimizer steps
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self.metrics.items()})

    def on_train_epoch_end(self) -> None:
        """All callbacks have logged: let the loggers write the generation before the checkpoint is written."""
        for logger in self.loggers:
            logger.save()

    def memory_owners(self) -> dict[str, object]:
        """What holds bytes, for a memory profiler."""
        gradients = [parameter.grad for parameter in self.parameters()]
        # the optimizer first: the population holds the gradients too
        return {"optimizer": (gradients, self.optimizer.state), "population": self.population}

    def reset_memory(self) -> None:
        """Start over without new memory: beginners for agents, no champion, an empty replay buffer.

        After a fit, before the next; without it a further fit goes on with what was learned.
        """
        self.population.reset_memory(*self.network_makers(self.data), self.seed, self.noise)
        self.data.buffer.reset_memory()

    def cleanup_memory(self) -> int:
        """Free what a further fit makes anew, gradients and the pages of empty replay slots; return their bytes."""
        return self.population.cleanup_memory() + self.data.buffer.cleanup_memory()

    def describe(self) -> dict[str, str]:
        """Name and value of what a user should see at the start."""
        buffer = self.data.buffer
        return {
            "population": f"{self.population_size} agents, {self.population.weights_per_agent:,} parameters each",
            "replay": f"{buffer.capacity:,} transitions of {buffer.bytes_per_transition:,} bytes, "
            f"{buffer.nbytes / 1e6:,.1f} MB; training starts at {self.data.replay_min_size:,}",
            "memory": str(self.memory),
            **self.share.describe(),
        }
