"""Twin delayed DDPG: against one agent's TD3 as a textbook writes it, and by the numbers of its parts."""

from copy import deepcopy

import pytest
import torch
import yaml
from torch import Tensor, nn

from eigen2.distributed.communicator import Communicator
from eigen2.erl.learners import TD3, Batch
from eigen2.erl.learners.gradients import clip_and_check, step, update_targets
from eigen2.erl.learners.td3 import TwinCritic
from eigen2.erl.population import Population
from eigen2.errors import UserError
from tests.command import eigen2
from tests.erl.learners.test_ddpg import AGENTS, adam, probe_batch
from tests.erl.probe import Probe, ProbeActor, ProbeCritic, fit
from tests.erl.recorder import Recorder, same
from tests.erl.reference import with_weights

GAMMA, TAU, LR = 0.9, 0.2, (1e-2, 3e-2)


def twin_population() -> Population:
    twins = TD3().critic_factory(ProbeCritic)
    population, other = (Population(Communicator(AGENTS), ProbeActor, twins, seed, noise=0.1) for seed in (3, 4))
    population.actor_target.copy_(other.actor.detach())
    population.critic_target.copy_(other.critic.detach())
    return population


class OneTD3:
    """TD3 for one agent, with two critics of their own: Fujimoto et al., 2018, algorithm 1."""

    def __init__(self, population: Population, agent: int, delay: int) -> None:
        self.delay, self.steps = delay, 0
        self.actor = with_weights(ProbeActor(), population.actor[agent])
        self.actor_target = with_weights(ProbeActor(), population.actor_target[agent])
        self.critics = self._two(population.critic[agent])
        self.targets = self._two(population.critic_target[agent])
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), LR[0])
        weights = [weight for critic in self.critics for weight in critic.parameters()]
        self.critic_optimizer = torch.optim.Adam(weights, LR[1])

    @staticmethod
    def _two(row: Tensor) -> list[nn.Module]:
        both = with_weights(TwinCritic(ProbeCritic), row)
        return [deepcopy(both.first), deepcopy(both.second)]

    def step(self, batch: Batch, agent: int) -> None:
        self.steps += 1
        seen, following = {"x": batch.inputs["x"][agent]}, {"x": batch.next_inputs["x"][agent]}
        with torch.no_grad():
            assert batch.noise is not None
            smoothing = (0.3 * batch.noise[agent]).clamp(-0.4, 0.4)
            action = (self.actor_target(following) + smoothing).clamp(-1, 1)
            lower = torch.min(*(target(following, action) for target in self.targets))
            wanted = batch.reward[agent] + GAMMA * (~batch.terminated[agent]).float() * lower
        loss = torch.zeros(())
        for critic in self.critics:
            loss = loss + torch.nn.functional.mse_loss(critic(seen, batch.action[agent]), wanted)
        gradient = torch.autograd.grad(-self.critics[0](seen, self.actor(seen)).mean(), list(self.actor.parameters()))
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        if self.steps % self.delay:
            return
        for weight, piece in zip(self.actor.parameters(), gradient, strict=True):
            weight.grad = piece
        self.actor_optimizer.step()
        pairs = [(self.actor_target, self.actor), *zip(self.targets, self.critics, strict=True)]
        for target, network in pairs:
            for old, new in zip(target.parameters(), network.parameters(), strict=True):
                old.data.lerp_(new.data, TAU)

    def rows(self) -> dict[str, Tensor]:
        vector = nn.utils.parameters_to_vector
        return {
            "actor": vector(self.actor.parameters()),
            "actor_target": vector(self.actor_target.parameters()),
            "critic": torch.cat([vector(critic.parameters()) for critic in self.critics]),
            "critic_target": torch.cat([vector(target.parameters()) for target in self.targets]),
        }


@pytest.mark.parametrize("delay", [1, 2])
def test_a_population_trains_as_separate_agents_do(delay: int) -> None:
    population, td3 = twin_population(), TD3(delay, 0.3, 0.4, saturation_penalty=0.0)
    alone = [OneTD3(population, agent, delay) for agent in range(AGENTS)]
    optimizer, chance = adam(population, LR), torch.Generator().manual_seed(0)
    for number in range(7):
        batch = probe_batch(number)
        batch = batch._replace(noise=torch.randn(batch.action.shape, generator=chance))
        actor = td3.trains_actor(number)
        assert actor == ((number + 1) % delay == 0)
        result = td3.losses(population, batch, actor)
        (result.actor + result.critic).sum().backward()
        assert bool(clip_and_check(population, 1e9, torch.stack(result[:2]).detach()).all())
        step(population, optimizer.step, actor)
        if actor:
            update_targets(population, TAU)
        for agent, reference in enumerate(alone):
            reference.step(batch, agent)
            for name, row in reference.rows().items():
                torch.testing.assert_close(getattr(population, name)[agent].detach(), row, atol=2e-5, rtol=0)


def test_noise_on_targets_is_clipped_and_actions_stay_in_range() -> None:
    population, batch = twin_population(), probe_batch(1)
    drawn = torch.tensor([-100.0, -1.0, 0.0, 2.0, 100.0])
    smoothed = TD3(1, 0.2, 0.5).target_action(torch.zeros(5), batch._replace(noise=drawn))
    assert smoothed.tolist() == pytest.approx([-0.5, -0.2, 0.0, 0.4, 0.5])
    far, ones = batch._replace(noise=torch.full_like(batch.action, 50.0)), torch.ones_like(batch.action)
    highest = population.critic_network(population.critic_target, batch.next_inputs, ones).detach()
    assert ((highest[..., 0] < highest[..., 1]).any(), (highest[..., 0] > highest[..., 1]).any()) == (True, True)
    expected = batch.reward + GAMMA * torch.where(batch.terminated, 0.0, highest.amin(-1))
    torch.testing.assert_close(TD3(1, 2.0, 9.0).td_target(population, far), expected)


def test_actors_and_targets_move_in_every_delayed_step_alone() -> None:
    """Through the module: of three steps the second is the actors'."""
    probe = Probe(lambda x, action, step: -((action - 0.5) ** 2), contexts=(-1.0, 1.0))
    two, three = Recorder(), Recorder()
    for recorder, steps in ((two, 2), (three, 3)):
        fit(probe, recorder, gradient_steps=steps, learner=TD3())
    before, second, third = two.states[0, "evaluate"], two.states[0, "train"], three.states[0, "train"]
    assert not same(before["critic"], second["critic"])
    assert not same(second["critic"], third["critic"])
    for name in ("actor", "actor_target", "critic_target"):
        assert not same(before[name], second[name]), name
        assert same(second[name], third[name]), name
    # the actors' losses are averages over the steps in which they have one
    assert three.metrics[0]["train/actor_loss"] == pytest.approx(two.metrics[0]["train/actor_loss"])


def test_named_by_its_class_alone_it_has_the_defaults_of_its_class() -> None:
    """The parser keeps arguments of the module's default learner that a class named in its place has, too."""
    shown = eigen2("fit", "--config", "tests/small.yaml", "--model.learner=eigen2.TD3", "--print_config").stdout
    assert yaml.safe_load(shown)["model"]["learner"]["init_args"] == vars(TD3())


@pytest.mark.parametrize("settings", [{"policy_delay": 0}, {"target_noise": -0.1}, {"target_noise_clip": float("nan")}])
def test_settings_outside_their_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match=rf"model\.learner\.{next(iter(settings))} is"):
        TD3(**settings)
