"""`eigen2.fit` and its result, and the notebook that shows them."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import eigen2
from eigen2.errors import UserError
from eigen2.market.networks.columns import ColumnActor
from eigen2.market.serving.trader import Trader
from eigen2.runtime.checksums import write_checksum
from tests.command import eigen2 as command

pytestmark = pytest.mark.usefixtures("unchecked")
NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook.ipynb"
TINY = {  # text of the notebook, and what makes it take seconds
    "days=1200": "days=300",
    "context_days=252": "context_days=20, trading_days=20, settlement_days=5, validation_days=30, holdout_days=30",
    "generations=10": "generations=1, population_size=2, gradient_steps=1, windows_per_generation=1",
}


def test_importing_eigen2_imports_neither_torch_nor_lightning() -> None:
    code = "import os, sys, eigen2; print(os.environ['MKL_CBWR'], *{'torch', 'lightning', 'pandas'} & {*sys.modules})"
    for given, expected in (({}, "AUTO,STRICT"), ({"MKL_CBWR": "AVX2"}, "AVX2")):
        environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"} | given
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [expected]


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    monkeypatch.chdir(tmp_path)
    source = "\n".join("".join(cell["source"]) for cell in cells)
    for text, small in TINY.items():
        assert source.count(text) == 1
        source = source.replace(text, small)
    names: dict[str, Any] = {}
    exec(source, names)
    printed = capsys.readouterr().out
    assert "benchmark    S0000" in printed
    assert "survivors    all 10 tickers trade to the last day" in printed
    result, prices = names["result"], names["prices"]
    assert len(result.metrics) == 1
    orders = result.predict(prices)
    assert orders["date"].nunique() == 31, "the last day that the fit used, and those of the holdout"
    pd.testing.assert_frame_equal(Trader.load(tmp_path / "champion").orders(prices), orders)
    # the same from the folder alone, as another notebook or the command line has it
    folder = tmp_path / "lightning_logs"
    pd.testing.assert_frame_equal(eigen2.predict("lightning_logs", prices), orders)
    assert eigen2.test("lightning_logs").text in printed
    done = command("fit", "--config", folder / "config.yaml", "--trainer.default_root_dir", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    scores = [pd.read_csv(run / "metrics.csv")["fitness/max"].tolist() for run in (folder, tmp_path / "again")]
    assert scores[0] == scores[1]
    # a second fit keeps the first
    (call,) = [line for line in source.splitlines() if "eigen2.fit(" in line]
    exec(call.replace("prices,", "prices, seed=43,"), names)
    assert (tmp_path / "lightning_logs" / "earlier" / "1" / "metrics.csv").is_file()
    assert json.loads((tmp_path / "lightning_logs" / "run.json").read_text())["seed"] == 43


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"populaton_size": 2}, "fit has no setting populaton_size: did you mean population_size?"),
        ({"qqqq": 2}, "fit has no setting qqqq; see ERLModule and MarketDataModule"),
        ({"path": "prices.csv"}, "fit has no setting path"),
        ({"population_size": 0}, "model.population_size is 0"),
        ({"generations": 0}, "generations is 0"),
        ({"rules": {"allow_shorts": True}}, "rules has no setting allow_shorts: did you mean allow_short?"),
        ({"holdout_from": "soon", "synthetic": eigen2.SyntheticMarket(days=300)}, "data.holdout_from is 'soon'"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        eigen2.fit(**{"generations": 1, "folder": tmp_path, **settings})
    assert not (tmp_path / "metrics.csv").exists()


def test_settings_may_be_dictionaries_and_frames_are_kept_by_the_names_of_columns(tmp_path: Path) -> None:
    frame = eigen2.SyntheticMarket(days=300, columns=3).generate().assign(a=1.5)
    rules = {"allow_short": True}
    for name in "ab":
        prices = frame.rename(columns={"a": name})
        settings = {"features": [name], "rules": rules, "population_size": 2, "gradient_steps": 0}
        result = eigen2.fit(prices, 1, folder=tmp_path, **settings)
        assert result.data.rules == eigen2.TradingRules(allow_short=True)
    assert len([*(tmp_path / "prices").iterdir()]) == 2


SMALL: dict[str, Any] = {
    **{"context_days": 16, "trading_days": 20, "settlement_days": 5, "validation_days": 30, "holdout_days": 30},
    **{"population_size": 4, "gradient_steps": 1, "windows_per_generation": 1},
}


def test_numbers_of_numpy_and_pandas_are_numbers(tmp_path: Path) -> None:
    """Such as in a loop over np.logspace; a checkpoint that holds any could not be read again."""
    prices = eigen2.SyntheticMarket(days=300, columns=4).generate()
    given = {
        **SMALL,
        **{name: np.int64(SMALL[name]) for name in ("context_days", "population_size", "holdout_days")},
        **{"actor_lr": np.float64(1e-3), "critic_lr": np.float32(1e-3)},
        "rules": {"max_holding_days": np.int64(5)},
        "account": {"initial_cash": np.float32(1e5)},
        "investable": {"tickers": prices["ticker"].unique()[:3]},
        "holdout_from": prices["date"].unique()[-40],
    }
    result = eigen2.fit(prices, 1, folder=tmp_path, **given)
    opened = eigen2.Result.open(tmp_path)
    assert opened.test().text == result.test().text
    assert opened.data.investable.tickers == ["S0000", "S0001", "S0002"]
    assert opened.data.rules.max_holding_days == 5
    assert str(prices["date"].unique()[-40])[:10] in (tmp_path / "config.yaml").read_text()


def test_a_result_follows_its_run_and_can_be_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = eigen2.SyntheticMarket(days=300, columns=4).generate()
    results = [eigen2.fit(prices, 1, folder=tmp_path / "run", seed=seed, **SMALL) for seed in (1, 2)]
    found = [result.metrics["fitness/mean"].item() for result in results]
    assert found[0] != found[1]
    assert results[0].run_folder == tmp_path / "run" / "earlier" / "1"
    tests = [result.test().text for result in results]
    assert tests[0] != tests[1]
    assert eigen2.test(tmp_path / "run" / "earlier" / "1").text == tests[0]
    # a fit that is refused moves nothing
    with pytest.raises(UserError, match="NOBODY"):
        eigen2.fit(prices, 1, folder=tmp_path / "run", **SMALL, investable={"tickers": ["S0000", "NOBODY"]})
    assert results[1].run_folder == tmp_path / "run"
    copy = pickle.loads(pickle.dumps(results[0]))  # noqa: S301 - ours
    assert copy.metrics.equals(results[0].metrics)
    # with the frame that it keeps, the folder may move
    (tmp_path / "run").rename(tmp_path / "moved")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(eigen2.predict("~/moved", prices))
    assert eigen2.test(tmp_path / "moved").text == tests[1]
    with pytest.raises(UserError, match=r"the run in .*run is not there any more"):
        results[1].predict(prices)


class OwnActor(ColumnActor):
    """Actor that is not eigen2's own."""


