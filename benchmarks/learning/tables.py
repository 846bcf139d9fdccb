"""Tables of docs/learning.md."""

import numpy as np
from scipy import stats

from benchmarks.harness import Figures, Row
from benchmarks.learning.intervals import LEVEL, Interval, over_seeds
from benchmarks.learning.planted import MAIN, RULES
from benchmarks.pages import Block, Page, grid, spread, table

Runs = dict[str, list[Row]]
DIFFERENCES = ("champion", "95 % interval", "Student's", "all agents", "95 % interval", "Student's", "markets better")
SHARES = {"of momentum": "{momentum:.0f} %", "of the filter": "{filtered:.0f} %"}
MACHINES = ("planted", "as long", "ten further markets", "sixteen more, 25 generations", "ablations", "oracle")


def _mean(rows: list[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _of_rules(rows: list[Row], fitness: float) -> Row:
    """Return a fitness in percent of what two rules earn in these markets."""
    return {rule: 100 * fitness / _mean(rows, rule) for rule in ("momentum", "filtered")}


def planted_table(planted: Figures, long: Figures) -> str:
    """Return fitness on the holdout of champions and rules, the mean of all markets and each market's."""
    runs: Runs = planted["runs"] | long["runs"]
    first = next(iter(runs.values()))
    columns = {"": "{name}", "mean": "{mean:,.0f}", **SHARES, "minutes": "{minutes:.1f}", "all agents": "{agents:,.0f}"}
    columns |= {f"market {row['seed']}": f"{{each[{i}]:,.0f}}" for i, row in enumerate(first)}

    def line(name: str, who: str, rows: list[Row], **more: float | None) -> Row:
        mean = _mean(rows, who)
        return {"name": name, "mean": mean, **_of_rules(first, mean), "each": [row[who] for row in rows], **more}

    lines = [line(rule, rule, first, minutes=None, agents=None) for rule in RULES]
    for name, rows in ((name, runs[name]) for name in MAIN if name in runs):
        lines.append(line(name, "champion", rows, minutes=_mean(rows, "seconds") / 60, agents=_mean(rows, "agents")))
    return table(columns, lines)


def fresh_table(found: Figures) -> str:
    """Return mean fitness on the holdout in further markets, and in percent of the rules."""
    columns = {"": "{name}", "champion": "{champion:,.0f}", **SHARES}
    columns |= {"all agents": "{agents:,.0f}", "champion, market by market": "{each}"}
    lines = [
        {"name": name, "champion": champion, "agents": _mean(rows, "agents"), **_of_rules(rows, champion)}
        | {"each": spread([row["champion"] for row in rows], ",.0f")}
        for name, rows in found["runs"].items()
        for champion in [_mean(rows, "champion")]
    ]
    return table(columns, lines)


def against_table(*figures: Figures) -> str:
    """Return what ERL earns more than each of its halves, market by market."""
    runs: Runs = {name: rows for each in figures for name, rows in each["runs"].items()}
    return grid(["ERL less", *DIFFERENCES], [[name, *_differences(runs, name)] for name in MAIN[1:] if name in runs])


def _differences(runs: Runs, name: str) -> list[str]:
    cells, better = [], []
    for who in ("champion", "agents"):
        paired = -np.array(list(_by_market(runs, name, who).values()))
        found = over_seeds(paired[None], np.random.default_rng(0))
        low, high = stats.t.interval(LEVEL, len(paired) - 1, paired.mean(), stats.sem(paired))
        cells += [f"{found.mean:+,.0f}", bounds(found), bounds(Interval(found.mean, low, high))]
        better.append(int((paired > 0).sum()))
    return [*cells, f"{better[0]} and {better[1]} of {len(runs[name])}"]


def _by_market(runs: Runs, name: str, who: str) -> dict[int, float]:
    """Return what a variant's champion or its agents earn more than ERL's, by market."""
    base = {row["seed"]: row[who] for row in runs["erl"]}
    return {row["seed"]: row[who] - base[row["seed"]] for row in runs[name]}


def bounds(found: Interval) -> str:
    """Return an interval's bounds."""
    return f"{found.low:+,.0f} to {found.high:+,.0f}"


def ablation_table(found: Figures) -> str:
    """Return what each change of the defaults adds or takes in each market, the best first by all agents."""
    runs: Runs = found["runs"]
    places = [(who, row["seed"]) for who in ("agents", "champion") for row in runs["erl"]]
    header = ["change", *(f"{'all ' * (who == 'agents')}{who}, market {market}" for who, market in places)]
    cells = {name: [_by_market(runs, name, who).get(seed) for who, seed in places] for name in runs if name != "erl"}
    ranked = sorted(cells, key=lambda name: -(cells[name][0] or 0.0))
    return grid(header, [[name, *("" if cell is None else f"{cell:+,.0f}" for cell in cells[name])] for name in ranked])


def oracle_table(found: Figures) -> str:
    """Return the part of the perfect rule that agents earn by what the feature shows, and the fitness that it adds."""
    runs: Runs = found["runs"]
    plain = np.array([row["champion"] for row in runs["without"]])
    perfect, lines = _mean(runs["without"], "perfect"), []
    for name, rows in runs.items():
        champion = np.array([row["champion"] for row in rows])
        added = over_seeds((champion - plain)[None], np.random.default_rng(0))
        more = "" if name == "without" else f"{added.mean:+,.0f} ({bounds(added)})"
        lines.append({"name": name, "mean": champion.mean(), "part": 100 * champion.mean() / perfect, "more": more})
    columns = {"the feature tells": "{name}", "fitness": "{mean:,.0f}", "of the perfect rule": "{part:.0f} %"}
    return table({**columns, "more than without (95 %)": "{more}"}, lines)


def machines(*figures: Figures) -> str:
    """Return where each of the page's figures comes from."""
    lines = []
    for name, found in zip(MACHINES, figures, strict=True):
        machine = found["machine"]
        commits = {row["commit"][:7] for rows in found["runs"].values() for row in rows if row.get("commit")}
        where = f"{machine['machine']}, {machine['cores']} cores, torch {machine['torch']}"
        lines.append(f"- {name}: {where}, commit {', '.join(sorted(commits)) or str(machine['commit'])[:7]}.")
    return "\n".join(lines)


PLANTED = ("planted", "planted-long")
PAGE = Page(
    {
        "planted": Block(planted_table, PLANTED),
        "against": Block(against_table, PLANTED),
        "fresh": Block(fresh_table, ("planted-fresh",)),
        "fresh_against": Block(against_table, ("planted-fresh",)),
        "short_against": Block(against_table, ("planted-short",)),
        "ablations": Block(ablation_table, ("ablations",)),
        "oracle": Block(oracle_table, ("oracle",)),
        "learning_machine": Block(machines, (*PLANTED, "planted-fresh", "planted-short", "ablations", "oracle")),
    }
)
