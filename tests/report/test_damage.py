"""Damaged files of a run: the error names the file, the problem and the remedy."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.report.charts import charts
from eigen2.report.page import render
from eigen2.report.record import load
from tests.report.runs import write_cases, write_run

TEXT_COLUMNS = ("ticker", "reason", "phase")
COLUMNS = {
    "metrics.csv": ("generation",),
    "memory.csv": ("rss_bytes", "phase"),
    "champion/equity.csv": ("date", "equity"),
    "champion/trades.csv": ("window", "ticker"),
    "test/equity.csv": ("date", "momentum", "random 95 %"),
    "test/trades.csv": ("exit_date", "gain_pct", "reason"),
}
KEYS = {
    "test/summary.json": ("days/first", "champion_generation", "measures/champion/total return", "luck", "selection"),
    "test/scores.json": ("cases", "scores/champion"),
    "run.json": ("fitness/unit",),
    "memory/verdict.json": ("lines",),
}


def write_run_with(folder: Path, name: str) -> Path:
    """Write a run whose report reads this file: without a test if it is the champion's validation trades."""
    return write_run(folder, tested=name != "champion/trades.csv") / name


def assert_refused(file: Path, folder: Path, problem: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(f'{file} cannot be read: {problem}')}.*; restore it, or "):
        load(folder)


@pytest.mark.parametrize(
    ("name", "column"), [(name, column) for name, columns in COLUMNS.items() for column in columns]
)
def test_a_table_lacks_a_column_or_a_value(tmp_path: Path, name: str, column: str) -> None:
    file = write_run_with(tmp_path, name)
    table = pd.read_csv(file, keep_default_na=False, dtype=str)
    table.drop(columns=column).to_csv(file, index=False)
    assert_refused(file, tmp_path, f"it has no column {column!r}")
    for value, problem in (("?", "holds a value that is not a "), ("", "has a gap")):
        if value and column in TEXT_COLUMNS:
            continue
        table.loc[0, column] = value
        table.to_csv(file, index=False)
        assert_refused(file, tmp_path, f"the column {column!r} {problem}")


OTHER_CONTENTS = [b"\xff\xfe\x00", b"", b"a,b\n1,2\n", b"{", b"[1]", b'{"settings": 1}']


@pytest.mark.parametrize("name", [*COLUMNS, *KEYS, "config.yaml"])
def test_a_file_has_other_content(tmp_path: Path, name: str) -> None:
    file = write_cases(tmp_path) / name if "scores" in name else write_run_with(tmp_path, name)
    for content in OTHER_CONTENTS[:1] if name == "config.yaml" else OTHER_CONTENTS:  # a configuration may be any text
        file.write_bytes(content)
        assert_refused(file, tmp_path, "")


