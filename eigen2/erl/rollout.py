"""Play the population: evaluation with exploration, validation, the choice of the champion, policies for a test."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from eigen2.core.datamodule import RolloutDataModule, TrainedPolicies
from eigen2.core.environment import Observation, Policy, play
from eigen2.core.networks import Inputs
from eigen2.core.randomness import Role
from eigen2.core.saved_run import require_champion
from eigen2.core.shared_replay import SharedReplay
from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution.selection import rank
from eigen2.erl.evolution.statistics import reliability
from eigen2.erl.exploration import Draws, explore
from eigen2.erl.population import Agent, Population
from eigen2.erl.state import GenerationState

MIN_RELIABILITY = 0.8  # reliability from which the fittest agent may become champion
# standard errors by which a new champion must be better, tuned on synthetic markets that the docs do not report
MIN_T_STATISTIC = 2.0


@dataclass(frozen=True)
class Rollout:
    """Episodes of a population in the environments of a data module."""

    population: Population
    data: RolloutDataModule
    precision: Callable[[], AbstractContextManager[None]]  # makes the context in which networks run
    communicator: Communicator

    def policy(self, agent: Agent | None = None, agents: int = 1, with_mean: bool = False) -> Policy:
        """Return the policy of all agents or, given `agent`, its policy repeated for `agents` accounts."""
        act = self.population.policy(agent, with_mean)
        if agent is None:
            return self.as_policy(act)
        return self.as_policy(lambda inputs: (action := act(inputs)).expand(agents, *action.shape[1:]))

    def as_policy(self, act: Callable[[Inputs], Tensor]) -> Policy:
        """Return the policy of a network: it moves observations to its device, and actions to the environment's."""
        device = self.population.actor.device

        @torch.inference_mode()
        def policy(observation: Observation) -> Tensor:
            env_device = next(iter(observation.values())).device
            moved = {name: part.to(device) for name, part in observation.items()}
            with self.precision():
                return act(self.data.network_inputs(moved)).float().to(env_device)

        return policy

    def evaluate(self, state: GenerationState, seed: int, uniform: bool, after_step: Callable[[], None]) -> None:
        """Play the generation's windows with every agent: set its fitness in the state, fill the replay buffer.

        Agents that do not learn play only the windows that are their fitness. With `uniform`, exploration windows are
        played at random until training starts.
        """
        population, data, env = self.population, self.data, self.data.eval_env
        options = data.training_options(state.generation, seed)
        if data.windows_per_generation and population.learners < population.size:
            options["playing"] = torch.ones(env.agents, env.windows, dtype=torch.bool)
            options["playing"][population.learners :, data.windows_per_generation :] = False
        uniform = uniform and not data.ready
        shape = data.exploration_windows, *env.action_shape
        noise, act = Draws(Role.EXPLORATION, self.communicator.rows, shape, seed, state.generation), self.policy()

        def policy(observation: Observation) -> Tensor:
            return explore(act(observation), data.exploration_windows, noise, population.noise, uniform)

        shared = data.buffer if isinstance(data.buffer, SharedReplay) else None
        returns = play(env, policy, options, data.buffer if shared is None else shared.log, after_step)
        if shared is not None:
            shared.add_log()
        state.quarantine.misplayed = ~torch.isfinite(returns).all(1)
        own = data.scores(env, returns)[:, data.fitness_windows].cpu()
        by_window = self.communicator.gather({"fitness": own}, "fitness")["fitness"]
        state.fitness, state.reliability = by_window.mean(1), reliability(by_window)

    @torch.no_grad()
    def validate(self, state: GenerationState) -> None:
        """Play the validation windows; the better candidate becomes champion if it beats the one before, see `beats`.

        Candidates are the mean of the elites' weights, which averages out much of the noise of training (stochastic
        weight averaging, Izmailov et al., 2018), and the fittest agent, chosen on other days, as the best on these
        would often be the luckiest. Where the fitness hardly tells agents apart, below `MIN_RELIABILITY`, the fittest
        is no candidate either: it is the luckiest there.
        """
        population, data, communicator = self.population, self.data, self.communicator
        fittest = rank(state.fitness.numpy())[0]
        place = communicator.local_index(fittest)
        own, mean = self._unplayed(population.size), self._unplayed()
        if data.validates_every_agent:
            returns = play(data.val_env, self.policy(with_mean=True), data.validation_options())
            *agents, mean = data.scores(data.val_env, returns).double().cpu()
            own = torch.stack(agents)
        else:
            if bool(population.mean_actor.isfinite().all()):
                mean = self._play_alone("mean")
            if place is not None:
                own[place] = self._play_alone(place)
        by_window = communicator.gather({"fitness": own}, "validation fitness")["fitness"]
        # every process has played the mean, but processors may round it differently
        mean = communicator.broadcast({"mean": mean[None]}, 0, "validation fitness")["mean"][0]
        state.validation, state.mean_validation = by_window.mean(1), float(mean.mean())
        validated = float(state.validation[fittest]) if torch.isfinite(state.fitness[fittest]) else math.nan
        unreliable = state.reliability < MIN_RELIABILITY and math.isfinite(state.mean_validation)
        row = None if unreliable or state.mean_validation > validated or math.isnan(validated) else fittest
        best = mean if row is None else by_window[fittest]
        if beats(best, population.champion_windows.cpu()):
            population.set_champion(row, best, state.generation, communicator)
            self.record_champion()
            data.save_champion_record(state.generation)

    def record_champion(self) -> None:
        """Play the champion alone, recorded, on process 0; its fitness is that of this play.

        Networks round differently beside other agents: alone, it has the same fitness with any number of processes.
        """
        population, communicator = self.population, self.communicator
        played = self._unplayed(population.size)
        if communicator.rank == 0:
            self.data.record_validation()
            played[0] = self._play_alone("champion")
        population.set_champion_fitness(communicator.broadcast({"fitness": played}, 0, "fitness")["fitness"][0])

    def play_champion(self) -> float:
        """Play the validation windows with the champion, recorded, and return its validation fitness.

        Raises a UserError if there is none.
        """
        require_champion(int(self.population.champion_generation))
        self.data.record_validation()
        return float(self._play_alone("champion").mean())

    def _play_alone(self, agent: Agent) -> Float[Tensor, " windows"]:
        env = self.data.val_env
        returns = play(env, self.policy(agent, env.agents), self.data.validation_options())
        return self.data.scores(env, returns)[0].double().cpu()

    def _unplayed(self, *agents: int) -> Float[Tensor, "*agents windows"]:
        return torch.full((*agents, self.data.val_env.windows), torch.nan, dtype=torch.float64)

    def trained_policies(self, tried: int, seed: int) -> TrainedPolicies:
        """Return champion and population as policies; raise a UserError if there is no champion."""
        population = self.population
        generation = require_champion(int(population.champion_generation))
        agents = [self.policy(row) for row in range(population.size)]
        return TrainedPolicies(self.policy("champion"), agents, generation, tried, seed)


def beats(candidate: Float[Tensor, " windows"], champion: Float[Tensor, " windows"]) -> bool:
    """Return whether a candidate's validation fitness is above the champion's by more than chance explains.

    The mean of the differences window by window must exceed `MIN_T_STATISTIC` standard errors of that mean: the best of
    many generations by less is often only the luckiest. Any is better than none, of fitness -inf.
    """
    if not bool(champion.isfinite().all()):
        return bool(candidate.mean() > champion.mean())
    difference = candidate - champion
    error = float(difference.std()) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return float(difference.mean()) > MIN_T_STATISTIC * error
