"""Deep Q-learning: targets, losses and choices worked out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from eigen2.dqn.losses import (
    Batch,
    best_actions,
    epsilon_greedy,
    loss,
    td_targets,
    update_target,
)


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
    """Two transitions: state 0, action 1, reward 1, to state 1; and state 1, action 0, reward -2, to state 0."""
    return Batch(
        observation=rows(0, 1),
        action=torch.tensor([1, 0]),
        reward=torch.tensor([1.0, -2.0]),
        next_observation=rows(1, 0),
        next_allowed=torch.tensor(next_allowed),
        terminated=torch.tensor(terminated),
    )


def tables() -> tuple[Table, Table]:
    return Table([[1.0, 4.0, 2.0], [3.0, 0.0, 5.0]]), Table([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])


def test_the_online_network_chooses_and_the_target_network_values() -> None:
    # state 1: Q says 2, but only 0 and 1 are allowed, so 0, worth 40 x .25; state 0: action 1, worth 20 x .25
    targets = td_targets(*tables(), batch([[True, True, False], [True, True, True]], [False, False]), 0.25)
    assert targets.tolist() == [11.0, 3.0]


def test_nothing_comes_after_an_end_or_the_last_action() -> None:
    targets = td_targets(*tables(), batch([[True, True, True], [False, False, False]], [True, False]), 0.5)
    assert targets.tolist() == [1.0, -2.0]


def test_the_loss_is_hubers_and_teaches_the_chosen_actions_of_the_online_network_alone() -> None:
    online, target = tables()
    loss(online, target, batch([[False, False, True], [True, False, False]], [False, False]), 0.25).loss.backward()
    assert online.values.grad is not None
    assert online.values.grad.count_nonzero() == 2  # the chosen actions, not the next best ones
    online.zero_grad()
    result = loss(online, target, batch([[True] * 3] * 2, [True, True]), 0.5)
    result.loss.backward()
    # values 4 and 3, goals 1 and -2: errors 3 and 5, of which Huber makes 2.5 and 4.5
    assert result.loss.item() == pytest.approx(3.5)
    assert (result.q_mean.item(), result.error.item()) == (3.5, 4.0)
    assert online.values.grad is not None
    assert online.values.grad.tolist() == [[0.0, 0.5, 0.0], [0.5, 0.0, 0.0]]
    assert target.values.grad is None


@settings(max_examples=40)
@given(st.data())
def test_a_masked_action_is_never_chosen(data: st.DataObject) -> None:
    count, actions = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 30))
    size = count * actions
    numbers = data.draw(st.lists(st.floats(width=32), min_size=size, max_size=size))  # infinities and NaN too
    values = torch.tensor(numbers).reshape(count, actions)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(count, actions)
    allowed[:, data.draw(st.integers(0, actions - 1))] = True
    epsilon = data.draw(st.floats(0, 1))
    chosen = epsilon_greedy(values, allowed, epsilon, np.random.default_rng(data.draw(st.integers(0, 99))))
    assert allowed[np.arange(count), chosen].all()


def test_random_choices_are_uniform_over_the_allowed_actions_and_their_share_is_epsilon() -> None:
    allowed = np.tile(np.array([False, True, False, True, True]), (3000, 1))
    later = []
    for epsilon, expected in (
        (0.0, [0, 0, 0, 0, 3000]),
        (0.3, [0, 300, 0, 300, 2400]),
        (1.0, [0, 1000, 0, 1000, 1000]),
    ):
        generator = np.random.default_rng(0)
        chosen = epsilon_greedy(torch.arange(5.0).repeat(3000, 1), allowed, epsilon, generator)
        assert np.bincount(chosen, minlength=5) == pytest.approx(expected, abs=100 if epsilon else 0)
        later.append(generator.random())
    assert len(set(later)) == 1, "later draws do not depend on epsilon"


def test_of_equal_values_the_first_is_best_and_without_an_allowed_action_there_is_none() -> None:
    allowed = torch.tensor([[False, True, True], [False, False, False]])
    assert best_actions(torch.ones(2, 3), allowed).tolist() == [1, 0]
    with pytest.raises(ValueError, match="row 1"):
        epsilon_greedy(torch.zeros(2, 3), allowed.numpy(), 0.0, np.random.default_rng(0))


def test_the_target_moves_its_share_of_the_way() -> None:
    online, target = tables()
    update_target(target, online, 0.25)
    assert target.values.tolist() == [[7.75, 16.0, 23.0], [30.75, 37.5, 46.25]]
    assert online.values.tolist() == [[1.0, 4.0, 2.0], [3.0, 0.0, 5.0]]
    assert target.values.requires_grad
