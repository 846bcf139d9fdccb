"""The champion's equity in its validation windows as a picture in TensorBoard."""

import logging
from pathlib import Path
from typing import Any

import pandas as pd
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.plots import COLORS, draw_picture, image_writers
from eigen2.errors import require_range

log = logging.getLogger(__name__)


class EquityPlot(Callback):
    """Draws the champion's daily equity in its validation windows, from `champion/equity.csv` in the run folder.

    Args:
        every_n_epochs: Draw at the end of every n-th generation, >= 1. Default 5.
    """

    def __init__(self, every_n_epochs: int = 5) -> None:
        super().__init__()
        require_range("every_n_epochs of EquityPlot", every_n_epochs, least=1)
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw if a picture is due and there is a champion."""
        file = Path(trainer.default_root_dir) / "champion" / "equity.csv"
        due = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if not (due and trainer.is_global_zero and (writers := image_writers(trainer)) and file.is_file()):
            return
        try:
            picture = draw_equity(pd.read_csv(file, parse_dates=["date"]))
        except (OSError, ValueError, LookupError) as error:
            log.warning("cannot draw %s: %s", file, error)
            return
        for writer in writers:
            writer.add_image("champion/equity", picture, global_step=trainer.current_epoch, dataformats="HWC")


def draw_equity(record: pd.DataFrame) -> Any:
    """Draw a table with columns date, generation, window and equity, see `draw_picture`."""

    def draw(axes: Any) -> None:
        for index, (_, days) in enumerate(record.groupby("window")):
            gain = 100 * (days["equity"] / days["equity"].iloc[0] - 1)
            label = f"{days['date'].iloc[0]:%Y-%m-%d}: {gain.iloc[-1]:+.1f} %"
            axes.plot(days["date"], gain, color=COLORS[index % len(COLORS)], label=label)
        axes.axhline(0, color="#999999", linewidth=0.8)

    generation = record["generation"].iloc[-1]
    return draw_picture(draw, f"champion of generation {generation} in its validation windows", "", "gain, percent")
