"""Perceptrons: one agent's forward is that of plain layers, and a population's that of each agent alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from eigen2.control.networks import MLPActor, MLPCritic
from eigen2.core.networks import Sizes, StackedNetwork
from eigen2.core.onnx import write_onnx
from eigen2.errors import UserError

SIZES = Sizes({"state": (3,), "image": (2, 2)}, (2,))
CHANCE = torch.Generator().manual_seed(0)
INPUTS = {"state": torch.randn(5, 3, generator=CHANCE), "image": torch.randn(5, 2, 2, generator=CHANCE)}
ACTION = torch.rand(5, 2, generator=CHANCE) * 2 - 1


def plain(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    *hidden, last = list(layers)
    for layer in hidden:
        x = nn.functional.linear(x, layer.weight, layer.bias).relu()
    return nn.functional.linear(x, last.weight, last.bias)


@pytest.mark.parametrize("hidden", [(), (4,), (8, 7, 6)])
def test_layers_are_those_of_a_plain_perceptron(hidden: tuple[int, ...]) -> None:
    seen = torch.cat([INPUTS["state"], INPUTS["image"].flatten(1)], 1)
    actor, critic = MLPActor(SIZES, hidden), MLPCritic(SIZES, hidden)
    torch.testing.assert_close(actor(INPUTS), plain(actor.layers, seen).tanh())
    torch.testing.assert_close(critic(INPUTS, ACTION), plain(critic.layers, torch.cat([seen, ACTION], 1))[:, 0])


def test_the_last_layer_reads_the_observation_beside_the_features() -> None:
    seen = torch.cat([INPUTS["state"], INPUTS["image"].flatten(1)], 1)
    for hidden in ((4,), (8, 7)):
        actor = MLPActor(SIZES, hidden, skip=True)
        *trunk, last = actor.layers
        features = seen
        for layer in trunk:
            features = nn.functional.linear(features, layer.weight, layer.bias).relu()
        expected = nn.functional.linear(torch.cat([features, seen], 1), last.weight, last.bias).tanh()
        torch.testing.assert_close(actor(INPUTS), expected)
        assert actor.head_parameters == (f"layers.{len(hidden)}",)
    linear = MLPActor(SIZES, (), skip=True)
    torch.testing.assert_close(linear(INPUTS), plain(linear.layers, seen).tanh())


@pytest.mark.parametrize("skip", [False, True])
def test_a_population_acts_and_judges_as_each_agent_alone(skip: bool) -> None:
    actors = [MLPActor(SIZES, (8,), skip) for _ in range(3)]
    critics = [MLPCritic(SIZES, (8,)) for _ in range(3)]
    rows = [
        torch.stack([nn.utils.parameters_to_vector(one.parameters()) for one in all_]) for all_ in (actors, critics)
    ]
    shared = {name: value[None] for name, value in INPUTS.items()}
    acted = StackedNetwork(actors[0])(rows[0], shared)
    judged = StackedNetwork(critics[0])(rows[1], shared, acted)
    for i in range(3):
        torch.testing.assert_close(acted[i], actors[i](INPUTS))
        torch.testing.assert_close(judged[i], critics[i](INPUTS, acted[i]))


@pytest.mark.parametrize("width", [0, -1, 10**9])
def test_widths_that_cannot_be_are_refused(width: int) -> None:
    with pytest.raises(UserError, match="hidden is"):
        MLPActor(SIZES, (width,))


def test_observations_and_actions_may_be_single_numbers() -> None:
    sizes, state, action = Sizes({"state": ()}, ()), torch.tensor([0.5, -1.0]), torch.tensor([0.25, 0.75])
    actor, critic = MLPActor(sizes, (4,)), MLPCritic(sizes, (4,))
    assert actor({"state": state}).shape == (2,)
    expected = plain(critic.layers, torch.stack([state, action], 1))[:, 0]
    torch.testing.assert_close(critic({"state": state}, action), expected)


def test_in_bfloat16_large_outputs_stay_below_the_bound() -> None:
    actor = MLPActor(Sizes({"state": (1,)}, (1,)), hidden=())
    nn.utils.vector_to_parameters(torch.tensor([4.0, 0.0]), actor.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        action = actor({"state": torch.ones(1, 1)})
    action.sum().backward()
    assert float(action.detach()) == pytest.approx(torch.tanh(torch.tensor(4.0)).item())
    assert all(float(part.grad.abs().max()) > 0 for part in actor.parameters() if part.grad is not None)


def test_mixed_precision_rounds_no_value() -> None:
    """Between 256 and 512 bfloat16 has even numbers alone."""
    critic = MLPCritic(SIZES, (8,))
    with torch.no_grad():
        critic.layers[-1].bias.fill_(401)
        with torch.autocast("cpu", torch.bfloat16):
            values = critic(INPUTS, ACTION)
        torch.testing.assert_close(values, critic(INPUTS, ACTION), rtol=0, atol=0.05)
    assert values.dtype == torch.float32


def test_a_graph_gives_what_torch_gives(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    actor = MLPActor(SIZES, (8,)).eval().requires_grad_(False)
    session = onnxruntime.InferenceSession(write_onnx(actor, SIZES, tmp_path / "actor.onnx"))
    (found,) = session.run(None, {name: values.numpy() for name, values in INPUTS.items()})
    np.testing.assert_allclose(found, actor(INPUTS).numpy(), atol=1e-6)
