"""One HTML file that needs nothing else: text, tables, charts and the script that draws them."""

import base64
import json
import math
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from eigen2.market.evaluation.performance import format_measure
from eigen2.report.charts import charts, fitness_words
from eigen2.report.record import RunRecord, load
from eigen2.runtime.files import replacing
from eigen2.runtime.provenance import describe_changes

HASH = 12
"""Letters of a hash that are shown."""
MOST_OF_PICTURES = 2_000_000
"""Bytes of all pictures together; they take a third more in the page."""
WORDS = ("ticker", "reason")
"""Columns of the trades that are text."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def write_report(folder: Path, to: Path | None = None) -> Path:
    """Write a run's report; return its file.

    Args:
        folder: of the run.
        to: the file; None is `report.html` in the folder.

    Raises:
        UserError: there is no run in the folder, or a file of it is damaged.
        OSError: the file cannot be written.
    """
    target = folder / "report.html" if to is None else to
    page = render(load(folder))
    with replacing(target) as draft:
        draft.write_text(page)
    return target


def render(run: RunRecord) -> str:
    """The page."""
    sources = files("eigen2.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((sources / "page.html").read_text())
    return template.render(
        run=run,
        facts=facts(run),
        prices_hash=run.facts.get("settings", {}).get("data.prices"),
        other=list(other_settings(run).values()),
        measures=measures(run),
        over=fitness_words(run)["over"],
        scores=scores(run),
        pictures=shown_pictures(run),
        months=MONTHS,
        years=monthly_returns(run),
        trades=trades(run),
        words=WORDS,
        trades_of=trades_of(run),
        charts=list(specs := charts(run)),
        specs=Markup(json.dumps(specs, separators=(",", ":"), default=str).replace("<", "\\u003c")),
        style=Markup((sources / "page.css").read_text()),
        vega=_script(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")),
        script=_script((sources / "page.js").read_text()),
    )


def _script(text: str) -> Markup:
    """For the inside of a script element, which `</script` would end and `<!--` would change."""
    return Markup(re.sub(r"<(?=/script|!--)", r"\\x3c", text, flags=re.IGNORECASE))


def facts(run: RunRecord) -> dict[str, str]:
    """What was run, in the order of the page."""
    kept, settings = run.facts, run.facts.get("settings", {})
    commit, prices = kept.get("commit"), settings.get("data.prices")
    agents, columns = settings.get("model.population_size"), run.metrics["generation"]
    found = {
        "generations": f"{len(columns):,}, the last is {int(columns.iloc[-1]):,}" if len(columns) else "none",
        "agents": agents,
        "seed": kept.get("seed"),
        "prices": None if prices is None else ", ".join(filter(None, (run.prices, str(prices)[:HASH]))),
        "commit": None if commit is None else commit + (" and uncommitted changes" if kept.get("dirty") else ""),
        "versions": ", ".join(f"{name} {version}" for name, version in kept.get("versions", {}).items()) or None,
        "machine": kept.get("machine"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def other_settings(run: RunRecord) -> dict[str, str]:
    """In which settings of the data a test differs from its fit."""
    tested = run.test or run.scores
    if not tested or "settings" not in tested:
        return {}
    return describe_changes(run.facts.get("settings", {}), tested["settings"], "data.")


def measures(run: RunRecord) -> list[list[str]]:
    """The test's measures, a row each after one of the policies' names; empty without a test."""
    if run.test is None:
        return []
    policies = run.test["measures"]
    rows = [
        [name, *(format_measure(name, policies[policy][name]) for policy in policies)] for name in policies["champion"]
    ]
    return [["", *policies], *rows]


def scores(run: RunRecord) -> list[list[str]]:
    """Mean, standard error, least and most of what each policy reached in the test's cases; empty without them."""
    if run.scores is None:
        return []
    rows = [["", "mean", "standard error", "least", "most"]]
    for name, found in run.scores["scores"].items():
        values = np.array(found, float)
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        numbers = (values.mean(), error, values.min(), values.max())
        rows.append([name, *("" if math.isnan(number) else f"{number:z.1f}" for number in numbers)])
    return rows


def shown_pictures(run: RunRecord) -> dict[str, str]:
    """Pictures as addresses that hold them, by what they show, without those that would make the page too large."""
    found, room = {}, MOST_OF_PICTURES
    for name, content in run.pictures.items():
        room -= len(content)
        if room >= 0:
            found[re.sub(r"[-_]+", " ", name)] = "data:image/png;base64," + base64.b64encode(content).decode()
    return found


def monthly_returns(run: RunRecord) -> list[tuple[int, list[float | None], float]]:
    """Year, the champion's return in each month of it or None, and in all of it."""
    if run.equity is None:
        return []
    equity, dates = run.equity["champion"].to_numpy(), pd.DatetimeIndex(run.equity["date"])
    month = np.asarray(12 * dates.year + dates.month - 1)
    last = np.append(np.flatnonzero(np.diff(month)), len(month) - 1)  # of each month
    ends = np.concatenate([equity[:1], equity[last]])
    by_month: dict[int, list[float | None]] = {}
    for place, value in zip(month[last].tolist(), (ends[1:] / ends[:-1] - 1).tolist(), strict=True):
        by_month.setdefault(place // 12, [None] * 12)[place % 12] = value
    return [(year, row, math.prod(1 + (value or 0.0) for value in row) - 1) for year, row in by_month.items()]


def trades_of(run: RunRecord) -> dict[str, str]:
    """What the trades are of: the section's title, what it says, and what the chart of profits says."""
    if run.test:
        return {
            "title": "Trades in the holdout",
            "text": "The champion's in the test, all of one account.",
            "chart": "",
        }
    table = run.trades if run.validation is None else run.validation  # not every window has a trade
    count = 0 if table is None else table["window"].nunique()
    windows = f"{count} window{'s' * (count != 1)}"
    return {
        "title": "Trades in validation",
        "text": f"Not of a test: the champion's in validation, {windows}, each an account of its own. "
        "Where windows overlap, the same trade may be in several.",
        "chart": f"Summed over the accounts of {windows}. ",
    }


def trades(run: RunRecord) -> Iterable[dict[str, str]]:
    """The champion's trades as a reader wants them; those of validation with their windows."""
    if run.trades is None:
        return []
    return [
        {
            **({} if run.test else {"window": str(int(row["window"]))}),
            "ticker": str(row["ticker"]),
            "opened": str(row["entry_date"])[:10],
            "closed": str(row["exit_date"])[:10],
            "calendar days": str((row["exit_date"] - row["entry_date"]).days),
            "coefficient": f"{row['coefficient']:z.2f}",
            "entry": f"{row['entry_price']:z.2f}",
            "exit": f"{row['exit_price']:z.2f}",
            "gain, %": f"{row['gain_pct']:z.2f}",
            "profit": f"{row['profit']:z.2f}",
            "reason": str(row["reason"]),
        }
        for row in run.trades.to_dict("records")
    ]
