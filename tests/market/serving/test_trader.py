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
from eigen2.core.onnx import write_onnx
from eigen2.errors import UserError
from eigen2.market.data.source import read_prices
from eigen2.market.networks.columns import ColumnActor
from eigen2.market.networks.windows import ConvolutionActor
from eigen2.market.serving.trader import Trader
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet
from tests.command import ROOT, eigen2

DAYS, LONGER = 260, 300


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prices, more of the same, a fit on the former with its test, and the exported champion."""
    home = tmp_path_factory.mktemp("home")
    market = SyntheticMarket(days=LONGER, columns=6)
    write_parquet(market, home / "longer.parquet")
    longer = read_prices(home / "longer.parquet")
    dates = np.sort(longer["date"].unique())
    longer[longer["date"] <= dates[DAYS - 1]].to_parquet(home / "prices.parquet", index=False)
    small = ("--config", "tests/small.yaml", "--data.synthetic", "null", "--data.path", home / "prices.parquet")
    root = ("--trainer.default_root_dir", home / "run")
    for command, options in (("fit", ()), ("test", ("--ckpt_path", "best"))):
        done = eigen2(command, *small, *root, *options)
        assert done.returncode == 0, done.stderr
    done = eigen2("export", *root, "--output", home / "exported")
    assert done.returncode == 0, done.stderr
    return home


def best(home: Path) -> Path:
    return home / "run" / "checkpoints" / "best.ckpt"


def test_its_trades_are_those_of_the_test(home: Path) -> None:
    """From the last day of the fit on, as `test` begins; at the end `test` sells what is held."""
    trader = Trader.load(best(home))
    orders = trader.orders(read_prices(home / "prices.parquet"), first=None)
    closed = orders[orders["action"] == "close"]
    trades = pd.read_csv(home / "run" / "test" / "trades.csv", parse_dates=["exit_date"])
    last = trades["exit_date"].max()
    trades, closed = trades[trades["exit_date"] < last], closed[closed["date"] < last]
    assert len(trades) == len(closed) > 5
    assert trades["ticker"].tolist() == closed["ticker"].tolist()
    assert trades["exit_date"].tolist() == closed["date"].tolist()
    np.testing.assert_allclose(closed["coefficient"], trades["coefficient"], rtol=1e-5)
    np.testing.assert_allclose(closed["gain_pct"], trades["gain_pct"], rtol=1e-5)


def test_days_that_came_later_change_no_order_before_them(home: Path) -> None:
    trader = Trader.load(best(home))
    short, longer = (trader.orders(read_prices(home / f"{name}.parquet")) for name in ("prices", "longer"))
    assert short["date"].nunique() == 31
    assert longer["date"].nunique() == 31 + LONGER - DAYS
    assert short["date"].min() == pd.Timestamp(trader.last_seen)
    same = longer[longer["date"] <= short["date"].max()].reset_index(drop=True)
    pd.testing.assert_frame_equal(short, same)


def test_an_export_does_what_the_checkpoint_does(home: Path) -> None:
    prices = read_prices(home / "longer.parquet")
    exported, kept = Trader.load(home / "exported"), Trader.load(best(home))
    pd.testing.assert_frame_equal(exported.orders(prices), kept.orders(prices))
    again = load(home / "exported")
    again.save(home / "again")
    for name in (WEIGHTS, CONFIG):
        assert (home / "again" / name).read_bytes() == (home / "exported" / name).read_bytes()
        assert (home / "exported" / name).stat().st_mode == (home / "prices.parquet").stat().st_mode


def test_other_costs_and_files_change_what_test_finds_and_not_what_the_champion_sees(home: Path) -> None:
    """On a file that ends later the features are those of the fit, not of that file's own training days."""
    options = ("--config", "tests/small.yaml", "--data.synthetic", "null", "--data.path", home / "longer.parquet")
    root = ("--trainer.default_root_dir", home / "run", "--ckpt_path", best(home))
    kept = {path: path.read_bytes() for path in (home / "run" / "test").iterdir()}
    try:
        done = eigen2("test", *options, *root, "--data.holdout_days", LONGER - DAYS)
        assert done.returncode == 0, done.stderr
        trades = pd.read_csv(home / "run" / "test" / "trades.csv", parse_dates=["exit_date"])
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
    trader, prices = Trader.load(best(home)), read_prices(home / "longer.parquet")
    begin = np.sort(prices["date"].unique())[DAYS - 1].astype("datetime64[D]").astype(date)
    orders = trader.orders(prices, first=begin)
    closed = orders[(orders["action"] == "close") & (orders["date"] < trades["exit_date"].max())]
    trades = trades[trades["exit_date"] < trades["exit_date"].max()]
    assert len(closed) > 5
    assert trades["ticker"].tolist() == closed["ticker"].tolist()
    np.testing.assert_allclose(closed["coefficient"], trades["coefficient"], rtol=1e-5)


