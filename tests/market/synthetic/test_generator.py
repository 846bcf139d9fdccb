"""The synthetic market has the statistics its settings promise."""

import errno
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import asdict, fields, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.errors import UserError
from eigen2.market.data.panel import build_panel
from eigen2.market.data.source import PRICE_COLUMNS, read_prices
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet

MARKET = SyntheticMarket(days=2000, columns=50, seed=3, signal=0.5, half_life_days=10.0, market_share=0.2)


def wide(market: SyntheticMarket, column: str) -> np.ndarray:
    return market.generate().pivot(index="date", columns="ticker", values=column).to_numpy()


def slope(x: np.ndarray, y: np.ndarray) -> float:
    return float((x * y).sum() / (x * x).sum())


def test_next_returns_have_slope_one_on_the_drift_and_gaps_none():
    drift, close, open_ = MARKET.drift(), wide(MARKET, "close"), wide(MARKET, "open")
    # standard error: 1 / (signal sqrt(100,000)) = 0.006
    assert slope(drift[:-1], np.diff(np.log(close), axis=0)) == pytest.approx(1, abs=0.03)
    assert slope(drift[:-1], np.log(close / open_)[1:]) == pytest.approx(1, abs=0.03)
    gap = np.log(open_[1:] / close[:-1])
    assert slope(drift[:-1], gap) == pytest.approx(0, abs=0.01)
    assert gap.std() == pytest.approx(MARKET.gap * MARKET.volatility, rel=0.02)


def test_drift_has_the_promised_spread_and_half_life():
    market = replace(MARKET, days=4000, columns=100)
    drift = market.drift()
    assert drift.shape == (4000, 100)
    assert drift.std() == pytest.approx(market.signal * market.volatility, rel=0.02)
    assert slope(drift[:-1], drift[1:]) == pytest.approx(0.5 ** (1 / 10), abs=0.005)
    assert slope(drift[:-10], drift[10:]) == pytest.approx(0.5, abs=0.02)
    # stationary from the first day on
    assert drift[:20].std() == pytest.approx(drift.std(), rel=0.1)


def test_noise_has_the_promised_spread_and_common_share():
    market = replace(MARKET, gap=0.6)
    noise = np.diff(np.log(wide(market, "close")), axis=0) - market.drift()[:-1]
    assert noise.std() == pytest.approx(market.volatility, rel=0.02)
    correlation = np.corrcoef(noise.T)
    others = correlation[~np.eye(len(correlation), dtype=bool)]
    # the gap, 0.36 of the variance, is each column's own
    assert others.mean() == pytest.approx(0.2 * 0.64, abs=0.02)


def test_no_signal_no_predictability():
    market = replace(MARKET, signal=0.0)
    assert not market.drift().any()
    returns = np.diff(np.log(wide(market, "close")), axis=0)
    assert slope(MARKET.drift()[:-1], returns) == pytest.approx(0, abs=0.03)
    assert slope(returns[:-1], returns[1:]) == pytest.approx(0, abs=0.03)
    # with a signal: autocovariance of the drift over the variance of returns: 0.25 phi / 1.25
    returns = np.diff(np.log(wide(MARKET, "close")), axis=0)
    assert slope(returns[:-1], returns[1:]) == pytest.approx(0.2 * 0.5 ** (1 / 10), abs=0.03)


def test_the_seed_decides_everything():
    market = SyntheticMarket(days=60, columns=4, missing=0.1)
    pd.testing.assert_frame_equal(market.generate(), replace(market).generate())
    assert not market.generate().equals(replace(market, seed=1).generate())
    np.testing.assert_array_equal(market.drift(), market.drift())


def test_missing_rows():
    market = SyntheticMarket(days=400, columns=20, missing=0.3)
    complete, prices = replace(market, missing=0.0).generate(), market.generate()
    assert len(complete) == 400 * 20
    # the first column loses none; standard error 0.005
    assert 1 - len(prices) / len(complete) == pytest.approx(0.3 * (1 - 1 / 20), abs=0.02)
    panel = build_panel(prices, validation_days=0, holdout_days=0)
    assert (panel.num_days, panel.num_columns) == market.drift().shape


