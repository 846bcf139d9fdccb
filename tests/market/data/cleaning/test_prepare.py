"""From files to a report and to a clean file: nothing half-written, nothing changed in silence."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.market.data.cleaning.policy import Policy
from eigen2.market.data.cleaning.prepare import changes_path, inspect, prepare
from eigen2.market.data.panel import build_panel
from eigen2.market.data.source import read_prices
from eigen2.market.synthetic.generator import SyntheticMarket

ROOT = Path(__file__).parents[4]
DATA = ROOT.parent / "shared" / "data"
VALUES = ["open", "high", "low", "close", "volume"]


def market(days: int = 60, columns: int = 3) -> pd.DataFrame:
    return SyntheticMarket(days=days, columns=columns, seed=3).generate()


def dirty() -> pd.DataFrame:
    """A clean market with one planted defect each: (ticker, row of the ticker) in the names below."""
    table = market()
    table.loc[5, "low"] = 0.0  # S0000, its sixth day
    table.loc[70, "high"] = table.loc[70, "low"] / 2  # S0001
    return pd.concat([table, table.iloc[[130]]], ignore_index=True)  # S0002, a row twice


def put_dirty(folder: Path) -> Path:
    path = folder / "dirty.csv"
    dirty().to_csv(path, index=False)
    return path


def test_a_clean_market_comes_out_as_it_went_in(tmp_path: Path) -> None:
    table = market()
    table.sample(frac=1, random_state=1).to_parquet(tmp_path / "in.parquet", index=False)
    report = prepare([tmp_path / "in.parquet"], tmp_path / "out.parquet")
    assert {name for name, finding in report.findings.items() if finding.rows} == set()
    pd.testing.assert_frame_equal(read_prices(tmp_path / "out.parquet"), table)
    assert len(pd.read_csv(tmp_path / "out.changes.csv")) == 0


def test_every_change_is_in_the_log_and_nothing_else_changes(tmp_path: Path) -> None:
    path, out = put_dirty(tmp_path), tmp_path / "out.parquet"
    report = prepare([path], out)
    before, after = dirty().sort_values(["ticker", "date"], kind="stable"), read_prices(out)
    log = pd.read_csv(changes_path(out), keep_default_na=False, na_values=[""])
    assert list(log["defect"]) == ["nonpositive_price", "high_below_low", "duplicate"]
    assert list(log["action"]) == ["mask", "mask", "drop"]
    assert log.loc[0, "low"] == 0
    assert np.isnan(log.loc[0, "open_after"])
    changed = set(zip(log["ticker"], pd.to_datetime(log["date"]), strict=True))
    same = ~pd.Series(zip(after["ticker"], after["date"], strict=True)).isin(changed).to_numpy()
    merged = after[same].merge(before.drop_duplicates(), on=["ticker", "date"], suffixes=("", "_in"))
    assert len(merged) == same.sum() == 180 - 3
    for name in VALUES:
        np.testing.assert_array_equal(merged[name], merged[f"{name}_in"])
    made = report.prepared
    assert (made.rows, made.usable, made.masked, made.dropped, made.repaired) == (180, 178, 2, 1, 0)


def test_inspect_says_what_prepare_does(tmp_path: Path) -> None:
    path = put_dirty(tmp_path)
    assert inspect([path]).as_dict() == prepare([path], tmp_path / "out.parquet").as_dict()


def test_inspect_counts_what_prepare_would_refuse(tmp_path: Path) -> None:
    path, policy = put_dirty(tmp_path), Policy(high_below_low="fail")
    report = inspect([path], policy)
    assert report.findings["high_below_low"].rows == 1
    assert report.findings["high_below_low"].action == "fail"
    with pytest.raises(UserError, match=r"high_below_low.*S0001"):
        prepare([path], tmp_path / "out.parquet", policy)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dirty.csv"]


def test_inputs_merge_by_date_and_ticker(tmp_path: Path) -> None:
    table = market(columns=4)
    halves = [table[table["date"] < table["date"].median()], table[table["date"] >= table["date"].median()]]
    halves[0].to_csv(tmp_path / "old.csv", index=False)
    halves[1].to_parquet(tmp_path / "new.parquet", index=False)
    prepare([tmp_path / "new.parquet", tmp_path / "old.csv"], tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(read_prices(tmp_path / "out.parquet"), table, rtol=1e-14)


def test_an_indicator_may_be_negative(tmp_path: Path) -> None:
    table = market(columns=2)
    spread = table["ticker"] == "S0001"
    table.loc[spread, ["open", "high", "low", "close"]] = -1.5
    table.to_parquet(tmp_path / "in.parquet", index=False)
    assert inspect([tmp_path / "in.parquet"]).findings["nonpositive_price"].rows == 60
    report = inspect([tmp_path / "in.parquet"], indicators=["S0001"])
    assert report.findings["nonpositive_price"].rows == 0
    with pytest.raises(UserError, match="VIX"):
        inspect([tmp_path / "in.parquet"], indicators=["VIX"])


@pytest.mark.parametrize("moment", ["block", "rename"])
def test_a_kill_leaves_no_half_file_and_the_next_run_cleans_up(tmp_path: Path, moment: str) -> None:
    path, out = put_dirty(tmp_path), tmp_path / "out.parquet"
    script = f"""
import os, signal
from eigen2.market.data.cleaning import prepare
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if {moment!r} == "block":
    prepare.clean = die
else:
    prepare.move_into_place = die
