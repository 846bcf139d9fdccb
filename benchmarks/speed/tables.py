"""Tables of docs/results.md."""

from collections.abc import Mapping
from functools import partial

from benchmarks.harness import Figures
from benchmarks.pages import Block, Page, across, commit, grid, table

GOALS = {"evaluate": 0.3, "train": 4.0}  # most seconds a generation
MOST_MINUTES, MOST_PEAK_MB = 2.0, 1000.0  # most of the whole run
MAPPED = ("panel", "encoder")  # owners whose bytes lie in mapped files
PHASES = ("evaluate", "train", "evolve", "validate", "generation")
LIMIT = {
    "matrix rate of the machine, GF/s": "{matrix_gflops_per_s!n}",
    "an optimizer step's matrix products, GF": "{operations_gflop!n}",
    "an optimizer step, ms": "{step_ms!n}",
    "reached, GF/s": "{step_gflops_per_s!n}",
    "share of the machine's rate": "{share_of_rate:.0%}",
    "its matrix products alone, ms": "{products_alone_ms!n}",
    "their rate alone, GF/s": "{products_alone_gflops_per_s!n}",
}
TRIED = {
    "Adam, fused, a row at a time (eigen2's), ms a step": "{adam_ms[rows]:.2f}",
    "Adam, fused, all rows at once, ms a step": "{adam_ms[fused]:.2f}",
    "Adam, foreach, ms a step": "{adam_ms[foreach]:.2f}",
    "Adam, a tensor at a time, ms a step": "{adam_ms[a tensor at a time]:.2f}",
    "weights (in, out): forward of the widest layer, times faster": "{weights_in_out_ratio[forward]:.2f}",
    "weights (in, out): gradient of its weights, times faster": "{weights_in_out_ratio[gradient of weights]:.2f}",
    "convolution of windows, channels first, ms": "{convolution_ms[channels first]:.2f}",
    "convolution of windows, channels last, ms": "{convolution_ms[channels last]:.2f}",
    "days encoded from the table in half precision (eigen2's), ms": "{describe_days[table ms]:.2f}",
    "days encoded from prefix sums in float64, ms": "{describe_days[sums ms]:.2f}",
    "the table, MB, mapped from a file": "{describe_days[table MB]:,.0f}",
    "the prefix sums, MB": "{describe_days[sums MB]:,.0f}",
    "torch.compile: seconds until the first step has run": "{compile[compile s]:.0f}",
    "torch.compile: times faster afterwards": "{compile[ratio]:.2f}",
    "bfloat16, times faster": "{bf16_ratio:.2f}",
}
FAMILIES = {
    **{"networks": "{family}", "weights an agent": "{weights:,}", "a day's decisions ms": "{act_ms!n}"},
    **{"micro-batch ms": "{learn_ms!n}", "peak RSS MB": "{peak_mb!n}"},
}
KINDS = ("bench", "bench", "full-run", "full-run", "limit", "limit", "families")


def machines(*figures: Figures) -> str:
    """Return where each of the page's figures comes from."""
    return "\n".join(
        f"- {kind}, {_threads(each)}: {machine['machine']}, {machine['cores']} cores, "
        f"{machine['accelerator'] or 'no GPU'}, Python {machine['python']}, torch {machine['torch']}, "
        f"{commit(machine)}."
        for kind, each in zip(KINDS, figures, strict=True)
        for machine in [_machine(each)]
    )


def _machine(figures: Figures) -> Figures:
    """Return the machine's description, which lay at the top of older figures."""
    return figures["machine"] if isinstance(figures["machine"], dict) else figures


def _threads(figures: Figures) -> str:
    threads = _machine(figures)["threads"]
    return f"{threads} thread{'s' * (threads > 1)}"


def bench_table(*figures: Figures) -> str:
    """Return the comparisons, each run's ratio a column."""
    units = {"x": "at least {:,g} x", "s": "at most {:g} s", "%": "at most {:g} %"}
    first = figures[0]
    ratios = {f"ratio, {_threads(each)}": [row["ratio"] for row in each["rows"]] for each in figures}
    columns = {"what": "{what}", f"eigen2, {_threads(first)}": "{ours!n}", "reference or bound": "{reference!n}"}
    columns |= {name: f"{{{name}:,.1f}}" for name in ratios} | {"to keep": "{to_keep}"}
    rows = [
        {**row, **{name: each[i] for name, each in ratios.items()}, "to_keep": units[row["unit"]].format(row["bound"])}
        for i, row in enumerate(first["rows"])
    ]
    return table(columns, rows)


