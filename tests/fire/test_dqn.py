"""Q-maps and deep Q-learning: numbers worked out by hand, and a gap that the policy must find."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from eigen2.dqn.losses import (
    Batch,
    best_cells,
    discounted,
    epsilon_at,
    loss,
    relative_reward,
    select,
    td_targets,
    update_target,
)
from eigen2.errors import UserError
from eigen2.fire.landscapes.landscape import Landscape, flat
from eigen2.fire.networks import QMap, downstream_share
from eigen2.fire.simulation.environment import DOWNSTREAM, FuelBreakEnv

PLANES = 3


class Table(nn.Module):
    """The values are weights; the observation's first number says which row of them."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, planes: Tensor) -> Tensor:
        return self.values[planes[:, 0, 0, 0].long()]


def rows(*states: int) -> Tensor:
    return torch.tensor(states, dtype=torch.uint8).reshape(-1, 1, 1, 1)


def batch(next_allowed: list[list[bool]], terminated: list[bool]) -> Batch:
    """Two transitions: state 0, cell 1, reward 1, to state 1; and state 1, cell 0, reward -2, to state 0."""
    return Batch(
        observation=rows(0, 1),
        action=torch.tensor([1, 0]),
        reward=torch.tensor([1.0, -2.0]),
        next_observation=rows(1, 0),
        next_allowed=torch.tensor(next_allowed),
        terminated=torch.tensor(terminated),
        discount=torch.tensor([0.5, 0.25]),
    )


def tables() -> tuple[Table, Table]:
    return Table([[1.0, 4.0, 2.0], [3.0, 0.0, 5.0]]), Table([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])


def maps(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def seeded(planes: int, width: int, dueling: bool = True, prior: bool = False) -> QMap:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return QMap(planes, width, dueling, prior)


def test_the_online_network_chooses_and_the_target_network_values() -> None:
    # state 1: Q says cell 2, but only 0 and 1 are allowed, so cell 0, worth 40 x .5; state 0: cell 1, worth 20 x .25
    targets = td_targets(*tables(), batch([[True, True, False], [True, True, True]], [False, False]))
    assert targets.tolist() == [21.0, 3.0]


def test_nothing_comes_after_an_end_or_the_last_cell() -> None:
    targets = td_targets(*tables(), batch([[True, True, True], [False, False, False]], [True, False]))
    assert targets.tolist() == [1.0, -2.0]


def test_the_loss_is_hubers_and_teaches_the_online_network_alone() -> None:
    online, target = tables()
    result = loss(online, target, batch([[True] * 3] * 2, [True, True]), delta=1.0)
    result.loss.backward()
    # values 4 and 3, goals 1 and -2: errors 3 and 5, of which Huber makes 2.5 and 4.5
    assert result.loss.item() == pytest.approx(3.5)
    assert (result.q_mean.item(), result.error.item()) == (3.5, 4.0)
    assert online.values.grad is not None
    assert online.values.grad.tolist() == [[0.0, 0.5, 0.0], [0.5, 0.0, 0.0]]
    assert target.values.grad is None


def test_gradients_of_a_bootstrapped_loss_skip_what_comes_next() -> None:
    online, target = tables()
    loss(online, target, batch([[False, False, True], [True, False, False]], [False, False])).loss.backward()
    assert online.values.grad is not None
    assert online.values.grad.count_nonzero() == 2  # the chosen cells, not the next best ones
    assert target.values.grad is None


@given(st.data())
def test_a_masked_cell_is_never_chosen(data: st.DataObject) -> None:
    count, cells = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 30))
    size = count * cells
    numbers = data.draw(st.lists(st.floats(width=32), min_size=size, max_size=size))  # infinities and NaN too
    values = torch.tensor(numbers).reshape(count, cells)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(count, cells)
    allowed[:, data.draw(st.integers(0, cells - 1))] = True
    epsilon = data.draw(st.floats(0, 1))
    chosen = select(values, allowed, epsilon, np.random.default_rng(data.draw(st.integers(0, 99))))
    assert allowed[np.arange(count), chosen].all()


def test_random_choices_are_uniform_over_the_allowed_cells() -> None:
    allowed = np.tile(np.array([False, True, False, True, True]), (3000, 1))
    chosen = select(torch.zeros(3000, 5), allowed, 1.0, np.random.default_rng(0))
    assert np.bincount(chosen, minlength=5) == pytest.approx([0, 1000, 0, 1000, 1000], abs=100)


