"""Training without a word and without a file, for benchmarks that time it or run it many times."""

import logging
import warnings
from pathlib import Path

from lightning.pytorch import Trainer


def silence() -> None:
    """Turn off what Lightning says of itself."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def silent_trainer(generations: int, folder: str | Path) -> Trainer:
    """A Trainer on the CPU that prints, logs and saves nothing.

    Args:
        generations: epochs.
        folder: takes what a run writes all the same, such as the prepared panel.
    """
    return Trainer(
        max_epochs=generations,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
    )