@pytest.mark.parametrize("linked", ["config.yaml", "champion/breaks.png", "test", "memory"])
def test_links_of_a_received_run_show_no_file_of_the_reader(linked: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(folder)
    (folder / "champion" / "breaks.png").write_bytes(b"own")
    plain, private = load(folder), tmp_path / "private"
    (folder / linked).rename(private)
    (folder / linked).symlink_to(private)
    found = load(folder)
    shown = {"config.yaml": "config", "test": "test", "memory": "memory_verdict"}.get(linked, "pictures")
    assert getattr(plain, shown)
    assert not getattr(found, shown)
    (folder / linked).unlink()
    private.rename(folder / linked)
    (tmp_path / "link").symlink_to(folder)
    assert getattr(load(tmp_path / "link"), shown), "a link to the run itself is the reader's own"


def test_days_of_the_test_are_missing(tmp_path: Path) -> None:
    file = write_run_with(tmp_path, "test/equity.csv")
    whole = file.read_text()
    file.write_text(whole.splitlines()[0] + "\n")
    assert_refused(file, tmp_path, "it ends on [], but the test on 2004-11-12")
    file.write_text(whole[: len(whole) // 2])
    assert_refused(file, tmp_path, "it ends on ['2004-10-")


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in KEYS.items() for key in keys])
def test_a_key_is_missing_or_has_another_value(tmp_path: Path, name: str, key: str) -> None:
    cases = name in ("run.json", "test/scores.json")
    file = (write_cases(tmp_path) / name if cases else write_run_with(tmp_path, name)).resolve()
    whole = file.read_text()
    *outer, last = key.split("/")
    for value, problem in ((None, ""), ({"?": 1}, ""), (math.nan, "it holds a number that is not finite")):
        parent = values = json.loads(whole)
        for part in outer:
            parent = parent[part]
        if value is None:
            del parent[last]
        else:
            parent[last] = value
        file.write_text(json.dumps(values))
        assert_refused(file, tmp_path, problem)


@pytest.mark.parametrize("name", ["test/summary.json", "test/scores.json"])
def test_the_settings_of_a_test_are_no_list(tmp_path: Path, name: str) -> None:
    file = write_cases(tmp_path) / name if "scores" in name else write_run_with(tmp_path, name)
    file.write_text(json.dumps({**json.loads(file.read_text()), "settings": [1]}))
    assert_refused(file, tmp_path, "settings: [1] is not of type 'object'")


def test_a_day_of_a_window_comes_twice_or_none_does(tmp_path: Path) -> None:
    file = write_run_with(tmp_path, "champion/equity.csv")
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, rows[0], *rows, ""]))
    assert_refused(file, tmp_path, "it has two rows of one window and date")
    file.write_text(f"{header}\n")
    assert "validation" not in charts(load(tmp_path))


def test_random_returns_that_differ_by_rounding_are_one_bar(tmp_path: Path) -> None:
    file = write_run_with(tmp_path, "test/summary.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "random_returns": [0.3, 0.1 + 0.2]}))
    bars = charts(load(tmp_path))["luck"]["layer"][0]["data"]["values"]
    assert [bar["policies"] for bar in bars if bar["policies"]] == [2]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no metrics.csv: name the folder of a run"):
        load(tmp_path)


def test_an_incomplete_last_line_is_dropped_and_the_ticker_na_is_kept(tmp_path: Path) -> None:
    write_run(tmp_path, tested=False)
    with (tmp_path / "memory.csv").open("a") as file:
        file.write("2,evalu")
    record = load(tmp_path)
    assert record.memory is not None
    assert record.memory["generation"].max() == 1
    assert record.trades is not None
    assert set(record.trades["ticker"]) == {"AAPL", "NA"}
    render(record)


def test_a_last_line_is_whole_or_dropped(tmp_path: Path) -> None:
    """Half a number would be another number."""
    file = write_run(tmp_path) / "metrics.csv"
    whole, generations = file.read_text(), len(load(tmp_path).metrics)
    *_, last = whole.splitlines()
    for cut in (last, last[:-1], f"{last.split(',')[0]},1", last[:1]):
        file.write_text(whole.removesuffix(f"{last}\n") + cut)
        assert len(load(tmp_path).metrics) == generations - 1


def test_rows_that_are_longer_than_the_header_are_refused(tmp_path: Path) -> None:
    """Pandas would take the generation for the row's name, and the next column for the generation."""
    file = write_run(tmp_path) / "metrics.csv"
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *(f"{row}," for row in rows), ""]))
    assert_refused(file, tmp_path, "its rows have more values than its header has names")


def test_a_report_replaces_reports_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = write_run(tmp_path) / "metrics.csv"
    before = metrics.read_bytes()
    for _ in range(2):
        main(["report", str(tmp_path), "--output", str(tmp_path / "page")])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path), "--output", str(metrics)])
    expected = f"error: {metrics} is no HTML file and would be lost; name another file\n"
    assert capsys.readouterr() == ("", expected)
    assert metrics.read_bytes() == before
    with pytest.raises(SystemExit):
        main(["report", "x" * 300])
    assert "metrics.csv cannot be read: File name too long; " in capsys.readouterr().err


def test_the_command_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_run(tmp_path) / "memory.csv"
    file.write_text("generation,phase\n0,train\n")
    with pytest.raises(SystemExit) as error:
        main(["report", str(tmp_path)])
    output = capsys.readouterr()
    assert (error.value.code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert line.startswith(f"error: {file} cannot be read: ")