def run_table(*runs: Figures) -> str:
    """Return seconds and peak memory of whole runs, and what they are to keep."""
    columns = {"threads": "{threads}", **{f"{phase} s": f"{{seconds[{phase}]:.2f}}" for phase in PHASES}}
    columns |= {"start s": "{start_s:.1f}", "whole run min": "{minutes:.2f}", "peak RSS MB": "{peak_mb:,.0f}"}
    rows = [{**run, "threads": run["machine"]["threads"], "minutes": run["fit_s"] / 60} for run in runs]
    goal: dict[str, object] = {"seconds": dict.fromkeys(PHASES) | GOALS, "start_s": None, "stolen_share": None}
    goal |= {"threads": "to keep", "minutes": MOST_MINUTES, "peak_mb": MOST_PEAK_MB}
    return table({**columns, "stolen": "{stolen_share:.2f}"}, [*rows, goal])


def memory_table(run: Figures) -> str:
    """Return who holds the resident memory after the last generation."""
    imports, start, end = (run[f"{when}_mb"] for when in ("imports", "start", "end"))
    owners = {name: size for name, size in run["owners_mb"].items() if name not in MAPPED}
    late = end["anonymous"] - imports["anonymous"] - sum(owners.values())
    held = {
        "Python, torch, Lightning, pandas and eigen2 imported: objects and data": imports["anonymous"],
        "the same: their programs and libraries, as far as they were run": end["libraries"],
        **{f"{name}: what it says it holds": size for name, size in owners.items()},
        "pages of panel and encoded days that were read, mapped from files": end["panel"],
        "other mapped files": end["other files"],
        "the rest: later imports (matplotlib, TensorBoard), torch's work space, free pieces of the heap": late,
    }
    rows = [[what, f"{size:,.1f}"] for what, size in {**held, "sum": sum(held.values())}.items()]
    return (
        f"{grid(['of the resident memory after the last generation', 'MB'], rows)}\n\n"
        f"The kernel's own sum is {end['rss']:,.1f} MB; {start['rss']:,.1f} MB were resident before the first "
        f"generation, {run['peak_mb']:,.1f} MB at the highest. Panel and encoded days are "
        f"{sum(run['owners_mb'][name] for name in MAPPED):,.1f} MB of files, of which a generation reads the "
        "days it plays."
    )


def across_threads(header: str, lines: Mapping[str, str], *limits: Figures) -> str:
    """Return a table with a column for each number of threads."""
    return across(header, lines, {f"{each['machine']['threads']} threads": each for each in limits})


def time_table(*limits: Figures) -> str:
    """Return where a step's time goes."""
    shares = limits[0]["time_shares"]
    lines = {kind: f"{{{kind}:.0%}}" for kind in sorted(shares, key=lambda kind: -shares[kind])}
    every = [each | dict.fromkeys(lines, 0.0) | each["time_shares"] for each in limits]
    return across_threads("share of a profiled step", lines, *every)


def tried_table(*limits: Figures) -> str:
    """Return the alternatives that were tried."""
    return across_threads("tried", TRIED, *({**each, "adam_ms": {"rows": None, **each["adam_ms"]}} for each in limits))


BENCHES, RUNS, LIMITS = ("bench-1", "bench-2"), ("full-run-1", "full-run-2"), ("limit-1", "limit-2")
PAGE = Page(
    {
        "machine": Block(machines, (*BENCHES, *RUNS, *LIMITS, "families-2")),
        "bench": Block(bench_table, BENCHES),
        "run": Block(run_table, RUNS),
        "memory": Block(memory_table, RUNS[1:]),
        "limit": Block(partial(across_threads, "", LIMIT), LIMITS),
        "time": Block(time_table, LIMITS),
        "tried": Block(tried_table, LIMITS),
        "families": Block(lambda found: table(FAMILIES, found["families"]), ("families-2",)),
    }
)
