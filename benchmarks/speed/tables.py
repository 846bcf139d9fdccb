"""Tables of docs/results.md."""

from functools import partial

from benchmarks.harness import Figures
from benchmarks.pages import Block, Page, machines, table

GOALS = {"evaluate": 0.3, "train": 4.0}  # maximum seconds of a phase
MOST_MINUTES, MOST_PEAK_MB = 2.0, 1000.0  # maximum of the whole run
MAPPED = ("panel", "encoder")  # owners whose bytes are in mapped files
BENCH = {"what": "{what}", "eigen2": "{ours!n}", "reference or bound": "{reference!n}", "ratio": "{ratio:,.1f}"}
UNITS = {"x": "at least {:,g} x", "s": "at most {:g} s", "rate": "at least {:,g}"}
PHASES = ("evaluate", "train", "evolve", "validate", "generation")
RUN = {"agents": "{agents}", "threads": "{threads}", **{f"{phase} s": f"{{seconds[{phase}]:.2f}}" for phase in PHASES}}
RUN |= {"start s": "{start_s:.1f}", "whole run min": "{minutes:.2f}", "peak RSS MB": "{peak_mb:,.0f}"}


def bench_table(figures: Figures) -> str:
    """Return the comparisons with references and bounds."""
    rows = [{**row, "target": UNITS[row["unit"]].format(row["bound"])} for row in figures["rows"]]
    return table({**BENCH, "target": "{target}"}, rows)


def run_table(*runs: Figures) -> str:
    """Return seconds and peak memory of `WHOLE_RUNS`, with their targets."""
    rows = [
        {**run, "agents": agents, "threads": run["machine"]["threads"], "minutes": run["fit_s"] / 60}
        for run, agents in zip(runs, WHOLE_RUNS.values(), strict=True)
    ]
    for row in rows[3:]:
        row["minutes"] = None  # of fewer generations
    target = {"agents": "target", "threads": None, "seconds": dict.fromkeys(PHASES) | GOALS, "start_s": None}
    return table(RUN, [*rows, {**target, "minutes": MOST_MINUTES, "peak_mb": MOST_PEAK_MB}])


def memory_table(run: Figures) -> str:
    """Return the owners of resident memory after the last generation."""
    imports, end = run["imports_mb"], run["end_mb"]
    owners = {name: size for name, size in run["owners_mb"].items() if name not in MAPPED and size >= 0.1}
    held = {
        "Python, torch, Lightning, pandas and eigen2 imported": imports["anon"],
        **owners,
        "mapped files: libraries, and the days of the panel and of its encoding that were read": end["file"],
        "the rest: later imports, work space, free pieces of the heap": (
            end["anon"] - imports["anon"] - sum(owners.values())
        ),
        "sum": end["rss"],
    }
    rows = [{"what": what, "size": size} for what, size in held.items()]
    return table({"resident after the last generation": "{what}", "MB": "{size:,.1f}"}, rows)


def limit_text(figures: Figures) -> str:
    """Return a comparison of an optimizer step with the machine's matrix rate."""
    return (
        f"With 1 thread the machine multiplies at {figures['matrix_gflops_per_s']:.0f} GF/s. An optimizer step has "
        f"{figures['operations_gflop']:.2f} GF of matrix products and takes {figures['step_ms']:.0f} ms: "
        f"{figures['step_gflops_per_s']:.1f} GF/s, {figures['share_of_rate']:.0%} of that rate."
    )


def gpu_table(figures: Figures) -> str:
    """Return what was measured on a GPU, with its targets."""
    words = {True: "yes", False: "no", None: ""}
    columns = {"what": "{what}", "measured": "{measured}", "target": "{goal}", "met": "{kept}"}
    return table(columns, [{**row, "kept": words[row["kept"]]} for row in figures["rows"]])


WHOLE_RUNS = {"full-run-1": "16", "full-run-2": "16", "full-own": "16, own", "full-256": "256", "full-1000": "1,000"}
RUNS = ("full-run-1", "full-run-2")  # of the configuration
SOURCES = (*WHOLE_RUNS, "bench", "limit")
PAGE = Page(
    {
        "machine": Block(partial(machines, SOURCES), SOURCES),
        "bench": Block(bench_table, ("bench",)),
        "run": Block(run_table, tuple(WHOLE_RUNS)),
        "memory": Block(memory_table, RUNS[1:]),
        "limit": Block(limit_text, ("limit",)),
        "gpu": Block(gpu_table, ("gpu",)),
        "gpu_machine": Block(partial(machines, ["GPU"]), ("gpu",)),
    }
)
