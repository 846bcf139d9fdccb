"""The report in a real browser, and what is in it."""

import errno
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.report.page import facts, measures, monthly_returns, render, trades, write_report
from eigen2.report.record import RunRecord, load
from eigen2.report.tearsheet import write_tearsheet
from tests.command import eigen2
from tests.report.browser import ask, needs_browser
from tests.report.runs import write_run

CHARTS = {
    *("equity", "drawdown", "luck", "contribution"),
    *("validation", "fitness", "survival", "diversity", "seconds", "rss", "owners"),
}
WICKED = '</script><script>document.title="broken"</script>'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was tested, with a ticker that would break a careless page."""
    root = tmp_path_factory.mktemp("run")
    small = ("--config", "tests/small.yaml", "--trainer.default_root_dir", root, "--report", "true")
    for command in (("fit", *small), ("test", *small, "--ckpt_path", "best")):
        done = eigen2(*command)
        assert done.returncode == 0, done.stderr
        assert "report " in done.stdout
    listed = pd.read_csv(root / "test" / "trades.csv")
    listed.loc[0, "ticker"] = WICKED
    listed.to_csv(root / "test" / "trades.csv", index=False)
    return root


@needs_browser
def test_every_chart_is_drawn_and_trades_are_sorted_and_filtered(run: Path, tmp_path: Path) -> None:
    script = """
      const body = document.querySelector("#trade-list tbody");
      const head = [...document.querySelectorAll("#trade-list th")].find((each) => each.textContent === "profit");
      const column = (index) => [...body.rows].map((row) => row.cells[index].textContent);
      const told = { title: document.title, drawn: document.querySelectorAll("[data-drawn=yes] svg").length };
      told.charts = [...document.querySelectorAll("[data-drawn=yes]")].map((each) => each.dataset.chart);
      head.querySelector("button").click();
      told.rising = column(head.cellIndex).map(Number);
      head.querySelector("button").click();
      told.falling = column(head.cellIndex).map(Number);
      const box = document.getElementById("filter");
      box.value = body.rows[0].cells[0].textContent + " " + body.rows[0].cells[9].textContent;
      box.dispatchEvent(new Event("input"));
      told.left = [...body.rows].filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
      told.shown = document.getElementById("shown").textContent;
      return told;
    """
    told = ask(write_report(run, tmp_path / "report.html"), tmp_path, script)
    assert set(told["charts"]) == CHARTS
    assert told["drawn"] >= len(CHARTS)
    assert told["title"] != "broken"
    assert len(told["rising"]) > 3
    assert told["rising"] == sorted(told["rising"])
    assert told["falling"] == sorted(told["rising"], reverse=True)
    assert len(set(told["left"])) == 1
    assert told["shown"] == f"{len(told['left'])} of {len(told['rising'])} trades"


@needs_browser
def test_tickers_of_digits_are_sorted_among_the_others(tmp_path: Path) -> None:
    file = write_run(tmp_path / "run", windows=4, tested=False) / "champion" / "trades.csv"
    trades = pd.read_csv(file, keep_default_na=False)
    names = ["B", "9", "AAPL", "600000", "C", "1", "NA", "10"]
    trades.assign(ticker=names).to_csv(file, index=False)
    script = """
      const head = [...document.querySelectorAll("#trade-list th")].find((each) => each.textContent === "ticker");
      head.querySelector("button").click();
      return [...document.querySelectorAll("#trade-list tbody tr")].map((row) => row.cells[head.cellIndex].textContent);
    """
    assert ask(write_report(tmp_path / "run"), tmp_path, script) == sorted(names)


@needs_browser
def test_the_wheel_scrolls_the_page_and_zooms_with_ctrl_alone(tmp_path: Path) -> None:
    script = """
      const chart = document.querySelector("[data-chart=fitness] svg");
      const ground = chart.querySelector(".background");
      const wheel = (ctrlKey) => {
        const event = new WheelEvent("wheel", { deltaY: -500, ctrlKey, bubbles: true, cancelable: true });
        ground.dispatchEvent(event);
        return event.defaultPrevented;
      };
      const labels = async () => {
        await new Promise((done) => setTimeout(done, 200));
        return [...chart.querySelectorAll(".role-axis-label")[0].querySelectorAll("text")].length;
      };
      const told = { before: await labels(), alone: wheel(false), after: await labels() };
      told.ctrl = wheel(true);
      told.zoomed = await labels();
      ground.dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
      told.reset = await labels();
      return { ...told, hint: document.querySelector(".hint").textContent };
    """
    told = ask(write_report(write_run(tmp_path / "run", generations=20)), tmp_path, script)
    assert (told["alone"], told["ctrl"]) == (False, True)
    assert told["before"] == told["after"] == told["reset"] == 20
    assert told["zoomed"] < 18
    assert "Ctrl and the wheel to zoom, double-click to reset" in told["hint"]


@needs_browser
@pytest.mark.parametrize("generations", [1, 30])
def test_an_axis_has_whole_generations_each_once(tmp_path: Path, generations: int) -> None:
    script = """
      const texts = (chart) => [...chart.querySelector(".role-axis-label").querySelectorAll("text")];
      const names = ["fitness", "survival", "diversity", "rss", "owners", "seconds"];
      const shown = (chart) => texts(chart).filter((text) => getComputedStyle(text).opacity !== "0");
      const labels = (name) => shown(document.querySelector(`[data-chart=${name}]`)).map((text) => text.textContent);
      return Object.fromEntries(names.map((name) => [name, labels(name)]));
    """
    told = ask(write_report(write_run(tmp_path / "run", generations)), tmp_path, script)
    for name, labels in told.items():
        numbers = [int(label) for label in labels]
        assert len(set(numbers)) == len(numbers), name
        assert set(numbers) <= set(range(generations)), name
        assert generations > 1 or len(numbers) == generations, name


@needs_browser
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "dark phone"])
def test_no_text_of_a_chart_is_cut_off_or_covers_another(tmp_path: Path, phone: bool) -> None:
    script = """
      const told = { width: document.body.clientWidth, cut: [], covered: [] };
      const seen = (text) => text.textContent && getComputedStyle(text).opacity !== "0";
      const box = (text) => text.getBoundingClientRect();
      for (const svg of document.querySelectorAll("[data-chart] svg")) {
        const edge = svg.getBoundingClientRect();
        const inside = (r) => r.left > edge.left - 1 && r.right < edge.right + 1 && r.bottom < edge.bottom + 1;
        const texts = [...svg.querySelectorAll("text")].filter(seen);
        told.cut.push(...texts.filter((text) => !inside(box(text))).map((text) => text.textContent));
        const labels = [...svg.querySelector(".role-axis-label").querySelectorAll("text")].filter(seen);
        labels.sort((one, other) => box(one).left - box(other).left);
        labels.slice(1).forEach((label, place) => {
          const gap = box(label).left - box(labels[place]).right;
          if (gap < 2) told.covered.push(`${labels[place].textContent} ${label.textContent} ${gap}`);
        });
      }
      return told;
    """
    told = ask(write_report(write_run(tmp_path / "run", generations=25, days=150)), tmp_path, script, phone=phone)
    assert told["width"] == (390 if phone else 1265)  # but for the scroll bar
    assert told["cut"] == told["covered"] == []


@needs_browser
@pytest.mark.parametrize(
    ("first", "days", "years"),
    [
        ("2004-10-12", 5, {"2004"}),
        ("2004-10-12", 140, {"2004", "2005"}),
        ("2004-12-20", 20, {"2004", "2005"}),
        ("2003-02-03", 800, {"2003", "2004", "2005", "2006"}),
    ],
)
def test_dates_have_their_years(tmp_path: Path, first: str, days: int, years: set[str]) -> None:
    script = """
      const labels = (name) => document.querySelector(`[data-chart=${name}] .role-axis-label`);
      return ["equity", "drawdown"].map((name) => [...labels(name).querySelectorAll("tspan, text:not(:has(tspan))")]
        .filter((text) => getComputedStyle(text.closest("text")).opacity !== "0").map((text) => text.textContent));
    """
    for labels in ask(
        write_report(write_run(tmp_path / "run", days=days, first=first)), tmp_path, script, phone=days > 100
    ):
        assert {label for label in labels if re.fullmatch(r"\d{4}", label)} == years, labels
        named = [label for label in labels if re.fullmatch(r"[A-Z][a-z]{2} \d\d", label)]
        assert len(set(named)) == len(named)


def test_the_page_needs_no_network_and_is_small(run: Path) -> None:
    page = render(load(run))
    assert len(page.encode()) < 5_000_000
    before_scripts = page.split('<script type="application/json"')[0]
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", before_scripts)
    assert "http" not in before_scripts
    assert WICKED not in page


def test_what_was_run_is_told(run: Path) -> None:
    record = load(run)
    told = facts(record)
    assert told["seed"] == "7"
    assert told["agents"] == "4"
    assert told["generations"] == "4, the last is 3"
    assert "torch" in told["versions"]
    assert re.fullmatch(r"synthetic market, [0-9a-f]{12}", told["prices"])
    page = render(record)
    whole = record.facts["settings"]["data.prices"]
    assert f'<td title="{whole}">{told["prices"]}</td>' in page
    assert len(whole) == 64
    assert "verdict: healthy" in page
    assert "seed_everything: 7" in page
    rows = {row[0]: row[1:] for row in measures(record)}
    assert rows[""] == ["champion", "buy and hold", "momentum"]
    assert record.test is not None
    assert rows["trades"][0] == f"{record.test['measures']['champion']['trades']:,.0f}"
    assert len(list(trades(record))) == record.test["measures"]["champion"]["trades"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("data:\n  path: prices/stocks.parquet\n", "prices/stocks.parquet, 0a1b0a1b0a1b"),
        ("data:\n  context_days: 20\n", "sample shipped with eigen2, 0a1b0a1b0a1b"),
        ("", "0a1b0a1b0a1b"),
    ],
)
def test_prices_are_told_by_where_they_came_from(tmp_path: Path, config: str, said: str) -> None:
    (write_run(tmp_path) / "config.yaml").write_text(config)
    assert facts(load(tmp_path))["prices"] == said


def rows_of(page: str) -> list[list[str]]:
    """Cells of the table of trades, the names of its columns first."""
    table = page.split('<table id="trade-list">')[1].split("</table>")[0]
    rows = [re.findall(r"<t[hd](?: [^>]*)?>(?:<button[^>]*>)?([^<]*)", row) for row in table.split("<tr>")]
    return [row for row in rows if row]


def test_trades_are_numbers_with_units_that_line_up(tmp_path: Path) -> None:
    page = render(load(write_run(tmp_path)))
    head, first, second = rows_of(page)
    assert head == [
        *("ticker", "opened", "closed", "calendar days", "coefficient", "entry", "exit", "gain, %", "profit", "reason")
    ]
    assert first[3:] == ["14", "5.00", "69.60", "78.97", "13.46", "3364.00", "holding"]
    assert second[3:] == ["14", "1.50", "1204.50", "1204.50", "0.00", "0.00", "holding"]
    assert page.count('<td class="word">') == 4  # all else is flush right
    assert not re.search(r">-0\.0+( %)?<", page)
    assert "<dd>+0.0 %</dd>" in page


def test_the_dark_page_is_for_screens_alone(run: Path) -> None:
    """Charts are printed in the colours of paper; on a dark page nobody could read them."""
    conditions = re.findall(r"@media ([^{]*prefers-color-scheme: dark[^{]*) \{", render(load(run)))
    assert conditions == ["screen and (prefers-color-scheme: dark)"]


def test_trades_say_what_they_are_of(tmp_path: Path) -> None:
    holdout = render(load(write_run(tmp_path / "tested")))
    assert "<h2>Trades in the holdout</h2>" in holdout
    assert "windows, each an account of its own" not in holdout
    assert "window" not in rows_of(holdout)[0]
    validated = render(load(write_run(tmp_path / "fitted", tested=False)))
    assert "<h2>Trades in validation</h2>" in validated
    assert "in validation, 3 windows, each an account of its own" in validated
    assert "Summed over the accounts of 3 windows. " in validated
    head, *rows = rows_of(validated)
    assert head[:2] == ["window", "ticker"]
    assert [row[0] for row in rows] == ["0", "0", "1", "1", "2", "2"]


def test_a_test_with_other_settings_than_the_fits_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    kept = {"data.prices": 16 * "0a1b", "data.rules.cost_bps": 10.0, "model.tau": 0.1}
    (folder / "run.json").write_text(json.dumps({"settings": kept}))
    summary = json.loads((folder / "test" / "summary.json").read_text())
    pages = []
    for cost in (10.0, 50.0):
        settings = {"data.prices": 16 * "0a1b", "data.rules.cost_bps": cost}
        (folder / "test" / "summary.json").write_text(json.dumps({**summary, "settings": settings}))
        pages.append(render(load(folder)))
    assert "other settings" not in pages[0]
    assert "elsewhere: data.rules.cost_bps 10.0, now 50.0.</p>" in pages[1]


def test_monthly_returns_by_hand(tmp_path: Path) -> None:
    dates = pd.to_datetime(["2019-12-30", "2019-12-31", "2020-01-02", "2020-01-31", "2020-03-02"])
    equity = pd.DataFrame({"date": dates, "champion": [100.0, 110.0, 99.0, 121.0, 60.5]})
    record = RunRecord(**{**vars(load(write_run(tmp_path))), "equity": equity})
    (first, december, a_tenth), (second, months, total) = monthly_returns(record)
    assert (first, second) == (2019, 2020)
    assert december[11] == a_tenth == pytest.approx(0.1)
    assert months[0] == pytest.approx(0.1)
    assert months[1] is None
    assert months[2] == pytest.approx(-0.5)
    assert total == pytest.approx(60.5 / 110 - 1)


def test_a_run_without_test_memory_or_champion_has_a_page_too(tmp_path: Path) -> None:
    metrics = pd.DataFrame({"generation": [0, 1], "fitness/mean": [1.0, np.nan], "fitness/min": [0, 0]})
    metrics.to_csv(tmp_path / "metrics.csv", index=False)
    page = render(load(tmp_path))
    assert 'id="test"' not in page
    assert 'id="memory"' not in page
    assert 'id="trades"' not in page


@pytest.mark.parametrize("place", ["", "a folder", "no folder/report.html", "/proc/report.html"])
def test_a_place_that_takes_no_file_is_refused_and_left_as_it_was(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "work" / "a folder").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path / "run"), "--output", place])
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert line.startswith(f"error: cannot write the report to {place!r}: ")
    assert line.endswith("; name a file in a folder that exists and can be written, by --output")
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["a folder"]


def test_a_page_that_is_not_finished_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(draft: Path, final: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("eigen2.runtime.files.move_into_place", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(run, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_tear_sheet_is_of_the_test_and_fetches_nothing(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("quantstats")
    done = eigen2("report", run, "--output", tmp_path / "mine.html", "--tearsheet", "true")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (tmp_path / "mine.html").read_text().startswith("<!doctype html>")
    sheet = (run / "tearsheet.html").read_text()
    assert "eigen2 champion" in sheet
    assert "onload=" not in sheet
    assert not re.search(r'(?:src|href)="https?://[^"]*\.(?:ico|js|css|png)', sheet)
    summary = json.loads((run / "test" / "summary.json").read_text())
    total = summary["measures"]["champion"]["total return"]
    shown = re.search(r"Cumulative Return</td><td>(-?[\d,.]+)%</td><td>(-?[\d,.]+)%", sheet)
    assert shown is not None
    numbers = [float(number.replace(",", "")) for number in shown.groups()]
    assert any(abs(number - 100 * total) < 0.011 for number in numbers), (numbers, total)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "metrics.csv").write_text((run / "metrics.csv").read_text())
    with pytest.raises(UserError, match="has no test to make a tear sheet of"):
        write_tearsheet(bare)
