"""Play the population: evaluation with exploration, validation, the choice of the champion, policies for a test."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen2.core.datamodule import RolloutDataModule, TrainedPolicies
from eigen2.core.environment import Observation, Policy, play
from eigen2.core.randomness import Role
from eigen2.core.transition_exchange import exchange_transitions
from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution.selection import rank
from eigen2.erl.evolution.statistics import reliability
from eigen2.erl.exploration import Draws, explore
from eigen2.erl.population import DDPGAgent, Population
from eigen2.erl.state import GenerationState
from eigen2.errors import UserError

RELIABLE = 0.8  # reliability from which the fittest agent may become champion


@dataclass(frozen=True)
class Rollout:
    """Episodes of a population in the environments of a data module."""

    population: Population
    data: RolloutDataModule
    precision: Callable[[], AbstractContextManager[None]]  # makes the context in which networks run
    communicator: Communicator

    def policy(self, agent: DDPGAgent | None = None, agents: int = 1, with_mean: bool = False) -> Policy:
        """Return the policy of every agent, or of one in place of `agents`, on the device of the observations."""
        act, device = self.population.policy(agent, with_mean), self.population.actor.device

        @torch.inference_mode()
        def policy(observation: Observation) -> Tensor:
            device_of_env = next(iter(observation.values())).device
            moved = {name: part.to(device) for name, part in observation.items()}
            with self.precision():
                action = act(self.data.network_inputs(moved)).float().to(device_of_env)
            return action if agent is None else action.expand(agents, *action.shape[1:])

        return policy

    def evaluate(self, state: GenerationState, seed: int, uniform: bool, after_step: Callable[[], None]) -> None:
        """Play the generation's windows with every agent: set its fitness in the state, fill the replay buffer.

        Agents that do not learn play only fitness windows. With `uniform`, others act at random until training starts.
        """
        population, data, env = self.population, self.data, self.data.eval_env
        fitness_windows, windows = data.windows_per_generation, env.windows - data.windows_per_generation
        options = data.training_options(state.generation, seed)
        if population.learners < population.size:
            options["playing"] = torch.ones(env.agents, env.windows, dtype=torch.bool)
            options["playing"][population.learners :, fitness_windows:] = False
        uniform = uniform and not data.ready
        draws = Draws(Role.EXPLORATION, self.communicator.rows, (windows, *env.action_shape), seed, state.generation)
        act = self.policy()

        def policy(observation: Observation) -> Tensor:
            return explore(act(observation), windows, draws, population.noise, uniform)

        buffer = data.buffer if data.transition_log is None else data.transition_log
        returns = play(env, policy, options, buffer, after_step)
        if data.transition_log is not None:
            exchange_transitions(data.transition_log, data.buffer, self.communicator)
        state.quarantine.misplayed = ~torch.isfinite(returns).all(1)
        own = data.scores(env, returns)[:, data.fitness_windows].cpu()
        by_window = self.communicator.gather({"fitness": own}, "fitness")["fitness"]
        state.fitness, state.reliability = by_window.mean(1), reliability(by_window)

    @torch.no_grad()
    def validate(self, state: GenerationState) -> None:
        """Play the validation windows; the better candidate becomes champion if it is better than the one before.

        Candidates are the mean of the elites' weights, which averages out much of the noise of training (stochastic
        weight averaging, Izmailov et al., 2018), and the fittest agent, chosen on other days, as the best on these
        would often be the luckiest. Where the fitness hardly tells agents apart, below `RELIABLE`, the fittest is no
        candidate either: it is the luckiest there.
        """
        population, data, communicator = self.population, self.data, self.communicator
        fittest = rank(state.fitness.numpy())[0]
        place = communicator.local_index(fittest)
        fitness = torch.full((population.size,), torch.nan, dtype=torch.float64)
        if place is not None:
            data.record_agent(place)
        if data.validates_every_agent:
            returns = play(data.val_env, self.policy(with_mean=True), data.validation_options())
            *_, state.mean_validation = scores = data.scores(data.val_env, returns).mean(1).tolist()
            fitness = torch.tensor(scores[:-1], dtype=torch.float64)
        else:
            if bool(population.mean_actor.isfinite().all()):
                state.mean_validation = self._play_alone(population.mean)
            if place is not None:
                fitness[place] = self._play_alone(population.agents[place])
        state.validation = communicator.gather({"fitness": fitness}, "validation fitness")["fitness"]
        population.validations_since_champion += 1
        validated = float(state.validation[fittest]) if torch.isfinite(state.fitness[fittest]) else math.nan
        luckiest = state.reliability < RELIABLE and math.isfinite(state.mean_validation)
        row = None if luckiest or state.mean_validation > validated or math.isnan(validated) else fittest
        best = state.mean_validation if row is None else validated
        if best > population.champion_fitness.item():
            population.set_champion(row, best, state.generation, communicator)
            if row is None or communicator.owner(row) != 0:
                self._record_champion()
            data.save_champion_record(state.generation)

    def _record_champion(self) -> None:
        """Play the champion again on process 0, where other episodes are recorded; its fitness is that of this play.

        Networks round differently beside other agents, so the one before may differ by rounding.
        """
        population, communicator = self.population, self.communicator
        fitness = torch.full((population.size,), torch.nan, dtype=torch.float64)
        if communicator.rank == 0:
            fitness[0] = self.play_champion()
        played = communicator.broadcast({"fitness": fitness}, 0, "the champion's fitness")["fitness"]
        population.champion_fitness.copy_(played[0])

    def play_champion(self) -> float:
        """Play the validation windows with the champion, recorded, and return its validation fitness."""
        self.data.record_agent(0)
        return self._play_alone(self.population.champion)

    def _play_alone(self, agent: DDPGAgent) -> float:
        env = self.data.val_env
        returns = play(env, self.policy(agent, env.agents), self.data.validation_options())
        return float(self.data.scores(env, returns)[0].mean())

    def trained_policies(self, candidates: int, seed: int) -> TrainedPolicies:
        """Return champion and population as policies; raise a UserError if there is no champion."""
        population, generation = self.population, int(self.population.champion_generation)
        if generation < 0:
            raise UserError("the checkpoint has no champion: none was validated before it was written")
        agents = [self.policy(agent) for agent in population.agents]
        return TrainedPolicies(self.policy(population.champion), agents, generation, candidates, seed)
