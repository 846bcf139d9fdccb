"""Adam that steps each row by itself, against torch's Adam on each row alone."""

import io

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from eigen2.erl.row_adam import RowAdam
from tests.erl.recorder import same

LR = 3e-3


def gradients(steps: int, agents: int, weights: int, seed: int) -> Tensor:
    drawn = torch.randn(steps, agents, weights, generator=torch.Generator().manual_seed(seed))
    drawn[:, :, ::3] *= 1e-4  # where epsilon counts
    return drawn


def row_adam(rows: nn.Parameter, fused: bool = True) -> RowAdam:
    return RowAdam([{"params": [rows], "lr": LR}], fused)


@given(st.integers(1, 5), st.sampled_from([1, 7, 8, 33, 257]), st.integers(1, 6), st.integers(0, 1000))
def test_every_row_is_stepped_as_torch_steps_it_alone_bit_for_bit(
    agents: int, weights: int, steps: int, seed: int
) -> None:
    """Through a state that is saved and loaded before the last step, too."""
    drawn = gradients(steps + 1, agents, weights, seed)
    rows = nn.Parameter(drawn[0].clone())
    alone = [nn.Parameter(row.clone()) for row in drawn[0]]
    optimizer, file = row_adam(rows), io.BytesIO()
    references = [torch.optim.Adam([row], lr=LR, fused=True) for row in alone]
    for i, gradient in enumerate(drawn[1:], 1):
        if i == steps:
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = row_adam(rows)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
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


def test_by_operations_a_step_agrees_with_torchs_up_to_rounding() -> None:
    drawn = gradients(500, 3, 33, seed=0)
    rows, reference = nn.Parameter(drawn[0].clone()), nn.Parameter(drawn[0].clone())
    optimizer, torchs = row_adam(rows, fused=False), torch.optim.Adam([reference], lr=LR)
    for gradient in drawn:
        rows.grad, reference.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        torchs.step()
        torch.testing.assert_close(rows, reference, rtol=1e-5, atol=1e-5)
    state, expected = optimizer.state[rows], torchs.state[reference]
    assert float(state["step"]) == float(expected["step"]) == len(drawn)
    for moment in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[moment], expected[moment])