class Stranger(ColumnActor):
    """A user's own network."""


def changed(home: Path, **config: object) -> ExportedChampion:
    found = load(home / "exported")
    return replace(found, config={**found.config, **config})


def test_a_users_own_actor_is_loaded_only_if_asked_for(home: Path) -> None:
    name = f"{Stranger.__module__}.Stranger"
    own = changed(home, actor={"class_path": name, "init_args": {}})
    with pytest.raises(UserError, match=rf"is {name}, which is not eigen2's own: .*, say --actor {name}$"):
        own.actor()
    assert isinstance(own.actor(trusted=name), Stranger)
    with pytest.raises(UserError, match="was made by a function"):
        changed(home, actor=None).actor()
    for path, said in (
        ("eigen2.market.networks.columns.Choice", "it is no network"),
        ("eigen2.nowhere.A", "No module named"),
    ):
        with pytest.raises(UserError, match=said):
            changed(home, actor={"class_path": path, "init_args": {}}).actor()
    with pytest.raises(UserError, match="weights are not of ColumnActor"):
        changed(
            home, actor={"class_path": "eigen2.market.networks.columns.ColumnActor", "init_args": {"hidden": 8}}
        ).actor()


def test_what_cannot_trade_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is of the workload control; only those of the market trade"):
        Trader(changed(home, workload="control"))
    trader, prices = Trader.load(home / "exported"), read_prices(home / "prices.parquet")
    early = prices[prices["date"] < pd.Timestamp(trader.last_seen)]
    with pytest.raises(UserError, match=r"prices end on .*, the last day that the fit has looked at; bring"):
        trader.orders(early)
    with pytest.raises(UserError, match=r"10 days of prices before .* are too few: .* context_days 20"):
        trader.orders(prices, first=prices["date"].sort_values().unique()[10].date())
    with pytest.raises(UserError, match="there is no exported champion"):
        load(tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps({"format": 99}))
    (tmp_path / WEIGHTS).write_bytes((home / "exported" / WEIGHTS).read_bytes())
    with pytest.raises(UserError, match="has format 99, this eigen2 reads 1"):
        load(tmp_path)
    damaged = bytearray(best(home).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.ckpt").write_bytes(damaged)
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "damaged.ckpt")


