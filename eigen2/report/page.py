"""One HTML file that needs nothing else: text, tables, charts and the script that draws them."""

import base64
import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

import pandas as pd
import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from eigen2.market.evaluation.performance import format_measure
from eigen2.report.charts import charts
from eigen2.report.record import TRADE, RunRecord, load
from eigen2.runtime.files import replacing
from eigen2.runtime.provenance import describe_changes

NUMBERS = dict(zip(("coefficient", "entry", "exit", "gain, %", "profit"), TRADE, strict=True))  # of trades, by heading
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def write_report(folder: Path, to: Path | None = None) -> Path:
    """Write a run's report, by default to `report.html` in its folder, and return its path.

    Raises UserError for a folder without a run or with a damaged file, and OSError if the report cannot be written.
    """
    target = folder / "report.html" if to is None else to
    page = render(load(folder))
    with replacing(target) as draft:
        draft.write_text(page)
    return target


def render(run: RunRecord) -> str:
    """Return the page."""
    sources = files("eigen2.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    table = run.trades if run.validation is None else run.validation  # a window need not have trades
    tested, settings = run.test or run.scores or {}, run.facts.get("settings", {})
    return environment.from_string((sources / "page.html").read_text()).render(
        run=run,
        facts=facts(run),
        mismatches=[*describe_changes(settings, tested.get("settings", settings), "data.").values()],
        measures=measures(run),
        over=run.facts.get("fitness", {}).get("over", "agents"),
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
    """Escape what would end a script element, `</script`, or change it, `<!--`."""
    return Markup(re.sub(r"<(?=/script|!--)", r"\\x3c", text, flags=re.IGNORECASE))


def facts(run: RunRecord) -> dict[str, str]:
    """Return what was run, in the order of the page."""
    kept, settings = run.facts, run.facts.get("settings", {})
    count, commit = len(run.metrics), kept.get("commit")
    found = {
        "generations": f"{count:,}, the last is {int(run.metrics['generation'].iloc[-1]):,}" if count else "none",
        "agents": settings.get("model.population_size"),
        "seed": kept.get("seed"),
        "prices": settings.get("data.prices"),
        "commit": commit and commit + (" and uncommitted changes" if kept.get("dirty") else ""),
        "versions": ", ".join(f"{name} {version}" for name, version in kept.get("versions", {}).items()) or None,
        "machine": kept.get("machine"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def measures(run: RunRecord) -> list[list[str]]:
    """Return the test's measures, a row each after a row of the policies; empty without a test."""
    if run.test is None:
        return []
    policies = run.test["measures"]
    names = policies["champion"]
    rows = [[name, *(format_measure(name, each.get(name)) for each in policies.values())] for name in names]
    return [["", *policies], *rows]


def scores(run: RunRecord) -> list[list[str]]:
    """Return mean, standard error, least and most of each policy over the test's cases; empty without them."""
    if run.scores is None:
        return []
    table = [
        (name, pd.Series(found).agg(["mean", "sem", "min", "max"])) for name, found in run.scores["scores"].items()
    ]
    rows = [[name, *(f"{x:z.1f}" if pd.notna(x) else "" for x in numbers)] for name, numbers in table]
    return [["", "mean", "standard error", "least", "most"], *rows]


def monthly_returns(run: RunRecord) -> list[tuple[int, list[float | None], float]]:
    """Return each year with the champion's return in its months, None where there is none, and in all of it."""
    if run.equity is None:
        return []
    equity, dates = run.equity["champion"].to_numpy(), pd.DatetimeIndex(run.equity["date"])
    ends = pd.Series(equity).groupby([dates.year, dates.month]).last()
    table = (ends / ends.shift(fill_value=equity[0]) - 1).unstack().reindex(columns=range(1, 13))
    totals = (1 + table).prod(axis=1) - 1
    rows = table.astype(object).where(table.notna(), None)
    return list(zip(table.index.tolist(), rows.to_numpy().tolist(), totals.tolist(), strict=True))


def trades(run: RunRecord) -> list[dict[str, str]]:
    """Return the champion's trades as a reader wants them; those of validation with their windows."""
    return [
        {
            **({} if run.test else {"window": str(int(row["window"]))}),
            "ticker": str(row["ticker"]),
            "opened": str(row["entry_date"])[:10],
            "closed": str(row["exit_date"])[:10],
            "calendar days": str((row["exit_date"] - row["entry_date"]).days),
            **{name: f"{row[column]:z.2f}" for name, column in NUMBERS.items()},
            "reason": str(row["reason"]),
        }
        for row in ([] if run.trades is None else run.trades.to_dict("records"))
    ]
