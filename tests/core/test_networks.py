"""Networks' numbers that learners and workloads share."""

import torch

from eigen2.core.networks import preactivation


def test_the_preactivation_is_known_where_tanh_itself_has_no_gradient_left() -> None:
    given = torch.tensor([5.0, -3.0, 0.25, 0.0], requires_grad=True)
    found = preactivation(given.tanh())
    torch.testing.assert_close(found, given, rtol=1e-3, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), given)
    torch.testing.assert_close(gradient, torch.ones(4), rtol=1e-2, atol=0)


def test_the_preactivation_of_a_bound_is_finite_and_has_no_gradient() -> None:
    bounds = torch.tensor([-1.0, 1.0], requires_grad=True)
    found = preactivation(bounds)
    torch.testing.assert_close(found, torch.tensor([-7.2543, 7.2543]), rtol=5e-3, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), bounds)
    assert gradient.eq(0).all()
