"""The map of a region: colours of cells, breaks that stay visible, and the scale."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from numpy.typing import NDArray

from eigen2.errors import UserError
from eigen2.fire import pictures
from eigen2.fire.landscapes.fuels import WATER
from eigen2.fire.pictures import FUELS, draw_map, write_map
from tests.fire.conftest import flat

COLOURS = {name: np.rint(255 * np.array(to_rgb(colour))).astype(int).tolist() for _, colour, name in FUELS}
BLACK, GREY = [0, 0, 0], [238, 238, 238]
DIM = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""What a colour-blind reader sees of linear RGB (Machado, Oliveira and Fernandes, 2009)."""


def maps(picture: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """The middle pixels of the cells, or of the blocks of cells, of the three maps."""
    scale = max(1, round(pictures.USUAL / max(shape)))
    height, width = scale * shape[0], scale * shape[1]
    pad = 25 * max(1, round(max(height, width) / pictures.USUAL))
    step = max(width, 14 * pad) + pad
    lefts, middle = (pad, pad + step, pad + 2 * step), scale // 2
    parts = [picture[2 * pad : 2 * pad + height, left : left + width] for left in lefts]
    return np.array([part[middle::scale, middle::scale] for part in parts])


def test_titles_say_the_most_frequent_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr(pictures, "_draw_maps", lambda maps, _: titles.extend(maps) or np.zeros((1, 1, 3), np.uint8))
    for burned in (0.996, 0.123, 0.0234):
        draw_map(flat((2, 2)), np.zeros((2, 2), bool), np.full((2, 2, 2), burned, np.float32))
    said = [title.rsplit("to ", 1)[1] for title in titles if title.startswith("with ")]
    assert said == ["100 % of fires", "12 % of fires", "2.3 % of fires"]


def test_a_cell_has_the_colour_of_its_fuel_its_fires_or_its_break() -> None:
    fuel = np.full((20, 30), 101)
    fuel[3, 4], fuel[5, 6], fuel[7, 8], fuel[9, 10], fuel[0, 0] = WATER, 145, 183, 201, 122
    breaks, burned = np.zeros(fuel.shape, bool), np.zeros((2, *fuel.shape), np.float32)
    breaks[15, 20] = breaks[19, 29] = True
    burned[0, 10:12, 3] = 0.2, 0.4
    burned[1, 10, 3] = 0.2
    picture = draw_map(flat(fuel.shape, fuel), breaks, burned)
    on_fuel, before, after = maps(picture, (20, 30)).tolist()
    names = {(3, 4): "does not burn", (5, 6): "shrub", (7, 8): "timber", (9, 10): "slash", (0, 0): "shrub"}
    for row in range(20):
        for column in range(30):
            black = breaks[row, column]
            name = names.get((row, column), "grass")
            assert on_fuel[row][column] == (BLACK if black else COLOURS[name])
            if burned[:, row, column].any():
                continue
            ground = COLOURS[name] if name == "does not burn" else GREY
            assert before[row][column] == ground
            assert after[row][column] == (BLACK if black else ground)
    assert before[10][3] == after[10][3] != GREY
    assert sum(before[11][3]) < sum(before[10][3]) < 3 * 238
    assert after[11][3] == GREY


@pytest.mark.parametrize(("shape", "step"), [((1, 4501), 4), ((1501, 61), 2), ((1500, 3), 1), ((4, 4), 1)])
def test_every_break_and_fire_of_a_large_region_is_drawn(shape: tuple[int, int], step: int) -> None:
    """A pixel is black exactly if one of its cells is a break, at the edges too; the size is whole."""
    rng = np.random.default_rng(0)
    breaks = rng.random(shape) < 0.03
    breaks[-1, -1] = True
    burned = np.stack([rng.random(shape) < 0.02, np.zeros(shape)]).astype(np.float32)
    pixels = tuple(-(-cells // step) for cells in shape)
    on_fuel, before, _ = maps(draw_map(flat(shape), breaks, burned), pixels)
    for layer, shown in ((breaks, (on_fuel == 0).all(-1)), (burned[0] > 0, (before != GREY).any(-1))):
        expected = np.zeros(pixels, bool)
        np.logical_or.at(expected, tuple(np.argwhere(layer).T // step), True)
        np.testing.assert_array_equal(shown, expected)
    assert max(on_fuel.shape[:2]) <= pictures.MOST


@pytest.mark.parametrize(("columns", "metres", "kilometres"), [(500, 30.0, 5.0), (4000, 10.0, 10.0), (25, 30.0, 0.2)])
def test_the_scale_bar_is_as_long_as_it_says(columns: int, metres: float, kilometres: float) -> None:
    ground = flat((columns // 5, columns), 101)
    object.__setattr__(ground, "cell_size", metres)
    nothing = np.zeros(ground.shape, bool)
    picture = draw_map(ground, nothing, np.zeros((2, *ground.shape), np.float32))
    grass = (picture == COLOURS["grass"]).all(-1).sum(1).max()  # pixels of the region's width
    black = (picture == 0).all(-1)
    longest = max(len(run) for row in black for run in "".join("x" if each else " " for each in row).split())
    assert longest == pytest.approx(grass * 1000 * kilometres / (columns * metres), abs=1)


@pytest.mark.parametrize("sight", [None, *DIM])
def test_everyone_can_tell_the_colours_apart(sight: str | None) -> None:
    """By the distance in CIELAB, in which 2 is just noticeable."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    found = {}
    for name, colour in {**COLOURS, "break": BLACK}.items():
        part = np.array(colour) / 255
        linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
        seen = xyz @ np.clip((np.eye(3) if sight is None else np.array(DIM[sight])) @ linear, 0, 1)
        x, y, z = np.cbrt(seen / [0.9505, 1, 1.089])
        found[name] = np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(found.values(), 2)) > 18


def test_a_map_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    ground, nothing = flat((5, 5)), np.zeros((5, 5), bool)
    burned = np.zeros((2, 5, 5), np.float32)
    with pytest.raises(UserError, match=r"cannot write .*; name another file"):
        write_map(tmp_path / "none" / "b.png", ground, nothing, burned)
    write_map(tmp_path / "b.png", ground, nothing, burned)
    shown = np.rint(255 * imread(tmp_path / "b.png")[..., :3]).astype(np.uint8)
    np.testing.assert_array_equal(shown, draw_map(ground, nothing, burned))
