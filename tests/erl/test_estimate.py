"""What acting and learning take for a moment, against arithmetic and against what the tensors of a run take."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigen2.core.networks import Inputs
from eigen2.erl.estimate import TOGETHER_BYTES, batches_together, workspace_bytes
from eigen2.erl.learners import DDPG, Batch, Losses
from eigen2.erl.population import Population
from eigen2.errors import UserError
from eigen2.memory.estimate import PeakEstimate
from tests.erl.probe import AIM, Probe, ProbeActor, ProbeCritic, ProbeRollouts, fit

WALK = Probe(lambda x, action, step: x, steps=3, contexts=(-1.0, 0.5), walks=True)


class Wide(nn.Module):
    """Keeps one tensor of a million numbers for its backward pass, whatever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Inputs, action: Tensor | None = None) -> Tensor:
        rows = inputs["x"]
        hidden = (rows * self.weight).expand(*rows.shape[:-1], 1_000_000 // len(rows)).exp()
        value = torch.tanh(hidden.mean(-1, keepdim=True))
        return value if action is None else (value + action)[..., 0]


def data(batch_size: int) -> ProbeRollouts:
    found = ProbeRollouts(WALK, batch_size=batch_size, replay_min_size=batch_size, replay_capacity=2000)
    found.build(4, torch.device("cpu"))
    return found


def test_learning_takes_the_tensors_of_its_graph() -> None:
    acting, found = workspace_bytes(data(8), DDPG(), torch.device("cpu"), Wide, Wide, nullcontext)
    assert 4e6 <= acting < 5e6, "no graph"
    # three graphs of 4 MB live at a time, critic, actor, and critic of the actor's action, and some copies
    assert 12e6 < found < 24e6


class Flat(ProbeActor):
    """Forgets the last axis of an action."""

    def forward(self, inputs: Inputs) -> Tensor:
        return super().forward(inputs)[..., 0]


def test_an_actor_of_another_shape_is_named() -> None:
    with pytest.raises(
        UserError, match=r"^model\.actor Flat returns \(16,\) for a batch of 16; it must return \(16, 1\)"
    ):
        workspace_bytes(data(8), DDPG(), torch.device("cpu"), Flat, ProbeCritic, nullcontext)


class Unbounded(ProbeActor):
    """Forgets the tanh."""

    def forward(self, inputs: Inputs) -> Tensor:
        return 5 + super().forward(inputs)


def test_an_actor_beyond_the_bounds_is_named() -> None:
    words = r"^model\.actor Unbounded returns \d\.\d+, and actions are -1 to 1; end it with tanh$"
    with pytest.raises(UserError, match=words):
        workspace_bytes(data(8), DDPG(), torch.device("cpu"), Unbounded, ProbeCritic, nullcontext)


class Total(ProbeCritic):
    """Sums over the batch, too."""

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        return super().forward(inputs, action).sum()


class Kept(ProbeCritic):
    """Keeps an axis of actions and one of critics."""

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        return super().forward(inputs, action)[..., None, None].expand(-1, 2, 3)


@pytest.mark.parametrize(("critic", "shape"), [(Total, r"\(\)"), (Kept, r"\(8, 2, 3\)")])
def test_a_critic_of_another_shape_is_named(critic: type[ProbeCritic], shape: str) -> None:
    words = rf"^model\.critic {critic.__name__} returns {shape} for a batch of 8; it must return \(8,\)$"
    with pytest.raises(UserError, match=words):
        workspace_bytes(data(8), DDPG(), torch.device("cpu"), ProbeActor, critic, nullcontext)


@pytest.mark.parametrize("how", [{}, {"learners": 1}, {"representation": "shared"}])
def test_the_population_and_its_optimizer_are_counted_exactly(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: dict[str, int] = {}
    monkeypatch.setattr(PeakEstimate, "require", lambda estimate, needed: counted.update(needed))
    module = fit(AIM, population_size=5, **how)
    rows = [value for value in module.population.state_dict().values() if value.dim() == 2]
    assert counted["population"] == sum(value.nbytes for value in rows)
    assert counted["optimizer"] == 3 * (module.population.actor.nbytes + module.population.critic.nbytes)


class Noisy(DDPG):
    """Asks for noise."""

    uses_noise = True

    def losses(self, population: Population, batch: Batch, train_actor: bool = True) -> Losses:
        assert batch.noise is not None
        assert batch.noise.shape == batch.action.shape
        return super().losses(population, batch, train_actor)


def test_a_learner_that_uses_noise_is_given_some() -> None:
    sizes = (
        workspace_bytes(data(8), each, torch.device("cpu"), Wide, Wide, nullcontext)[1] for each in (Noisy(), DDPG())
    )
    assert next(sizes) == next(sizes)


def test_it_grows_with_the_batch_and_draws_nothing() -> None:
    state = torch.get_rng_state()
    small, middle, large = (
        workspace_bytes(data(size), DDPG(), torch.device("cpu"), ProbeActor, ProbeCritic, nullcontext)[1]
        for size in (64, 256, 1024)
    )
    assert large - middle == pytest.approx(4 * (middle - small), rel=0.01)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("parts", "together"), [(0.9, 1), (1, 1), (2, 2), (3.9, 3), (5.9, 3), (6, 6), (100, 6)])
def test_small_micro_batches_are_computed_together(parts: float, together: int) -> None:
    assert batches_together(6, int(TOGETHER_BYTES / parts)) == together