def test_epsilon_is_the_share_of_random_choices() -> None:
    values = torch.arange(1000.0).repeat(2000, 1)
    chosen = select(values, np.ones((2000, 1000), dtype=bool), 0.25, np.random.default_rng(0))
    assert (chosen != 999).mean() == pytest.approx(0.25, abs=0.03)


def test_later_draws_do_not_depend_on_epsilon() -> None:
    later = []
    for epsilon in (0.0, 0.5, 1.0):
        generator = np.random.default_rng(3)
        select(torch.zeros(4, 9), np.ones((4, 9), dtype=bool), epsilon, generator)
        later.append(generator.random())
    assert len(set(later)) == 1


def test_a_row_without_an_allowed_cell_is_refused() -> None:
    allowed = np.array([[True, False], [False, False]])
    with pytest.raises(ValueError, match="row 1"):
        select(torch.zeros(2, 2), allowed, 0.0, np.random.default_rng(0))


def test_of_equal_values_the_first_allowed_cell_is_best() -> None:
    allowed = torch.tensor([[False, True, True], [False, False, False]])
    assert best_cells(torch.ones(2, 3), allowed).tolist() == [1, 0]


def test_epsilon_falls_on_a_line_and_stays() -> None:
    values = [epsilon_at(step, 100, initial=1.0, least=0.2, fraction=0.5) for step in (0, 25, 50, 99, 200)]
    assert values == pytest.approx([1.0, 0.6, 0.2, 0.2, 0.2])
    assert epsilon_at(0, 100, least=0.1, fraction=0) == pytest.approx(0.1)
    with pytest.raises(UserError, match="steps is 0"):
        epsilon_at(0, 0)


def test_relative_rewards_depend_on_the_first_and_last_share_alone() -> None:
    assert relative_reward(0.5, 0.25, 100) == pytest.approx(30 * math.log(2))
    shares = [0.4, 0.3, 0.3, 0.02, 0.0]
    rewards = [relative_reward(before, after, 25) for before, after in itertools.pairwise(shares)]
    assert rewards[1] == rewards[3] == 0
    assert sum(rewards) == pytest.approx(30 * math.log(0.4 / 0.04))  # less than one cell of 25 counts as one
    assert relative_reward(0.0, 0.0, 25) == 0


def test_rewards_after_an_end_do_not_count() -> None:
    rewards = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [4.0, 4.0, 4.0]])
    ends = torch.tensor([[False, False, True], [False, True, False], [False, False, True]])
    sums, ended = discounted(rewards, ends, 0.5)
    assert sums.tolist() == [3.0, 2.0, 1.0]
    assert ended.tolist() == [False, True, True]


def test_the_target_moves_its_share_of_the_way() -> None:
    online, target = tables()
    update_target(target, online, 0.25)
    assert target.values.tolist() == [[7.75, 16.0, 23.0], [30.75, 37.5, 46.25]]
    assert online.values.tolist() == [[1.0, 4.0, 2.0], [3.0, 0.0, 5.0]]
    assert target.values.requires_grad


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (9, 9), (32, 32), (7, 50)])
@pytest.mark.parametrize("dueling", [True, False])
def test_any_size_of_map_gets_a_value_a_cell(height: int, width: int, dueling: bool) -> None:
    network = seeded(PLANES, 8, dueling=dueling)
    values = network(maps(2, PLANES, height, width))
    assert values.shape == (2, height * width)
    assert torch.isfinite(values).all()
    values.sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_the_mean_of_a_map_of_values_is_the_value_of_the_state() -> None:
    network = seeded(PLANES, 8)
    seen = maps(4, PLANES, 9, 9)
    assert network.value is not None
    state_values: list[Tensor] = []
    network.value.register_forward_hook(lambda _module, _inputs, out: state_values.append(out))
    values = network(seen)
    assert torch.allclose(values.mean(1, keepdim=True), state_values[0], atol=1e-5)
    with torch.no_grad():
        network.advantage.bias.add_(7.0)  # of all cells alike: no advantage
    assert torch.allclose(network(seen), values, atol=1e-5)


def test_values_move_with_the_map() -> None:
    """Away from the edges nothing depends on where a cell lies."""
    network = seeded(PLANES, 8, dueling=False)
    seen = torch.zeros(1, PLANES, 80, 80, dtype=torch.uint8)
    seen[..., 38:44, 38:44] = maps(1, PLANES, 6, 6)
    values, moved = (network(planes).reshape(80, 80) for planes in (seen, seen.roll((2, -4), (2, 3))))
    assert torch.allclose(values.roll((2, -4), (0, 1))[20:60, 20:60], moved[20:60, 20:60], atol=1e-6)
    assert values[20:60, 20:60].std() > 0