def test_a_result_runs_the_code_of_the_actor_it_was_given_alone(tmp_path: Path) -> None:
    prices = eigen2.SyntheticMarket(days=300, columns=4).generate()
    result = eigen2.fit(prices, 1, folder=tmp_path, **SMALL, actor=OwnActor)
    assert len(result.predict(prices))
    path = tmp_path / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["eigen2"]["inference"]["actor"] = {"class_path": "evil.Actor", "init_args": {}}
    torch.save(checkpoint, path)
    write_checksum(path, 0)
    with pytest.raises(UserError, match=r"the champion's actor is evil\.Actor, which is not eigen2's own"):
        replace(result).predict(prices)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rules": "weights"}, "rules is 'weights'; give TradingRules or a dictionary of its settings"),
        ({"investable": ["A"]}, r"investable is \['A'\]; give Universe or a dictionary"),
        ({"indicators": "VIX"}, "indicators is 'VIX'; give a list of names"),
    ],
)
def test_settings_of_another_type(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        eigen2.fit(**{"generations": 1, "folder": tmp_path, **settings})


def test_checkpoints_are_not_loaded_without_data() -> None:
    for module in (eigen2.ERLModule, eigen2.DQNModule):
        with pytest.raises(UserError, match=r"a module is built by a Trainer with its data.*eigen2\.Result\.open"):
            module.load_from_checkpoint("best.ckpt")


def test_a_frame_and_another_source_are_too_much(tmp_path: Path) -> None:
    frame = eigen2.SyntheticMarket(days=300, columns=3).generate()
    with pytest.raises(UserError, match="fit is given prices and a synthetic market"):
        eigen2.fit(frame, folder=tmp_path, synthetic=eigen2.SyntheticMarket())
