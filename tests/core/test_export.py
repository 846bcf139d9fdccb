"""What of a network can be told in plain values, and built again of them."""

import functools
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import nn

from eigen2.control.networks import MLPActor
from eigen2.core.export import build, call_of, format_factory
from eigen2.core.networks import Sizes
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError

SIZES = Sizes({"state": (3,)}, (2,))


def configured(*words: str) -> Any:
    """What the command line makes of model.actor."""
    parser = ArgumentParser()
    parser.add_class_arguments(ERLModule, "model", instantiate=False)
    parsed = parser.parse_args([f"--model.actor{word}" for word in words])
    return parser.instantiate(parsed).model.actor


def test_a_configured_network_is_built_again() -> None:
    factory = configured("=eigen2.control.networks.MLPActor", ".hidden=[8, 4]")
    made, call = factory(SIZES), call_of(factory)
    assert call == {"class_path": "eigen2.control.networks.MLPActor", "init_args": {"hidden": [8, 4]}}
    again = build(call, SIZES)
    assert [weight.shape for weight in again.parameters()] == [weight.shape for weight in made.parameters()]
    again.load_state_dict(made.state_dict())
    state = torch.randn(5, 3)
    assert torch.equal(again({"state": state}), made({"state": state}))
    assert format_factory(factory) == "eigen2.control.networks.MLPActor(hidden=[8, 4])"


def test_classes_and_partials_have_names_and_functions_have_none() -> None:
    assert call_of(MLPActor) == {"class_path": "eigen2.control.networks.MLPActor", "init_args": {}}
    assert call_of(functools.partial(MLPActor, hidden=(4,))) is not None

    def function(sizes: Sizes) -> nn.Module:
        return MLPActor(sizes)

    assert call_of(function) is None
    assert call_of(functools.partial(MLPActor, hidden=torch.ones(2))) is None  # no plain value
    assert format_factory(function) is not None
    assert format_factory(function).endswith("function")
    assert format_factory(None) is None
    with pytest.raises(UserError, match="was made by a function"):
        build(None, SIZES)


def test_arguments_that_do_not_fit_are_one_line() -> None:
    with pytest.raises(UserError, match=r"MLPActor cannot be built: .*unexpected keyword argument 'width'") as error:
        build({"class_path": "eigen2.control.networks.MLPActor", "init_args": {"width": 3}}, SIZES)
    assert "\n" not in str(error.value)