def test_a_graph_gives_what_torch_gives(home: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    champion = load(home / "exported")
    actor, sizes = champion.actor(), champion.sizes
    session = onnxruntime.InferenceSession(write_onnx(actor, sizes, tmp_path / "actor.onnx"))
    assert {part.name for part in session.get_inputs()} == set(sizes.inputs)
    for batch in (1, 2, 17):
        chance = torch.Generator().manual_seed(batch)
        inputs = {name: torch.randn(batch, *shape, generator=chance) for name, shape in sizes.inputs.items()}
        (found,) = session.run(["action"], {name: value.numpy() for name, value in inputs.items()})
        np.testing.assert_allclose(found, actor(inputs).numpy(), atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["actor.onnx"]
    windows = replace(sizes, inputs={"day": (), "panel": (3, 9)})
    with pytest.raises(UserError, match=r"ONNX takes actors of data\.encoding averages"):
        write_onnx(actor, windows, tmp_path / "windows.onnx")


def test_networks_that_read_windows_are_exported_too(tmp_path: Path, home: Path) -> None:
    small = ("--config", "tests/small.yaml", "--data.synthetic", "null", "--data.path", home / "prices.parquet")
    root = ("--trainer.default_root_dir", tmp_path)
    done = eigen2("fit", *small, *root, "--data.encoding", "windows", "--trainer.max_epochs", 1)
    assert done.returncode == 0, done.stderr
    trader = Trader.load(tmp_path / "checkpoints" / "best.ckpt")
    assert isinstance(load(tmp_path / "checkpoints" / "best.ckpt").actor(), ConvolutionActor)
    assert trader.orders(read_prices(home / "longer.parquet"))["date"].nunique() == 31 + LONGER - DAYS


# As a user meets it


def test_predict_writes_what_the_champion_would_do(home: Path, tmp_path: Path) -> None:
    words = ("predict", "--ckpt_path", "best", "--data.path", home / "longer.parquet")
    config = tmp_path / "erl.yaml"
    config.write_text(f"trainer:\n  default_root_dir: {home / 'run'}\nmodel:\n  population_size: 4\n")
    done = eigen2(*words, "--config", config, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "orders       orders.csv, 71 days, " in done.stdout
    written = pd.read_csv(tmp_path / "orders.csv", parse_dates=["date"])
    expected = Trader.load(home / "exported").orders(read_prices(home / "longer.parquet"))
    assert written["reason"].tolist() == expected["reason"].tolist()
    np.testing.assert_allclose(written["coefficient"], expected["coefficient"], rtol=1e-5)
    later = eigen2(*words[:1], "--ckpt_path", home / "exported", *words[3:], "--first", "2001-02-01", cwd=tmp_path)
    assert later.returncode == 0, later.stderr
    assert not later.stderr
    assert pd.read_csv(tmp_path / "orders.csv")["date"].min() == "2001-02-01"
    early = eigen2(*words[:1], "--ckpt_path", home / "exported", *words[3:], "--first", "2000-08-01", cwd=tmp_path)
    assert early.returncode == 0, early.stderr
    assert early.stderr.strip() == (
        "the fit has looked at days up to 2000-11-17: what its champion does from 2000-08-01 on does not tell how good "
        "it is"
    )


def test_bad_words_are_refused_in_one_line(home: Path, tmp_path: Path) -> None:
    root, path = ("--trainer.default_root_dir", home / "run"), ("--data.path", home / "prices.parquet")
    (tmp_path / "taken").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for words, said in (
        (("predict", *root), "data.path"),
        (("predict", *path, "--trainer.default_root_dir", tmp_path), "there is no checkpoint at"),
        (("predict", *root, *path, "--first", "soon"), "--first is soon; it must be a day as YYYY-MM-DD"),
        (("predict", *root, *path, "--output", tmp_path / "no" / "orders.csv"), "lies in no folder that exists"),
        (("predict", *root, *path, "--output", tmp_path / "taken"), "is a folder; name a file in a folder that exists"),
        (("predict", *root, *path, "--output", ""), "--output '' is a folder"),
        (("predict", *root, *path, "--output", "/proc/orders.csv"), "cannot write --output '/proc/orders.csv': "),
        (("predict", *root, "--data.path", tmp_path / "none.csv"), "none.csv"),
        (("predict", *root, *path, "--config", tmp_path / "none.yaml"), "none.yaml cannot be read"),
        (("predict", *root, *path, "--output", home / "." / "prices.parquet"), "is the price file itself"),
        (("predict", *root, *path, "--output", tmp_path / "pipe"), "pipe': It is no regular file; name a file in a"),
        (("predict", *path, "--ckpt_path", home / "run"), "run is a run's folder; give --ckpt_path best --trainer."),
        (("export", *root, "--onnx"), "--onnx has no value after it"),
        (("export", *root, "--output", home / "prices.parquet"), "cannot write to"),
    ):
        done = eigen2(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), words
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert said in line
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pipe", "taken"]
    assert (tmp_path / "pipe").is_fifo()


def test_orders_go_to_the_file_that_a_link_names(home: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "orders.csv").symlink_to(tmp_path / "kept" / "today.csv")
    words = ("predict", "--ckpt_path", home / "exported", "--data.path", home / "prices.parquet")
    assert eigen2(*words, cwd=tmp_path).returncode == 0
    assert (tmp_path / "orders.csv").is_symlink()
    assert (tmp_path / "kept" / "today.csv").read_text().startswith("date,ticker,")


def test_the_example_runs_without_lightning(home: Path) -> None:
    script = (ROOT / "examples" / "use_champion.py").read_text()
    checked = f"{script}\nassert not [name for name in sys.modules if 'lightning' in name]\n"
    words = [sys.executable, "-c", checked, home / "exported", home / "longer.parquet"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "6 tickers, its fit has seen days up to 2000-11-17" in done.stdout
    code = [line for line in script.split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= 20
    missing = subprocess.run([*words[:-1], home / "none.csv"], cwd=ROOT, capture_output=True, text=True)
    assert (missing.returncode, missing.stdout) == (2, "")
    (line,) = missing.stderr.splitlines()
    assert line.startswith("error: no price file at ")
