"""The module of deep Q-learning: fitting again, and what a fit leaves behind."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from eigen2.dqn import losses
from eigen2.dqn.collector import draw_batch, draw_slots
from eigen2.dqn.module import DQNModule
from eigen2.errors import UserError
from eigen2.fire.datamodule import FuelBreakDataModule

SMALL: dict[str, Any] = {"grid_size": 8, "ignitions": 6, "num_landscapes": 2, "eval_landscapes": 1}
SMALL |= {"num_parallel_envs": 2, "replay_capacity": 30, "replay_min_size": 8, "batch_size": 4}


def trainer_of(root: Path, epochs: int, *callbacks: Callback, precision: Any = "32-true") -> Trainer:
    return Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=root, num_sanity_val_steps=0, callbacks=[*callbacks],
        precision=precision,
    )  # fmt: skip


def weights(module: DQNModule) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in module.state_dict().values()]


def test_a_module_that_was_reset_learns_what_a_fresh_one_learns(tmp_path: Path) -> None:
    module, data = DQNModule(width=3, validate_every=1, baselines=("random",)), FuelBreakDataModule(**SMALL)
    trainer_of(tmp_path, 3).fit(module, datamodule=data)
    first, buffer = weights(module), data.buffer
    storage = {name: stored.data_ptr() for name, stored in buffer._storage.items()}
    module.online(torch.zeros(1, 8, 8, 8, dtype=torch.uint8)).sum().backward()
    assert module.cleanup_memory() == sum(parameter.nbytes for parameter in module.online.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())
    module.reset_memory()
    assert len(buffer) == module.environment_steps == 0
    assert int(module.champion_generation) == -1
    trainer_of(tmp_path, 3).fit(module, datamodule=data)
    assert data.buffer is buffer
    assert {name: stored.data_ptr() for name, stored in buffer._storage.items()} == storage
    assert all(torch.equal(one, other) for one, other in zip(first, weights(module), strict=True))
    trainer_of(tmp_path, 3).fit(module, datamodule=data)  # without a reset it goes on
    assert not all(torch.equal(one, other) for one, other in zip(first, weights(module), strict=True))


def test_a_gradient_step_is_that_of_a_plain_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, norms = DQNModule.learn, list[float]()
    plain: dict[str, Any] = {}

    def checked(module: DQNModule, rng: np.random.Generator) -> None:
        if not plain:
            plain.update(online=deepcopy(module.online[0]), target=deepcopy(module.target[0]))
            plain["adam"] = torch.optim.Adam(plain["online"].parameters(), lr=1e-2)
        data, drawn = module.data, deepcopy(rng)
        batch = data.codec.augment(draw_batch(data.buffer, data.codec, draw_slots(data.buffer, 2, 4, drawn)), drawn)
        plain["adam"].zero_grad()
        losses.loss(plain["online"], plain["target"], batch, 0.7).loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(plain["online"].parameters(), 1e-3)))
        plain["adam"].step()
        with torch.no_grad():
            for slow, new in zip(plain["target"].parameters(), plain["online"].parameters(), strict=True):
                slow.lerp_(new, 0.3)
        learn(module, rng)
        for name in ("online", "target"):
            for found, right in zip(getattr(module, name)[0].parameters(), plain[name].parameters(), strict=True):
                torch.testing.assert_close(found, right)

    monkeypatch.setattr(DQNModule, "learn", checked)
    settings = {"gamma": 0.7, "tau": 0.3, "max_grad_norm": 1e-3, "learning_rate": 1e-2}
    module = DQNModule(width=3, validate_every=9, baselines=(), **settings)
    trainer_of(tmp_path, 3).fit(module, datamodule=FuelBreakDataModule(**SMALL))
    assert len(norms) >= 3
    assert min(norms) > 1e-3, "nothing was clipped"


class Metrics(Callback):
    """The metrics of each epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DQNModule)
        self.epochs.append(pl_module.metrics)


def test_the_champion_is_the_best_of_the_epochs_that_are_validated(tmp_path: Path) -> None:
    found = Metrics()
    module = DQNModule(width=3, validate_every=2, epsilon_decay_steps=24, baselines=("random",))
    data = FuelBreakDataModule(**SMALL)
    trainer = trainer_of(tmp_path, 5, found, precision="bf16-mixed")
    with pytest.raises(UserError, match="has no champion"):
        module.champion_policy()
    trainer.fit(module, datamodule=data)
    means = [row["validation/mean"] for row in found.epochs]
    assert np.isnan(means).tolist() == [True, False, True, False, True]
    fitness = [row["champion/validation_fitness"] for row in found.epochs]
    assert np.isnan(fitness[0])
    assert fitness[4] == fitness[3] == max(fitness[1], means[3])
    assert [row["train/epsilon"] for row in found.epochs] == pytest.approx([1 - 0.95 / 4 * n for n in (1, 2, 3, 4, 4)])
    assert next(iter(module.online.parameters())).dtype == torch.float32
    (again,) = trainer.validate(module, datamodule=data, verbose=False)
    assert again["champion/validation_fitness"] == pytest.approx(fitness[4], rel=1e-6)
