"""ERL on the Lightning Trainer: an epoch is a generation."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from eigen2.core.networks import Sizes
from eigen2.core.randomness import Role
from eigen2.core.replay import sample_slots
from eigen2.erl.base import PopulationModule
from eigen2.erl.evolution import Elitism, MagnitudeMutation, Operator, TournamentCrossover
from eigen2.erl.evolution.breeding import evolve
from eigen2.erl.exploration import Draws
from eigen2.erl.learners import DDPG, Learner
from eigen2.erl.learners.gradients import clip_and_check, moments, skipped, step, update_targets
from eigen2.erl.settings import check_settings, plain_settings
from eigen2.erl.state import GenerationState, make_batch


class ERLModule(PopulationModule):
    """Evolutionary reinforcement learning of a population of agents.

    A generation: every agent plays the same windows (evaluate), learns from the shared replay buffer (train), the less
    fit are replaced by children of the fitter (evolve), and on the validation windows the fittest, or the mean of the
    elites, may become champion (validate).

    Args:
        population_size: agents (1 or more; evolution needs 2).
        gradient_steps: gradient steps of each learner per generation (0 or more; 0 is evolution alone; -1: one for
            every transition that the generation adds to the replay buffer, divided among the learners).
        accumulate: micro-batches of data.batch_size whose gradients are averaged for one optimizer step (1 or more);
            small ones are computed together.
        gamma: discount per step (0 to 1; null: the workload's, which is 0 for orders, as their gains are credited to
            them, 0.5 for target weights, and 0.99 for control tasks).
        tau: fraction by which a target network moves to its network after each optimizer step (above 0, at most 1).
        actor_lr: Adam's learning rate of the actors (above 0).
        critic_lr: Adam's learning rate of the critics (above 0).
        max_grad_norm: largest norm of one agent's actor or critic gradient; longer ones are scaled down (above 0).
        reward_scale: factor on rewards in the critic's target, to bring returns near 1 (above 0).
        noise: initial standard deviation of the exploration noise, in action units of [-1, 1] (0 or more).
        noise_decay: factor on an agent's exploration noise after each generation (above 0, at most 1).
        noise_min: exploration noise does not fall below this (0 or more).
        random_warmup: play exploration windows with random actions, uniform in [-1, 1], until training starts.
        validate_every: generations from one validation to the next (1 or more); before the first there is no champion.
        learners: agents that learn by gradients: null, all learn and evolve; 1, the first learns alone, and the others
            only evolve, play no exploration windows unless these are the fitness, and get its actor by the operator
            Injection.
        representation: own: every agent has all its weights; shared: the first agent learns alone, and the others are
            heads on the trunk of its actor, which only evolve and get its head by the operator Injection.
        compile: compile optimizer steps on CPUs, which takes a minute or more at the start and makes long runs faster;
            results agree with those of steps that are not compiled up to rounding.
        learner: algorithm that trains agents by gradients: DDPG or TD3, or a class of your own.
        evolution: operators that keep or replace agents, by class; earlier ones choose first whom to replace; null
            trains the agents without evolution.
        actor: class of the actor network and its arguments except `sizes`; null takes the workload's default.
        critic: class of the critic network and its arguments except `sizes`; null takes the workload's default.
    """

    config_defaults: ClassVar = {
        "evolution": [
            {"class_path": "eigen2.erl.evolution.Elitism"},
            {"class_path": "eigen2.erl.evolution.TournamentCrossover"},
            {"class_path": "eigen2.erl.evolution.MagnitudeMutation"},
        ]
    }

    def __init__(
        self,
        population_size: int = 16,
        gradient_steps: int = 96,
        accumulate: int = 2,
        gamma: float | None = None,
        tau: float = 0.01,
        actor_lr: float = 3e-4,
        critic_lr: float = 3e-4,
        max_grad_norm: float = 1.0,
        reward_scale: float = 0.1,
        noise: float = 0.3,
        noise_decay: float = 0.95,
        noise_min: float = 0.1,
        random_warmup: bool = False,
        validate_every: int = 1,
        learners: int | None = None,
        representation: Literal["own", "shared"] = "own",
        compile: bool = False,
        learner: Learner = DDPG(),
        evolution: Sequence[Operator] | None = (Elitism(), TournamentCrossover(), MagnitudeMutation()),
        actor: Callable[[Sizes], nn.Module] | None = None,
        critic: Callable[[Sizes], nn.Module] | None = None,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check_settings(settings)
        super().__init__()
        self.save_hyperparameters(plain_settings(settings), logger=False)
        self.population_size = population_size
        self.shared = representation == "shared" and population_size > 1  # one agent has nothing to share
        self.one_learner = self.shared or (learners == 1 and population_size > 1)
        self.learner, self.operators, self.make_networks = learner, tuple(evolution or ()), (actor, critic)
        self.validate_every = validate_every

    def on_train_epoch_start(self) -> None:
        """Evaluate every agent, and draw what the generation trains on."""
        self.begin_generation()
        self.communicator.start_generation(self.generation)
        agents = self.communicator.rows
        learners, total = agents[: self.population.learners], self.population_size
        self.state = GenerationState.begin(self.generation, agents, total, self.accumulators, len(learners))
        before, random = self.data.buffer.added, self.hparams["random_warmup"]
        with self.clock.phase("evaluate"):
            self.rollout.evaluate(self.state, self.seed, random, self.clock.environment_step)
        self.clock.begin("train")
        data, address = self.data, (self.seed, self.generation)
        if data.ready and (steps := self.optimizer_steps(data.buffer.added - before)):
            batches, size = steps * self.batches_per_optimizer_step, self.micro_batches_at_once * data.batch_size
            slots = sample_slots(len(data.buffer), batches, size, learners, *address)
            self.state.slots = slots.to(self.device)
            if self.learner.uses_noise:
                shape = size, *data.eval_env.action_shape
                self.state.noise = Draws(Role.TARGET, learners, shape, *address, self.device)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Train every learner on the next batches."""
        if self.state.slots is not None:
            first = batch_idx * self.batches_per_training_step
            for index in range(len(self.state.slots))[first : first + self.batches_per_training_step]:
                self.train_batch(index)

    def train_batch(self, index: int) -> None:
        """Add the gradients of batch `index`; with the last one of an optimizer step, take that step."""
        state = self.state
        optimizer_step, batch = divmod(index, self.batches_per_optimizer_step)
        train_actor, last = self.learner.trains_actor(optimizer_step), batch + 1 == self.batches_per_optimizer_step
        drawn = state.draw(index, self.data.buffer, self.batches_per_fetch)
        finite = self.step_runner(self.compute_gradients, drawn, train_actor, last)
        if state.noise is not None:
            state.noise.prepare()
        if last:
            with skipped(self.population, self.optimizer, state.quarantine.record_step(finite)):
                self.optimizer.step(run=partial(self.step_runner, self.update_weights, {}, train_actor))  # type: ignore[call-overload]

    def compute_gradients(
        self, drawn: Mapping[str, Tensor], train_actor: bool, last: bool
    ) -> Bool[Tensor, "4 rows"] | None:
        """Add the gradients of a batch, and after the `last` of an optimizer step check them; see `StepRunner`."""
        hparams, state, population = self.hparams, self.state, self.population
        if population.learners:
            sampled = make_batch(self.data, drawn, self.gamma, hparams["reward_scale"])
            losses = self.learner.losses(population, sampled, train_actor)
            state.record_losses(losses, train_actor)
            loss = (losses.actor + losses.critic).sum()  # each term depends on one agent only
            self.manual_backward(loss / self.batches_per_optimizer_step)
        if not last:
            return None
        return clip_and_check(population, hparams["max_grad_norm"], state.quarantine.loss)

    def update_weights(self, tensors: Mapping[str, Tensor], train_actor: bool) -> None:
        """Step the optimizer and move the targets; see `StepRunner`."""
        step(self.population, self.adam.step_rows, train_actor)
        if train_actor:
            update_targets(self.population, self.hparams["tau"])

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        """Evolve after the last micro-batch, so that validation plays the next generation's agents."""
        if self.trainer.is_last_batch:
            self.clock.end("train")
            with self.clock.phase("evolve"):
                self.evolve()

    @torch.no_grad()
    def evolve(self) -> None:
        """Replace the less fit agents, with targets, critics and moments, by children of the fitter; decay noise."""
        state, population, operators = self.state, self.population, self.operators
        adam_moments = moments(population, self.optimizer)
        population.broadcast_learner(adam_moments, self.communicator)
        failed = state.quarantine.find_failed(state.fitness, population, self.optimizer, self.communicator)
        state.quarantine.report(failed, state.generation, self.one_learner, evolution=bool(operators))
        if self.one_learner and failed[0]:
            population.restore_learner(adam_moments)
        if operators and self.population_size > 1:
            state.evolution = evolve(
                state.fitness, population, adam_moments, operators, self.evolution_context, self.communicator
            )
        decayed = (population.noise * self.hparams["noise_decay"]).clamp(min=self.hparams["noise_min"])
        population.noise.copy_(torch.minimum(population.noise, decayed))  # noise that starts below noise_min stays

    def validate(self) -> None:
        """Play the validation windows; the elites' mean or the fittest becomes champion if it beats the one before."""
        self.rollout.validate(self.state)
