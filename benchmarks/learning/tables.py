"""Tables of docs/learning.md."""

from collections.abc import Collection
from functools import partial

import numpy as np

from benchmarks.harness import Figures, Row
from benchmarks.learning.planted import RULES
from benchmarks.learning.power_tables import power_table, weak_table
from benchmarks.pages import Block, Page, interval, machines, table

Runs = dict[str, list[Row]]
WHO = ("champion", "agents")
SHARED = ("shared", "shared representation of days")  # what tables call it, and the variant
SHARES = {"of ridge": "{ridge:.0f} %", "of the Kalman filter": "{filtered:.0f} %"}
FITNESS = {"": "{name}", "mean": "{mean:.1f}", **SHARES, "all agents": "{agents:.1f}"}
AGAINST = {"champion": "{champion}", "all agents": "{agents}", "markets better": "{better}"}
ABLATIONS = {"change": "{name}", "all agents": "{agents:+.1f}", "champion": "{champion:+.1f}"}


def _values(rows: list[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])


def fitness_table(figures: Figures) -> str:
    """Return the holdout fitness of rules and champions, on average over markets."""
    runs: Runs = figures["runs"]
    first = next(iter(runs.values()))

    def line(name: str, who: str, rows: list[Row], **more: float | None) -> Row:
        mean = _values(rows, who).mean()
        shares = {rule: 100 * mean / _values(first, rule).mean() for rule in ("ridge", "filtered")}
        return {"name": name, "mean": mean, **shares, **more}

    lines = [line(rule, rule, first, agents=None) for rule in RULES]
    for name, rows in runs.items():
        lines.append(line(name, "champion", rows, agents=_values(rows, "agents").mean()))
    return table(FITNESS, lines)


def against_table(figures: Figures) -> str:
    """Return by how much ERL beats ridge regression and Kalman filter, market by market."""
    erl: list[Row] = figures["runs"]["erl"]
    return _differences("ERL", erl, {rule: (erl, rule, rule) for rule in ("ridge", "filtered")})


def variants_table(name: str, own: Figures, *others: Figures) -> str:
    """Return by how much the only variant of `own`, called `name`, beats all others, market by market."""
    (own_rows,) = own["runs"].values()
    variants = {variant: (rows, *WHO) for figures in others for variant, rows in figures["runs"].items()}
    return _differences(name, own_rows, variants)


def within_table(name: str, own: str, figures: Figures, others: Collection[str] | None = None) -> str:
    """Return by how much a variant, called `name`, beats others of the same benchmark, market by market."""
    runs: Runs = dict(figures["runs"])
    rows = runs.pop(own)
    return _differences(name, rows, {variant: (runs[variant], *WHO) for variant in others or runs})


def _differences(name: str, own: list[Row], others: dict[str, tuple[list[Row], str, str]]) -> str:
    """Return the table of `own` less the values of these names in the rows of others, of the same markets."""
    lines = []
    for other, (rows, *theirs) in others.items():
        assert [row["seed"] for row in rows] == [row["seed"] for row in own], f"{other} was played on other markets"
        gains = [_values(own, who) - _values(rows, their) for who, their in zip(WHO, theirs, strict=True)]
        better = " and ".join(str(int((gain > 0).sum())) for gain in gains) + f" of {len(rows)}"
        lines.append({"name": other, "champion": interval(gains[0]), "agents": interval(gains[1]), "better": better})
    return table({f"{name} minus": "{name}", **AGAINST}, lines)


def ablation_table(figures: Figures) -> str:
    """Return the effect of each change of the defaults on one market, sorted by the fitness of all agents."""
    runs: Runs = figures["runs"]
    lines = [
        {"name": name, **{who: rows[0][who] - runs["erl"][0][who] for who in WHO}}
        for name, rows in runs.items()
        if name != "erl"
    ]
    return table(ABLATIONS, sorted(lines, key=lambda line: -line["agents"]))


PAGE = Page(
    {
        "power_rules": Block(power_table, ("power-rules",)),
        "power_rules_machine": Block(partial(machines, ["rules"]), ("power-rules",)),
        "weak": Block(weak_table, ("weak",)),
        "weak_machine": Block(partial(machines, ["weak"]), ("weak",)),
        "planted": Block(fitness_table, ("planted",)),
        "against": Block(against_table, ("planted",)),
        "planted_machine": Block(partial(machines, ["planted"]), ("planted",)),
        "halves": Block(partial(variants_table, "ERL"), ("planted", "halves")),
        "halves_machine": Block(partial(machines, ["halves"]), ("halves",)),
        "trunks": Block(partial(variants_table, "shared"), ("trunks", "planted", "halves")),
        "trunks_machine": Block(partial(machines, ["trunks"]), ("trunks",)),
        "fresh_against": Block(against_table, ("fresh",)),
        "fresh": Block(partial(within_table, *SHARED), ("fresh",)),
        "fresh_erl": Block(partial(within_table, "ERL", "erl", others=["gradients alone"]), ("fresh",)),
        "fresh_machine": Block(partial(machines, ["fresh"]), ("fresh",)),
        "trunk_variants": Block(partial(within_table, *SHARED), ("trunk-variants",)),
        "trunk_variants_machine": Block(partial(machines, ["trunk-variants"]), ("trunk-variants",)),
        "heads": Block(partial(within_table, *SHARED), ("heads",)),
        "heads_machine": Block(partial(machines, ["heads"]), ("heads",)),
        "ablations": Block(ablation_table, ("ablations",)),
        "ablations_machine": Block(partial(machines, ["ablations"]), ("ablations",)),
    },
)
