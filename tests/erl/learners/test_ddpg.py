"""Losses, clipping and targets: numbers worked out by hand, and plain modules and optimizers agent by agent."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eigen2.core.networks import Inputs
from eigen2.distributed.communicator import Communicator
from eigen2.erl.learners import DDPG, Batch
from eigen2.erl.learners import gradients as steps
from eigen2.erl.learners.gradients import clip_rows, moments, update_targets
from eigen2.erl.learners.learner import Losses
from eigen2.erl.population import Population
from tests.erl.probe import ProbeActor, ProbeCritic
from tests.erl.reference import OneAgent, with_weights

AGENTS, SIZE = 4, 6
OTHERS = [0, 1, 3]


def losses(population: Population, batch: Batch, gamma: float) -> Losses:
    return DDPG().losses(population, batch._replace(discount=gamma))


def td_target(population: Population, batch: Batch, gamma: float) -> Tensor:
    return DDPG().td_target(population, batch._replace(discount=gamma))


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


def linear_batch(terminated: list[list[bool]]) -> Batch:
    return Batch(
        inputs={"x": torch.tensor([[[1.0], [2.0]], [[0.25], [-1.0]]])},
        next_inputs={"x": torch.tensor([[[0.1], [0.2]], [[0.3], [0.4]]])},
        action=torch.tensor([[[1.0], [0.0]], [[-1.0], [0.5]]]),
        reward=torch.tensor([[1.0, -1.0], [0.0, 2.0]]),
        terminated=torch.tensor(terminated),
        discount=1.0,
    )


def test_the_target_bootstraps_unless_the_episode_terminated() -> None:
    population = linear_population()
    # agent 0: mu' = x, Q' = 10 x + 20 x = 30 x; agent 1: mu' = -x, Q' = -5 x
    going_on = td_target(population, linear_batch([[False, False], [False, False]]), gamma=0.5)
    torch.testing.assert_close(going_on, torch.tensor([[1 + 1.5, -1 + 3.0], [0 - 0.75, 2 - 1.0]]))
    ended = td_target(population, linear_batch([[True, False], [False, True]]), gamma=0.5)
    torch.testing.assert_close(ended, torch.tensor([[1.0, 2.0], [-0.75, 2.0]]))
    assert not going_on.requires_grad


def test_without_discount_the_target_is_the_reward() -> None:
    batch = linear_batch([[False, False], [False, True]])
    assert torch.equal(td_target(linear_population(), batch, gamma=0.0), batch.reward)


@pytest.mark.parametrize("worthless", [torch.nan, torch.inf])
def test_nothing_of_what_follows_a_termination_gets_in(worthless: float) -> None:
    batch = linear_batch([[True, False], [True, False]])
    batch.next_inputs["x"][:, 0] = worthless
    target = td_target(linear_population(), batch, gamma=0.9)
    assert target[:, 0].tolist() == batch.reward[:, 0].tolist()
    assert target[:, 1].isfinite().all()


def test_losses_are_those_worked_out_by_hand() -> None:
    result = losses(linear_population(), linear_batch([[True, False], [False, True]]), gamma=0.5)
    # values of the stored actions: agent 0: 1 + 2, 2 + 0; agent 1: 0.75 + 1, -3 - 0.5
    torch.testing.assert_close(result.q_mean, torch.tensor([2.5, -0.875]))
    # targets as above
    critic = [((3 - 1) ** 2 + (2 - 2) ** 2) / 2, ((1.75 + 0.75) ** 2 + (-3.5 - 2) ** 2) / 2]
    torch.testing.assert_close(result.critic, torch.tensor(critic))
    # own actions: agent 0: 0.5, 1 of value 2 x; agent 1: 0.5, -2 of value x
    torch.testing.assert_close(result.actor, torch.tensor([-(2 + 4) / 2, -(0.25 - 1) / 2]))
    torch.testing.assert_close(result.action_saturation, torch.tensor([0.5, 0.5]))
    assert (result.actor.requires_grad, result.critic.requires_grad) == (True, True)
    assert (result.q_mean.requires_grad, result.action_saturation.requires_grad) == (False, False)


def test_gradients_are_those_worked_out_by_hand() -> None:
    population = linear_population()
    result = losses(population, linear_batch([[True, False], [False, True]]), gamma=0.5)
    (result.actor + result.critic).sum().backward()  # type: ignore[no-untyped-call]
    # d/dw of -mean(u x + v w x) = -v mean(x)
    torch.testing.assert_close(population.actor.grad, torch.tensor([[-2 * 1.5], [1 * -0.375]]))
    # d/d(u, v) of the mean square error: mean of 2 error (x, a)
    expected = [[(4 * 1 + 0) / 2, (4 * 1 + 0) / 2], [(5 * 0.25 + -11 * -1) / 2, (5 * -1 + -11 * 0.5) / 2]]
    torch.testing.assert_close(population.critic.grad, torch.tensor(expected))


def probe_population(seed: int = 3) -> Population:
    population = Population(Communicator(AGENTS), ProbeActor, ProbeCritic, seed, noise=0.1)
    with torch.no_grad():  # targets of their own, as after many updates
        other = Population(Communicator(AGENTS), ProbeActor, ProbeCritic, seed + 1, noise=0.1)
        population.actor_target.copy_(other.actor)
        population.critic_target.copy_(other.critic)
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


def one_agent(population: Population, agent: int, lr: tuple[float, float], tau: float, max_norm: float) -> OneAgent:
    alone = OneAgent(
        with_weights(ProbeActor(), population.actor[agent]),
        with_weights(ProbeCritic(), population.critic[agent]),
        lr,
        gamma=0.9,
        tau=tau,
        max_norm=max_norm,
    )
    with_weights(alone.actor_target, population.actor_target[agent])
    with_weights(alone.critic_target, population.critic_target[agent])
    return alone


@pytest.mark.parametrize("max_norm", [100.0, 0.5])
def test_a_population_trains_as_separate_modules_with_separate_optimizers_do(max_norm: float) -> None:
    population, lr, tau = probe_population(), (1e-2, 3e-2), 0.2
    alone = [one_agent(population, agent, lr, tau, max_norm) for agent in range(AGENTS)]
    groups = [{"params": [population.actor], "lr": lr[0]}, {"params": [population.critic], "lr": lr[1]}]
    optimizer = torch.optim.Adam(groups)
    norms = []
    for step in range(8):
        batch = probe_batch(step)
        result = losses(population, batch, gamma=0.9)
        (result.actor + result.critic).sum().backward()  # type: ignore[no-untyped-call]
        before = [
            clip_rows(rows.grad, max_norm) for rows in (population.actor, population.critic) if rows.grad is not None
        ]
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        update_targets(population, tau)
        for agent, reference in enumerate(alone):
            told = reference.step(
                {"x": batch.inputs["x"][agent]},
                {"x": batch.next_inputs["x"][agent]},
                batch.action[agent],
                batch.reward[agent],
                batch.terminated[agent],
            )
            assert result.actor[agent].item() == pytest.approx(told["actor_loss"], abs=1e-5)
            assert result.critic[agent].item() == pytest.approx(told["critic_loss"], rel=1e-4)
            assert float(before[0][agent]) == pytest.approx(told["actor_norm"], rel=1e-3)
            assert float(before[1][agent]) == pytest.approx(told["critic_norm"], rel=1e-3)
            norms.append(told["critic_norm"])
            for name, row in reference.rows().items():
                torch.testing.assert_close(getattr(population, name)[agent].detach(), row, atol=1e-5, rtol=0)
    # clipping was at work on all or on none
    assert (min(norms) > max_norm) if max_norm == 0.5 else (max(norms) < max_norm)


def gradient(rows: nn.Parameter) -> Tensor:
    assert rows.grad is not None
    return rows.grad


def gradients(population: Population, batch: Batch) -> tuple[Tensor, Tensor]:
    population.zero_grad()
    result = losses(population, batch, gamma=0.9)
    (result.actor + result.critic).sum().backward()  # type: ignore[no-untyped-call]
    return gradient(population.actor).clone(), gradient(population.critic).clone()


@pytest.mark.parametrize("poison", [5.0, torch.nan, torch.inf])
@pytest.mark.parametrize("part", ["x", "next_x", "action", "reward"])
def test_an_agents_batch_touches_its_own_gradients_alone(part: str, poison: float) -> None:
    population = probe_population()
    before, batch = gradients(population, probe_batch(1)), probe_batch(1)
    parts = {"x": batch.inputs["x"], "next_x": batch.next_inputs["x"], "action": batch.action, "reward": batch.reward}
    parts[part][2] = poison
    after = gradients(population, batch)
    others = [0, 1, 3]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[others], old[others])
    assert not torch.equal(before[1][2], after[1][2])


@pytest.mark.parametrize("broken_steps", [[0], [2], [0, 1, 2, 3]])
@pytest.mark.parametrize("part", ["reward", "x"])  # x breaks the actor's gradient too
def test_a_broken_agent_leaves_the_others_training_bit_for_bit(part: str, broken_steps: list[int]) -> None:
    """Through clipping, Adam and targets, step after step."""
    trained = []
    for poison in (1.0, torch.nan):
        population = probe_population()
        optimizer = torch.optim.Adam([population.actor, population.critic], lr=1e-2)
        for step in range(4):
            batch = probe_batch(step)
            if step in broken_steps:
                (batch.reward if part == "reward" else batch.inputs["x"])[2] *= poison
            for rows, piece in zip((population.actor, population.critic), gradients(population, batch), strict=True):
                rows.grad = piece
            steps.step(population, optimizer, 1.0)
            update_targets(population, 0.1)
        trained.append(population)
    for healthy, other in zip(trained[0].rows().values(), trained[1].rows().values(), strict=True):
        assert torch.equal(healthy[[0, 1, 3]], other[[0, 1, 3]])
        assert other.isfinite().all()


def test_an_agent_whose_gradient_is_not_finite_skips_the_step() -> None:
    population = probe_population()
    optimizer = torch.optim.Adam([population.actor, population.critic], lr=1e-2)
    for step in range(4):
        batch, before = probe_batch(step), population.critic.detach().clone()
        if step == 3:
            batch.reward[2] = torch.nan
        for rows, piece in zip((population.actor, population.critic), gradients(population, batch), strict=True):
            rows.grad = piece
        before_step = [rows.clone() for rows in moments(population, optimizer)]
        steps.step(population, optimizer, 1.0)
    moved = (population.critic.detach() - before).abs().amax(1)
    assert (moved[[0, 1, 3]] > 0).all()
    assert float(moved[2]) == 0, "the weights moved without a gradient"
    for now, then in zip(moments(population, optimizer), before_step, strict=True):
        assert torch.equal(now[2], then[2])
        assert not torch.equal(now[0], then[0])


def test_the_actors_loss_leaves_the_critic_alone_and_the_other_way_round() -> None:
    population, batch = probe_population(), probe_batch(2)
    losses(population, batch, 0.9).actor.sum().backward()  # type: ignore[no-untyped-call]
    assert population.critic.grad is None
    own_actor = gradient(population.actor).clone()
    population.zero_grad()
    losses(population, batch, 0.9).critic.sum().backward()  # type: ignore[no-untyped-call]
    assert population.actor.grad is None
    own_critic = gradient(population.critic).clone()
    both = gradients(population, batch)
    assert torch.equal(both[0], own_actor)
    assert torch.equal(both[1], own_critic)


def test_the_actor_climbs_its_own_critic() -> None:
    population, batch = probe_population(), probe_batch(2)
    before = losses(population, batch, 0.9).actor
    step, _ = gradients(population, batch)
    with torch.no_grad():
        population.actor.sub_(1e-3 * step)
    assert (losses(population, batch, 0.9).actor < before).all()


def test_micro_batches_add_up_to_the_whole_batch_each_with_the_same_weight() -> None:
    population, whole = probe_population(), probe_batch(4, size=12)

    def part(index: int) -> Batch:
        def cut(value: Tensor) -> Tensor:
            return value[:, 4 * index : 4 * index + 4]

        inputs, next_inputs = {"x": cut(whole.inputs["x"])}, {"x": cut(whole.next_inputs["x"])}
        return Batch(inputs, next_inputs, cut(whole.action), cut(whole.reward), cut(whole.terminated), 0.9)

    expected = gradients(population, whole)
    for order in ([0, 1, 2], [2, 0, 1]):
        population.zero_grad()
        for index in order:
            result = losses(population, part(index), 0.9)
            ((result.actor + result.critic).sum() / 3).backward()  # type: ignore[no-untyped-call]
        for rows, right in zip((population.actor, population.critic), expected, strict=True):
            torch.testing.assert_close(rows.grad, right, atol=1e-5, rtol=1e-4)


def test_clipping_knows_its_answers() -> None:
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-30.0, 40.0], [0.6, 0.8]])
    norms = clip_rows(gradient, 1.0)
    torch.testing.assert_close(norms, torch.tensor([5.0, 0.5, 0.0, 50.0, 1.0]))
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [-0.6, 0.8], [0.6, 0.8]])
    torch.testing.assert_close(gradient, expected, atol=2e-6, rtol=0)
    assert torch.equal(gradient[1], torch.tensor([0.3, 0.4]))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_clipping_zeroes_a_broken_row_alone(poison: float) -> None:
    gradient = torch.tensor([[3.0, 4.0], [poison, 1.0], [0.1, 0.2]])
    alone = gradient[[0, 2]].clone()
    norms = clip_rows(gradient, 0.5)
    clip_rows(alone, 0.5)
    assert torch.equal(gradient[[0, 2]], alone)
    assert gradient[1].tolist() == [0.0, 0.0]
    assert norms.isfinite().tolist() == [True, False, True]


@pytest.mark.parametrize("size", [1e14, 1e18, 1e25, 3e38])
def test_a_finite_gradient_whose_squares_overflow_is_clipped_like_any_other(size: float) -> None:
    gradient = torch.tensor([[0.6, 0.8], [0.6 * size, -0.8 * size], [0.01, 0.02]])
    alone = gradient[[0, 2]].clone()
    norms = clip_rows(gradient, 0.5)
    clip_rows(alone, 0.5)
    torch.testing.assert_close(gradient[1], torch.tensor([0.3, -0.4]))
    assert torch.equal(gradient[[0, 2]], alone)
    assert float(norms[1]) == pytest.approx(size, rel=1e-5)


def test_an_agent_with_a_huge_finite_gradient_takes_the_step() -> None:
    """In the direction that a gradient of common size has; the longest norm of all is beyond float32."""
    taken = []
    for size in (1.0, 1e30, 3e38):
        population = probe_population()
        optimizer = torch.optim.Adam([population.actor, population.critic], lr=1e-2)
        pieces = gradients(population, probe_batch(0))
        for rows, piece in zip((population.actor, population.critic), pieces, strict=True):
            piece[2] = piece[2] / piece[2].abs().max() * size
            rows.grad = piece
        assert (steps.step(population, optimizer, 1e-3) is None) == (size == 1.0)
        taken.append(population.critic.detach().clone())
    for other in taken[1:]:
        assert torch.equal(taken[0][OTHERS], other[OTHERS])
        torch.testing.assert_close(taken[0][2], other[2], atol=1e-4, rtol=0)
    assert (taken[0] != probe_population().critic).any(1).all()


@pytest.mark.parametrize("part", ["actor_target", "critic_target"])
def test_targets_of_an_agent_that_sits_a_step_out_stay(part: str) -> None:
    population, whole = probe_population(), probe_population()
    broken = torch.tensor([False, False, True, False])
    before = getattr(population, part).clone()
    population.critic.detach()[2] = torch.nan
    update_targets(population, 0.25, broken)
    update_targets(whole, 0.25)
    assert torch.equal(getattr(population, part)[OTHERS], getattr(whole, part)[OTHERS])
    assert torch.equal(getattr(population, part)[2], before[2])


def test_large_weights_whose_sum_overflows_are_finite() -> None:
    population = probe_population()
    optimizer = torch.optim.Adam([population.actor, population.critic], lr=1e-2)
    for rows in (population.actor, population.critic):
        rows.grad = torch.ones_like(rows)
    population.critic.detach()[2] = 1e38
    faults = steps.step(population, optimizer, 1.0)
    assert faults is not None
    assert not faults.any()


def test_targets_move_their_share_of_the_way() -> None:
    population = linear_population()
    update_targets(population, 0.25)
    torch.testing.assert_close(population.actor_target, torch.tensor([[0.875], [-0.25]]))
    torch.testing.assert_close(population.critic_target, torch.tensor([[7.75, 15.5], [0.75, 3.5]]))
    update_targets(population, 1.0)
    assert torch.equal(population.actor_target, population.actor)
    assert torch.equal(population.critic_target, population.critic)
    assert population.actor.tolist() == [[0.5], [2.0]]
