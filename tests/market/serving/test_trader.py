"""A champion at work apart from its run: the same trades, on any file, for any user."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from eigen2.core.export import CONFIG, WEIGHTS, ExportedChampion, load
from eigen2.core.networks import Sizes
from eigen2.core.onnx import write_onnx
from eigen2.errors import UserError
from eigen2.market.data.source import read_prices
from eigen2.market.networks.columns import ColumnActor
from eigen2.market.networks.windows import ConvolutionActor
from eigen2.market.serving.trader import Trader
from tests.command import ROOT, eigen2
from tests.market.conftest import DAYS, FIT_DAYS, Fitted

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def exported(fitted: Fitted) -> Path:
    folder = fitted.run.with_name("exported")
    done = eigen2("export", "--trainer.default_root_dir", fitted.run, "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def trader(fitted: Fitted) -> Trader:
    return Trader.load(fitted.run / "checkpoints" / "best.ckpt")


@pytest.fixture(scope="module")
def orders(fitted: Fitted, trader: Trader) -> pd.DataFrame:
    """Orders on the longer file, from the last day of the fit on."""
    return trader.orders(read_prices(fitted.longer))


def test_days_that_came_later_change_no_order_before_them(fitted: Fitted, trader: Trader, orders: pd.DataFrame) -> None:
    short = trader.orders(read_prices(fitted.prices))
    assert short["date"].nunique() == 31
    assert orders["date"].nunique() == 31 + DAYS - FIT_DAYS
    assert short["date"].min() == pd.Timestamp(trader.last_seen)
    same = orders[orders["date"] <= short["date"].max()].reset_index(drop=True)
    pd.testing.assert_frame_equal(short, same)


@pytest.mark.parametrize("seed", range(3))
def test_orders_of_a_table_cut_anywhere_are_those_of_the_whole(fitted: Fitted, trader: Trader, seed: int) -> None:
    """Rows are missing here and there, a ticker ends, and one comes back after a long halt."""
    rng, prices = np.random.default_rng(seed), read_prices(fitted.longer)
    dates = np.sort(prices["date"].unique())
    day, names = np.searchsorted(dates, prices["date"]), rng.permutation(trader.investable)
    gone = (prices["ticker"] == names[0]) & (day >= DAYS - 50)
    gone |= (prices["ticker"] == names[1]) & (day >= DAYS - 65) & (day < DAYS - 40)
    prices = prices[~gone & (rng.random(len(prices)) > 0.1)]
    whole = trader.orders(prices)
    for cut in rng.choice(np.arange(FIT_DAYS, DAYS), 4, replace=False):
        part = trader.orders(prices[prices["date"] <= dates[cut]])
        pd.testing.assert_frame_equal(part, whole[whole["date"] <= dates[cut]].reset_index(drop=True))


def test_an_export_does_what_the_checkpoint_does(fitted: Fitted, exported: Path, orders: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(Trader.load(exported).orders(read_prices(fitted.longer)), orders)
    again = fitted.run.with_name("again")
    load(exported).save(again)
    for name in (WEIGHTS, CONFIG):
        assert (again / name).read_bytes() == (exported / name).read_bytes()
        assert (exported / name).stat().st_mode == fitted.prices.stat().st_mode


@pytest.mark.parametrize("days", [FIT_DAYS, DAYS])
def test_its_trades_are_those_of_the_test(fitted: Fitted, trader: Trader, tmp_path: Path, days: int) -> None:
    """On a file that ends later, too, the features are those of the fit; at its end `test` sells what is held."""
    path = fitted.prices if days == FIT_DAYS else fitted.longer
    options = ("--data.path", path, "--data.holdout_days", 30 if days == FIT_DAYS else days - FIT_DAYS)
    root = ("--trainer.default_root_dir", tmp_path, "--ckpt_path", fitted.run / "checkpoints" / "best.ckpt")
    done = eigen2("test", *fitted.words, *options, *root)
    assert done.returncode == 0, done.stderr
    trades = pd.read_csv(tmp_path / "test" / "trades.csv", parse_dates=["exit_date"])
    prices = read_prices(path)
    begin = np.sort(prices["date"].unique())[FIT_DAYS - 1 - (30 if days == FIT_DAYS else 0)]
    orders = trader.orders(prices, first=begin.astype("datetime64[D]").astype(date))
    last = trades["exit_date"].max()
    trades, closed = trades[trades["exit_date"] < last], orders[(orders["action"] == "close") & (orders["date"] < last)]
    assert len(trades) == len(closed) > 5
    assert trades["ticker"].tolist() == closed["ticker"].tolist()
    assert trades["exit_date"].tolist() == closed["date"].tolist()
    np.testing.assert_allclose(closed["size"], trades["size"], rtol=1e-5)
    np.testing.assert_allclose(closed["gain_pct"], trades["gain_pct"], rtol=1e-5)


class Stranger(ColumnActor):
    """A user's own network, which needs numbers to be made."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.depths = [float(depth) for depth in torch.linspace(0, 1, 3)]


