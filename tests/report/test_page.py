"""The report of a market run: its content, and its charts and tables in a real browser."""

import errno
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.cli.main import main
from eigen2.report.charts import charts, equity, exposure, rank_ic
from eigen2.report.page import (
    checks,
    measures,
    monthly_returns,
    provenance,
    rankings,
    render,
    trades,
    write_report,
)
from eigen2.report.record import load
from tests.command import eigen2
from tests.report.browser import evaluate, needs_browser
from tests.report.runs import write_run

CHARTS = {"equity", "exposure", "luck", "rank_ic", "validation", "fitness", "seconds", "rss", "owners"}
SCRIPT_TICKER = '</script><script>document.title="broken"</script>'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tested run, with a ticker that breaks a page without escaping."""
    root = tmp_path_factory.mktemp("run")
    small = ("--config", "tests/small.yaml", "--trainer.default_root_dir", root, "--report", "true")
    for command in (("fit", *small), ("test", *small, "--ckpt_path", "best")):
        result = eigen2(*command)
        assert result.returncode == 0, result.stderr
        assert "report " in result.stdout
    table = pd.read_csv(root / "test" / "trades.csv")
    table.loc[0, "ticker"] = SCRIPT_TICKER
    table.to_csv(root / "test" / "trades.csv", index=False)
    return root


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return render(load(run))


@needs_browser
def test_trades_are_sorted_and_filtered(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", windows=4, tested=False)
    trades = pd.read_csv(folder / "champion" / "trades.csv", keep_default_na=False)
    names = ["B", "9", SCRIPT_TICKER, "600000", "C", "1", "NA", "10"]
    trades.assign(ticker=names, profit=range(8, 0, -1)).to_csv(folder / "champion" / "trades.csv", index=False)
    script = """
      const body = document.querySelector("#trade-list tbody");
      const head = (name) => [...document.querySelectorAll("#trade-list th")].find((each) => each.textContent === name);
      const sorted = (name) => {
        head(name).querySelector("button").click();
        return [...body.rows].map((row) => row.cells[head(name).cellIndex].textContent);
      };
      const result = { title: document.title, ticker: sorted("ticker"), rising: sorted("profit") };
      result.falling = sorted("profit");
      const input = document.getElementById("filter");
      input.value = "600000 holding";
      input.dispatchEvent(new Event("input"));
      result.matching = [...body.rows].filter((row) => !row.hidden).map((row) => row.cells[1].textContent);
      return { ...result, shown: document.getElementById("shown").textContent };
    """
    result = evaluate(write_report(folder), tmp_path, script)
    assert result["title"] == "eigen2: run"
    assert result["ticker"] == sorted(names)  # digits and letters in one order
    assert result["rising"] == [f"{n}.00" for n in range(1, 9)]
    assert result["falling"] == result["rising"][::-1]
    assert result["matching"] == ["600000"]
    assert result["shown"] == "1 of 8 trades"


@needs_browser
@pytest.mark.parametrize(("phone", "generations"), [(False, 1), (True, 30)], ids=["wide", "dark phone"])
def test_charts_are_drawn_without_cut_or_covered_text(tmp_path: Path, phone: bool, generations: int) -> None:
    script = """
      const visible = (text) => text.textContent && getComputedStyle(text).opacity !== "0";
      const box = (each) => each.getBoundingClientRect();
      const charts = [...document.querySelectorAll("[data-drawn=yes]")];
      const labels = (name) => {
        const texts = [...document.querySelector(`[data-chart=${name}] .role-axis-label`).querySelectorAll("text")];
        return texts.filter(visible).sort((one, other) => box(one).left - box(other).left);
      };
      const result = { width: document.body.clientWidth, cut: [], covered: [] };
      result.charts = charts.map((each) => each.dataset.chart);
      for (const svg of document.querySelectorAll("[data-chart] svg")) {
        const edge = box(svg);
        const inside = (r) => r.left > edge.left - 1 && r.right < edge.right + 1 && r.bottom < edge.bottom + 1;
        const texts = [...svg.querySelectorAll("text")].filter(visible);
        result.cut.push(...texts.filter((text) => !inside(box(text))).map((text) => text.textContent));
      }
      for (const name of result.charts) {
        labels(name).slice(1).forEach((label, place) => {
          const gap = box(label).left - box(labels(name)[place]).right;
          if (gap < 2) result.covered.push(`${name} ${label.textContent} ${gap}`);
        });
      }
      const numbers = ["fitness", "rss", "owners", "seconds"];
      result.generations = numbers.map((name) => labels(name).map((text) => Number(text.textContent)));
      return result;
    """
    report = write_report(write_run(tmp_path / "run", generations, days=140))
    result = evaluate(report, tmp_path, script, phone=phone)
    assert set(result["charts"]) == CHARTS
    assert result["width"] == (390 if phone else 1265)  # 1280 without the scroll bar
    assert result["cut"] == result["covered"] == []
    for numbers in result["generations"]:
        assert len(set(numbers)) == len(numbers)
        assert set(numbers) <= set(range(generations))
        assert generations > 1 or len(numbers) == 1


def test_the_page_needs_no_network_and_is_small(page: str) -> None:
    assert len(page.encode()) < 5_000_000
    before_scripts = page.split('<script type="application/json"')[0]
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", before_scripts)
    assert "http" not in before_scripts
    assert SCRIPT_TICKER not in page
    # charts have light colours in print, which would be unreadable on a dark page
    conditions = re.findall(r"@media ([^{]*prefers-color-scheme: dark[^{]*) \{", page)
    assert conditions == ["screen and (prefers-color-scheme: dark)"]


def test_provenance_and_measures_of_the_run(run: Path, page: str) -> None:
    record = load(run)
    rows = provenance(record)
    assert (rows["seed"], rows["agents"], rows["generations"]) == ("7", "4", "4, the last is 3")
    assert "torch" in rows["versions"]
    assert re.fullmatch("[0-9a-f]{64}", rows["prices"])
    assert "verdict: none, with 4 of the 8 generations that it needs" in page
    assert "seed_everything: 7" in page
    table = {row[0]: row[1:] for row in measures(record)}
    assert table[""][:4] == ["champion", "buy and hold", "momentum", "1/N"]
    assert {row[0] for row in rankings(record)} >= {"champion, 1 day", "champion, 5 days", "ridge, 20 days"}
    assert record.test is not None
    assert table["trades"][0] == f"{record.test['measures']['champion']['trades']:,.0f}"
    assert len(list(trades(record))) == record.test["measures"]["champion"]["trades"]


def rows_of(page: str) -> list[list[str]]:
    """Return the cells of the table of trades, column names first."""
    table = page.split('<table id="trade-list">')[1].split("</table>")[0]
    rows = [re.findall(r"<t[hd](?: [^>]*)?>(?:<button[^>]*>)?([^<]*)", row) for row in table.split("<tr>")]
    return [row for row in rows if row]


def test_trades_are_formatted_and_titled(tmp_path: Path) -> None:
    page = render(load(write_run(tmp_path / "tested")))
    assert "<h2>Trades in the holdout</h2>" in page
    assert "windows, each with its own account" not in page
    head, first, second = rows_of(page)
    assert head == [
        *("ticker", "opened", "closed", "calendar days", "size", "entry", "exit", "gain, %", "profit", "reason")
    ]
    assert first[3:] == ["14", "5.00", "69.6", "78.97", "13.46", "3364.00", "holding"]
    assert second[3:] == ["14", "1.50", "1204.5", "1204.5", "0.00", "0.00", "holding"]
    assert page.count('<td class="word">') == 4  # all else is flush right
    assert not re.search(r">-0\.0+( %)?<", page)
    assert "<dd>+0.0 %</dd>" in page
    validated = render(load(write_run(tmp_path / "fitted", tested=False)))
    assert "<h2>Trades in validation</h2>" in validated
    assert "in validation, 3 windows, each with its own account" in validated
    head, *rows = rows_of(validated)
    assert head[:2] == ["window", "ticker"]
    assert [row[0] for row in rows] == ["0", "0", "1", "1", "2", "2"]


def test_a_test_with_other_settings_than_the_fit_is_marked(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "run.json").write_text(json.dumps({"settings": {"data.rules.cost_bps": 10.0, "model.tau": 0.1}}))
    record = load(folder)
    for cost, expected in ((10.0, False), (50.0, True)):
        page = render(replace(record, test={**(record.test or {}), "settings": {"data.rules.cost_bps": cost}}))
        assert ("other settings" in page) is ("data.rules.cost_bps 10.0, now 50.0.</p>" in page) is expected


def test_rankings_and_their_sums_by_hand(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    record = load(folder)
    assert rankings(record)[:3] == [
        ["", "Rank IC", "ICIR", "t", "p", "coverage", "2004"],
        ["champion, 1 day", "0.0123", "-", "-1.50", "0.2500", "100 %", "0.5000"],
        ["champion, 5 days", "0.0123", "-", "-1.50", "0.2500", "100 %", "-"],
    ]
    daily = pd.read_csv(folder / "test" / "rank_ic.csv")["ridge 5"].dropna()
    chart = rank_ic(record)
    assert chart is not None
    lines = chart["layer"][-1]["data"]["values"]
    assert [each["value"] for each in lines if each["which"] == "ridge"] == pytest.approx([*daily.cumsum()], rel=1e-6)
    assert {each["which"] for each in lines} == {"champion", "ridge"}
    (folder / "test" / "rank_ic.csv").unlink()
    without = replace(load(folder), test={**(record.test or {}), "information": {}})
    assert 'id="rankings"' not in render(without)


def test_checks_by_hand(tmp_path: Path) -> None:
    record = load(write_run(tmp_path))
    assert checks(record)[:2] == [
        ["", "0 bp", "10 bp", "30 bp", "a day late"],
        ["champion", "5.0 %", "4.0 %", "-1.2 %", "3.3 %"],
    ]
    assert "Future: no decision changes.</p>" in render(record)
    assert record.test is not None
    for earlier in ({**record.test, "checks": None}, {k: v for k, v in record.test.items() if k != "checks"}):
        assert 'id="checks"' not in render(replace(record, test=earlier))
    leak = {**record.test["checks"], "leak": {"decision": "2004-10-01", "text": "the champion sees the future"}}
    page = render(replace(record, test={**record.test, "checks": leak}))
    assert '<p class="verdict">Future: the champion sees the future.</p>' in page


def test_exposure_is_a_chart_of_its_own(tmp_path: Path) -> None:
    """In money on the axis of the equity it would press all curves to the top."""
    record = load(write_run(tmp_path))
    assert record.equity is not None
    drawn = {each["which"] for each in (equity(record) or {})["layer"][-1]["data"]["values"]}
    assert drawn == {"champion", "buy and hold", "momentum"}
    values = [each["value"] for each in (exposure(record) or {})["layer"][-1]["data"]["values"]]
    share = record.equity["champion exposure"] / record.equity["champion"]
    assert values == pytest.approx([*share], rel=1e-6)
    assert exposure(replace(record, equity=record.equity.drop(columns="champion exposure"))) is None


def test_monthly_returns_by_hand(tmp_path: Path) -> None:
    dates = pd.to_datetime(["2019-12-30", "2019-12-31", "2020-01-02", "2020-01-31", "2020-03-02"])
    curve = pd.DataFrame({"date": dates, "champion": [100.0, 110.0, 99.0, 121.0, 60.5]})
    record = replace(load(write_run(tmp_path)), equity=curve)
    (first, december, total_2019), (second, months, total_2020) = monthly_returns(record)
    assert (first, second) == (2019, 2020)
    assert december[11] == total_2019 == pytest.approx(0.1)
    assert months[:3] == [pytest.approx(0.1), None, pytest.approx(-0.5)]
    assert total_2020 == pytest.approx(60.5 / 110 - 1)


def test_the_close_before_the_test_is_no_month_of_it_and_nothing_is_gained_after_ruin(tmp_path: Path) -> None:
    dates = pd.to_datetime(["2019-12-31", "2020-01-02", "2020-02-03", "2020-03-02"])
    curve = pd.DataFrame({"date": dates, "champion": [100.0, -10.0, -20.0, -30.0]})
    ((year, months, total),) = monthly_returns(replace(load(write_run(tmp_path)), equity=curve))
    assert (year, months) == (2020, [pytest.approx(-1.1), 0.0, 0.0, *[None] * 9])
    assert total == pytest.approx(-1.1)


@pytest.mark.parametrize("name", ["value", "which"])
def test_operators_may_have_the_names_of_columns(name: str, tmp_path: Path) -> None:
    root = write_run(tmp_path)
    metrics = pd.read_csv(root / "metrics.csv")
    metrics.assign(**{f"operators/{name}_survival": 0.5}).to_csv(root / "metrics.csv", index=False)
    assert f'"which": "{name}"' in json.dumps(charts(load(root)))


def test_an_operator_named_as_the_axis_is_not_drawn(tmp_path: Path) -> None:
    root = write_run(tmp_path)
    metrics = pd.read_csv(root / "metrics.csv").assign(**{"operators/generation_survival": 0.5})
    metrics.to_csv(root / "metrics.csv", index=False)
    assert '"which": "generation"' not in json.dumps(charts(load(root)))


def test_a_run_whose_settings_are_unknown_was_not_tested_with_others(tmp_path: Path) -> None:
    root = write_run(tmp_path)
    (root / "run.json").unlink()
    assert "other settings" not in render(load(root))


def test_a_run_without_test_memory_or_champion_has_a_page(tmp_path: Path) -> None:
    metrics = pd.DataFrame({"generation": [0, 1], "fitness/mean": [1.0, np.nan], "fitness/min": [0, 0]})
    metrics.to_csv(tmp_path / "metrics.csv", index=False)
    page = render(load(tmp_path))
    assert not [name for name in ("test", "memory", "trades") if f'id="{name}"' in page]


def test_an_unwritable_output_is_refused_and_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eigen2.report.page.render", lambda record: "page")
    write_run(tmp_path / "run")
    (tmp_path / "work" / "a folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    for output in ("", "a folder", "no folder/report.html", "/proc/report.html"):
        with pytest.raises(SystemExit, match="2"):
            main(["report", str(tmp_path / "run"), "--output", output])
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: cannot write the report to {output!r}: ")
        assert line.endswith("; name a file in a folder that exists and can be written, by --output")
        assert [path.name for path in (tmp_path / "work").iterdir()] == ["a folder"]

    def disk_full(draft: Path, final: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("eigen2.files.move_into_place", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path / "run", tmp_path / "work" / "report.html")
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["a folder"]
