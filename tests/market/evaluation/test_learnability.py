"""Learners on markets whose signal is known, shuffles that keep the market alone, and the command."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.market.data.panel import build_panel
from eigen2.market.evaluation.learnability import UNKNOWN, luck, shuffle_columns
from eigen2.market.evaluation.rankers import fit_rankers
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet

SIZE = {"days": 500, "columns": 10, "seed": 4}


@pytest.fixture(scope="module")
def shuffled() -> tuple[np.ndarray, np.ndarray]:
    prices = SyntheticMarket(days=60, columns=6, missing=0.1, late_listings=0.3, seed=1).prices()
    return prices, shuffle_columns(prices, np.random.default_rng(0))


def moves(prices: np.ndarray) -> np.ndarray:
    """Bars relative to the last close of their column; NaN without one."""
    found = np.full(prices.shape, np.nan)
    for column in range(prices.shape[1]):
        last = np.nan
        for day in range(len(prices)):
            found[day, column] = np.log(prices[day, column].astype(np.float64) / last)
            last = prices[day, column, 3] if prices[day, column, 3] > 0 else last
    return found


def test_a_shuffle_deals_the_moves_of_a_day_to_its_columns(shuffled: tuple[np.ndarray, np.ndarray]) -> None:
    prices, other = shuffled
    np.testing.assert_array_equal(np.isnan(prices), np.isnan(other))
    own, dealt = moves(prices), moves(other)
    places = 0
    for day in range(1, 60):
        order = [np.lexsort(each[day][:, ::-1].T) for each in (own, dealt)]
        np.testing.assert_allclose(own[day][order[0]], dealt[day][order[1]], atol=1e-6)
        places += int((order[0] == order[1]).sum())
    assert places < 160  # of 354; a sixth stays by chance, and columns without a price


def test_luck_counts_all_findings() -> None:
    """Of 4 shuffles, the largest finding of each, in deviations, is compared with every finding."""
    chance = np.array([[1.0, -2], [-1, 2], [1, 2], [-1, -2]])  # deviations 1 and 2
    np.testing.assert_allclose(luck(np.array([1.0, 1.9]), chance), [4 / 5, 4 / 5])
    np.testing.assert_allclose(luck(np.array([1.1, -2.0]), chance), [1 / 5, 5 / 5])
    np.testing.assert_allclose(luck(np.zeros(1), np.zeros((3, 1))), [1])  # a ranker that ranks nothing


@pytest.mark.parametrize("signal", [0.5, 0.0])
def test_the_command_says_whether_there_is_something(
    signal: float, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen2.market.evaluation.learnability.SHUFFLES", 29)
    file = tmp_path / "prices.parquet"
    write_parquet(SyntheticMarket(**SIZE, signal=signal, half_life_days=10.0), file)
    main(["data", "learnability", str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert len([line for line in lines if line.startswith("ridge")]) == 3
    last = " ".join(lines[-3:])
    assert ("There is something to learn" in last) == (signal > 0)
    assert ("Nothing found" in last) == (signal == 0)


def test_tickers_are_chosen_without_a_look_at_the_holdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One was delisted when the holdout began; one, with more rows, was listed later and is still there."""
    days = pd.bdate_range("2020", periods=400)
    spans = {**{f"T{i}": days for i in range(5)}, "OLD": days[:301], "NEW": days[90:]}
    ones = dict.fromkeys(("open", "high", "low", "close", "volume"), 1.0)
    rows = [pd.DataFrame({"date": span, "ticker": name, **ones}) for name, span in spans.items()]
    pd.concat(rows).to_csv(tmp_path / "p.csv", index=False)

    def refuse(frame: pd.DataFrame, **settings: object) -> None:
        raise UserError(" ".join(sorted(frame["ticker"].unique())))

    monkeypatch.setattr("eigen2.cli.data.LEARNABILITY_SIZE", (5000, 6))
    monkeypatch.setattr("eigen2.market.data.panel.build_panel", refuse)
    with pytest.raises(SystemExit, match="2"):
        main(["data", "learnability", str(tmp_path / "p.csv")])
    assert capsys.readouterr().err == "error: OLD T0 T1 T2 T3 T4\n"
    (tmp_path / "m.csv").write_text("ticker,first,last\nNEW,2020-01-01,\nOLD,2020-01-01,\n")
    with pytest.raises(SystemExit, match="2"):
        main(["data", "learnability", str(tmp_path / "p.csv"), f"--membership={tmp_path / 'm.csv'}"])
    assert capsys.readouterr().err == "error: NEW OLD\n"


def test_learners_rank_what_can_be_ordered() -> None:
    market = SyntheticMarket(days=400, columns=8, delistings=0.5, late_listings=0.5, missing=0.02, seed=1)
    panel = build_panel(market.generate(), validation_days=60, holdout_days=80)
    encoder = AverageEncoder(panel, list(range(8)), 20, EpisodeSettings(TradingRules(), AccountRules(), 20, 5))
    days = range(panel.splits.holdout.start, panel.num_days)
    for scores in fit_rankers(encoder, panel, 5, days).values():
        ranked = np.isfinite(scores[days.start :])
        np.testing.assert_array_equal(ranked, np.isfinite(panel.prices[days.start :, :, 3]))
        assert not ranked.all()


