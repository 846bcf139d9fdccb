"""Networks that act as one, and learn in turn."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from eigen2.core.networks import Ensemble
from eigen2.dqn.module import DQNModule
from eigen2.errors import RunStopped
from eigen2.fire.datamodule import FuelBreakDataModule
from eigen2.memory.owners import Filling
from tests.dqn.test_module import SMALL, trainer_of
from tests.runs import same


class Constant(nn.Module):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor([values]))

    def forward(self, observation: Tensor) -> Tensor:
        return self.values.expand(len(observation), -1)


def test_the_values_are_the_mean_of_all_networks() -> None:
    network = Ensemble([Constant([0.0, 3.0]), Constant([6.0, 0.0]), Constant([0.0, 6.0])])
    assert network(torch.zeros(2, 1)).tolist() == [[2.0, 3.0]] * 2
    assert network[1](torch.zeros(1, 1)).tolist() == [[6.0, 0.0]]


class Turns(Callback):
    """Which networks are asked for values in each epoch, which change, and for which Adam has moments."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.changed: list[set[str]] = []
        self.moments: list[list[int]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        networks = self._networks(pl_module)
        assert not torch.equal(networks["online 0"].stem.weight, networks["online 1"].stem.weight)
        for name, network in networks.items():
            network.register_forward_hook(lambda *_, name=name: self.asked[-1].add(name))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.asked.append(set())
        self.before = {name: deepcopy(network.state_dict()) for name, network in self._networks(pl_module).items()}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        networks = self._networks(pl_module)
        self.changed.append({name for name, old in self.before.items() if not same(old, networks[name].state_dict())})
        state = trainer.optimizers[0].state
        self.moments.append([n for n in range(3) if state.get(networks[f"online {n}"].stem.weight)])

    def _networks(self, module: LightningModule) -> dict[str, Any]:
        assert isinstance(module, DQNModule)
        both = {"online": module.online, "target": module.target}
        return {f"{name} {n}": network[n] for name, network in both.items() for n in range(3)}


def test_networks_play_and_learn_in_turn(tmp_path: Path) -> None:
    turns, module = Turns(), DQNModule(width=3, networks=3, validate_every=9, baselines=())
    trainer_of(tmp_path, 5, turns).fit(module, datamodule=FuelBreakDataModule(**SMALL))
    learned = [{f"online {n}", f"target {n}"} for n in (1, 2, 0, 1)]
    assert turns.asked == [{"online 0"}, *learned]  # the buffer fills first
    assert turns.changed == [set(), *learned]
    assert turns.moments == [[], [1], [1, 2], [0, 1, 2], [0, 1, 2]]


class Breaking(Callback):
    """Makes a weight infinite after the last step of an epoch."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, DQNModule)
        if trainer.is_last_batch and trainer.current_epoch == 1:
            with torch.no_grad():
                next(pl_module.online[1].parameters()).fill_(torch.inf)


def test_weights_that_break_in_the_last_step_of_an_epoch_stop_the_run(tmp_path: Path) -> None:
    """Their network is next asked for values two epochs later."""
    module = DQNModule(width=3, networks=2, validate_every=9, baselines=())
    with pytest.raises(RunStopped, match="the loss or a weight is not finite in epoch 1"):
        trainer_of(tmp_path, 3, Breaking()).fit(module, datamodule=FuelBreakDataModule(**SMALL))


def test_moments_that_come_with_the_first_turn_are_no_leak(tmp_path: Path) -> None:
    module = DQNModule(width=3, networks=2, validate_every=9, baselines=())
    trainer_of(tmp_path, 2).fit(module, datamodule=FuelBreakDataModule(**SMALL))
    assert filling(module) == [False]
    trainer_of(tmp_path, 3).fit(module, datamodule=FuelBreakDataModule(**SMALL))
    assert filling(module) == [True]


def filling(module: DQNModule) -> list[bool]:
    return [owner.full for owner in module.memory_owners().values() if isinstance(owner, Filling)]
