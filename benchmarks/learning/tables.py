"""The figures of docs/learning.md, from what was measured: `python -m benchmarks.learning.tables`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.learning.intervals import LEVEL, Interval, over_seeds
from benchmarks.learning.planted import MAIN
from benchmarks.machine import ROOT
from benchmarks.pages import fill_in, table

PAGE = ROOT / "docs" / "learning.md"
FIGURES = ROOT / "docs" / "figures"
PLANTED, LONG, FRESH, SHORT = (FIGURES / f"planted{part}.json" for part in ("", "-long", "-fresh", "-short"))
ABLATIONS, ORACLE = FIGURES / "ablations.json", FIGURES / "oracle.json"
NOT_YET = "Not measured yet."
DIFFERENCES = ("champion", "95 % interval", "Student's", "all agents", "95 % interval", "Student's", "markets better")

Rows = list[dict[str, Any]]


def load(path: Path) -> dict[str, Any] | None:
    """What was measured, None before."""
    return json.loads(path.read_text()) if path.exists() else None


def tables() -> dict[str, str]:
    """The page's tables by their names."""
    planted, ablations, oracle = load(PLANTED), load(ABLATIONS), load(ORACLE)
    long, fresh, short = load(LONG), load(FRESH), load(SHORT)
    runs = None if planted is None else {**planted["runs"], **(long["runs"] if long else {})}
    return {
        "planted": NOT_YET if runs is None else planted_table(runs),
        "against": NOT_YET if runs is None else against_table(runs),
        "fresh": NOT_YET if fresh is None else fresh_table(fresh["runs"]),
        "fresh_against": NOT_YET if fresh is None else against_table(fresh["runs"]),
        "short_against": NOT_YET if short is None else against_table(short["runs"]),
        "ablations": NOT_YET if ablations is None else ablation_table(ablations["runs"]),
        "oracle": NOT_YET if oracle is None else oracle_table(oracle["runs"]),
        "learning_machine": machines(
            *(("planted", planted), ("as long", long), ("ten further markets", fresh)),
            ("sixteen more, 25 generations", short),
            *(("ablations", ablations), ("oracle", oracle)),
        ),
    }


def planted_table(runs: dict[str, Rows]) -> str:
    """Fitness on the holdout of champions and rules, the mean of all markets and each market's."""
    first = next(iter(runs.values()))
    seeds = [str(row["seed"]) for row in first]
    rules = {rule: [row[rule] for row in first] for rule in ("random", "momentum", "filtered", "informed")}
    played = {name: [row["champion"] for row in runs[name]] for name in MAIN if name in runs}
    minutes = {name: f"{np.mean([row['seconds'] for row in runs[name]]) / 60:.1f}" for name in played}
    rows = [
        [
            name,
            f"{np.mean(each):,.0f}",
            *(f"{100 * np.mean(each) / np.mean(rules[rule]):.0f} %" for rule in ("momentum", "filtered")),
            minutes.get(name, ""),
            f"{np.mean([row['agents'] for row in runs[name]]):,.0f}" if name in played else "",
            *(f"{value:,.0f}" for value in each),
        ]
        for name, each in {**rules, **played}.items()
    ]
    header = ["", "mean", "of momentum", "of the filter", "minutes", "all agents", *(f"market {n}" for n in seeds)]
    return table(header, rows)


def fresh_table(runs: dict[str, Rows]) -> str:
    """Mean fitness on the holdout in the further markets, and in shares of the rules."""
    cells = []
    for name, rows in runs.items():
        mean = {who: float(np.mean([row[who] for row in rows])) for who in ("champion", "agents")}
        shares = [100 * mean["champion"] / np.mean([row[rule] for row in rows]) for rule in ("momentum", "filtered")]
        spread = [f"{row['champion']:,.0f}" for row in rows]
        cells.append(
            [name, f"{mean['champion']:,.0f}", *(f"{share:.0f} %" for share in shares), f"{mean['agents']:,.0f}"]
        )
        cells[-1].append(", ".join(spread))
    return table(["", "champion", "of momentum", "of the filter", "all agents", "champion, market by market"], cells)


