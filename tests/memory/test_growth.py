"""Growth is distinguished from noise: against SciPy's slopes, on known series, and with planted growth."""

import numpy as np
import pytest

from eigen2.memory.growth import HISTORY, MIN_GENERATIONS, WARM_UP, RisingCounts, Trend, find_growth, theil_sen
from eigen2.memory.snapshot import format_generations

MIN_SLOPE = 50e3


@pytest.mark.parametrize(
    ("seed", "count", "confidence", "expected"),
    [
        (0, 7, 0.9, (2.225, -0.675, 5.0)),
        (3, 30, 0.99, (1.3, 0.85, 2.00714286)),
    ],
)
def test_the_slope_and_its_interval_are_those_of_scipy(
    seed: int, count: int, confidence: float, expected: tuple[float, float, float]
) -> None:
    """Expected numbers are those of `scipy.stats.theilslopes` 1.17, which is not imported as that takes seconds."""
    values = np.round(10 * np.random.default_rng(seed).normal(size=count) + np.arange(count), 1)
    ours = theil_sen(values, confidence)
    assert (ours.median, ours.low, ours.high) == pytest.approx(expected)


def levels(generations: int, slope: float = 0.0, start: int = 0, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    """Bytes in use: a warm-up of megabytes, then noise and a leak."""
    time, rng = np.arange(generations), np.random.default_rng(seed)
    base = 2.6e8 - 4e6 * (time == 0) - 1e6 * (time == 1)
    return base + slope * np.maximum(0, time - start + 1) + noise * rng.standard_normal(generations)


def test_a_leak_is_found_with_its_rate_and_start() -> None:
    growth = find_growth(range(20), levels(20, slope=3e5, start=9, noise=1e4), MIN_SLOPE)
    assert growth is not None
    assert growth.slope.low < 3e5 < growth.slope.high
    assert growth.slope.median == pytest.approx(3e5, rel=0.1)
    assert growth.since == 9


@pytest.mark.parametrize("noise", [0, 1e4, 1e6])
def test_noise_alone_is_no_leak(noise: float) -> None:
    for seed in range(100 if noise else 1):
        assert find_growth(range(60), levels(60, noise=noise, seed=seed), MIN_SLOPE) is None


def test_no_growth_is_reported_too_early() -> None:
    least = WARM_UP + MIN_GENERATIONS
    assert find_growth(range(least - 1), levels(least - 1, slope=1e6), MIN_SLOPE) is None
    assert find_growth(range(least), levels(least, slope=1e6), MIN_SLOPE) is not None


@pytest.mark.parametrize(
    "level",
    [
        np.minimum(np.arange(40), 25) * 1e6,  # fills, then stays
        2e7 * (1 - 0.8 ** np.arange(40)),  # warms up slowly
        np.where(np.arange(40) > 20, 5e7, 0),  # one step
        np.arange(40) % 5 * 1e6,  # comes and goes
        -np.arange(40) * 1e5,  # shrinks
        np.arange(40) * 2e4,  # too little to matter
    ],
)
def test_what_ends_or_does_not_matter_is_no_leak(level: np.ndarray) -> None:
    assert find_growth(range(40), level, MIN_SLOPE) is None


def test_a_trend_holds_the_last_generations_with_gaps() -> None:
    trend = Trend()
    for generation in range(HISTORY + 10):
        trend.add(generation, {"a": generation, **({"b": -1} if generation >= 15 else {})})
    assert trend.generations.tolist() == trend.series["a"].tolist() == list(range(10, HISTORY + 10))
    assert np.isnan(trend.series["b"][:5]).all()
    assert (trend.series["b"][5:] == -1).all()


def test_the_table_of_generations_is_short() -> None:
    trend = Trend()
    for generation in range(20):
        trend.add(generation, {"rss": 3e9, "memory": 2e6, "phase train": 1e6, "phase generation": -2e6})
    title, *rows = format_generations(trend)
    assert title.split() == ["generation", "RSS", "GB", "live", "MB", "train", "rest"]
    assert [row.split() for row in rows] == [
        [str(n), "3.000", "2.0", "+1.00", "-2.00"] for n in (0, 3, 6, 9, 12, 15, 18, 19)
    ]


def test_counts_that_rise_in_every_generation_are_reported_with_their_start() -> None:
    counter = RisingCounts()
    for generation in range(-1, 9):
        counts = {"leak": 4 * max(0, generation - 2), "old": 100 + 2 * (generation + 1), "noise": generation % 3}
        counts |= {"step": 5 if generation > 1 else 0, **({"new": generation} if generation >= 3 else {})}
        counter.add(generation, counts)
    rises = [(name, rise.start, rise.now, rise.since) for name, rise in counter.rises().items()]
    assert rises == [("leak", 0, 24, 3), ("old", 100, 118, 0), ("new", 0, 8, 3)]
