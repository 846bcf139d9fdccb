"""Tables of docs/memory.md."""

from functools import partial

from benchmarks.harness import Figures
from benchmarks.pages import Block, Page, machines, table

ESTIMATE = {"run of 5 generations": "{case}", "estimate MB": "{estimate_mb:,.0f}"}
ESTIMATE |= {"peak MB": "{peak_mb:,.0f}", "ratio": "{ratio:.2f}"}
COST = {"run": "{case}", "CPU s a generation": "{generation_s:.2f}", "of it the profiler": "{share:.2%}"}
COST |= {"RSS MB": "{rss_mb:,.0f}", "unaccounted": "{unaccounted:.2%}"}


def soak_text(figures: Figures, unit: str = "generation") -> str:
    """Return RSS and growing containers over the generations, or episodes, of a soak."""
    sizes = ", ".join(f"{size:,.1f} MB after {unit} {n}" for n, size in figures["rss_mb"].items())
    median, low, high = (f"{figures['rss_slope'][key]:+,.0f}" for key in ("median", "low", "high"))
    return (
        f"Over {figures['generations']:,} {unit}s RSS was {sizes}; its Theil-Sen slope after {unit} 50 is {median} "
        f"bytes per {unit} (99 %: {low} to {high}); "
        f"{len(figures['containers_grown'])} lists, dictionaries, sets and deques grew."
    )


def live_text(run: Figures) -> str:
    """Return live memory over the generations of the full-scale run."""
    live = run["live_mb"]
    sizes = ", ".join(f"{live[n]:,.1f} MB after generation {n}" for n in (0, 4, len(live) - 1))
    return f"Live memory was {sizes}; over the last half its slope is {run['live_slope_kb']:+.1f} kB per generation."


SOURCES = ("soak", "soak-fire", "full-run-1", "estimate", "memory-cost")
PAGE = Page(
    {
        "estimate": Block(lambda figures: table(ESTIMATE, figures["cases"]), ("estimate",)),
        "cost": Block(lambda figures: table(COST, figures["cases"]), ("memory-cost",)),
        "soak": Block(soak_text, ("soak",)),
        "soak_fire": Block(partial(soak_text, unit="episode"), ("soak-fire",)),
        "live": Block(live_text, ("full-run-1",)),
        "memory_machine": Block(partial(machines, SOURCES), SOURCES),
    }
)