def test_tickers_sort_by_number():
    tickers = SyntheticMarket(days=2, columns=10_001).tickers
    assert tickers == sorted(tickers) == [f"S{column:05d}" for column in range(10_001)]
    assert SyntheticMarket(days=2, columns=3).generate()["ticker"].unique().tolist() == ["S0000", "S0001", "S0002"]


OUT_OF_RANGE: dict[str, tuple[float, ...]] = {
    **{"days": (1,), "columns": (0,), "seed": (-1,), "volatility": (0.0, 0.6), "signal": (-0.1,), "missing": (1.0,)},
    **{"half_life_days": (0.0, math.inf), "market_share": (1.5,), "gap": (-1.0,), "sectors": (-1,)},
    **{"sector_share": (1.1,), "tail_df": (2.0, 1001.0), "turbulence": (0.9, 20.1), "calm_days": (0.5,)},
    **{"turbulent_days": (math.inf,), "late_listings": (1.1,), "delistings": (-0.1,), "delisting_fall": (1.0,)},
    **{"halts": (1001.0,), "halt_days": (0.9,)},
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, each in OUT_OF_RANGE.items() for value in each])
def test_settings_out_of_range(name, value):
    with pytest.raises(UserError, match=f"{name} of the synthetic market is {value}; it must be") as error:
        SyntheticMarket(**{name: value})
    assert "\n" not in str(error.value)


def test_nan_is_refused():
    for field in fields(SyntheticMarket):
        if "float" in str(field.type):
            with pytest.raises(UserError, match=f"{field.name} of the synthetic market is nan"):
                SyntheticMarket(**{field.name: float("nan")})


def test_shares_above_one_are_refused_where_there_are_sectors():
    with pytest.raises(UserError, match=r"market_share 0\.9 and sector_share 0\.2"):
        SyntheticMarket(sectors=2, market_share=0.9, sector_share=0.2)
    SyntheticMarket(sectors=1, market_share=0.9, sector_share=0.2)
    SyntheticMarket(sectors=2, market_share=0.7, sector_share=0.3)


PLAIN = SyntheticMarket(days=120, columns=11, seed=4)
EVERYTHING = replace(
    PLAIN,
    **{"missing": 0.05, "sectors": 3, "tail_df": 4.0, "turbulence": 3.0, "calm_days": 20.0, "turbulent_days": 5.0},
    **{"late_listings": 0.3, "delistings": 0.3, "delisting_fall": 0.5, "halts": 2.0},
)


def rows_of(prices: pd.DataFrame, columns: int) -> pd.DataFrame:
    return prices[prices["ticker"].str[1:].astype(int) < columns].reset_index(drop=True)


@pytest.mark.parametrize("market", [PLAIN, EVERYTHING])
def test_a_column_does_not_depend_on_how_many_there_are(market):
    fewer = replace(market, columns=4)
    pd.testing.assert_frame_equal(rows_of(market.generate(), 4), fewer.generate())
    np.testing.assert_array_equal(market.drift()[:, :4], fewer.drift())


@pytest.mark.parametrize("columns_per_block", [1, 4, 100])
def test_blocks_are_the_whole_table(columns_per_block):
    blocks = list(EVERYTHING.blocks(columns_per_block))
    assert [block["ticker"].nunique() for block in blocks[:-1]] == [columns_per_block] * (len(blocks) - 1)
    pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), EVERYTHING.generate())
    with pytest.raises(UserError, match="columns_per_block is 0"):
        next(PLAIN.blocks(0))


@pytest.mark.parametrize("market", [PLAIN, replace(PLAIN, sectors=3, tail_df=4.0, turbulence=3.0)])
def test_more_days_leave_earlier_prices(market):
    longer = replace(market, days=200)
    np.testing.assert_array_equal(longer.prices()[:120], market.prices())
    np.testing.assert_array_equal(longer.drift()[:120], market.drift())


@pytest.mark.parametrize(
    "change",
    [{"missing": 0.2}, {"halts": 5.0}, {"late_listings": 1.0}, {"delistings": 1.0}],
    ids=lambda c: next(iter(c)),
)
def test_rows_left_out_leave_the_others_alone(change):
    complete, prices = PLAIN.generate(), replace(PLAIN, **change).generate()
    assert len(prices) < len(complete)
    assert (prices.merge(complete, how="left", indicator=True)["_merge"] == "both").all()
    # the first column has every day
    pd.testing.assert_frame_equal(rows_of(prices, 1), rows_of(complete, 1))


