"""Networks that act as one, and learn in turn."""

from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from eigen2.dqn.ensemble import Ensemble
from eigen2.dqn.module import DQNModule
from eigen2.fire.datamodule import FuelBreakDataModule
from tests.dqn.test_module import SMALL, trainer_of


class Constant(nn.Module):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor([values]))

    def forward(self, observation: Tensor) -> Tensor:
        return self.values.expand(len(observation), -1)


def test_the_values_are_the_mean_of_all_networks() -> None:
    ensemble = Ensemble([Constant([0.0, 3.0]), Constant([6.0, 0.0]), Constant([0.0, 6.0])])
    assert ensemble(torch.zeros(2, 1)).tolist() == [[2.0, 3.0]] * 2
    assert ensemble[1](torch.zeros(1, 1)).tolist() == [[6.0, 0.0]]


class Turns(Callback):
    """Which networks changed in each epoch."""

    def __init__(self) -> None:
        self.before: list[list[Tensor]] = []
        self.changed: list[list[int]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.before = self._weights(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pairs = enumerate(zip(self.before, self._weights(pl_module), strict=True))
        self.changed.append([n for n, (old, new) in pairs if not all(map(torch.equal, old, new))])

    def _weights(self, module: LightningModule) -> list[list[Tensor]]:
        assert isinstance(module, DQNModule)
        return [[weight.detach().clone() for weight in module.online[n].parameters()] for n in range(3)]


def test_networks_learn_in_turn(tmp_path: Path) -> None:
    turns, module = Turns(), DQNModule(width=3, networks=3, validate_every=9, baselines=())
    trainer_of(tmp_path, 5, turns).fit(module, datamodule=FuelBreakDataModule(**SMALL))
    assert turns.changed == [[], [1], [2], [0], [1]]  # the buffer fills first
    assert not torch.equal(*(next(module.online[n].parameters()) for n in (0, 1)))