def against_table(runs: dict[str, Rows]) -> str:
    """What ERL earns more than each of its halves, market by market."""
    return table(
        ["ERL less", *DIFFERENCES], [[name, *_differences(runs, name, -1)] for name in MAIN[1:] if name in runs]
    )


def ablation_table(runs: dict[str, Rows]) -> str:
    """What each change of the defaults adds or takes in each market, the best first by all agents in the first one."""
    markets = [row["seed"] for row in runs["erl"]]
    changed = {name: {who: _by_market(runs, name, who) for who in ("agents", "champion")} for name in runs}
    order = sorted(set(runs) - {"erl"}, key=lambda name: -changed[name]["agents"][markets[0]])
    cells = {
        name: [
            f"{changed[name][who][market]:+,.0f}" if market in changed[name][who] else ""
            for who in ("agents", "champion")
            for market in markets
        ]
        for name in order
    }
    header = [f"{who}, market {market}" for who in ("all agents", "champion") for market in markets]
    return table(["change", *header], [[name, *cells[name]] for name in order])


def _by_market(runs: dict[str, Rows], name: str, who: str) -> dict[int, float]:
    base = {row["seed"]: row[who] for row in runs["erl"]}
    return {row["seed"]: row[who] - base[row["seed"]] for row in runs[name]}


def _paired(runs: dict[str, Rows], name: str, who: str) -> np.ndarray:
    """What a variant's champion or its agents earn more than ERL's, by market."""
    base = {row["seed"]: row[who] for row in runs["erl"]}
    return np.array([row[who] - base[row["seed"]] for row in runs[name]])


def _differences(runs: dict[str, Rows], name: str, sign: int) -> list[str]:
    cells, better = [], []
    for who in ("champion", "agents"):
        paired = sign * _paired(runs, name, who)
        found = over_seeds(paired[None], np.random.default_rng(0))
        low, high = stats.t.interval(LEVEL, len(paired) - 1, paired.mean(), stats.sem(paired))
        cells += [f"{found.mean:+,.0f}", span(found), span(Interval(found.mean, low, high))]
        better.append(int((paired > 0).sum()))
    return [*cells, f"{better[0]} and {better[1]} of {len(paired)}"]


def span(found: Interval) -> str:
    """An interval's bounds."""
    return f"{found.low:+,.0f} to {found.high:+,.0f}"


def oracle_table(runs: dict[str, Rows]) -> str:
    """Share of the perfect rule by what the feature tells, and the fitness that it adds."""
    perfect = np.array([row["perfect"] for row in runs["without"]])
    plain = np.array([row["champion"] for row in runs["without"]])
    rows = []
    for name, each in runs.items():
        champion = np.array([row["champion"] for row in each])
        added = over_seeds((champion - plain)[None], np.random.default_rng(0))
        more = "" if name == "without" else f"{added.mean:+,.0f} ({span(added)})"
        rows.append([name, f"{champion.mean():,.0f}", f"{100 * champion.mean() / perfect.mean():.0f} %", more])
    return table(["the feature tells", "fitness", "of the perfect rule", "more than without (95 %)"], rows)


def machines(*found: tuple[str, dict[str, Any] | None]) -> str:
    """Where the figures come from, a line a file."""
    lines = []
    for name, figures in found:
        if figures is not None:
            where = figures["machine"]
            commits = {row["commit"] for each in figures["runs"].values() for row in each if row.get("commit")}
            commit = ", ".join(sorted(each[:7] for each in commits)) or str(where["commit"])[:7]
            lines.append(
                f"- {name}: {where['machine']}, {where['cores']} cores, torch {where['torch']}, commit {commit}."
            )
    return "\n".join(lines) or NOT_YET


def main() -> None:
    """Write the figures into their places."""
    PAGE.write_text(fill_in(PAGE.read_text(), tables()))


if __name__ == "__main__":
    main()
