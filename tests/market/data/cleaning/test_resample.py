"""Intraday bars: named as such, and made into daily ones."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.market.data.cleaning import blocks
from eigen2.market.data.cleaning.prepare import inspect, prepare
from eigen2.market.data.cleaning.resample import daily_bars
from eigen2.market.data.source import PRICE_COLUMNS, read_prices
from tests.market.data.cleaning.rows import typed


def bars(tickers: tuple[str, ...] = ("A", "B"), days: int = 15, a_day: int = 7) -> pd.DataFrame:
    """Hourly bars from 9:30, in no order."""
    times = [
        day + pd.Timedelta(minutes=570 + 60 * i)
        for day in pd.bdate_range("2020-01-06", periods=days)
        for i in range(a_day)
    ]
    frame = pd.DataFrame([(time, ticker) for ticker in tickers for time in times], columns=["date", "ticker"])
    rng = np.random.default_rng(0)
    close = 100 + rng.normal(0, 0.1, len(frame)).cumsum()
    frame = frame.assign(
        open=close + 0.1, high=close + 1, low=close - 1, close=close, volume=rng.integers(1, 9, len(frame))
    )
    return typed(frame.sample(frac=1, random_state=0))


def resampled(frame: pd.DataFrame) -> pd.DataFrame:
    """Daily bars by pandas' own resampling."""
    rules = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    daily = (
        frame.sort_values("date").set_index("date").groupby("ticker").resample("D").agg(rules).dropna().reset_index()
    )
    return typed(daily.sort_values(["ticker", "date"], ignore_index=True))


def test_known_answer():
    nan = np.nan
    rows = [
        ("2020-01-01 09:00", "A", nan, nan, nan, nan, nan),
        ("2020-01-01 10:00", "A", 2.0, 5.0, 1.0, 3.0, 10.0),
        ("2020-01-01 10:00", "A", 3.0, 6.0, 2.0, 4.0, 10.0),
        ("2020-01-01 11:00", "A", 7.0, 7.0, 2.0, 6.0, nan),
        ("2020-01-02 23:59", "A", 1.0, 1.0, 1.0, 1.0, nan),
        ("2020-01-02 00:00", "B", 8.0, 9.0, 7.0, 8.0, 1.0),
    ]
    found = daily_bars(typed(pd.DataFrame(rows, columns=["date", "ticker", *PRICE_COLUMNS, "volume"])))
    expected = [
        ("2020-01-01", "A", 3.0, 7.0, 2.0, 6.0, 10.0),
        ("2020-01-02", "A", 1.0, 1.0, 1.0, 1.0, nan),
        ("2020-01-02", "B", 8.0, 9.0, 7.0, 8.0, 1.0),
    ]
    pd.testing.assert_frame_equal(found, typed(pd.DataFrame(expected, columns=found.columns)))


@pytest.mark.parametrize("run_rows", [20, 1_000_000])
def test_prepare_makes_daily_bars(tmp_path, monkeypatch, run_rows):
    monkeypatch.setattr(blocks, "RUN_ROWS", run_rows)
    frame = bars()
    # a day may come in two files
    frame.iloc[:100].to_csv(tmp_path / "p.csv", index=False)
    frame.iloc[100:].to_parquet(tmp_path / "q.parquet", index=False)
    inputs = [tmp_path / "p.csv", tmp_path / "q.parquet"]
    report = prepare(inputs, tmp_path / "out.parquet", resample="day")
    pd.testing.assert_frame_equal(read_prices(tmp_path / "out.parquet"), resampled(frame), rtol=1e-14)
    assert "210 intraday bars made into daily ones\n30 rows, 2 tickers, 15 days" in str(report)
    assert report.as_dict()["bars"] == 210
    # daily bars stay as they are
    daily = prepare([tmp_path / "out.parquet"], tmp_path / "again.parquet", resample="day")
    assert pq.read_table(tmp_path / "again.parquet").equals(pq.read_table(tmp_path / "out.parquet"))
    assert daily.prepared == report.prepared


def test_intraday_bars_are_named(tmp_path, capsys):
    bars().to_csv(tmp_path / "p.csv", index=False)
    for name in (tmp_path, tmp_path / "p.csv"):
        with pytest.raises(
            UserError, match=r"prices of 'A' are intraday, 7 bars a day, first 2020-01-06 09:30:00: .*--resample day"
        ):
            inspect([name])
    with pytest.raises(UserError, match=r"intraday, 7 bars a day.*data prepare .*p\.csv OUT\.parquet --resample day"):
        read_prices(tmp_path / "p.csv")
    main(["data", "inspect", str(tmp_path), "--resample", "day", "--json"])
    assert json.loads(capsys.readouterr().out)["rows"] == 30


def test_a_column_of_times(tmp_path):
    frame = bars()
    split = frame.assign(date=frame["date"].dt.strftime("%Y%m%d"), time=frame["date"].dt.strftime("%H%M%S"))
    names = {name: f"<{name.upper()}>" for name in split}
    split.rename(columns={**names, "volume": "<VOL>"}).to_csv(tmp_path / "p.txt", index=False)
    prepare([tmp_path / "p.txt"], tmp_path / "out.parquet", resample="day")
    pd.testing.assert_frame_equal(read_prices(tmp_path / "out.parquet"), resampled(frame), rtol=1e-14)
    split.to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(UserError, match="intraday, 7 bars a day"):
        read_prices(tmp_path / "p.csv")
    with pytest.raises(UserError, match="intraday, 7 bars a day"):
        inspect([tmp_path / "p.csv"])


def test_two_bars_a_day_are_intraday(tmp_path):
    frame = bars(a_day=2)
    frame.loc[frame["date"].dt.hour == 9, list(PRICE_COLUMNS)] *= 1.01
    frame.to_csv(tmp_path / "p.csv", index=False)
    for read in (inspect, lambda paths: read_prices(paths[0])):
        with pytest.raises(UserError, match=r"prices of 'A' are intraday, 2 bars a day, .*--resample day"):
            read([tmp_path / "p.csv"])
    # a few such days are conflicting rows
    first = frame[(frame["date"].dt.hour == 9) | (frame["date"] < "2020-01-14")]
    first.to_csv(tmp_path / "p.csv", index=False)
    assert inspect([tmp_path / "p.csv"]).findings["conflicting_duplicate"]["rows"] == 24


def test_one_time_a_day_is_daily(tmp_path):
    frame = bars(a_day=1)
    frame.to_csv(tmp_path / "p.csv", index=False)
    assert (read_prices(tmp_path / "p.csv")["date"].dt.hour == 0).all()
    # rows of another source, at another time, are duplicates
    pd.concat([frame, frame.assign(date=frame["date"].dt.normalize())]).to_csv(tmp_path / "p.csv", index=False)
    assert inspect([tmp_path / "p.csv"]).findings["duplicate"]["rows"] == 30
