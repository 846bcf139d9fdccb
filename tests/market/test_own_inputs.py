"""A run on what a user brings: own features, a benchmark and split dates, from fit to orders."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from eigen2.core.export import load
from eigen2.errors import UserError
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.serving.trader import Trader
from eigen2.market.simulation.account import AccountRules
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.report.page import provenance, render
from eigen2.report.record import load as load_record
from tests.command import eigen2

PRICES = SyntheticMarket(days=260, columns=6).generate()
PRICES = PRICES.assign(mood=np.random.default_rng(0).normal(size=len(PRICES)))
DATES = PRICES["date"].drop_duplicates().sort_values().dt.strftime("%Y-%m-%d").tolist()
SMALL = {"context_days": 20, "trading_days": 15, "settlement_days": 5, "replay_min_size": 10, "replay_capacity": 500}
DAYS = {"validation_from": DATES[200], "holdout_from": DATES[230]}


def built(prices: pd.DataFrame = PRICES, **settings: object) -> MarketDataModule:
    data = MarketDataModule.from_frame(prices, **{**SMALL, **DAYS, **settings})
    data.setup("fit")
    data.build(2, torch.device("cpu"))
    return data


@pytest.mark.parametrize("encoding", ["averages", "windows"])
def test_networks_see_own_features(encoding: str) -> None:
    plain, own = (built(features=features, encoding=encoding) for features in ([], ["mood"]))
    assert own.panel.num_features == plain.panel.num_features + 1
    assert own.describe()["panel"] == "260 days x 6 columns x 10 features"
    assert (own.settings()["features"], own.settings()["validation_days"]) == (["mood"], 30)
    assert own.inference_spec()["scale"]["own_features"] == ["mood"]
    observation, _ = own.eval_env.reset(options=own.training_options(0, 0))
    inputs = own.network_inputs(observation)
    assert own.make_actor()({name: part[0] for name, part in inputs.items()}).isfinite().all()
    if encoding == "averages":
        days, (columns, width) = observation["day"], own.sizes.inputs["columns"]
        described = inputs["columns"].reshape(*days.shape, columns, -1, own.panel.channels)
        assert width == plain.sizes.inputs["columns"][1] * 11 // 10
        # the average over one day is the day's value, standardised once more
        seen, raw = described[0, :, :, 0, 9].double(), own.panel.features[days[0].numpy(), :, 9]
        assert np.corrcoef(seen.flatten(), raw.flatten())[0, 1] > 0.999


def test_a_frame_is_no_setting_and_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = built()
    assert data.describe()["prices"] == "a DataFrame"
    assert data.describe()["survivors"].startswith("all 6 tickers trade to the last day")
    assert data.panel.folder is None
    assert not [*tmp_path.iterdir()]
    json.dumps(data.settings())


def test_a_holdout_from_a_date_says_so_where_it_was_used() -> None:
    data = built()
    with pytest.raises(UserError, match=rf"set data.holdout_from to a date after {DATES[240]} or bring later prices"):
        data.require_unused({"first": DATES[0], "last": DATES[240]})


def test_the_volume_of_the_training_days_caps_orders() -> None:
    value = (PRICES["close"] * PRICES["volume"]).where(PRICES["date"] < DATES[200])
    usual = value.groupby(PRICES["ticker"]).median().sort_index().to_numpy()
    data = built(account=AccountRules(volume_cap=0.01))
    for env in (data.eval_env, data.val_env):
        np.testing.assert_allclose(env.accounts.capacity, 0.01 * usual, rtol=1e-6)
    later = built(account=AccountRules(volume_cap=0.02), validation_from=DATES[150])
    later.apply_inference_spec(data.inference_spec())
    np.testing.assert_allclose(later.val_env.accounts.capacity, 0.02 * usual, rtol=1e-6)
    assert built().eval_env.accounts.capacity is None


def test_another_context_than_the_champions_is_its_own_or_refused() -> None:
    averages, windows = (
        built(encoding=encoding, context_days=40).inference_spec() for encoding in ("averages", "windows")
    )
    later = built(context_days=20)
    later.apply_inference_spec(averages)
    assert later.settings()["context_days"] == 40
    with pytest.raises(
        UserError, match=r"context_days is 20, but the champion's networks read 40 days; give --data\.con"
    ):
        built(encoding="windows", context_days=20).apply_inference_spec(windows)


def test_columns_that_the_cap_bars_are_named() -> None:
    late = PRICES[(PRICES["ticker"] != "S0002") | (PRICES["date"] >= DATES[120])]
    capped = built(late, account=AccountRules(volume_cap=0.01)).describe()
    assert capped["volume cap"] == "'S0002' trade on less than half of the training days: they are never bought"
    assert "volume cap" not in built(account=AccountRules(volume_cap=0.01)).describe()


def test_a_benchmark_that_the_fit_lacked_is_refused() -> None:
    spec = built(PRICES[PRICES["ticker"] != "S0003"]).inference_spec()
    with pytest.raises(UserError, match=r"data\.benchmark has 'S0003', which the fit's prices do not have"):
        built(benchmark="S0003").apply_inference_spec(spec)


def test_a_run_from_fit_to_orders(tmp_path: Path) -> None:
    prices, without, root = tmp_path / "prices.parquet", tmp_path / "without.parquet", tmp_path / "run"
    PRICES.to_parquet(prices, index=False)
    PRICES.drop(columns="mood").to_parquet(without, index=False)
    data = {"synthetic": "null", "path": prices, "features": "[mood]", "benchmark": "S0003", **DAYS}
    least = (PRICES["close"] * PRICES["volume"]).groupby(PRICES["ticker"]).median().min()
    data["account.volume_cap"] = 20 / least  # little above the smallest order
    words = [f"--data.{name}={value}" for name, value in data.items()]
    words = ["--config", "tests/small.yaml", *words, "--trainer.default_root_dir", root, "--trainer.max_epochs", 1]
    for command in (["fit", *words], ["test", *words, "--ckpt_path", "best"]):
        done = eigen2(*command)
        assert done.returncode == 0, done.stderr
    assert "benchmark    S0003: alpha" in done.stdout
    assert "survivors    all 6 tickers trade" in done.stdout
    summary = json.loads((root / "test" / "summary.json").read_text())
    assert (summary["days"]["first"], summary["days"]["count"]) == (DATES[230], 30)
    assert summary["settings"]["data.benchmark"] == "S0003"
    assert [*summary["measures"]][:4] == ["champion", "buy and hold", "benchmark", "momentum"]
    assert "S0003" not in set(pd.read_csv(root / "test" / "trades.csv")["ticker"])
    record = load_record(root)
    assert provenance(record)["survivors"].startswith("all 6 tickers")
    page = render(record)
    assert "<strong>Survivors</strong>: all 6 tickers" in page
    assert "against the benchmark S0003" in page
    champion = load(root / "checkpoints" / "best.ckpt")
    assert "S0003" not in champion.config["inference"]["investable"]
    orders = Trader(champion).orders(prices)
    output = tmp_path / "orders.csv"
    predict = ("predict", "--trainer.default_root_dir", root, "--output", output, "--data.path")
    assert eigen2(*predict, prices).returncode == 0
    assert len(pd.read_csv(output)) == len(orders)
    assert 0.01 < orders["stake_pct"][orders["action"] == "buy"].median() < 0.3  # of 1 % and more without the cap
    refused = eigen2(*predict, without)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "without.parquet' lacks the columns mood; it has 'date, ticker" in refused.stderr
