import gc
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from callbacks import MetricsPlot, draw_lines

Fit = Callable[..., Trainer]
BLUE = (0x00, 0x72, 0xB2)
ORANGE = (0xD5, 0x5E, 0x00)


def pictures(folder: Path, tag: str) -> dict[int, np.ndarray]:
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    if tag not in events.Tags()["images"]:
        return {}
    found = events.Images(tag)
    return {event.step: np.array(Image.open(io.BytesIO(event.encoded_image_string))) for event in found}


def plotted(picture: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """Rows and columns of the pixels of a colour, left of the legend."""
    return np.argwhere((picture[:, :700] == color).all(axis=-1))


def test_pictures_appear_in_tensorboard_every_n_epochs(fit: Fit, tmp_path: Path) -> None:
    plot = MetricsPlot(["fitness/mean"], tag="fitness/lines", every_n_epochs=2, ylabel="points")
    fit(plot, epochs=5, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    found = pictures(tmp_path / "tb", "fitness/lines")
    assert list(found) == [1, 3]
    values = [0.0, 10.0, 20.0, 30.0, 40.0]
    assert plot.state_dict() == {"generations": [0, 1, 2, 3, 4], "values": {"fitness/mean": values}}
    for step, picture in found.items():
        expected = draw_lines(
            range(step + 1), {"fitness/mean": values[: step + 1]}, title="fitness/lines", ylabel="points"
        )
        np.testing.assert_array_equal(picture, expected)


def test_band_metrics_are_collected_and_shaded(fit: Fit, tmp_path: Path) -> None:
    plot = MetricsPlot(["fitness/mean"], "fit", every_n_epochs=3, band=("fitness/low", "fitness/high"))
    fit(plot, epochs=3, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    assert plot.state_dict()["values"]["fitness/high"] == [5.0, 15.0, 25.0]
    mean, low, high = [0.0, 10.0, 20.0], [-5.0, 5.0, 15.0], [5.0, 15.0, 25.0]
    expected = draw_lines(
        range(3), {"fitness/mean": mean}, title="fit", band={"fitness/low": low, "fitness/high": high}
    )
    np.testing.assert_array_equal(pictures(tmp_path / "tb", "fit")[2], expected)


def test_absent_and_nan_values_are_gaps_and_an_absent_metric_is_named_once(fit: Fit, tmp_path: Path) -> None:
    plot = MetricsPlot(["fitness/odd", "fitness/absent"], tag="odd", every_n_epochs=1)
    with pytest.warns(UserWarning, match="fitness/absent") as warnings:
        fit(plot, epochs=4, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    assert sum("MetricsPlot" in str(warning.message) for warning in warnings) == 1
    values = plot.state_dict()["values"]
    np.testing.assert_array_equal(values["fitness/odd"], [math.nan, 1.0, math.nan, 3.0])
    assert all(math.isnan(value) for value in values["fitness/absent"])
    assert len(pictures(tmp_path / "tb", "odd")) == 4


def test_a_resumed_run_has_the_values_of_an_uninterrupted_one(fit: Fit, tmp_path: Path) -> None:
    def plots() -> tuple[MetricsPlot, MetricsPlot]:
        odd = MetricsPlot(["fitness/odd"], tag="odd", every_n_epochs=9)
        return MetricsPlot(["fitness/mean"], tag="mean", band=("fitness/low", "fitness/high")), odd

    def fail(phase: str, epoch: int) -> None:
        if (phase, epoch) == ("train", 3):
            raise RuntimeError("killed")

    whole, killed, resumed = plots(), plots(), plots()
    fit(*whole, epochs=5)
    saver = ModelCheckpoint(dirpath=tmp_path, filename="last", save_on_train_epoch_end=True)
    with pytest.raises(RuntimeError, match="killed"):
        fit(*killed, saver, epochs=5, work=fail)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert len([key for key in checkpoint["callbacks"] if key.startswith("MetricsPlot")]) == 2
    saver = ModelCheckpoint(dirpath=tmp_path, filename="last", save_on_train_epoch_end=True)
    fit(*resumed, saver, epochs=5, ckpt_path=tmp_path / "last.ckpt")
    for one, other in zip(whole, resumed, strict=True):
        assert other.state_dict()["generations"] == [0, 1, 2, 3, 4]
        np.testing.assert_equal(one.state_dict(), other.state_dict())
    assert resumed[1].state_dict()["values"]["fitness/odd"][3] == 3.0


def test_a_metric_new_since_the_checkpoint_starts_with_a_gap() -> None:
    old = {"generations": [0, 1], "values": {"a": [1.0, 2.0], "gone": [3.0, 4.0]}}
    plot = MetricsPlot(["a", "b"], tag="t")
    plot.load_state_dict({"generations": [0], "values": {"a": [9.0], "b": [9.0]}})
    plot.load_state_dict(old)
    nan = math.nan
    np.testing.assert_equal(plot.state_dict(), {"generations": [0, 1], "values": {"a": [1.0, 2.0], "b": [nan, nan]}})


def test_history_is_bounded_also_after_a_load(fit: Fit) -> None:
    plot = MetricsPlot(["fitness/mean"], tag="t", max_history=2)
    fit(plot, epochs=4)
    expected = {"generations": [2, 3], "values": {"fitness/mean": [20.0, 30.0]}}
    assert plot.state_dict() == expected
    plot.load_state_dict({"generations": [1, 2, 3], "values": {"fitness/mean": [10.0, 20.0, 30.0]}})
    assert plot.state_dict() == expected


def test_a_second_fit_starts_anew(fit: Fit) -> None:
    plot = MetricsPlot(["fitness/mean"], tag="t")
    fit(plot, epochs=3)
    fit(plot, epochs=2)
    assert plot.state_dict()["generations"] == [0, 1]


def test_no_figure_outlives_its_picture(fit: Fit, tmp_path: Path) -> None:
    gc.collect()
    plot = MetricsPlot(["fitness/mean"], tag="t", every_n_epochs=1, band=("fitness/low", "fitness/high"))
    fit(plot, epochs=3, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    assert matplotlib.pyplot.get_fignums() == []
    assert not [each for each in gc.get_objects() if type(each) is Figure]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_figure_is_freed_wherever_the_automatic_collection_stands(enabled: bool) -> None:
    gc.collect()
    before = gc.isenabled()
    try:
        for size in (0, 5_000, 12_000):
            (gc.enable if enabled else gc.disable)()
            young = [[] for _ in range(size)]  # type: ignore[var-annotated]
            draw_lines(range(2), {f"line {index}": [0.0, 1.0] for index in range(8)})
            assert gc.isenabled() is enabled
            assert not [each for each in gc.get_objects() if type(each) is Figure]
            del young
    finally:
        (gc.enable if before else gc.disable)()


def test_loggers_without_pictures_are_passed_over(fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise AssertionError("drawn for nobody")

    monkeypatch.setattr("callbacks.plots.draw_lines", fail)
    for logger in (CSVLogger(tmp_path, name="csv"), False):
        plot = MetricsPlot(["fitness/mean"], tag="t", every_n_epochs=1)
        fit(plot, epochs=2, logger=logger)
        assert plot.state_dict()["generations"] == [0, 1]


def test_only_rank_zero_draws(fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "is_global_zero", property(lambda trainer: False))
    plot = MetricsPlot(["fitness/mean"], tag="t", every_n_epochs=1)
    fit(plot, epochs=2, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    assert plot.state_dict()["generations"] == [0, 1]
    assert pictures(tmp_path / "tb", "t") == {}


def test_a_line_is_drawn_where_its_values_are() -> None:
    picture = draw_lines(range(3), {"up": [0.0, 1.0, 2.0], "flat": [1.0, 1.0, 1.0]})
    assert picture.shape == (450, 900, 3)
    assert picture.dtype == np.uint8
    up, flat = plotted(picture, BLUE), plotted(picture, ORANGE)
    assert np.corrcoef(up[:, 0], up[:, 1])[0, 1] < -0.99  # rows count downwards
    assert np.ptp(flat[:, 0]) < 10 < 300 < np.ptp(flat[:, 1])
    assert abs(np.median(flat[:, 0]) - np.median(up[:, 0])) < 5


def test_a_gap_is_left_open_and_a_lone_point_is_marked() -> None:
    y = np.ones(101)
    y[20:80] = np.nan
    y[50] = np.inf
    y[51] = np.nan
    columns = np.unique(plotted(draw_lines(range(101), {"y": y.tolist()}), BLUE)[:, 1])
    assert np.diff(columns).max() > 200
    y[50] = 1.0
    columns_marked = np.unique(plotted(draw_lines(range(101), {"y": y.tolist()}), BLUE)[:, 1])
    lone = np.setdiff1d(columns_marked, columns)
    assert 2 <= len(lone) <= 8
    assert np.ptp(lone) < 8


def test_the_band_shades_the_area_between_its_lines() -> None:
    lines = {"mean": [1.0, 1.0, 1.0]}
    plain = draw_lines(range(3), lines)
    band = draw_lines(range(3), lines, band={"low": [0.0, 0.0, 0.0], "high": [2.0, 2.0, 2.0]})
    shade = (217, 234, 243)  # 15% of the blue on white
    assert len(plotted(plain, shade)) == 0
    assert len(plotted(band, shade)) > 50_000


def test_the_legend_shows_the_last_part_of_a_name_unless_two_are_the_same() -> None:
    def draw(*names: str) -> bytes:
        return draw_lines([0, 1], {name: [float(i), 2.0] for i, name in enumerate(names)}).tobytes()

    assert draw("fitness/mean", "a/b/max") == draw("mean", "max")
    assert draw("mean") != draw("max")
    assert draw("fitness/mean", "val/mean") != draw("train/mean", "test/mean")


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="metrics"):
        MetricsPlot([], tag="t")
    with pytest.raises(ValueError, match="metrics"):
        MetricsPlot("fitness/mean", tag="t")
    with pytest.raises(ValueError, match="every_n_epochs is 0"):
        MetricsPlot(["a"], tag="t", every_n_epochs=0)
    with pytest.raises(ValueError, match="band is 'b' twice"):
        MetricsPlot(["a"], tag="t", band=("b", "b"))
    with pytest.raises(ValueError, match="max_history is 0"):
        MetricsPlot(["a"], tag="t", max_history=0)
