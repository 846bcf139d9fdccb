"""From files to a report and to a clean file: nothing half-written, nothing changed in silence."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.market.data.cleaning import prepare as prepare_module
from eigen2.market.data.cleaning.inputs import Inputs
from eigen2.market.data.cleaning.policy import DEFECTS, CleaningPolicy
from eigen2.market.data.cleaning.prepare import changes_path, inspect, prepare
from eigen2.market.data.cleaning.report import Report
from eigen2.market.data.panel import build_panel
from eigen2.market.data.source import read_prices
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.market.data.cleaning.rows import DATA

ROOT = Path(__file__).parents[4]
MARKET = SyntheticMarket(days=60, columns=3, seed=3).generate()
VALUES = ["open", "high", "low", "close", "volume"]


def dirty() -> pd.DataFrame:
    """A clean market with one planted defect in each ticker."""
    table = MARKET.copy()
    table.loc[5, "low"] = 0.0  # S0000, its sixth day
    table.loc[70, "high"] = table.loc[70, "low"] / 2  # S0001
    return pd.concat([table, table.iloc[[130]]], ignore_index=True)  # S0002, a row twice


@pytest.fixture
def path(tmp_path: Path) -> Path:
    dirty().to_csv(tmp_path / "dirty.csv", index=False)
    return tmp_path / "dirty.csv"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_clean_market_comes_out_as_it_went_in(tmp_path: Path, out: Path) -> None:
    """Also when it comes in two files of different kinds."""
    old = MARKET["date"] < MARKET["date"].median()
    MARKET[old].to_csv(tmp_path / "old.csv", index=False)
    MARKET[~old].sample(frac=1, random_state=1).to_parquet(tmp_path / "new.parquet", index=False)
    report = prepare([tmp_path / "new.parquet", tmp_path / "old.csv"], out)
    assert not any(finding["rows"] for finding in report.findings.values())
    pd.testing.assert_frame_equal(read_prices(out), MARKET, rtol=1e-14)
    assert len(pd.read_csv(changes_path(out))) == 0


def test_every_change_is_in_the_log_and_nothing_else_changes(path: Path, out: Path) -> None:
    report = prepare([path], out)
    before, after = dirty().sort_values(["ticker", "date"], kind="stable"), read_prices(out)
    log = pd.read_csv(changes_path(out), keep_default_na=False, na_values=[""])
    assert list(log["defect"]) == ["nonpositive_price", "high_below_low", "duplicate"]
    assert list(log["action"]) == ["mask", "mask", "drop"]
    assert log.loc[0, "low"] == 0
    assert np.isnan(log.loc[0, "low_after"])
    assert log.loc[0, "open_after"] == log.loc[0, "open"]
    changed = set(zip(log["ticker"], pd.to_datetime(log["date"]), strict=True))
    same = ~pd.Series(zip(after["ticker"], after["date"], strict=True)).isin(changed).to_numpy()
    merged = after[same].merge(before.drop_duplicates(), on=["ticker", "date"], suffixes=("", "_in"))
    assert len(merged) == same.sum() == 180 - 3
    for name in VALUES:
        np.testing.assert_array_equal(merged[name], merged[f"{name}_in"])
    made = {"rows": 180, "usable": 180, "masked": 2, "dropped": 1, "repaired": 0, "tickers": 3}
    assert report.prepared == made
    assert inspect([path]).as_dict() == report.as_dict()


def test_a_failure_leaves_everything_as_it_was(path: Path, out: Path) -> None:
    policy = CleaningPolicy(high_below_low="fail")
    # inspect counts what prepare would refuse
    finding = inspect([path], policy).findings["high_below_low"]
    assert (finding["rows"], finding["action"]) == (1, "fail")
    with pytest.raises(UserError, match=r"high_below_low.*S0001"):
        prepare([path], out, policy)
    assert names(out.parent) == ["dirty.csv"]
    for file in (changes_path(out), out):
        file.write_bytes(b"old")
        with pytest.raises(UserError, match=rf"{file.name}' exists: .*--overwrite"):
            prepare([path], out)
    with pytest.raises(UserError, match="1 rows are duplicate"):
        prepare([path], out, CleaningPolicy(duplicate="fail"), overwrite=True)
    assert out.read_bytes() == b"old"
    prepare([path], out, overwrite=True)
    assert pq.read_metadata(out).num_rows == 180
    MARKET.assign(open=0.0, close=0.0).to_csv(path, index=False)
    with pytest.raises(UserError, match="no usable row is left of 180"):
        prepare([path], out, overwrite=True)
    assert pq.read_metadata(out).num_rows == 180


def test_an_indicator_may_be_negative(path: Path) -> None:
    table = MARKET.copy()
    table.loc[table["ticker"] == "S0001", ["open", "high", "low", "close"]] = -1.5
    table.to_csv(path, index=False)
    for indicators, rows in (([], 60), (["S0001"], 0)):
        assert inspect([path], indicators=indicators).findings["nonpositive_price"]["rows"] == rows
    with pytest.raises(UserError, match="VIX"):
        inspect([path], indicators=["VIX"])


@pytest.mark.parametrize(("moment", "resample"), [("clean", None), ("clean", "day"), ("move_into_place", None)])
def test_a_kill_leaves_no_half_file_and_the_next_run_cleans_up(
    path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, moment: str, resample: Literal["day"] | None
) -> None:
    with monkeypatch.context() as patch:
        # a killed process cleans up nothing
        patch.setattr(prepare_module, moment, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr("eigen2.files.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            prepare([path], out, resample=resample)
    assert names(out.parent) == [".out.parquet.draft", "dirty.csv"]
    prepare([path], out)
    assert names(out.parent) == ["dirty.csv", "out.changes.csv", "out.parquet"]


def test_spill_files_without_room_end_in_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(path.parent / "missing"))
    with pytest.raises(UserError, match=r"spill files of inspect .*/missing: No such file.*set TMPDIR"):
        inspect([path])


def data(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a data command; what it prints."""
    main(["data", *map(str, words)])
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line of a refused data command."""
    with pytest.raises(SystemExit) as left:
        main(["data", *map(str, words)])
    assert left.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    return line.removeprefix("error: ")


def test_the_report_fits_80_columns(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(path.parent)
    table = dirty()
    for name, rows in table.groupby("ticker"):
        rows.drop(columns="ticker").to_csv(f"{name}.csv", index=False)
    for copy in range(4):
        MARKET[:60].assign(ticker=f"COPY{copy}").to_csv(f"T{copy}.csv", index=False)
    path.unlink()
    said = data(capsys, "inspect", ".")
    assert max(len(line) for line in said.splitlines()) <= 80
    assert "S0000.csv: one ticker a file\nS0001.csv" in said
    assert "and 2 more files" in said
    one_line = " ".join(said.split())
    assert "7 tickers, 60 days" in one_line
    assert "420 usable rows (2 masked, 1 dropped, 0 repaired)" in one_line
    assert "1 1 mask nonpositive_price: zero or negative" in one_line
    assert "S0000 2000-01-10" in said
    assert len(json.loads(data(capsys, "inspect", ".", "--json"))["inputs"]) == 7


def test_json_and_options(path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = dirty()
    table.loc[7, "volume"] = np.nan
    table.loc[9, "close"] = np.inf
    table.to_csv(path, index=False)
    report = json.loads(data(capsys, "inspect", path, "--json"))
    assert report["defects"]["infinite_price"]["examples"][0]["close"] == "inf"
    assert report["defects"]["duplicate"]["rows"] == 1
    assert report["first_day"] == "2000-01-03"
    options = ("--policy.high_below_low", "drop", "--limits.tolerance_bps", "50", "--json")
    assert json.loads(data(capsys, "prepare", path, out, *options))["out"] == str(out)
    assert pq.read_metadata(out).num_rows == 179


def test_every_defect_has_a_line_of_80_columns(tmp_path) -> None:
    MARKET.to_csv(path := tmp_path / "prices.csv", index=False)
    report = Report(Inputs([path]), np.array(["2020-01-01"], "datetime64[D]"), CleaningPolicy())
    for finding in report.findings.values():
        finding.update(rows=9_999_999, changed=9_999_999)
    lines = str(report).splitlines()[3:]
    assert [line.split()[3].removesuffix(":") for line in lines] == list(DEFECTS)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "missing.csv"], "missing.csv"),
        (["inspect"], "inspect needs FILE: see --help"),
        (["inspect", "dirty.csv", "--policy.jump", "nonsense"], "policy.jump is nonsense; it must be"),
        (["inspect", "dirty.csv", "--policy.jmp", "mask"], "unknown key policy.jmp: did you mean policy.jump?"),
        (["inspect", "dirty.csv", "--limits.jump", "-1"], "limits.jump"),
        (["prepare", "dirty.csv"], "prepare got only 'dirty.csv'"),
        (["prepare", "dirty.csv", "out.csv"], "name a file that ends in .parquet"),
        (["prepare", "dirty.csv", "no/out.parquet"], "there is no folder 'no'"),
        (
            ["prepare", "in.parquet", "in.parquet", "--overwrite"],
            "is an input, or in a folder of inputs: name a file elsewhere",
        ),
        (["synthesize", "no/out.parquet"], "no"),
        (["synthesize", "out.parquet", "--market.days", "1"], "is 1; it must be at least 2"),
    ],
)
def test_wrong_words_get_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(path.parent)
    Path("in.parquet").touch()
    assert said in refusal(capsys, *words)
    assert names(path.parent) == ["dirty.csv", "in.parquet"]


def test_synthesized_prices_are_clean_and_build_a_panel(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = data(capsys, "synthesize", out, "--market.days", "200", "--market.columns", "4")
    assert "200 days x 4 columns" in said
    assert not any(finding["rows"] for finding in inspect([out]).findings.values())
    assert build_panel(read_prices(out), validation_days=50, holdout_days=50).num_columns == 4


def test_commands_on_files_alone_load_neither_torch_nor_lightning(path: Path) -> None:
    script = (
        "import sys, eigen2.cli.report; from eigen2.cli.main import main; main(sys.argv[1:]); print({*sys.modules})"
    )
    command = [sys.executable, "-c", script, "data", "inspect", str(path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert "'eigen2.cli.data'" in printed
    assert not {"'torch'", "'lightning'"} & {*re.findall(r"'\w+'", printed)}


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared price files")
@pytest.mark.parametrize(
    ("name", "columns"),
    [pytest.param("sp500_5yr", 505, marks=pytest.mark.slow), ("dow30", 30), ("dow31", 31), ("finrl_trade", 29)],
)
def test_real_files_make_panels_after_prepare_with_defaults(name: str, columns: int, out: Path) -> None:
    report = prepare([DATA / f"{name}.parquet"], out)
    told = re.findall(r"^ +[\d,]+ +([\d,]+)  \w+ +(\w+): ", str(report), re.MULTILINE)
    assert len(told) <= 20
    changed = {defect: int(count.replace(",", "")) for count, defect in told if count != "0"}
    assert pd.read_csv(changes_path(out))["defect"].value_counts().to_dict() == changed
    panel = build_panel(read_prices(out), validation_days=40, holdout_days=20)
    assert panel.num_columns == columns
    assert panel.valid[-1].mean() > 0.99


def test_columns_that_are_left_out_are_named(tmp_path: Path) -> None:
    prices = SyntheticMarket(days=30, columns=2).generate()
    own, plain = tmp_path / "own.csv", tmp_path / "plain.parquet"
    prices.assign(mood=1.0, note="text").to_csv(own)  # with pandas' index
    prices.to_parquet(plain, index=False)
    report = inspect([own, plain])
    assert "left out 'mood', 'note': join them to the result by date and ticker" in str(report)
    assert [each["left_out"] for each in report.as_dict()["inputs"]] == [["mood", "note"], []]
    comma = tmp_path / "comma.csv"  # at the end of every line
    comma.write_text(prices.to_csv(index=False).replace("\n", ",\n"))
    assert all("left out" not in str(inspect([file])) for file in (plain, comma))
    assert "days apart" not in str(inspect([plain]))
    prices[prices["date"].dt.day_of_week == 0].to_parquet(tmp_path / "weekly.parquet", index=False)
    assert "rows are 7 days apart" in str(inspect([tmp_path / "weekly.parquet"]))
    prices.assign(CFACPR=1.0, note="text").to_csv(own)
    assert "left out 'CFACPR': divide prices by cfacpr and multiply volumes by cfacshr first" in str(inspect([own]))
