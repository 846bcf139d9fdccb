"""Adam that steps each row by itself, against torch's Adam on each row alone."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from eigen2.erl.row_adam import RowAdam
from tests.erl.recorder import same

LR = 3e-3


def gradients(steps: int, agents: int, weights: int, seed: int) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    drawn = torch.randn(steps, agents, weights, generator=chance)
    drawn[:, :, ::3] *= 1e-4  # where epsilon counts
    return drawn


def row_adam(rows: nn.Parameter) -> RowAdam:
    return RowAdam([{"params": [rows], "lr": LR}])


@given(st.integers(1, 5), st.sampled_from([1, 7, 8, 33, 257]), st.integers(1, 6), st.integers(0, 1000))
def test_every_row_is_stepped_as_torch_steps_it_alone_bit_for_bit(
    agents: int, weights: int, steps: int, seed: int
) -> None:
    drawn = gradients(steps + 1, agents, weights, seed)
    rows = nn.Parameter(drawn[0].clone())
    alone = [nn.Parameter(row.clone()) for row in drawn[0]]
    optimizer = row_adam(rows)
    references = [torch.optim.Adam([row], lr=LR, fused=True) for row in alone]
    for gradient in drawn[1:]:
        rows.grad = gradient.clone()
        optimizer.step()
        for row, own, reference in zip(alone, gradient, references, strict=True):
            row.grad = own.clone()
            reference.step()
    state = optimizer.state[rows]
    assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert float(state["step"]) == steps
    for agent, (row, reference) in enumerate(zip(alone, references, strict=True)):
        assert same(rows.detach()[agent], row.detach())
        for moment in ("exp_avg", "exp_avg_sq"):
            assert same(state[moment][agent], reference.state[row][moment])


def test_all_rows_together_are_torchs_adam_on_the_whole_matrix() -> None:
    drawn = gradients(6, 4, 50, seed=1)
    ours, theirs = nn.Parameter(drawn[0].clone()), nn.Parameter(drawn[0].clone())
    optimizers = row_adam(ours), torch.optim.Adam([theirs], lr=LR, fused=True)
    for gradient in drawn[1:]:
        for rows, optimizer in zip((ours, theirs), optimizers, strict=True):
            rows.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_parameters_without_a_gradient_wait_and_closures_are_called() -> None:
    first, second = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 4))
    groups = [{"params": [first], "lr": LR}, {"params": [second], "lr": LR}]
    optimizer = RowAdam(groups)

    def loss() -> Tensor:
        value = first.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    assert optimizer.step(loss).item() == 6
    assert (first < 1).all()
    assert torch.equal(second.detach(), torch.ones(2, 4))
    assert second not in optimizer.state


@pytest.mark.parametrize("steps", [0, 3])
def test_a_saved_state_goes_on_bit_for_bit(steps: int) -> None:
    drawn = gradients(8, 3, 17, seed=2)
    rows = nn.Parameter(drawn[0].clone())
    optimizer = row_adam(rows)
    for gradient in drawn[1 : 1 + steps]:
        rows.grad = gradient.clone()
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    again = nn.Parameter(rows.detach().clone())
    restored = row_adam(again)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    for gradient in drawn[1 + steps :]:
        for each, stepped in ((rows, optimizer), (again, restored)):
            each.grad = gradient.clone()
            stepped.step()
    assert same(rows.detach(), again.detach())
    assert float(restored.state[again]["step"]) == 7