def changed(exported: Path, **config: object) -> ExportedChampion:
    champion = load(exported)
    return replace(champion, config={**champion.config, **config})


def test_orders_of_a_fit_with_membership_warn_without_its_file(
    fitted: Fitted, exported: Path, trader: Trader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prices, spec = read_prices(fitted.prices), load(exported).config["inference"]
    assert spec["members"] is False
    of_members = Trader(changed(exported, inference={**spec, "members": True}))
    path = tmp_path / "members.csv"
    pd.DataFrame({"ticker": trader.investable, "first": "1990-01-01", "last": ""}).to_csv(path, index=False)
    for each, membership in ((trader, None), (of_members, path)):
        each.orders(prices, membership=membership)
    assert "data.membership" not in caplog.text
    of_members.orders(prices)
    (line,) = [message for message in caplog.messages if "data.membership is null" in message]
    assert line.endswith("give its file with the new days")


def test_orders_of_all_forms_of_prices_and_membership(
    fitted: Fitted, trader: Trader, orders: pd.DataFrame, tmp_path: Path
) -> None:
    prices = read_prices(fitted.longer)
    for given in (str(fitted.longer), prices.set_index(["date", "ticker"])):
        pd.testing.assert_frame_equal(trader.orders(given), orders)
    with pytest.raises(UserError, match=r"^the DataFrame lacks the columns open"):
        trader.orders(prices.drop(columns="open"))
    pd.DataFrame({"ticker": trader.investable, "first": "1990-01-01", "last": ""}).to_csv(
        tmp_path / "members.csv", index=False
    )
    pd.testing.assert_frame_equal(trader.orders(prices, membership=tmp_path / "members.csv"), orders)


def test_a_users_own_actor_is_loaded_only_if_asked_for(exported: Path) -> None:
    name = f"{Stranger.__module__}.Stranger"
    own = changed(exported, actor={"class_path": name, "init_args": {}})
    with pytest.raises(
        UserError, match=rf"is {name}, which is not eigen2's own, .*, give --actor {name}, or trusted='{name}'$"
    ):
        own.actor()
    actor = own.actor(trusted=name)
    assert isinstance(actor, Stranger)
    assert actor.depths == [0.0, 0.5, 1.0]
    with pytest.raises(UserError, match="was made by a function"):
        changed(exported, actor=None).actor()
    for path, settings, message in (
        ("eigen2.market.networks.columns.TradeModel", {}, "it is not a network"),
        ("eigen2.nowhere.A", {}, "No module named"),
        ("eigen2.market.networks.columns.ColumnActor", {"hidden": 8}, "weights are not of ColumnActor"),
    ):
        with pytest.raises(UserError, match=message):
            changed(exported, actor={"class_path": path, "init_args": settings}).actor()


def test_few_days_before_the_context_are_told(fitted: Fitted, trader: Trader, caplog: pytest.LogCaptureFixture) -> None:
    prices = read_prices(fitted.prices)
    days = prices["date"].sort_values().unique()
    first = int(days.searchsorted(pd.Timestamp(trader.last_seen)))
    for before, told in ((119, False), (118, True)):  # 20 days of context, the day itself among them, and 100 more
        caplog.clear()
        trader.orders(prices[prices["date"] >= days[first - before]])
        assert any("bring earlier prices" in message for message in caplog.messages) == told


def test_what_cannot_trade_is_refused(fitted: Fitted, exported: Path, trader: Trader, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is of the workload control; only those of the market trade"):
        Trader(changed(exported, workload="control"))
    prices = read_prices(fitted.prices)
    early = prices[prices["date"] < pd.Timestamp(trader.last_seen)]
    with pytest.raises(UserError, match=r"prices end on .*; bring"):
        trader.orders(early)
    with pytest.raises(UserError, match=r"needs 19 days of prices before it and has 10; bring earlier"):
        trader.orders(prices, first=prices["date"].sort_values().unique()[10].date())
    with pytest.raises(UserError, match="there is no exported champion"):
        load(tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps({"format": 99}))
    (tmp_path / WEIGHTS).write_bytes((exported / WEIGHTS).read_bytes())
    with pytest.raises(UserError, match="has format 99, eigen2 reads 2"):
        load(tmp_path)
    damaged = bytearray((fitted.run / "checkpoints" / "best.ckpt").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.ckpt").write_bytes(damaged)
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "damaged.ckpt")


def test_a_graph_gives_what_torch_gives(exported: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    champion = load(exported)
    actor, sizes = champion.actor(), champion.sizes
    session = onnxruntime.InferenceSession(write_onnx(actor, sizes, tmp_path / "actor.onnx"))
    assert {part.name for part in session.get_inputs()} == set(sizes.inputs)
    for batch in (1, 2, 17):
        rng = torch.Generator().manual_seed(batch)
        inputs = {name: torch.randn(batch, *shape, generator=rng) for name, shape in sizes.inputs.items()}
        (action,) = session.run(["action"], {name: value.numpy() for name, value in inputs.items()})
        np.testing.assert_allclose(action, actor(inputs).numpy(), atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["actor.onnx"]
    windows = replace(sizes, inputs={"day": (), "panel": (3, 9)})
    with pytest.raises(UserError, match=r"train with data\.encoding averages"):
        write_onnx(actor, windows, tmp_path / "windows.onnx")


def test_networks_that_read_windows_are_exported_too(fitted: Fitted, tmp_path: Path) -> None:
    options = ("--trainer.default_root_dir", tmp_path, "--data.encoding", "windows", "--trainer.max_epochs", 1)
    done = eigen2("fit", *fitted.words, *options)
    assert done.returncode == 0, done.stderr
    best = tmp_path / "checkpoints" / "best.ckpt"
    assert isinstance(load(best).actor(), ConvolutionActor)
    assert Trader.load(best).orders(read_prices(fitted.longer))["date"].nunique() == 31 + DAYS - FIT_DAYS


# As a user meets it


def test_predict_writes_what_the_champion_would_do(
    fitted: Fitted, exported: Path, orders: pd.DataFrame, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "orders.csv").symlink_to(tmp_path / "kept" / "today.csv")  # the file that a link names is written
    path = ("--data.path", fitted.longer)
    done = eigen2("predict", "--trainer.default_root_dir", fitted.run, *path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "orders       orders.csv, 71 days, " in done.stdout
    assert (tmp_path / "orders.csv").is_symlink()
    written = pd.read_csv(tmp_path / "kept" / "today.csv", parse_dates=["date"])
    assert written["reason"].tolist() == orders["reason"].tolist()
    np.testing.assert_allclose(written["size"], orders["size"], rtol=1e-5)
    for first, warning in (
        ("2001-02-01", ""),
        ("2000-08-01", "the fit has seen days up to 2000-11-17: orders from 2000-08-01 on do not tell how good it is"),
    ):
        done = eigen2("predict", "--ckpt_path", exported, *path, "--first", first, cwd=tmp_path)
        assert (done.returncode, done.stderr.strip()) == (0, warning)
        assert pd.read_csv(tmp_path / "orders.csv")["date"].min() == first


def test_bad_words_are_refused_in_one_line(fitted: Fitted, tmp_path: Path) -> None:
    root, path = ("--trainer.default_root_dir", fitted.run), ("--data.path", fitted.prices)
    os.mkfifo(tmp_path / "pipe")
    for words, message in (
        (("predict", *root), "data.path"),
        (("predict", *path, "--trainer.default_root_dir", tmp_path), "there is no checkpoint at"),
        (("predict", *root, *path, "--first", "soon"), "--first is soon; it must be a day as YYYY-MM-DD"),
        (("predict", *root, *path, "--output", tmp_path / "no" / "orders.csv"), "name a file in a folder that exists"),
        (("predict", *root, *path, "--output", tmp_path), "is a folder; name a file in a folder that exists"),
        (("predict", *root, *path, "--output", "/proc/orders.csv"), "cannot write --output '/proc/orders.csv': "),
        (("predict", *root, "--data.path", tmp_path / "none.csv"), "none.csv"),
        (
            ("predict", *root, *path, "--output", fitted.prices.parent / "." / "prices.parquet"),
            "the file of --data.path",
        ),
        (("predict", *root, *path, "--output", tmp_path / "pipe"), "pipe': It is no regular file; name a file in a"),
        (("predict", *path, "--ckpt_path", fitted.run), "run is a run's folder; give --ckpt_path best --trainer."),
        (("export", *root, "--output", fitted.prices), "cannot write to"),
    ):
        done = eigen2(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), words
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert message in line
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


def test_the_example_runs_without_lightning(fitted: Fitted, exported: Path) -> None:
    script = (ROOT / "examples" / "use_champion.py").read_text()
    checked = f"{script}\nassert not [name for name in sys.modules if 'lightning' in name]\n"
    words = [sys.executable, "-c", checked, exported, fitted.longer]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "6 tickers, its fit has seen days up to 2000-11-17" in done.stdout
    code = [line for line in script.split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= 20