prepare.prepare([{str(path)!r}], {str(out)!r})
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    assert not changes_path(out).exists()
    prepare([path], out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dirty.csv", "out.changes.csv", "out.parquet"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path, out = put_dirty(tmp_path), tmp_path / "out.parquet"
    out.write_bytes(b"old")
    with pytest.raises(UserError, match="--overwrite"):
        prepare([path], out)
    with pytest.raises(UserError, match="1 rows are duplicate"):
        prepare([path], out, Policy(duplicate="fail"), overwrite=True)
    assert out.read_bytes() == b"old"
    prepare([path], out, overwrite=True)
    assert pq.read_metadata(out).num_rows == 180


def test_nothing_usable_is_refused(tmp_path: Path) -> None:
    table = market(columns=1).assign(close=-1.0)
    table.to_csv(tmp_path / "in.csv", index=False)
    with pytest.raises(UserError, match="no usable row is left of 60"):
        prepare([tmp_path / "in.csv"], tmp_path / "out.parquet")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.csv"]


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    put_dirty(tmp_path)
    out = data(capsys, "inspect", "dirty.csv")
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "3 tickers (3 on all days), 60 days" in out
    assert "178 usable rows of 3 tickers: 2 rows masked, 1 dropped, 0 repaired" in " ".join(out.split())
    assert "S0000 2000-01-10" in out


def test_a_folder_of_many_files_is_shown_in_few_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all").mkdir()
    for name, rows in market(columns=8).groupby("ticker"):
        rows.drop(columns="ticker").to_csv(tmp_path / "all" / f"{name}.csv", index=False)
    lines = data(capsys, "inspect", "all").splitlines()
    assert [line for line in lines if "all/" in line] == [f"all/S000{i}.csv: one ticker a file" for i in range(5)]
    assert "and 3 more files" in lines
    assert len(json.loads(data(capsys, "inspect", "all", "--json"))["inputs"]) == 8


def test_json_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = dirty()
    table.loc[7, "volume"] = np.nan
    table.loc[9, "close"] = np.inf
    table.to_csv(tmp_path / "in.csv", index=False)
    report = json.loads(data(capsys, "inspect", tmp_path / "in.csv", "--json"))
    assert report["defects"]["infinite_price"]["examples"][0]["close"] == "inf"
    assert report["defects"]["duplicate"]["rows"] == 1
    assert report["first_day"] == "2000-01-03"
    out = tmp_path / "out.parquet"
    assert json.loads(data(capsys, "prepare", tmp_path / "in.csv", out, "--json"))["out"] == str(out)


def test_policies_and_limits_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = put_dirty(tmp_path), tmp_path / "out.parquet"
    data(capsys, "prepare", path, out, "--policy.high_below_low", "drop", "--limits.tolerance_bps", "50")
    assert pq.read_metadata(out).num_rows == 179


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "missing.csv"], "missing.csv"),
        (["inspect"], "inspect.inputs"),
        (["inspect", "in.csv", "--policy.jump", "nonsense"], "policy.jump is nonsense; it must be"),
        (["inspect", "in.csv", "--policy.jmp", "mask"], "unknown key policy.jmp: did you mean policy.jump?"),
        (["inspect", "in.csv", "--limits.jump", "-1"], "limits.jump"),
        (["prepare", "in.csv"], "prepare got only 'in.csv'"),
        (["prepare", "in.csv", "out.csv"], "name a file that ends in .parquet"),
        (["prepare", "in.csv", "no/out.parquet"], "there is no folder 'no'"),
        (["synthesize", "no/out.parquet"], "no"),
        (["synthesize", "out.parquet", "--market.days", "1"], "is 1; it must be at least 2"),
    ],
)
def test_wrong_words_get_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    dirty().to_csv("in.csv", index=False)
    assert said in refusal(capsys, *words)
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv"]


def test_an_input_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.parquet"
    market().to_parquet(path, index=False)
    assert "is also an input" in refusal(capsys, "prepare", path, path, "--overwrite")


def test_synthesized_prices_are_clean_and_build_a_panel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made.parquet"
    said = data(capsys, "synthesize", out, "--market.days", "400", "--market.columns", "4")
    assert "400 days x 4 columns" in said
    report = json.loads(data(capsys, "inspect", out, "--json"))
    assert not any(finding["rows"] for finding in report["defects"].values())
    assert build_panel(read_prices(out), validation_days=50, holdout_days=50).num_columns == 4


def test_data_commands_do_not_load_torch() -> None:
    script = (
        "import sys; from eigen2.cli.main import main; "
        "main(['data', 'inspect', sys.argv[1]]); print('torch' in sys.modules)"
    )
    sample = ROOT / "eigen2" / "market" / "data" / "sample" / "stocks.parquet"
    done = subprocess.run(
        [sys.executable, "-c", script, str(sample)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared price files")
@pytest.mark.parametrize(
    ("name", "columns"), [pytest.param("sp500_5yr", 505, marks=pytest.mark.slow), ("finrl_trade", 29)]
)
def test_real_files_make_panels_after_prepare_with_defaults(name: str, columns: int, tmp_path: Path) -> None:
    prepare([DATA / f"{name}.parquet"], tmp_path / "out.parquet")
    panel = build_panel(read_prices(tmp_path / "out.parquet"), validation_days=40, holdout_days=20)
    assert panel.num_columns == columns
    assert panel.valid[-1].mean() > 0.99