def test_without_lightgbm_ridge_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("rankers", "learnability"):
        monkeypatch.setattr(f"eigen2.market.evaluation.{module}.HAS_LIGHTGBM", False)
    monkeypatch.setattr("eigen2.market.evaluation.learnability.SHUFFLES", 1)
    file = tmp_path / "prices.csv"
    closes = pd.DataFrame(SyntheticMarket(days=320, columns=5).prices()[..., 3], pd.bdate_range("2020", periods=320))
    long = closes.rename_axis("date").reset_index().melt("date", var_name="ticker", value_name="close")
    long.assign(**dict.fromkeys(("open", "high", "low"), long["close"]), volume=1).to_csv(file, index=False)
    main(["data", "learnability", str(file), "--holdout_days=0"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert UNKNOWN in lines  # closes alone
    assert next(line.split() for line in lines if line.startswith("ridge"))[1:4] == ["1", "day", "-"]
    assert "which counts all 2 tries" in " ".join(lines)
    assert "left out     LightGBM: install the extra baselines" in lines
    assert sum(line.startswith("ridge") for line in lines) == 3
    assert not any(line.startswith("LightGBM") for line in lines)


def test_too_few_prices_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prices.parquet"
    write_parquet(SyntheticMarket(days=200, columns=4), file)
    with pytest.raises(SystemExit) as error:
        main(["data", "learnability", str(file)])
    assert error.value.code == 2
    expected = (
        f"error: {file} has 160 days before the last 40 and 4 columns; learnability needs 300 and 5: bring more\n"
    )
    assert capsys.readouterr().err == expected
    with pytest.raises(SystemExit):
        main(["data", "learnability", str(file), "--holdout_days=201"])
    assert "--holdout_days is 201; it must be at least 0 and at most 199" in capsys.readouterr().err


def test_days_of_the_test_are_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen2.market.evaluation.learnability.SHUFFLES", 1)
    prices = SyntheticMarket(days=500, columns=6).generate()
    first = prices["date"].unique()[400]
    later = prices["date"] >= first
    changed = prices.assign(close=prices["close"].where(~later, prices["high"]))
    found = []
    for table in (prices, changed, prices[~later]):
        table.to_parquet(tmp_path / "p.parquet")
        main(
            [
                "data",
                "learnability",
                str(tmp_path / "p.parquet"),
                "--holdout_days",
                "0" if len(table) < len(prices) else "100",
            ]
        )
        found.append(capsys.readouterr().out.splitlines()[1:])
    assert found[0] == found[1] == found[2]
    days = pd.bdate_range(prices["date"].max(), periods=200)[1:]
    index = pd.DataFrame(
        {"date": days, "ticker": "VIX", "open": 1.0, "high": 1.0, "low": 1.0, "close": 1.0, "volume": 1}
    )
    first = prices.assign(open=1.0).groupby("date", as_index=False).first().assign(ticker="VIX")
    pd.concat([prices, first, index]).to_parquet(tmp_path / "p.parquet")  # which goes on after the prices
    main(["data", "learnability", str(tmp_path / "p.parquet"), "--holdout_days", "100", "--indicators", '["VIX"]'])
    own, others = (
        next(line for line in lines if line.startswith("scored"))
        for lines in (found[0], capsys.readouterr().out.splitlines())
    )
    assert own == others


def learned(file: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    main(["data", "learnability", *options, str(file)])
    return " ".join(capsys.readouterr().out.split())


def test_a_column_of_the_user_s_own_is_learned_from_only_if_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells half of what each ticker does in the next five days; prices alone tell nothing."""
    monkeypatch.setattr("eigen2.market.evaluation.learnability.SHUFFLES", 29)
    prices = SyntheticMarket(days=500, columns=10, signal=0.0, seed=5).generate()
    log = np.log(prices["close"]).groupby(prices["ticker"])
    ahead = log.shift(-5) - log.shift(0)
    noise = np.random.default_rng(0).normal(0, ahead.std(), len(ahead))
    prices.assign(news=(ahead + noise).fillna(0)).to_parquet(tmp_path / "prices.parquet")
    assert "Nothing found" in learned(tmp_path / "prices.parquet", capsys)
    assert "There is something to learn" in learned(tmp_path / "prices.parquet", capsys, "--features", '["news"]')
    with pytest.raises(SystemExit):
        main(["data", "learnability", "--features", '["old"]', str(tmp_path / "prices.parquet")])
    assert "lacks the columns old" in capsys.readouterr().err


def test_members_alone_are_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen2.market.evaluation.learnability.SHUFFLES", 1)
    file = tmp_path / "prices.parquet"
    write_parquet(SyntheticMarket(**SIZE, signal=0.5, half_life_days=10.0), file)
    assert "columns 10 " in learned(file, capsys)
    spans = [f"S000{column},2000-01-03,{'2000-06-30' if column == 0 else ''}" for column in range(7)]
    (tmp_path / "members.csv").write_text("\n".join(["ticker,first,last", *spans]))
    assert "columns 7 " in learned(file, capsys, "--membership", str(tmp_path / "members.csv"))
    with pytest.raises(SystemExit):
        main(["data", "learnability", "--membership", str(tmp_path / "none.csv"), str(file)])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: data.membership: no price file at")


def test_closes_alone_are_learned_from_once_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen2.market.evaluation.learnability.SHUFFLES", 29)
    closes = SyntheticMarket(days=500, columns=10, signal=0.5, half_life_days=10.0, seed=4).generate()
    closes[["date", "ticker", "close"]].to_csv(tmp_path / "closes.csv", index=False)
    with pytest.raises(SystemExit):
        main(["data", "learnability", str(tmp_path / "closes.csv")])
    assert "lacks the columns open, high, low, volume" in (told := capsys.readouterr().err)
    assert f"run python -m eigen2.cli data prepare {tmp_path / 'closes.csv'} OUT.parquet" in told
    main(["data", "prepare", str(tmp_path / "closes.csv"), str(tmp_path / "clean.parquet")])
    capsys.readouterr()
    text = learned(tmp_path / "clean.parquet", capsys)
    assert UNKNOWN in text
    assert "There is something to learn" in text
