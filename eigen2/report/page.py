"""The report: one self-contained HTML file of text, tables, charts and the script that draws them."""

import base64
import json
import logging
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

import pandas as pd
import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from eigen2.errors import UserError
from eigen2.files import Folder, write
from eigen2.market.performance import daily_returns, format_measure
from eigen2.report.charts import charts
from eigen2.report.record import TRADE, RunRecord, load
from eigen2.runtime.provenance import describe_changes
from eigen2.runtime.reliability import selection_verdict

log = logging.getLogger(__name__)

NUMBERS = dict(zip(("size", "entry", "exit", "gain, %", "profit"), TRADE, strict=True))  # column by heading
FORMATS = {"entry": ".6g", "exit": ".6g"}  # of prices, which may be small
CHANGES = {True: " and uncommitted changes", None: " with or without changes"}  # by whether there were any
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def write_report_or_warn(folder: Path) -> Path | None:
    """Write a run's report and return its path; a failure is logged, as it must not fail the run."""
    try:
        return write_report(folder)
    except (OSError, UserError) as error:
        log.warning("could not write the report: %s", error)
        return None


def write_report(folder: Path, to: Path | None = None) -> Path:
    """Write a run's report, by default to `report.html` in its folder, and return its path.

    Raises UserError for a folder without a run or with a damaged file, and for a file in the place of the report that
    is none; OSError if the report cannot be written.
    """
    if to is not None and to.is_file() and not to.read_bytes().startswith(b"<!doctype html>"):
        raise UserError(f"{to} is no HTML file and would be lost; name another file")
    page = render(load(folder))
    if to is None:
        to = folder / "report.html"
        Folder(folder).write(to.name, page)
    else:
        write(to, page)
    return to


def render(run: RunRecord) -> str:
    """Return the HTML page of a run."""
    sources = files("eigen2.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    table = run.trades if run.validation is None else run.validation  # a window may have no trades
    tested, settings = run.test or run.scores or {}, run.provenance.get("settings", {})
    changes = describe_changes(settings, tested.get("settings", settings), "data.") if settings else {}
    return environment.from_string((sources / "page.html").read_text()).render(
        run=run,
        provenance=provenance(run),
        mismatches=[*changes.values()],
        measures=measures(run),
        rankings=rankings(run),
        checks=checks(run),
        selection=selection_verdict(run.metrics.to_dict("records")),
        over=run.provenance.get("fitness", {}).get("over", "agents"),
        scores=scores(run),
        pictures={re.sub(r"[-_]+", " ", name): base64.b64encode(png).decode() for name, png in run.pictures.items()},
        months=MONTHS,
        years=monthly_returns(run),
        trades=trades(run),
        text_columns=("ticker", "reason"),
        windows=0 if run.test or table is None else table["window"].nunique(),
        charts=list(specs := charts(run)),
        specs=Markup(json.dumps(specs, separators=(",", ":"), default=str).replace("<", "\\u003c")),
        style=Markup((sources / "page.css").read_text()),
        vega=_script(_vega()),
        script=_script((sources / "page.js").read_text()),
    )


@cache
def _vega() -> str:
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _script(text: str) -> Markup:
    """Escape `</script`, which would end a script element, and `<!--`, which would start a comment."""
    return Markup(re.sub(r"<(?=/script|!--)", r"\\x3c", text, flags=re.IGNORECASE))


def provenance(run: RunRecord) -> dict[str, str]:
    """Return generations, seed, prices, code and machine of the run, in the order of the page."""
    record, settings = run.provenance, run.provenance.get("settings", {})
    count, commit = len(run.metrics), record.get("commit")
    rows = {
        "generations": f"{count:,}, the last is {int(run.metrics['generation'].iloc[-1]):,}" if count else "none",
        "agents": settings.get("model.population_size"),
        "seed": record.get("seed"),
        "prices": settings.get("data.prices"),
        "survivors": record.get("data", {}).get("survivors"),
        "commit": commit and commit + CHANGES.get(record.get("dirty"), ""),
        "versions": ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items()) or None,
        "machine": record.get("machine"),
    }
    return {name: str(value) for name, value in rows.items() if value is not None}