def test_array_and_table_agree():
    prices, table = EVERYTHING.prices(), EVERYTHING.generate()
    assert prices.dtype == np.float32
    for i, name in enumerate(PRICE_COLUMNS):
        pivot = table.pivot(index="date", columns="ticker", values=name).to_numpy(np.float32)
        np.testing.assert_array_equal(prices[..., i], pivot)
    np.testing.assert_array_equal(EVERYTHING.drift(), PLAIN.drift())


def returns_of(market: SyntheticMarket) -> np.ndarray:
    return np.diff(np.log(wide(market, "close")), axis=0)


@pytest.mark.parametrize("tail_df", [None, 6.0])
def test_sectors_share_noise(tail_df):
    market = SyntheticMarket(
        days=4000, columns=12, signal=0.0, gap=0.0, sectors=3, market_share=0.2, sector_share=0.3, tail_df=tail_df
    )
    returns = returns_of(market)
    assert returns.std() == pytest.approx(market.volatility, rel=0.03)
    correlation = np.corrcoef(returns.T)
    sector = np.arange(12) % 3
    same = sector[:, None] == sector
    np.fill_diagonal(correlation, np.nan)
    assert np.nanmean(correlation[same]) == pytest.approx(0.5, abs=0.03)
    assert np.nanmean(correlation[~same]) == pytest.approx(0.2, abs=0.03)


def test_fewer_than_two_sectors_are_none():
    pd.testing.assert_frame_equal(replace(PLAIN, sectors=1).generate(), PLAIN.generate())
    assert not replace(PLAIN, sectors=2).generate().equals(PLAIN.generate())


def test_tails_are_those_of_student():
    market = SyntheticMarket(
        days=50_000, columns=4, volatility=0.002, signal=0.0, gap=0.0, market_share=0.0, tail_df=3.0
    )
    unit = returns_of(market) / market.volatility
    for bound in (0.5, 1.0, 4.0):
        # distribution of t with 3 degrees of freedom, in closed form; its variance is 3
        t = bound * math.sqrt(3)
        beyond = 1 - 2 / math.pi * (t / math.sqrt(3) / (1 + t**2 / 3) + math.atan(t / math.sqrt(3)))
        error = math.sqrt(beyond * (1 - beyond) / unit.size)
        assert (np.abs(unit) > bound).mean() == pytest.approx(beyond, abs=4 * error)
    # each column has its own: standard error of the correlation of sizes 0.0045
    sizes = np.corrcoef(np.minimum(np.abs(unit), 5).T)
    assert np.abs(sizes[~np.eye(4, dtype=bool)]).max() < 0.02
    # beyond 4 deviations: 0.6 %, where normal noise would have 0.006 %
    assert beyond == pytest.approx(0.0062, abs=0.0001)


def test_kurtosis_of_normal_noise_and_of_a_sum_of_factors():
    unit = returns_of(replace(MARKET, signal=0.0, market_share=0.0)) / MARKET.volatility
    # standard error: sqrt(24 / 100,000) = 0.015
    assert (unit**4).mean() == pytest.approx(3, abs=0.06)
    # each column is a sector of its own
    still = {"volatility": 0.001, "signal": 0.0, "gap": 0.0, "market_share": 0.0}
    market = SyntheticMarket(days=100_000, columns=4, **still, sectors=4, sector_share=0.5, tail_df=10.0)
    returns = returns_of(market)
    unit = (returns - returns.mean()) / returns.std()
    # 6 / (10 - 4) x (0.5^2 + 0.5^2)
    assert (unit**4).mean() - 3 == pytest.approx(0.5, abs=0.1)
    assert returns.std() == pytest.approx(0.001, rel=0.01)
    assert (unit**3).mean() == pytest.approx(0, abs=0.03)


