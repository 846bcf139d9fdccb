"""Losses, clipping and targets: numbers worked out by hand, and plain modules and optimizers agent by agent."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eigen2.core.networks import Inputs
from eigen2.distributed.communicator import Communicator
from eigen2.erl.learners import DDPG, Batch
from eigen2.erl.learners.gradients import (
    PARTS,
    clear_gradients,
    clip_and_check,
    moments,
    skipped,
    state_faults,
    step,
    update_targets,
)
from eigen2.erl.learners.td3 import TwinCritic
from eigen2.erl.population import Population
from tests.erl.probe import ProbeActor, ProbeCritic
from tests.erl.reference import OneAgent, with_weights

AGENTS, SIZE, OTHERS = 4, 6, [0, 1, 3]
GAMMA = 0.5


class LinearActor(nn.Module):
    """Action w x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Inputs) -> Tensor:
        return inputs["x"] * self.w


class LinearCritic(nn.Module):
    """Value u x + v a."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        return (inputs["x"] * self.u + action * self.v)[..., 0]


def linear_population() -> Population:
    """Two agents: w (0.5, 2), (u, v) ((1, 2), (3, -1)); targets: w (1, -1), (u, v) ((10, 20), (0, 5))."""
    population = Population(Communicator(2), LinearActor, LinearCritic, seed=0, noise=0.0)
    with torch.no_grad():
        population.actor.copy_(torch.tensor([[0.5], [2.0]]))
        population.critic.copy_(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))
        population.actor_target.copy_(torch.tensor([[1.0], [-1.0]]))
        population.critic_target.copy_(torch.tensor([[10.0, 20.0], [0.0, 5.0]]))
    return population


def linear_batch(terminated: list[list[bool]], discount: float = GAMMA) -> Batch:
    return Batch(
        inputs={"x": torch.tensor([[[1.0], [2.0]], [[0.25], [-1.0]]])},
        next_inputs={"x": torch.tensor([[[0.1], [0.2]], [[0.3], [0.4]]])},
        action=torch.tensor([[[1.0], [0.0]], [[-1.0], [0.5]]]),
        reward=torch.tensor([[1.0, -1.0], [0.0, 2.0]]),
        terminated=torch.tensor(terminated),
        discount=discount,
    )


ENDS = [[True, False], [False, True]]
GOES_ON = [[False, False], [False, False]]


def test_the_target_bootstraps_unless_the_episode_terminated() -> None:
    population = linear_population()
    # agent 0: mu' = x, Q' = 10 x + 20 x = 30 x; agent 1: mu' = -x, Q' = -5 x
    going_on = DDPG().td_target(population, linear_batch(GOES_ON))
    torch.testing.assert_close(going_on, torch.tensor([[1 + 1.5, -1 + 3.0], [0 - 0.75, 2 - 1.0]]))
    assert not going_on.requires_grad
    ended = DDPG().td_target(population, linear_batch(ENDS))
    torch.testing.assert_close(ended, torch.tensor([[1.0, 2.0], [-0.75, 2.0]]))
    batch = linear_batch(GOES_ON, discount=0.0)
    assert torch.equal(DDPG().td_target(population, batch), batch.reward)


@pytest.mark.parametrize("worthless", [torch.nan, torch.inf])
def test_nothing_of_what_follows_a_termination_gets_in(worthless: float) -> None:
    batch = linear_batch([[True, False], [True, False]])
    batch.next_inputs["x"][:, 0] = worthless
    target = DDPG().td_target(linear_population(), batch)
    assert target[:, 0].tolist() == batch.reward[:, 0].tolist()
    assert target[:, 1].isfinite().all()


def test_losses_and_gradients_are_those_worked_out_by_hand() -> None:
    population = linear_population()
    result = DDPG(saturation_penalty=0.0).losses(population, linear_batch(ENDS))
    # values of the stored actions: agent 0: 1 + 2, 2 + 0; agent 1: 0.75 + 1, -3 - 0.5
    torch.testing.assert_close(result.q_mean, torch.tensor([2.5, -0.875]))
    # targets as above
    critic = [((3 - 1) ** 2 + (2 - 2) ** 2) / 2, ((1.75 + 0.75) ** 2 + (-3.5 - 2) ** 2) / 2]
    torch.testing.assert_close(result.critic, torch.tensor(critic))
    # own actions: agent 0: 0.5, 1 of value 2 x; agent 1: 0.5, -2 of value x
    torch.testing.assert_close(result.actor, torch.tensor([-(2 + 4) / 2, -(0.25 - 1) / 2]))
    torch.testing.assert_close(result.action_saturation, torch.tensor([0.5, 0.5]))
    assert [part.requires_grad for part in result] == [True, True, False, False]
    (result.actor + result.critic).sum().backward()
    # d/dw of -mean(u x + v w x) = -v mean(x)
    torch.testing.assert_close(population.actor.grad, torch.tensor([[-2 * 1.5], [1 * -0.375]]))
    # d/d(u, v) of the mean square error: mean of 2 error (x, a); nothing of the actor's loss
    expected = [[(4 * 1 + 0) / 2, (4 * 1 + 0) / 2], [(5 * 0.25 + -11 * -1) / 2, (5 * -1 + -11 * 0.5) / 2]]
    torch.testing.assert_close(population.critic.grad, torch.tensor(expected))


def test_the_penalty_is_the_mean_squared_preactivation_and_pulls_back_from_the_bound() -> None:
    population, batch = linear_population(), linear_batch(ENDS)
    plain, penalised = (DDPG(saturation_penalty=weight).losses(population, batch) for weight in (0.0, 0.1))
    # own actions: agent 0: 0.5 and 1, agent 1: 0.5 and -2; artanh(0.5) = 0.549306, artanh(1 - 1e-6) = 7.2543
    expected = 0.1 * (0.549306**2 + 7.2543**2) / 2
    torch.testing.assert_close(penalised.actor - plain.actor, torch.tensor([expected, expected]), rtol=5e-3, atol=0)
    torch.testing.assert_close(penalised.critic, plain.critic)


class Forecaster(LinearCritic):
    """A critic that forecasts u x and v x."""

    def forecast(self, inputs: Inputs) -> Tensor:
        return inputs["x"] * torch.cat([self.u, self.v])


@pytest.mark.parametrize("make_critic", [Forecaster, partial(TwinCritic, Forecaster)])
def test_the_error_of_the_forecast_of_known_outcomes_is_added_by_hand(make_critic: Callable[[], nn.Module]) -> None:
    population = Population(Communicator(2), LinearActor, make_critic, seed=0, noise=0.0)
    critics = population.critic.shape[1] // 2
    rows = torch.tensor([[1.0, 2.0], [3.0, -1.0]]).repeat(1, critics)
    with torch.no_grad():
        population.critic.copy_(rows)
    nan = torch.nan
    # forecasts: agent 0 (1, 2) and (2, 4), agent 1 (0.75, -0.25) and (-3, 1)
    outcomes = torch.tensor([[[2.0, 0.0], [nan, 7.0]], [[nan, torch.inf], [-torch.inf, nan]]])
    batch = linear_batch(GOES_ON)
    plain = DDPG().losses(population, batch).critic
    losses = DDPG(forecast_weight=0.5).losses(population, batch._replace(outcomes=outcomes))
    expected = critics * 0.5 * torch.tensor([((1 + 4) / 2 + 9) / 2, 0.0])
    torch.testing.assert_close(losses.critic - plain, expected)
    losses.critic.sum().backward()
    assert population.critic.grad is not None
    assert population.critic.grad.isfinite().all()
    without = DDPG(forecast_weight=0.0).losses(population, batch._replace(outcomes=outcomes)).critic
    torch.testing.assert_close(without, plain)


def test_micro_batches_average_to_the_whole_batch_however_many_outcomes_are_known() -> None:
    population = Population(Communicator(2), LinearActor, Forecaster, seed=0, noise=0.0)
    batch = linear_batch(GOES_ON)._replace(outcomes=torch.tensor([[[1.0, 3.0], [torch.nan, 5.0]]]).repeat(2, 1, 1))

    def transition(place: int) -> Batch:
        cut = slice(place, place + 1)
        tensors = {name: value[:, cut] for name, value in batch._asdict().items() if isinstance(value, torch.Tensor)}
        inputs = {name: {"x": getattr(batch, name)["x"][:, cut]} for name in ("inputs", "next_inputs")}
        return batch._replace(**tensors, **inputs)

    whole, parts = (DDPG().losses(population, batch), [DDPG().losses(population, transition(i)) for i in (0, 1)])
    torch.testing.assert_close(whole.critic, (parts[0].critic + parts[1].critic) / 2)


def test_a_critic_without_forecast_ignores_outcomes() -> None:
    population, batch = linear_population(), linear_batch(GOES_ON)
    losses = DDPG().losses(population, batch._replace(outcomes=torch.ones(2, 2, 3)))
    torch.testing.assert_close(losses.critic, DDPG().losses(population, batch).critic)


def probe_population(seed: int = 3) -> Population:
    population = Population(Communicator(AGENTS), ProbeActor, ProbeCritic, seed, noise=0.1)
    other = Population(Communicator(AGENTS), ProbeActor, ProbeCritic, seed + 1, noise=0.1)
    population.actor_target.copy_(other.actor.detach())  # targets of their own, as after many updates
    population.critic_target.copy_(other.critic.detach())
    return population


def probe_batch(seed: int, size: int = SIZE) -> Batch:
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(generator.normal(size=(AGENTS, size, *shape)).astype(np.float32))

    return Batch(
        inputs={"x": normal(1)},
        next_inputs={"x": normal(1)},
        action=normal(1).tanh(),
        reward=3 * normal(),
        terminated=torch.from_numpy(generator.random((AGENTS, size)) < 0.4),
        discount=0.9,
    )


def adam(population: Population, lr: tuple[float, float] = (1e-2, 1e-2)) -> torch.optim.Adam:
    networks = zip((population.actor, population.critic), lr, strict=True)
    return torch.optim.Adam([{"params": [rows], "lr": rate} for rows, rate in networks])


def backward(population: Population, batch: Batch) -> Tensor:
    """Compute the gradients, and return the actors' and critics' losses."""
    clear_gradients(population)
    result = DDPG(saturation_penalty=0.0).losses(population, batch)
    (result.actor + result.critic).sum().backward()
    return torch.stack([result.actor, result.critic]).detach()


def gradient(rows: nn.Parameter) -> Tensor:
    assert rows.grad is not None
    return rows.grad


@pytest.mark.parametrize("max_norm", [100.0, math.inf, 0.5])
def test_a_population_trains_as_separate_modules_with_separate_optimizers_do(max_norm: float) -> None:
    population, lr, tau = probe_population(), (1e-2, 3e-2), 0.2
    alone = []
    for agent in range(AGENTS):
        networks = (
            with_weights(ProbeActor(), population.actor[agent]),
            with_weights(ProbeCritic(), population.critic[agent]),
        )
        alone.append(OneAgent(*networks, lr, gamma=0.9, tau=tau, max_norm=max_norm))
        with_weights(alone[-1].actor_target, population.actor_target[agent])
        with_weights(alone[-1].critic_target, population.critic_target[agent])
    optimizer = adam(population, lr)
    norms = []
    for number in range(8):
        batch = probe_batch(number)
        losses = backward(population, batch)
        assert bool(clip_and_check(population, max_norm, losses).all())
        step(population, optimizer.step)
        update_targets(population, tau)
        for agent, reference in enumerate(alone):
            told = reference.step(
                {"x": batch.inputs["x"][agent]},
                {"x": batch.next_inputs["x"][agent]},
                batch.action[agent],
                batch.reward[agent],
                batch.terminated[agent],
            )
            assert losses[:, agent].tolist() == pytest.approx(
                [told["actor_loss"], told["critic_loss"]], abs=1e-5, rel=1e-4
            )
            norms.append(told["critic_norm"])
            for name, row in reference.rows().items():
                torch.testing.assert_close(getattr(population, name)[agent].detach(), row, atol=1e-5, rtol=0)
    # clipping was at work on all or on none
    assert (min(norms) > max_norm) if max_norm == 0.5 else (max(norms) < max_norm)


@pytest.mark.parametrize("broken_steps", [[0], [2], [0, 1, 2, 3]])
@pytest.mark.parametrize("part", ["reward", "x", "size"])  # x breaks the actor's gradient too
def test_a_broken_agent_skips_its_steps_and_leaves_the_others_training_bit_for_bit(
    part: str, broken_steps: list[int]
) -> None:
    """Through clipping, Adam and targets, by a number that is not finite, or a norm beyond float32."""
    trained = []
    for broken in ([], broken_steps):
        population = probe_population()
        optimizer = adam(population)
        for number in range(4):
            batch = probe_batch(number)
            if number in broken and part != "size":
                (batch.reward if part == "reward" else batch.inputs["x"])[2] *= torch.nan
            backward(population, batch)
            if number in broken and part == "size":
                gradient(population.critic)[2] = 1e30
            state = [*population.rows().values(), *moments(population, optimizer)]
            before = [rows[2].clone() for rows in state]
            finite = clip_and_check(population, 1.0)
            assert bool(finite.all()) == (number not in broken)
            skipping = None if finite.all() else ~finite.all(0)
            with skipped(population, optimizer, skipping):
                step(population, optimizer.step)
                update_targets(population, 0.1)
            unchanged = [torch.equal(rows[2], old) for rows, old in zip(state, before, strict=True)]
            assert all(unchanged) if number in broken else not unchanged[1]
            if skipping is not None:
                assert skipping.tolist() == [False, False, True, False]
                assert not finite[PARTS.index("critic gradient"), 2]
        trained.append(population)
    for healthy, other in zip(*(population.rows().values() for population in trained), strict=True):
        assert torch.equal(healthy[OTHERS], other[OTHERS])
        assert other.isfinite().all()


def test_large_weights_whose_sum_overflows_are_finite() -> None:
    population = probe_population()
    population.critic.detach()[2] = 1e38
    assert not state_faults(population, adam(population)).any()


def test_targets_move_their_share_of_the_way() -> None:
    population = linear_population()
    update_targets(population, 0.25)
    torch.testing.assert_close(population.actor_target, torch.tensor([[0.875], [-0.25]]))
    torch.testing.assert_close(population.critic_target, torch.tensor([[7.75, 15.5], [0.75, 3.5]]))
    assert population.actor.tolist() == [[0.5], [2.0]]