def measures(run: RunRecord) -> list[list[str]]:
    """Return a table of the test, a row per measure below a row of policy names; empty without a test."""
    if run.test is None:
        return []
    policies = run.test["measures"]
    names = policies["champion"]
    rows = [[name, *(format_measure(name, values.get(name)) for values in policies.values())] for name in names]
    return [["", *policies], *rows]


def rankings(run: RunRecord) -> list[list[str]]:
    """Return a table of the Rank IC of champion and rankers for each horizon; empty without a test of this version."""
    policies = {} if run.test is None else run.test.get("information", {})
    years = sorted({year for horizons in policies.values() for each in horizons.values() for year in each["years"]})
    digits = {"mean": 4, "icir": 2, "t": 2, "p": 4}
    rows = [
        [
            f"{name}, {horizon} day{'s' * (horizon != '1')}",
            *(f"{each[key]:.{count}f}" if each[key] is not None else "-" for key, count in digits.items()),
            f"{100 * each['coverage']:.0f} %",
            *(f"{each['years'][year]:.4f}" if year in each["years"] else "-" for year in years),
        ]
        for name, horizons in policies.items()
        for horizon, each in horizons.items()
    ]
    return [["", "Rank IC", "ICIR", "t", "p", "coverage", *years], *rows] if rows else []


def checks(run: RunRecord) -> list[list[str]]:
    """Return a table of each policy's return at other costs and a day late; empty for a test without checks."""
    found = None if run.test is None else run.test.get("checks")
    if not found:
        return []
    costs, late = found["costs"], found["lagged"]
    rows = [
        [name, *(format_measure("annual return", value) for value in (*each.values(), late.get(name)))]
        for name, each in costs.items()
    ]
    return [["", *(f"{cost} bp" for cost in next(iter(costs.values()), {})), "a day late"], *rows]


def scores(run: RunRecord) -> list[list[str]]:
    """Return a table of each policy's mean, standard error, minimum and maximum over the cases; empty without."""
    if run.scores is None:
        return []
    cases = run.scores["scores"].items()
    statistics = {name: pd.Series(values).agg(["mean", "sem", "min", "max"]) for name, values in cases}
    rows = [[name, *(f"{x:z.1f}" if pd.notna(x) else "" for x in numbers)] for name, numbers in statistics.items()]
    return [["", "mean", "standard error", "least", "most"], *rows]


def monthly_returns(run: RunRecord) -> list[tuple[int, list[float | None], float]]:
    """Return the champion's returns in the test: year, its 12 months (None if not in the test), and the whole year."""
    if run.equity is None:
        return []
    dates = pd.DatetimeIndex(run.equity["date"])[1:]  # the first row is the close before the test
    growth = pd.Series(1 + daily_returns(run.equity["champion"].to_numpy()))
    table = (growth.groupby([dates.year, dates.month]).prod() - 1).unstack().reindex(columns=range(1, 13))
    totals = (1 + table).prod(axis=1) - 1
    rows = table.astype(object).where(table.notna(), None)
    return list(zip(table.index.tolist(), rows.to_numpy().tolist(), totals.tolist(), strict=True))


def trades(run: RunRecord) -> list[dict[str, str]]:
    """Return the champion's trades formatted for the page, with the window if they are of validation."""
    return [
        {
            **({} if run.test else {"window": str(int(row["window"]))}),
            "ticker": str(row["ticker"]),
            "opened": str(row["entry_date"])[:10],
            "closed": str(row["exit_date"])[:10],
            "calendar days": str((row["exit_date"] - row["entry_date"]).days),
            **{name: format(row[column], FORMATS.get(name, "z.2f")) for name, column in NUMBERS.items()},
            "reason": str(row["reason"]),
        }
        for row in ([] if run.trades is None else run.trades.to_dict("records"))
    ]