def test_memory_layout_and_batch_make_no_difference() -> None:
    network = seeded(PLANES, 8)
    seen = maps(5, PLANES, 12, 10)
    values = network(seen)
    assert torch.allclose(values, network(seen.contiguous(memory_format=torch.channels_last)), atol=1e-5)
    assert torch.allclose(values, torch.cat([network(one[None]) for one in seen]), atol=1e-5)


def test_the_default_network_is_small() -> None:
    assert sum(weight.numel() for weight in QMap(7).parameters()) < 40_000


@pytest.mark.parametrize(("planes", "width", "prior"), [(0, 8, False), (3, 0, False), (3, 10**6, False), (7, 8, True)])
def test_sizes_that_cannot_be_are_refused(planes: int, width: int, prior: bool) -> None:
    with pytest.raises(UserError):
        QMap(planes, width, prior=prior)


def test_the_downstream_share_is_that_of_the_fires() -> None:
    env = FuelBreakEnv(grid_size=16, num_landscapes=1, seed=3)
    env.reset(seed=0)
    for cell in np.flatnonzero(env.fires.model.burnable)[40:44]:
        observation = env.step(cell)[0]
    exact = env.fires.downstream / env.fires.burns.sum()
    share = downstream_share(torch.from_numpy(observation[None]))[0].flatten().numpy()
    assert share == pytest.approx(exact, rel=0.06, abs=0.001)


def test_an_untrained_network_with_the_prior_follows_the_downstream_value() -> None:
    env = FuelBreakEnv(grid_size=16, num_landscapes=1, seed=3)
    observation, info = env.reset(seed=0)
    network = seeded(8, 8, prior=True)
    values = network(torch.from_numpy(observation[None]))
    chosen = select(values, info["action_mask"][None], 0.0, np.random.default_rng(0))
    plane = observation[DOWNSTREAM].reshape(-1)
    assert plane[chosen[0]] == plane.max()
    values.sum().backward()
    assert network.advantage.weight.grad is not None


def test_the_prior_of_a_map_on_which_nothing_burns_is_nothing() -> None:
    values = seeded(8, 8, prior=True, dueling=False)(torch.zeros(2, 8, 5, 7, dtype=torch.uint8))
    assert torch.isfinite(values).all()
    assert values.unique().numel() == 1


def walled(gap: int) -> Landscape:
    """Grass, and a wall from north to south with a gap in one row."""
    field = flat((9, 9), fuel=104)
    fuel = field.fuel.copy()
    fuel[:, 4] = 98
    fuel[gap, 4] = 104
    return replace(field, fuel=fuel)


def gap_batch(env: FuelBreakEnv, gaps: list[int], count: int, generator: np.random.Generator) -> Batch:
    """Transitions of random breaks; each ends its episode."""
    seen, chosen, rewards = [], [], []
    for _ in range(count):
        observation, info = env.reset(options={"landscape": int(generator.choice(gaps))})
        chosen.append(int(generator.choice(np.flatnonzero(info["action_mask"]))))
        seen.append(observation)
        rewards.append(env.step(chosen[-1])[1])
    observations = torch.from_numpy(np.stack(seen))
    return Batch(
        observation=observations,
        action=torch.tensor(chosen),
        reward=torch.tensor(rewards, dtype=torch.float32) / 10,
        next_observation=observations,
        next_allowed=torch.ones(count, 81, dtype=torch.bool),
        terminated=torch.ones(count, dtype=torch.bool),
        discount=torch.zeros(count),
    )


def test_the_policy_closes_gaps_in_a_wall_where_it_has_never_seen_them() -> None:
    env = FuelBreakEnv(
        landscapes=[walled(gap) for gap in range(9)], budget=1 / 81, ignitions=None, downstream_plane=False
    )
    generator = np.random.default_rng(0)
    seen = gap_batch(env, [0, 1, 2, 4, 6, 7, 8], 600, generator)
    online = seeded(7, 16)
    optimizer = torch.optim.Adam(online.parameters(), 3e-3)
    for _ in range(180):
        drawn = torch.from_numpy(generator.integers(0, 600, 32))
        optimizer.zero_grad()
        loss(online, online, Batch(*(field[drawn] for field in seen))).loss.backward()
        optimizer.step()
    for gap in (3, 5):
        observation, info = env.reset(options={"landscape": gap})
        values = online(torch.from_numpy(observation[None]))
        cell = select(values, info["action_mask"][None], 0.0, generator)[0]
        # the cells before and behind the gap close it as well
        assert cell // 9 == gap
        assert abs(cell % 9 - 4) <= 1
        assert env.step(cell)[4]["reduction"] > 0.5
