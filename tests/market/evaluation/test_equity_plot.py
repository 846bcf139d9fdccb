"""The champion's equity appears in TensorBoard as pictures."""

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eigen2.errors import UserError
from eigen2.market.evaluation.equity_plot import EquityPlot, draw_equity
from tests.command import eigen2

PLOT = ("--trainer.callbacks+=eigen2.market.evaluation.equity_plot.EquityPlot", "--trainer.callbacks.every_n_epochs=2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of four generations, the last one by a second process."""
    root = tmp_path_factory.mktemp("run")
    words = ("fit", "--config", "tests/small.yaml", *PLOT, "--trainer.default_root_dir", root)
    for generations in (3, 4):
        done = eigen2(*words, "--trainer.max_epochs", generations, "--ckpt_path", "last")
        assert done.returncode == 0, done.stderr
    return root


def test_the_champions_equity_is_drawn_every_few_generations(run: Path) -> None:
    shown = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0}).Reload()
    images = shown.Images("champion/equity")
    assert [image.step for image in images] == [1, 3]
    picture = np.asarray(Image.open(io.BytesIO(images[-1].encoded_image_string)))
    drawn = draw_equity(pd.read_csv(run / "champion" / "equity.csv", parse_dates=["date"]))
    np.testing.assert_array_equal(picture, drawn)
    assert drawn.shape == (450, 900, 3)
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 50


def test_a_picture_depends_on_the_equity_alone(run: Path) -> None:
    record = pd.read_csv(run / "champion" / "equity.csv", parse_dates=["date"])
    same, other = draw_equity(record), draw_equity(record.assign(equity=record["equity"] * (1 + 0.001 * record.index)))
    np.testing.assert_array_equal(same, draw_equity(record))
    assert (same != other).any()
    # in percent of the equity at the start of a window
    np.testing.assert_array_equal(same, draw_equity(record.assign(equity=7 * record["equity"])))


def test_an_equity_plot_needs_a_number_of_generations() -> None:
    with pytest.raises(UserError, match="every_n_epochs of EquityPlot is 0; it must be at least 1"):
        EquityPlot(every_n_epochs=0)


def test_a_damaged_record_of_the_champion_is_not_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SimpleNamespace(add_image=pytest.fail)
    monkeypatch.setattr("eigen2.market.evaluation.equity_plot.image_writers", lambda trainer: [writer])
    trainer = Trainer(default_root_dir=tmp_path, logger=False, enable_checkpointing=False)
    (tmp_path / "champion").mkdir()
    for text in ("", "date,window\n2020-01-01,0\n", "date,generation,window,equity\n"):
        (tmp_path / "champion" / "equity.csv").write_text(text)
        EquityPlot(every_n_epochs=1).on_train_epoch_end(trainer, BoringModel())
    assert sum(message.startswith("cannot draw ") for message in caplog.messages) == 3
