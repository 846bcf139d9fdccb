"""Encoders against naive means over the window, with statistics of training days and nothing of the future."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eigen2.market.data.cache import load_panel
from eigen2.market.data.panel import MarketPanel, build_panel
from eigen2.market.data.splits import Splits
from eigen2.market.features.averages import CLIP, column_groups, spans
from eigen2.market.features.encoding import AverageEncoder, WindowEncoder
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.bars import tie_breaks
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.panels import plain_scale

FEATURES, CHANNELS = 9, 10
HALF = 2**-11
"""Largest relative error of half precision."""
RULES = TradingRules(max_target=40, max_holding_days=8)
EPISODE = EpisodeSettings(RULES, AccountRules(max_leverage=2.0), trading_days=13, settlement_days=7)


def averages(panel: MarketPanel, investable: list[int], context_days: int) -> AverageEncoder:
    return AverageEncoder(panel, investable, context_days, EPISODE)


def in_memory(panel: MarketPanel) -> MarketPanel:
    return replace(panel, features=panel.features.copy())


def random_panel(days: int, columns: int, train: int, seed: int = 0) -> MarketPanel:
    """Make random features and prices: a tenth of the columns' days without a price, some features without a value."""
    rng = np.random.default_rng(seed)
    offset, scale = rng.normal(0, 1, (columns, FEATURES)), rng.uniform(0.5, 2, (columns, FEATURES))
    features = np.clip(offset + scale * rng.normal(0, 1, (days, columns, FEATURES)), -10, 10).astype(np.float32)
    closed = rng.random((days, columns)) < 0.1
    valid = (rng.random(features.shape) < 0.9) & ~closed[..., None]
    features[~valid] = 0
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.05, (days, columns)), axis=0))
    prices = np.stack([close * 0.99, close * 1.03, close * 0.97, close], axis=2).astype(np.float32)
    prices[closed] = np.nan
    return MarketPanel(
        dates=np.datetime64("2000-01-03") + np.arange(days),
        scale=plain_scale(tuple(f"T{column:03d}" for column in range(columns))),
        features=features,
        valid=valid,
        prices=prices,
        traded_value=np.ones(columns),
        splits=Splits((range(train),), (range(train, days),), range(days, days)),
    )


def day_values(panel: MarketPanel, day: int) -> np.ndarray:
    """Return (columns, 10) float64: nine features and the fraction of them that is valid."""
    validity = [[sum(map(bool, feature)) / FEATURES] for feature in panel.valid[day]]
    return np.concatenate([panel.features[day].astype(float), validity], axis=1)


def naive_average(panel: MarketPanel, groups: list[list[int]], day: int, span: int) -> np.ndarray:
    """Return (groups, 10): each group's mean over its columns and the last `span` days up to `day`."""
    window = [day_values(panel, past) for past in range(day - span + 1, day + 1)]
    return np.stack([np.mean([values[group].mean(axis=0) for values in window], axis=0) for group in groups])


