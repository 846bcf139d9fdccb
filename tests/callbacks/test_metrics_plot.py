import gc
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import numpy as np
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from callbacks.plots import MetricsPlot, _legend_names, draw_lines
from eigen2.errors import UserError

Fit = Callable[..., Trainer]
BLUE = (0x00, 0x72, 0xB2)
ORANGE = (0xD5, 0x5E, 0x00)


def pictures(folder: Path, tag: str) -> dict[int, np.ndarray]:
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    images = events.Images(tag)
    return {event.step: np.array(Image.open(io.BytesIO(event.encoded_image_string))) for event in images}


def plotted(picture: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """Return the rows and columns of pixels of a colour, left of the legend."""
    return np.argwhere((picture[:, :700] == color).all(axis=-1))


def test_pictures_appear_every_n_epochs_and_leave_no_figure(fit: Fit, tmp_path: Path) -> None:
    gc.collect()
    names, band = ["fitness/mean", "fitness/odd", "fitness/absent"], ("fitness/low", "fitness/high")
    plot = MetricsPlot(names, tag="fitness/lines", every_n_epochs=2, band=band)
    with pytest.warns(UserWarning, match="fitness/absent") as warnings:
        fit(plot, epochs=5, logger=TensorBoardLogger(tmp_path, name="tb", version=""))
    assert sum("MetricsPlot" in str(warning.message) for warning in warnings) == 1
    images = pictures(tmp_path / "tb", "fitness/lines")
    assert list(images) == [1, 3]
    assert plot.state_dict()["generations"] == [0, 1, 2, 3, 4]
    values = plot.state_dict()["values"]
    expected = {
        "fitness/mean": [0.0, 10.0, 20.0, 30.0, 40.0],
        "fitness/odd": [math.nan, 1.0, math.nan, 3.0, math.nan],
        "fitness/absent": [math.nan] * 5,
        "fitness/low": [-5.0, 5.0, 15.0, 25.0, 35.0],
        "fitness/high": [5.0, 15.0, 25.0, 35.0, 45.0],
    }
    np.testing.assert_equal(values, expected)
    for step, picture in images.items():
        lines, shaded = ({name: values[name][: step + 1] for name in part} for part in (names, band))
        same = draw_lines(range(step + 1), lines, title="fitness/lines", band=shaded)
        np.testing.assert_array_equal(picture, same)
    assert matplotlib.pyplot.get_fignums() == []
    assert not [each for each in gc.get_objects() if type(each) is Figure]


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
    fit(*resumed, epochs=5, ckpt_path=tmp_path / "last.ckpt")
    for one, other in zip(whole, resumed, strict=True):
        assert other.state_dict()["generations"] == [0, 1, 2, 3, 4]
        np.testing.assert_equal(one.state_dict(), other.state_dict())
    assert resumed[1].state_dict()["values"]["fitness/odd"][3] == 3.0


def test_history_is_bounded_and_a_metric_new_since_the_checkpoint_starts_with_a_gap() -> None:
    plot = MetricsPlot(["a", "b"], tag="t", max_history=2)
    plot.load_state_dict({"generations": [0], "values": {"a": [9.0], "b": [9.0]}})
    plot.load_state_dict({"generations": [0, 1, 2], "values": {"a": [1.0, 2.0, 3.0], "gone": [3.0, 4.0, 5.0]}})
    expected = {"generations": [1, 2], "values": {"a": [2.0, 3.0], "b": [math.nan, math.nan]}}
    np.testing.assert_equal(plot.state_dict(), expected)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"generations": None, "values": {}},
        {"generations": [0, "one"], "values": {"a": [1.0, 2.0]}},
        {"generations": [0, 1], "values": [1.0, 2.0]},
        {"generations": [0, 1], "values": {"a": [1.0]}},
        {"generations": [0], "values": {"a": [[]]}},
    ],
)
def test_an_altered_state_is_refused_in_one_line(state: dict[str, Any]) -> None:
    plot = MetricsPlot(["a", "b"], tag="t")
    with pytest.raises(
        UserError, match=r"^the values of MetricsPlot 't' in the checkpoint cannot be read \(.*\); were"
    ):
        plot.load_state_dict(state)


def test_a_second_fit_starts_anew(fit: Fit) -> None:
    plot = MetricsPlot(["fitness/mean"], tag="t", max_history=3)
    for epochs, kept in ((3, [0, 1, 2]), (2, [0, 1]), (4, [1, 2, 3])):
        fit(plot, epochs=epochs)
        values = [10.0 * epoch for epoch in kept]
        assert plot.state_dict() == {"generations": kept, "values": {"fitness/mean": values}}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_figure_is_freed_with_and_without_automatic_collection(enabled: bool) -> None:
    gc.collect()
    before = gc.isenabled()
    try:
        for size in (0, 12_000):
            (gc.enable if enabled else gc.disable)()
            young = [[] for _ in range(size)]
            draw_lines(range(2), {f"line {index}": [0.0, 1.0] for index in range(8)})
            assert gc.isenabled() is enabled
            assert not [each for each in gc.get_objects() if type(each) is Figure]
            del young
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("why", ["logger without pictures", "no logger", "another process"])
def test_nothing_is_drawn_that_no_logger_takes(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("callbacks.plots.draw_lines", lambda *arguments, **options: pytest.fail("drawn for no logger"))
    loggers = {"logger without pictures": CSVLogger(tmp_path), "another process": TensorBoardLogger(tmp_path)}
    if why == "another process":
        monkeypatch.setattr(Trainer, "is_global_zero", property(lambda trainer: False))
    plot = MetricsPlot(["fitness/mean"], tag="t", every_n_epochs=1)
    fit(plot, epochs=2, logger=loggers.get(why, False))
    assert plot.state_dict()["generations"] == [0, 1]


def test_a_line_is_drawn_where_its_values_are() -> None:
    picture = draw_lines(range(3), {"up": [0.0, 1.0, 2.0], "flat": [1.0, 1.0, 1.0]})
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
    band = draw_lines(range(3), lines, band={"low": [0.0, 0.0, 0.0], "high": [2.0, 2.0, 2.0]})
    assert len(plotted(band, (217, 234, 243))) > 50_000  # 15% of the blue on white


def test_the_legend_shows_the_last_part_of_a_name_unless_two_are_the_same() -> None:
    assert _legend_names(["fitness/mean", "a/b/max"]) == ["mean", "max"]
    assert _legend_names(["fitness/mean", "val/mean"]) == ["fitness/mean", "val/mean"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"metrics": "fitness/mean"}, "metrics"),
        ({"every_n_epochs": 0}, "every_n_epochs is 0"),
        ({"band": ("b", "b")}, "band is 'b' twice"),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        MetricsPlot(**{"metrics": ["a"], "tag": "t", **settings})
