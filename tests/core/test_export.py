"""What of a network can be told in plain values, and built again of them; ensembles of champions."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import nn

from eigen2.control.networks import MLPActor
from eigen2.core.export import ExportedChampion, build, call_of, combine, format_factory, load
from eigen2.core.networks import Sizes
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError

SIZES, PATH = Sizes({"state": (3,)}, (2,)), "eigen2.control.networks.MLPActor"


def test_a_network_of_the_command_line_is_built_again() -> None:
    parser = ArgumentParser()
    parser.add_class_arguments(ERLModule, "model", instantiate=False)
    parsed = parser.parse_args([f"--model.actor={PATH}", "--model.actor.hidden=[8, 4]"])
    factory: Any = parser.instantiate(parsed).model.actor
    default: Any = parser.instantiate(parser.parse_args([f"--model.actor={PATH}"])).model.actor
    assert call_of(default) == call_of(MLPActor), "so that it resumes what a script fitted"
    made, call = factory(SIZES), call_of(factory)
    assert call == {"class_path": PATH, "init_args": {"hidden": [8, 4], "skip": False}}
    again = build(call, SIZES)
    again.load_state_dict(made.state_dict())
    state = torch.randn(5, 3)
    assert torch.equal(again({"state": state}), made({"state": state}))
    assert format_factory(factory) == f"{PATH}(hidden=[8, 4], skip=False)"


def test_classes_and_partials_have_names_and_functions_have_none() -> None:
    def function(sizes: Sizes) -> nn.Module:
        return MLPActor(sizes)

    assert call_of(MLPActor) == {"class_path": PATH, "init_args": {"hidden": [256, 256], "skip": False}}
    assert call_of(functools.partial(MLPActor, hidden=(4,))) == {
        **{"class_path": PATH, "init_args": {"hidden": [4], "skip": False}}
    }
    assert call_of(function) is None
    assert call_of(functools.partial(MLPActor, hidden=torch.ones(2))) is None  # no plain value
    for positional in (8, nn.Linear):
        assert call_of(functools.partial(MLPActor, positional)) is None
    assert str(format_factory(function)).endswith("function")
    assert format_factory(None) is None
    with pytest.raises(UserError, match="was made by a function"):
        build(None, SIZES)
    with pytest.raises(UserError, match=r"^.*MLPActor cannot be built: .*unexpected keyword argument 'width'.*$"):
        build({"class_path": PATH, "init_args": {"width": 3}}, SIZES)


class Tied(MLPActor):
    """Two hidden layers with the same weights."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, hidden=(3, 3))
        self.layers[1].weight = self.layers[0].weight


def test_a_champion_with_tied_weights_acts_as_it_did() -> None:
    plain = Tied(SIZES)
    weights = {name: weight.detach() for name, weight in plain.named_parameters()}
    assert "layers.1.weight" not in weights
    sizes = {"inputs": {"state": [3]}, "action": [2], "context": 1}
    exported = ExportedChampion({"actor": call_of(Tied), "sizes": sizes}, weights)
    state = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(exported.actor(f"{__name__}.Tied")({"state": state}), plain({"state": state}))


# Ensembles


def champion(seed: int, **config: Any) -> ExportedChampion:
    torch.manual_seed(seed)
    weights = MLPActor(SIZES).state_dict()
    values = {"format": 2, "workload": "control", "actor": call_of(MLPActor), "champion": {"generation": seed}}
    values |= {"sizes": {"inputs": {"state": [3]}, "action": [2], "context": 1}, "data_used": {"last": "2020-01-01"}}
    return ExportedChampion({**values, "inference": {"scale": [1.0, None], "rules": "a"}, **config}, weights)


def test_an_ensemble_acts_as_the_mean_of_its_members_also_once_saved(tmp_path: Path) -> None:
    members = [champion(seed) for seed in range(3)]
    whole = combine(members)
    assert whole.config["members"] == 3
    assert whole.config["champion"] == [{"generation": seed} for seed in range(3)]
    inputs = {"state": torch.randn(7, 3)}
    expected = torch.stack([member.actor()(inputs) for member in members]).mean(0)
    assert not torch.equal(expected, members[0].actor()(inputs))
    torch.testing.assert_close(whole.actor()(inputs), expected, rtol=0, atol=0)
    whole.save(tmp_path)
    torch.testing.assert_close(load(tmp_path).actor()(inputs), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"workload": "market"}, "a workload"),
        ({"actor": {"class_path": PATH, "init_args": {"hidden": [8]}}}, "an actor"),
        ({"sizes": {"inputs": {"state": [4]}, "action": [2], "context": 1}}, "networks of sizes"),
        ({"inference": {"scale": [1.1, None], "rules": "a"}}, "prices, columns or rules"),
        ({"inference": {"scale": [1.0, None, 2.0], "rules": "a"}}, "prices, columns or rules"),
        ({"data_used": {"last": "2021-01-01"}}, "days of prices"),
    ],
)
def test_members_differ_in_their_seeds_alone(config: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=f"of a training with another seed has {what} other than the run's own: "):
        combine([champion(0), champion(1, **config)])
    rounded = champion(1, inference={"scale": [1.0 + 1e-9, None], "rules": "a"})  # as by another processor
    assert combine([champion(0), rounded]).config["members"] == 2


def test_more_members_than_weights_are_refused() -> None:
    whole = combine([champion(0), champion(1)])
    for count in (10**9, 0, -1):
        with pytest.raises(UserError, match=f"says it has {count} members, more than it has weights"):
            ExportedChampion({**whole.config, "members": count}, whole.weights).actor()
    with pytest.raises(UserError, match="weights are not of MLPActor"):
        ExportedChampion({**whole.config, "members": 1}, whole.weights).actor()