def naive_encoding(
    panel: MarketPanel, investable: list[int], context_days: int, days: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `describe` should for one agent: (days, columns, width) and (days, groups x width)."""
    indicators = [column for column, name in enumerate(panel.tickers) if name in panel.indicators]
    rest = [column for column in range(panel.num_columns) if column not in [*investable, *indicators]]
    described = [[column] for column in investable] + [group for group in (investable, rest, indicators) if group]
    per_span = []
    for span in spans(context_days):
        train = range(context_days - 1, panel.splits.train[0].stop)
        past = np.stack([naive_average(panel, described, day, span) for day in train])
        averages = np.stack([naive_average(panel, described, day, span) for day in days])
        # all columns share their statistics, each group has its own
        parts = [slice(len(investable)), *(slice(i, i + 1) for i in range(len(investable), len(described)))]
        for part in parts:
            pooled = past[:, part].reshape(-1, CHANNELS)
            std = np.maximum(pooled.std(axis=0), 1e-3)
            averages[:, part] = np.clip((averages[:, part] - pooled.mean(axis=0)) / std, -CLIP, CLIP)
        per_span.append(averages)
    encoded = np.concatenate(per_span, axis=2)
    return encoded[:, : len(investable)], encoded[:, len(investable) :].reshape(len(days), -1)


def assert_naive(panel: MarketPanel, investable: list[int], context_days: int, days: list[int], atol: float) -> None:
    found = averages(panel, investable, context_days).describe(torch.tensor([days], dtype=torch.int32))
    for ours, expected in zip(found, naive_encoding(panel, investable, context_days, days), strict=True):
        assert ours.dtype == torch.float32
        np.testing.assert_allclose(ours[0].numpy(), expected, rtol=HALF, atol=atol)


def test_spans() -> None:
    doubling = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    expected = {1: [1], 2: [1, 2], 3: [1, 2, 3], 5: [1, 2, 4, 5], 504: [*doubling, 504], 512: [*doubling, 512]}
    assert {context_days: spans(context_days) for context_days in expected} == expected


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 25), st.data())
def test_equals_naive_means_on_any_panel(seed: int, context_days: int, data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, 3))
    train = data.draw(st.integers(context_days + 1, 30))
    investable = data.draw(st.permutations(range(columns)).map(lambda order: order[: 1 + seed % columns]))
    panel = random_panel(days=35, columns=columns, train=train, seed=seed)
    others = [name for column, name in enumerate(panel.tickers) if column not in investable]
    indicators = tuple(others[: data.draw(st.integers(0, len(others)))])
    panel = replace(panel, scale=plain_scale(panel.tickers, indicators))
    days = data.draw(st.lists(st.integers(context_days - 1, 34), min_size=1, max_size=3))
    # an average that hardly varies in training is divided by little: float32 shows
    assert_naive(panel, investable, context_days, days, atol=1e-3)


def test_averages_across_blocks_of_days_are_like_any_other() -> None:
    panel = random_panel(days=800, columns=2, train=300)
    assert_naive(panel, [1, 0], 3, [254, 255, 256, 257, 258, 511, 512, 769, 799, 254], atol=2e-5)
    encoder = averages(panel, [1], 13)
    assert (encoder.width, encoder.groups) == (len(spans(13)) * CHANNELS, 2)


def test_running_sums_stay_exact_over_a_long_history() -> None:
    """4,000 days at the largest standardised value of 10: sums of 40,000, of which one day's change must be seen."""
    days = 4000
    panel = random_panel(days, 1, train=50)
    change = np.float32(1e-3) * np.random.default_rng(0).normal(size=(days, 1, FEATURES)).astype(np.float32)
    features = 10 - np.abs(change)
    panel = replace(panel, features=features, valid=np.ones_like(panel.valid))
    late = [days - 2, days - 1]
    columns, _ = averages(panel, [0], 4).describe(torch.tensor([late]))
    np.testing.assert_allclose(columns[0].numpy(), naive_encoding(panel, [0], 4, late)[0], atol=5e-3)


def test_indicators_are_a_group_of_their_own() -> None:
    panel = random_panel(days=40, columns=5, train=30)
    panel = replace(panel, scale=plain_scale(panel.tickers, ("T001", "T004")))
    assert column_groups(panel, [0]) == [[0], [2, 3], [1, 4]]
    assert column_groups(panel, [0, 2, 3]) == [[0, 2, 3], [1, 4]]
    encoder = averages(panel, [0], 6)
    assert encoder.groups == 3
    # 40 rows of (1 column + 3 groups) x 4 spans x 10 channels in half precision, and twice that of 4 in double; draws
    # and forecasts of 1 column, and the weights of the latter
    held = 40 * 4 * 4 * 10 * 2 + 2 * 4 * 4 * 10 * 8 + 2 * 40 * 2 + 4 * 10 * 8
    assert encoder.nbytes == AverageEncoder.needed_bytes(panel, [0], 6) == held
    _, groups = encoder.describe(torch.tensor([[35]]))
    changed = panel.features.copy()
    changed[35, [1, 4]] += 1
    _, other = averages(replace(panel, features=changed), [0], 6).describe(torch.tensor([[35]]))
    same, moved = (groups == other)[0, 0].split([2 * encoder.width, encoder.width])
    assert same.all()
    assert not moved.all()


def test_the_table_of_a_mapped_panel_is_a_file_that_the_next_encoder_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SyntheticMarket(days=120, columns=3, seed=4).generate().to_parquet(tmp_path / "prices.parquet")
    sizes = {"validation_days": 30, "holdout_days": 10}
    panel = load_panel(tmp_path / "prices.parquet", cache_dir=tmp_path / "cache", **sizes)
    days = torch.arange(5, 120)[None]
    expected = averages(in_memory(panel), [0, 2], 6).describe(days)
    assert panel.folder is not None
    assert not list(panel.folder.glob("averages-*"))

    def same(encoder: AverageEncoder) -> bool:
        return all(torch.equal(ours, right) for ours, right in zip(encoder.describe(days), expected, strict=True))

    assert same(averages(panel, [0, 2], 6))
    (file,) = panel.folder.glob("averages-*.npy")
    made = file.stat().st_mtime_ns
    # other columns and another context have files of their own
    assert not same(averages(panel, [0, 1], 6))
    averages(panel, [0, 2], 7)
    assert len(list(panel.folder.glob("averages-*.npy"))) == 3
    with monkeypatch.context() as patch:
        patch.setattr("eigen2.market.features.encoding.fill_averages", None)
        assert same(averages(panel, [0, 2], 6))
    assert file.stat().st_mtime_ns == made
    # a damaged file is made anew, and so is one whose checksum was never written
    checksum = file.with_suffix(".npy.crc32")
    for damage in (lambda: file.write_bytes(file.read_bytes()[:-7] + b"damaged"), checksum.unlink):
        damage()
        assert same(averages(panel, [0, 2], 6))
    assert not list(panel.folder.glob(".draft*"))


def test_a_table_that_cannot_be_written_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    market = SyntheticMarket(days=120, columns=3, seed=4)
    panel = load_panel(market, validation_days=30, holdout_days=10, cache_dir=tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eigen2.market.data.cache._write_file", full)
    days = torch.arange(5, 120)[None]
    ours, right = (averages(which, [0, 2], 6).describe(days) for which in (panel, in_memory(panel)))
    assert all(torch.equal(a, b) for a, b in zip(ours, right, strict=True))
    assert ["No space left on device" in record.message for record in caplog.records] == [True, True]
    assert sorted(path.name for path in panel.folder.iterdir() if "averages" in path.name) == []


def test_windows_are_looked_up_in_the_panel_itself() -> None:
    panel = random_panel(days=40, columns=4, train=30)
    env = TradingEnvironment(panel.prices[:, [1, 3]], RULES, agents=3, windows=2)
    observation, _ = env.reset(options=window_options([10, 12], 15, 20))
    encoder = WindowEncoder(panel, [1, 3], 5, EPISODE)
    inputs = encoder(observation)
    assert inputs["day"].tolist() == [[10, 12]]
    assert inputs["panel"].data_ptr() == torch.from_numpy(panel.features).data_ptr()
    assert inputs["panel"].shape == (1, *panel.features.shape)
    assert inputs["investable"].tolist() == [[1, 3]]
    torch.testing.assert_close(inputs["market"], torch.full((1, 2, 1), 19 / 20))
    for name in ("portfolio", "draws"):
        assert torch.equal(inputs[name], averages(panel, [1, 3], 5)(observation)[name])
    assert encoder.nbytes == WindowEncoder.needed_bytes(panel, [1, 3], 5) == 40 * 2 * 2  # the draws
    shapes = {name: tuple(inputs[name].shape[2:]) for name in ("day", "panel", "portfolio", "draws", "market")}
    assert encoder.input_shapes == {**shapes, "investable": (2,)}


def test_network_inputs_known_answers() -> None:
    panel = random_panel(days=40, columns=3, train=30)
    panel.prices[10], panel.prices[31] = 100, 100
    panel.prices[10, 2] = np.nan
    encoder = averages(panel, [0, 1, 2], 5)
    day = torch.tensor([[10, 31]], dtype=torch.int32)
    # two agents, two windows, three columns; the second window is in its settlement, the second agent without money
    portfolio = {
        "held_days": torch.tensor([[[0, 2, 0], [8, 0, 0]]] * 2, dtype=torch.uint8),
        "gain": torch.tensor([[[0, -0.05, 0], [0.9, 0, 0]]] * 2, dtype=torch.float16),
        "target": torch.tensor([[[0, 102, 0], [255, 0, 0]]] * 2, dtype=torch.uint8),
        "coefficient": torch.tensor([[[0, 51, 0], [204, 0, 0]]] * 2, dtype=torch.uint8),
        "cash": torch.tensor([[0.25, 1.0], [-9.0, 1.0]], dtype=torch.float16),
        "room": torch.tensor([[1.25, 2.0], [0.9e-4, 2.0]], dtype=torch.float16),
    }
    inputs = encoder({"day": day, "days_left": torch.tensor([[7, 6]], dtype=torch.int16), **portfolio})
    columns, groups = encoder.describe(day)
    assert {name: tuple(value.shape[2:]) for name, value in inputs.items()} == encoder.input_shapes
    shared = {"columns": (1, 2), "ridge": (1, 2), "portfolio": (2, 2), "draws": (1, 2), "market": (1, 2)}
    assert {name: tuple(value.shape[:2]) for name, value in inputs.items()} == shared
    assert torch.equal(inputs["columns"], columns)
    assert torch.equal(inputs["market"][..., :-1], groups)
    torch.testing.assert_close(inputs["market"][..., -1], torch.tensor([[7 / 20, 6 / 20]]))
    assert inputs["draws"][0].tolist() == tie_breaks(panel.prices)[[10, 31]].tolist()
    # orderable, held, days held / 8, gain in tenths (clipped to 5), target and coefficient in steps of 255
    first = [[1, 0, 0, 0, 0, 0], [0, 1, 0.25, -0.5, 0.4, 0.2], [0, 0, 0, 0, 0, 0]]
    second = [[0, 1, 1, CLIP, 1, 0.8], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    expected = torch.tensor([[first, second]] * 2)
    expected[1, 0, 0, 0] = 0
    torch.testing.assert_close(inputs["portfolio"][..., :6], expected, atol=1e-3, rtol=0)
    # cash, clipped to 5, and room / max_leverage, the same in every column
    money = torch.tensor([[[0.25, 0.625], [1, 1]], [[-CLIP, 0.45e-4], [1, 1]]])
    torch.testing.assert_close(inputs["portfolio"][..., 6:], money[:, :, None].expand(2, 2, 3, 2), atol=1e-3, rtol=0)


def inputs_until(panel: MarketPanel, last_known: int, investable: list[int], seed: int) -> list[dict[str, Tensor]]:
    """Return the network inputs of an episode of random trades, one a day, up to the close of `last_known`."""
    rules = TradingRules(max_holding_days=4, max_opens_per_day=2)
    env = TradingEnvironment(panel.prices[:, investable], rules, agents=2, windows=1)
    encoder = AverageEncoder(panel, investable, 6, EpisodeSettings(rules, AccountRules(), panel.num_days - 10, 5))
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(options=window_options([5], panel.num_days - 10, panel.num_days - 5))
    inputs = [encoder(observation)]
    for _ in range(last_known - 5):
        action = rng.uniform(0, [5, 30], (2, 1, len(investable), 2)).astype(np.float32)
        observation, reward, *_ = env.step(torch.from_numpy(action))
        inputs.append({**encoder(observation), "reward": reward})
    return inputs


def assert_identical(left: list[dict[str, Tensor]], right: list[dict[str, Tensor]]) -> None:
    for day, (a, b) in enumerate(zip(left, right, strict=True)):
        for name in a:
            assert torch.equal(a[name], b[name]), (day, name)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(8, 38), st.data())
def test_later_days_change_no_earlier_input(seed: int, last_known: int, data: st.DataObject) -> None:
    train = data.draw(st.integers(7, last_known + 1), label="train")  # their statistics may be known
    panel, other = (random_panel(days=40, columns=4, train=train, seed=which) for which in (seed, seed + 1))
    later = np.arange(40) > last_known
    changed = replace(
        panel,
        features=np.where(later[:, None, None], other.features, panel.features),
        valid=np.where(later[:, None, None], other.valid, panel.valid),
        prices=np.where(later[:, None, None], other.prices, panel.prices),
    )
    investable = [0, 1, 3]
    ours, theirs = (inputs_until(which, last_known, investable, seed) for which in (panel, changed))
    assert_identical(ours, theirs)
    # and the day after is where it shows
    shown = (inputs_until(which, last_known + 1, investable, seed)[-1]["columns"] for which in (panel, changed))
    assert not torch.equal(*shown)


def test_later_prices_of_the_file_change_no_earlier_input() -> None:
    """From the price table through features and standardisation to the networks."""
    table = SyntheticMarket(days=120, columns=3, seed=4).generate()
    dates = np.sort(table["date"].unique())
    changed = table.copy()
    late = changed["date"] > dates[90]
    changed.loc[late, ["open", "high", "low", "close"]] *= 1.7
    panels = [build_panel(which, validation_days=30, holdout_days=10) for which in (table, changed)]
    assert panels[0].splits.train[0].stop == 80
    assert_identical(*(inputs_until(panel, 90, [0, 2], seed=1) for panel in panels))
    first, second = (inputs_until(panel, 91, [0, 2], seed=1)[-1] for panel in panels)
    assert not torch.equal(first["columns"], second["columns"])