def test_occupancy_and_length_of_regimes():
    states = SyntheticMarket(days=200_000, columns=1, calm_days=30.0, turbulent_days=10.0).turbulent()
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for state, run in groupby(states.tolist()):
        lengths[state].append(sum(1 for _ in run))
    # 5,000 stretches of each: standard error 1.4 %
    assert np.mean(lengths[False]) == pytest.approx(30, rel=0.06)
    assert np.mean(lengths[True]) == pytest.approx(10, rel=0.06)
    assert states.mean() == pytest.approx(0.25, abs=0.015)
    # geometric: one in ten turbulent stretches ends after a day
    assert np.mean(np.array(lengths[True]) == 1) == pytest.approx(0.1, abs=0.018)


def test_regimes_start_in_their_long_run_fractions():
    market = SyntheticMarket(days=2, calm_days=30.0, turbulent_days=10.0)
    first = [replace(market, seed=seed).turbulent()[0] for seed in range(600)]
    assert np.mean(first) == pytest.approx(0.25, abs=0.07)


def test_regimes_scale_gap_noise_and_range_of_a_day():
    plain = replace(PLAIN, signal=0.0)
    market = replace(plain, turbulence=3.0, calm_days=20.0, turbulent_days=5.0)
    # mean square 1 over the long run: (20 + 5 x 9) / 25 = 2.6
    scale = np.where(market.turbulent(), 3.0, 1.0) / math.sqrt(2.6)
    assert 0 < market.turbulent().sum() < market.days
    ours, theirs = ({name: np.log(wide(m, name)) for name in PRICE_COLUMNS} for m in (market, plain))

    def parts(log: dict[str, np.ndarray]) -> list[np.ndarray]:
        gap = log["open"][1:] - log["close"][:-1]
        top = log["high"] - np.maximum(log["open"], log["close"])
        bottom = np.minimum(log["open"], log["close"]) - log["low"]
        return [gap, (log["close"] - log["open"])[1:], top[1:], bottom[1:]]

    for our, their in zip(parts(ours), parts(theirs), strict=True):
        np.testing.assert_allclose(our, their * scale[1:, None], atol=1e-12)


def test_the_signal_is_known_whatever_the_noise():
    noise = {"volatility": 0.005, "market_share": 0.1, "sectors": 25, "tail_df": 5.0, "turbulence": 3.0}
    regimes = {"calm_days": 20.0, "turbulent_days": 5.0}
    market = SyntheticMarket(days=4000, columns=50, signal=0.3, **noise, **regimes)
    correlation = np.corrcoef(market.drift()[:-1].ravel(), returns_of(market).ravel())[0, 1]
    assert correlation == pytest.approx(0.3 / math.sqrt(1.09), abs=0.015)
    # and the long-run volatility is kept: of the noise, without the drift
    assert returns_of(replace(market, signal=0.0)).std() == pytest.approx(0.005, rel=0.04)


def there(market: SyntheticMarket) -> np.ndarray:
    """Whether there is a row, (days, columns) of every column but the first."""
    return np.isfinite(market.prices()[:, 1:, 0])


