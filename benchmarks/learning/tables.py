"""Tables of docs/learning.md."""

from functools import partial

import numpy as np
from scipy import stats

from benchmarks.harness import Figures, Row
from benchmarks.learning.planted import MAIN, RULES
from benchmarks.learning.power_tables import draw, power_table
from benchmarks.pages import Block, Page, machines, spread, table

Runs = dict[str, list[Row]]
SHARES = {"of ridge": "{ridge:.0f} %", "of the Kalman filter": "{filtered:.0f} %"}
FITNESS = {"": "{name}", "mean": "{mean:.1f}", **SHARES, "minutes": "{minutes:.1f}"}
FITNESS |= {"all agents": "{agents:.1f}", "market by market": "{each}"}
AGAINST = {"ERL less": "{name}", "champion": "{champion}", "all agents": "{agents}", "markets better": "{better}"}
ABLATIONS = {"change": "{name}", "all agents": "{agents:+.1f}", "champion": "{champion:+.1f}"}
ORACLE = {"the feature shows": "{name}", "fitness": "{mean:.1f}", "of the perfect rule": "{part:.0f} %"}
ORACLE |= {"more than without": "{more}"}


def _values(rows: list[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])


def fitness_table(*figures: Figures) -> str:
    """Return the holdout fitness of rules and champions, on average and by market."""
    runs: Runs = {name: rows for source in figures for name, rows in source["runs"].items()}
    first = next(iter(runs.values()))

    def line(name: str, who: str, rows: list[Row], **more: float | None) -> Row:
        mean, markets = _values(rows, who).mean(), spread([row[who] for row in rows])
        shares = {rule: 100 * mean / _values(first, rule).mean() for rule in ("ridge", "filtered")}
        return {"name": name, "mean": mean, **shares, "each": markets, **more}

    lines = [line(rule, rule, first, minutes=None, agents=None) for rule in RULES]
    for name, rows in ((name, runs[name]) for name in MAIN if name in runs):
        minutes, agents = _values(rows, "seconds").mean() / 60, _values(rows, "agents").mean()
        lines.append(line(name, "champion", rows, minutes=minutes, agents=agents))
    return table(FITNESS, lines)


def against_table(*figures: Figures) -> str:
    """Return by how much ERL beats each of its halves, market by market."""
    runs: Runs = {name: rows for source in figures for name, rows in source["runs"].items()}
    lines = []
    for name, rows in ((name, runs[name]) for name in MAIN[1:] if name in runs):
        gains = [_values(runs["erl"], who) - _values(rows, who) for who in ("champion", "agents")]
        better = " and ".join(str(int((gain > 0).sum())) for gain in gains) + f" of {len(rows)}"
        lines.append({"name": name, "champion": interval(gains[0]), "agents": interval(gains[1]), "better": better})
    return table(AGAINST, lines)


def interval(values: np.ndarray) -> str:
    """Return a mean and its 95 % interval by Student's t distribution."""
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    return f"{values.mean():+.1f} ({low:+.1f} to {high:+.1f})"


def ablation_table(figures: Figures) -> str:
    """Return the effect of each change of the defaults on one market, sorted by the fitness of all agents."""
    runs: Runs = figures["runs"]
    lines = [
        {"name": name, **{who: rows[0][who] - runs["erl"][0][who] for who in ("agents", "champion")}}
        for name, rows in runs.items()
        if name != "erl"
    ]
    return table(ABLATIONS, sorted(lines, key=lambda line: -line["agents"]))


def oracle_table(figures: Figures) -> str:
    """Return champions' fitness by feature, as a part of the perfect rule's and beyond that without the feature."""
    runs: Runs = figures["runs"]
    plain, perfect = _values(runs["without"], "champion"), _values(runs["without"], "perfect").mean()
    lines = []
    for name, rows in runs.items():
        champion = _values(rows, "champion")
        more = None if name == "without" else interval(champion - plain)
        lines.append({"name": name, "mean": champion.mean(), "part": 100 * champion.mean() / perfect, "more": more})
    return table(ORACLE, lines)


PLANTED = ("planted", "planted-long")
SOURCES = {
    "planted": "five markets",
    "planted-long": "evolution alone, as long",
    "planted-fresh": "ten further markets",
    "planted-short": "sixteen more, 25 generations",
    "ablations": "ablations",
    "oracle": "oracle",
}
POWER = ("power-rules", "power")
PAGE = Page(
    {
        "power_rules": Block(power_table, POWER[:1]),
        "power_rules_machine": Block(partial(machines, ["rules"]), POWER[:1]),
        "power": Block(power_table, POWER),
        "power_machine": Block(partial(machines, ["champions"]), POWER[1:]),
        "planted": Block(fitness_table, PLANTED),
        "against": Block(against_table, PLANTED),
        "fresh_against": Block(against_table, ("planted-fresh",)),
        "short_against": Block(against_table, ("planted-short",)),
        "ablations": Block(ablation_table, ("ablations",)),
        "oracle": Block(oracle_table, ("oracle",)),
        "learning_machine": Block(partial(machines, list(SOURCES.values())), tuple(SOURCES)),
    },
    {"images/power.png": Block(draw, POWER)},
)
