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

SIZES, PATH = Sizes({"state": (3,)}, (2,)), "eigen2.control.networks.MLPActor"


def test_a_network_of_the_command_line_is_built_again() -> None:
    parser = ArgumentParser()
    parser.add_class_arguments(ERLModule, "model", instantiate=False)
    parsed = parser.parse_args([f"--model.actor={PATH}", "--model.actor.hidden=[8, 4]"])
    factory: Any = parser.instantiate(parsed).model.actor
    made, call = factory(SIZES), call_of(factory)
    assert call == {"class_path": PATH, "init_args": {"hidden": [8, 4]}}
    again = build(call, SIZES)
    again.load_state_dict(made.state_dict())
    state = torch.randn(5, 3)
    assert torch.equal(again({"state": state}), made({"state": state}))
    assert format_factory(factory) == f"{PATH}(hidden=[8, 4])"


def test_classes_and_partials_have_names_and_functions_have_none() -> None:
    def function(sizes: Sizes) -> nn.Module:
        return MLPActor(sizes)

    assert call_of(MLPActor) == {"class_path": PATH, "init_args": {}}
    assert call_of(functools.partial(MLPActor, hidden=(4,))) is not None
    assert call_of(function) is None
    assert call_of(functools.partial(MLPActor, hidden=torch.ones(2))) is None  # no plain value
    assert str(format_factory(function)).endswith("function")
    assert format_factory(None) is None
    with pytest.raises(UserError, match="was made by a function"):
        build(None, SIZES)
    with pytest.raises(UserError, match=r"^.*MLPActor cannot be built: .*unexpected keyword argument 'width'.*$"):
        build({"class_path": PATH, "init_args": {"width": 3}}, SIZES)
