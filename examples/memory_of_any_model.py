"""Find a memory leak in any LightningModule, and keep a test that fails if one comes back.

python examples/memory_of_any_model.py          # trains; at the end, what leaks, where and since when
python -m pytest examples/memory_of_any_model.py  # the test of a test suite of your own
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from callbacks import GarbageCollector, MemoryProfiler, assert_flat


class Model(LightningModule):
    """A regression whose training step, unless told otherwise, keeps every loss with its graph: a leak."""

    def __init__(self, leaks: bool = True) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        self.leaks = leaks
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        """Return the squared error of a batch."""
        inputs, targets = batch
        loss: torch.Tensor = (self.layers(inputs).squeeze(1) - targets).square().mean()
        if self.leaks:
            self.losses.append(loss)  # append loss.item() to a collections.deque(maxlen=...) instead
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over all weights."""
        return torch.optim.Adam(self.parameters())


def batches() -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return the data of an epoch: 8 batches of 64."""
    inputs = torch.randn(512, 32)
    return DataLoader(TensorDataset(inputs, inputs.sum(1)), batch_size=64)


def test_training_keeps_nothing() -> None:
    """Fail if a training step keeps more than a kilobyte."""
    model, batch = Model(leaks=False), next(iter(batches()))
    assert_flat(lambda: model.training_step((batch[0], batch[1]), 0).backward())


if __name__ == "__main__":
    callbacks = [GarbageCollector(), MemoryProfiler()]
    trainer = Trainer(accelerator="cpu", max_epochs=16, callbacks=callbacks, logger=False, enable_checkpointing=False)
    trainer.fit(Model(), batches())