def lifetimes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last day with a row."""
    return rows.argmax(axis=0), len(rows) - 1 - rows[::-1].argmax(axis=0)


def test_listings_and_delistings():
    market = SyntheticMarket(days=21, columns=801, late_listings=0.3, delistings=0.4)
    rows = there(market)
    first, last = lifetimes(rows)
    late, early = first > 0, last < 20
    # standard errors 0.016, 0.017 and 0.011; one column in 67, listed on the last day, cannot be delisted
    assert late.mean() == pytest.approx(0.3, abs=0.05)
    assert early.mean() == pytest.approx(0.4, abs=0.055)
    assert (late & early).mean() == pytest.approx(0.12, abs=0.035)
    # uniform over days 1 to 20 and 0 to 19: standard errors 5.8 / sqrt(240) = 0.37 and 0.39
    assert first[late].mean() == pytest.approx(10.5, abs=1.2)
    assert last[early & ~late].mean() == pytest.approx(9.5, abs=1.2)
    assert (first[late].min(), first.max()) == (1, 20)
    assert (last.min(), last[early].max()) == (0, 19)
    # no other row is missing
    assert rows.sum() == (last - first + 1).sum()


def test_all_columns_late_and_gone_in_few_days():
    for days in (2, 3):
        market = SyntheticMarket(days=days, columns=80, late_listings=1.0, delistings=1.0, missing=0.9, halts=10.0)
        first, last = lifetimes(there(market))
        assert (first >= 1).all()
        assert (last >= first).all()


def test_a_delisting_ends_with_a_fall():
    market = replace(PLAIN, delistings=0.5, missing=0.3)
    falling = replace(market, delisting_fall=0.4)
    # the last day of a column that is delisted is never missing
    _, last = lifetimes(there(replace(falling, missing=0.0)))
    before, after = market.prices()[:, 1:], falling.prices()[:, 1:]
    gone = [column for column in range(len(last)) if last[column] < market.days - 1]
    assert 0 < len(gone) < len(last)
    for column in range(len(last)):
        days = slice(0, int(last[column]) if column in gone else None)
        np.testing.assert_array_equal(after[days, column], before[days, column])
    for column in gone:
        open_, _, low, close = after[last[column], column]
        assert close == pytest.approx(0.6 * before[last[column], column, 3], rel=1e-6)
        assert open_ == before[last[column], column, 0]
        assert low <= close
    # the first column stays, even where all the others go
    everyone = replace(falling, delistings=1.0)
    pd.testing.assert_frame_equal(rows_of(everyone.generate(), 1), rows_of(PLAIN.generate(), 1))


@pytest.mark.parametrize("halt_days", [1.0, 5.0])
def test_number_and_length_of_halts(halt_days):
    market = SyntheticMarket(days=1500, columns=201, halts=30.0, halt_days=halt_days)
    halted = ~there(market)[200:]
    # halts start at the rate of 0.02 a day: the number of those under way is Poisson with mean 0.02 x halt_days
    rate = 30 / 1500
    under_way = math.exp(-rate * halt_days)
    assert halted.mean() == pytest.approx(1 - under_way, rel=0.08)
    # a stretch begins where no halt was under way and at least one begins
    begins = (halted[1:] & ~halted[:-1]).mean()
    assert begins == pytest.approx(under_way * (1 - math.exp(-rate)), rel=0.06)


@st.composite
def any_market(draw: st.DrawFn) -> SyntheticMarket:
    share = draw(st.floats(0, 1))
    return SyntheticMarket(
        days=draw(st.integers(2, 60)),
        columns=draw(st.integers(1, 8)),
        seed=draw(st.integers(0, 2**70)),
        volatility=draw(st.floats(1e-6, 0.1)),
        signal=draw(st.floats(0, 3)),
        half_life_days=draw(st.floats(1e-3, 1e9)),
        market_share=share,
        gap=draw(st.floats(0, 1)),
        missing=draw(st.floats(0, 0.999)),
        sectors=draw(st.integers(0, 10)),
        sector_share=draw(st.floats(0, 1)) * (1 - share),
        tail_df=draw(st.none() | st.floats(2.5, 1000)),
        turbulence=draw(st.floats(1, 20)),
        calm_days=draw(st.floats(1, 1e6)),
        turbulent_days=draw(st.floats(1, 1e6)),
        late_listings=draw(st.floats(0, 1)),
        delistings=draw(st.floats(0, 1)),
        delisting_fall=draw(st.floats(0, 0.999)),
        halts=draw(st.floats(0, 100)),
        halt_days=draw(st.floats(1, 1e6)),
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(any_market(), st.integers(1, 9))
def test_any_market_is_a_clean_table(market, columns_per_block):
    prices = market.generate()
    values = prices[[*PRICE_COLUMNS, "volume"]].to_numpy()
    assert np.isfinite(values).all()
    assert (values[:, :4] > 0).all()
    assert (prices["volume"] >= 0).all()
    assert (prices["high"] >= prices[["open", "close"]].max(axis=1)).all()
    assert (prices["low"] <= prices[["open", "close"]].min(axis=1)).all()
    keys = list(zip(prices["ticker"], prices["date"], strict=True))
    assert keys == sorted(set(keys))
    assert prices["ticker"].unique().tolist() == market.tickers
    assert (prices["ticker"] == market.tickers[0]).sum() == market.days == prices["date"].nunique()
    assert np.isfinite(market.drift()).all()
    pd.testing.assert_frame_equal(pd.concat(market.blocks(columns_per_block), ignore_index=True), prices)


def test_the_file_is_the_market(tmp_path):
    path = tmp_path / "market.parquet"
    rows = write_parquet(EVERYTHING, path, columns_per_block=3)
    prices = EVERYTHING.generate()
    assert rows == len(prices)
    pd.testing.assert_frame_equal(read_prices(path), prices)
    assert pq.ParquetFile(path).num_row_groups == 4
    assert os.listdir(tmp_path) == ["market.parquet"]
    # an earlier file is replaced, and the same market is the same file
    for name in ("market.parquet", "other.parquet"):
        write_parquet(PLAIN, tmp_path / name)
    pd.testing.assert_frame_equal(read_prices(path), PLAIN.generate())
    assert path.read_bytes() == (tmp_path / "other.parquet").read_bytes()


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        write_parquet(PLAIN, path)
    assert "\n" not in str(error.value)
    assert path.name in str(error.value)
    return str(error.value)


def test_paths_that_cannot_be_written(tmp_path):
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "file").touch()
    assert "make it first" in refusal(tmp_path / "missing" / "market.parquet")
    assert "make it first" in refusal(tmp_path / "file" / "market.parquet")
    assert "ends in .parquet" in refusal(tmp_path / "market.csv")
    assert "is a directory" in refusal(tmp_path / "folder.parquet")
    # a name that fits, whose part's does not
    assert "name a file in a folder" in refusal(tmp_path / f"{'m' * 246}.parquet")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.parquet"]


def test_two_writers_do_not_mix(tmp_path):
    path, folder = tmp_path / "market.parquet", tmp_path / ".market.parquet.draft"
    folder.mkdir()
    (folder / "market.parquet").write_bytes(b"half")
    with (folder / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process" in refusal(path)
        # what the other one wrote is still there
        assert (folder / "market.parquet").read_bytes() == b"half"
    # left behind by a killed process, it is replaced whole
    write_parquet(PLAIN, path)
    assert os.listdir(tmp_path) == ["market.parquet"]
    pd.testing.assert_frame_equal(read_prices(path), PLAIN.generate())


@pytest.mark.parametrize("raised", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch, raised):
    path = tmp_path / "market.parquet"
    path.write_bytes(b"earlier")

    def interrupted(descriptor: int) -> None:
        raise raised

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(UserError if isinstance(raised, OSError) else KeyboardInterrupt) as error:
        write_parquet(PLAIN, path)
    if isinstance(raised, OSError):
        assert "No space left on device" in str(error.value)
    assert os.listdir(tmp_path) == ["market.parquet"]
    assert path.read_bytes() == b"earlier"


def test_prices_out_of_range_leave_no_file(tmp_path):
    market = SyntheticMarket(days=3000, columns=3, volatility=0.5, signal=10.0, half_life_days=1000.0)
    with pytest.raises(UserError, match=r"float32 range with volatility 0\.5"):
        write_parquet(market, tmp_path / "market.parquet")
    assert not os.listdir(tmp_path)


KILLED = """
import json, os, signal, sys
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet
assert "torch" not in sys.modules
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
write_parquet(SyntheticMarket(**json.loads(sys.argv[1])), sys.argv[2])
"""


def test_a_killed_write_leaves_no_half_file_and_torch_is_not_needed(tmp_path):
    path = tmp_path / "market.parquet"
    command = [sys.executable, "-c", KILLED, json.dumps(asdict(PLAIN)), str(path)]
    killed = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not path.exists()
    # the next one takes over what was left
    write_parquet(PLAIN, path)
    assert os.listdir(tmp_path) == ["market.parquet"]
    pd.testing.assert_frame_equal(read_prices(path), PLAIN.generate())


def test_memory_does_not_grow_with_the_columns(tmp_path):
    def peak(columns: int) -> int:
        market = replace(PLAIN, days=2000, columns=columns, signal=0.0, tail_df=5.0, missing=0.1)
        tracemalloc.start()
        try:
            write_parquet(market, tmp_path / f"{columns}.parquet", columns_per_block=4)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(4)
    assert peak(40) < 1.2 * peak(8)
