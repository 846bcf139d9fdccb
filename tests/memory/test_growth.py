"""Growth is distinguished from noise: against SciPy's slopes, on known series, and with planted growth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.memory.growth import (
    ENDED,
    FILLING,
    FLAT,
    HISTORY,
    LEAK,
    MIN_GENERATIONS,
    SAW_TOOTH,
    STEP,
    WARM_UP,
    Trend,
    judge,
    theil_sen,
)

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


def noisy(level: np.ndarray, seed: int) -> np.ndarray:
    """Levels of resident memory: a warm-up, and steps of up to a megabyte that come and go."""
    rng, steps = np.random.default_rng(seed), [0.0]
    for _ in level[1:]:
        steps.append(rng.uniform(0, 1e6) if rng.random() < 0.3 else steps[-1])
    return level + levels(len(level), noise=3e4, seed=seed) + np.array(steps)


@pytest.mark.parametrize("start", [3, 8, 20])
@pytest.mark.parametrize(("slope", "noise"), [(1e5, 3e3), (3e5, 1e4), (4e6, 1e4)])
def test_a_leak_is_found_with_its_rate_and_start(start: int, slope: float, noise: float) -> None:
    for count in range(start + 8, start + 30):
        verdict = judge(levels(count, slope, start, noise, seed=count), MIN_SLOPE)
        assert verdict.kind == LEAK
        (growth,) = verdict.growths
        assert growth.slope.low <= slope * 1.01
        assert growth.slope.high >= slope * 0.99
        assert growth.slope.median == pytest.approx(slope, rel=0.1)
        assert (growth.since, growth.until) == (start, None)


def test_a_leak_since_the_first_generation_is_said_to_be_that_old() -> None:
    assert judge(np.arange(12) * 3e5, MIN_SLOPE).growths[0].since == 0


@pytest.mark.parametrize("start", [3, 8, 20])
def test_the_start_is_found_in_the_noise_of_resident_memory(start: int) -> None:
    time = np.arange(start + 16)
    right = 0
    for seed in range(20):
        verdict = judge(noisy(4.5e5 * np.maximum(0, time - start + 1), seed), 1e5)
        right += verdict.kind == LEAK and abs(verdict.growths[0].since - start) <= 2
    assert right >= 18


@pytest.mark.parametrize("noise", [0, 1e4, 1e6])
def test_noise_alone_is_no_leak(noise: float) -> None:
    for seed in range(100 if noise else 1):
        assert judge(levels(60, noise=noise, seed=seed), MIN_SLOPE).kind != LEAK
    for seed in range(20):
        assert all(judge(noisy(np.zeros(count), seed), 1e5).kind != LEAK for count in (10, 20, 40, 100))


def test_no_growth_is_reported_too_early() -> None:
    least = WARM_UP + MIN_GENERATIONS
    assert judge(levels(least - 1, slope=1e6), MIN_SLOPE).kind == FLAT
    assert judge(levels(least, slope=1e6), MIN_SLOPE).kind == LEAK


TIME = np.arange(60)


@pytest.mark.parametrize(
    ("level", "kind", "stretches"),
    [
        (np.clip(TIME - 8, 0, 12) * 1e6, ENDED, [(9, 20)]),
        (np.minimum(TIME, 25) * 1e6, FILLING, [(0, 25)]),
        (2e7 * (1 - 0.8**TIME), FILLING, []),  # ever more slowly
        (np.where(TIME > 20, 5e7, 0), STEP, []),
        (TIME % 9 * 1e6, SAW_TOOTH, []),
        (np.maximum(0, TIME - 30) % 12 * 3e5, SAW_TOOTH, []),
        (-TIME * 1e5, FLAT, []),  # shrinks
        (TIME * 2e4, FLAT, []),  # too little to matter
        (np.maximum(0, TIME - 8) // 3 * 9e5, LEAK, [(11, None)]),  # in every third generation
        (np.maximum(0, TIME - 8) * 3e5 + np.maximum(0, TIME - 30) * 4e5, LEAK, [(9, None), (31, None)]),  # a second one
        (np.clip(TIME - 8, 0, 12) * 1e6 + np.maximum(0, TIME - 40) * 3e5, LEAK, [(9, 20), (41, None)]),  # again
    ],
)
@pytest.mark.parametrize("noise", [0, 5e3])
def test_kinds_of_growth_are_told_apart(
    level: np.ndarray, kind: str, stretches: list[tuple[int, int | None]], noise: float
) -> None:
    verdict = judge(level + noise * np.random.default_rng(0).standard_normal(60), MIN_SLOPE)
    assert verdict.kind == kind
    found = [(growth.since, growth.until) for growth in verdict.growths]
    assert len(found) == len(stretches)
    for (since, until), (expected_since, expected_until) in zip(found, stretches, strict=True):
        assert abs(since - expected_since) <= 2
        assert until == expected_until or (until and expected_until and abs(until - expected_until) <= 1)


def test_a_leak_that_gets_faster_goes_on() -> None:
    for seed in range(20):
        noise = 1e4 * np.random.default_rng(seed).standard_normal(60)
        level = np.maximum(0, TIME - 8) * 4e5 + np.maximum(0, TIME - 30) * 8e5 + noise
        assert {judge(level[:count], MIN_SLOPE).kind for count in range(24, 60)} == {LEAK}


def test_a_leak_that_ends_in_a_cache_that_fills_has_ended() -> None:
    level = np.clip(TIME - 8, 0, 22) * 4e5 + 3e7 * (1 - np.exp(-np.maximum(0, TIME - 30) / 8))
    assert judge(level, MIN_SLOPE).kind == ENDED


def test_a_verdict_is_revised_when_what_looked_like_a_leak_falls() -> None:
    level = np.maximum(0, TIME - 8) % 12 * 3e5
    kinds = [judge(level[:count], MIN_SLOPE).kind for count in range(10, 60)]
    assert LEAK in kinds
    assert set(kinds[12:]) == {SAW_TOOTH}  # from the first fall on


@settings(max_examples=20)
@given(
    slope=st.floats(1e5, 5e6),
    start=st.integers(3, 20),
    more=st.integers(10, 60),
    offset=st.floats(0, 1e10),
    seed=st.integers(0, 999),
)
def test_judgement_does_not_depend_on_the_level_and_never_calls_a_fall_a_leak(
    slope: float, start: int, more: int, offset: float, seed: int
) -> None:
    level = levels(start + more, slope, start, noise=1e3, seed=seed)
    verdict = judge(level, MIN_SLOPE)
    assert verdict.kind == LEAK
    assert abs(verdict.growths[0].since - start) <= 2
    moved = judge(level + offset, MIN_SLOPE)
    assert [(growth.since, growth.until) for growth in moved.growths] == [
        (growth.since, growth.until) for growth in verdict.growths
    ]
    assert judge(-level, MIN_SLOPE).kind != LEAK
    gaps = np.where(np.arange(len(level)) % 7 == 6, np.nan, level)
    if more > 12:
        assert abs(judge(gaps, MIN_SLOPE).growths[0].since - start) <= 2


def test_a_trend_thins_out_the_older_half_of_a_long_run_and_keeps_gaps() -> None:
    trend = Trend()
    for generation in range(5 * HISTORY):
        trend.add(generation, {"a": generation, **({"b": -1} if generation >= 15 else {})})
    assert len(trend.generations) <= HISTORY
    assert trend.generations.tolist() == trend.series["a"].tolist()
    assert trend.generations[: WARM_UP + 1].tolist() == [0, 1, 2]
    assert trend.generations[-1] == 5 * HISTORY - 1
    assert np.isnan(trend.series["b"][trend.generations < 15]).all()
    assert (trend.series["b"][trend.generations >= 15] == -1).all()


@pytest.mark.parametrize("gap", [0, 4, 9, 30])
def test_generations_without_a_value_do_not_end_a_leak(gap: int) -> None:
    """Traced generations have none."""
    generations = np.array([*range(9), *range(9 + gap, 19 + gap)])
    levels = 163e6 + 402e3 * np.maximum(generations - 3, 0)
    for known in range(9, len(levels) + 1):
        verdict = judge(levels[:known], 50e3, generations[:known])
        assert [verdict.kind, *(growth.since for growth in verdict.growths)] == [LEAK, 4]
