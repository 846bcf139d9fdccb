"""The figures of docs/results.md, from what was measured."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.pages import fill_in, number, table

FIGURES = ROOT / "docs" / "figures"
PAGE = ROOT / "docs" / "results.md"
THREADS = (1, 2)
GOALS = {"evaluate": 0.3, "train": 4.0}
"""Most seconds a generation."""
MOST_MINUTES, MOST_PEAK_MB = 2.0, 1000.0
"""Of the whole run."""
NOT_ANONYMOUS = ("panel", "encoder")
"""Owners whose bytes lie in mapped files."""

Figures = dict[str, Any]


def load(folder: Path = FIGURES) -> dict[str, list[Figures]]:
    """What was measured, by kind, with one thread and with two."""
    return {
        kind: [json.loads((folder / f"{kind}-{threads}.json").read_text()) for threads in THREADS]
        for kind in ("bench", "full-run", "limit")
    } | {"families": [json.loads((folder / "families-2.json").read_text())]}


def tables(measured: dict[str, list[Figures]]) -> dict[str, str]:
    """Markdown by name: the same figures give the same text."""
    runs, limits = measured["full-run"], measured["limit"]
    return {
        "machine": _machine(measured),
        "bench": _bench(measured["bench"]),
        "run": _run(runs),
        "memory": _memory(runs[-1]),
        "limit": _limit(limits),
        "time": _time(limits),
        "tried": _tried(limits),
        "families": _families(measured["families"][0]),
    }


def _machine(measured: dict[str, list[Figures]]) -> str:
    lines = []
    for kind, figures in measured.items():
        for each in figures:
            facts = each.get("machine", each) if isinstance(each.get("machine"), dict) else each
            changed = " with changes" * bool(facts["dirty"])
            lines.append(
                f"- {kind}, {facts['threads']} thread{'s' * (facts['threads'] > 1)}: {facts['machine']}, "
                f"{facts['cores']} cores, {facts['accelerator'] or 'no GPU'}, Python {facts['python']}, "
                f"torch {facts['torch']}, commit {str(facts['commit'])[:7]}{changed}."
            )
    return "\n".join(lines)


def _bench(figures: Sequence[Figures]) -> str:
    rows = []
    for one, two in zip(*(each["rows"] for each in figures), strict=True):
        unit = {"x": f"at least {one['bound']:,g} x", "s": f"at most {one['bound']:g} s"}
        bound = unit.get(one["unit"], f"at most {one['bound']:g} %")
        row = [one["what"], *(number(one[name]) for name in ("ours", "reference"))]
        rows.append([*row, f"{one['ratio']:,.1f}", f"{two['ratio']:,.1f}", bound])
    header = ["what", "eigen2, 1 thread", "reference or bound", "ratio, 1 thread", "ratio, 2 threads", "to keep"]
    return table(header, rows)


def _run(runs: Sequence[Figures]) -> str:
    rows = [
        [
            f"{run['machine']['threads']}",
            *(f"{run['seconds'][phase]:.2f}" for phase in ("evaluate", "train", "evolve", "validate", "generation")),
            f"{run['start_s']:.1f}",
            f"{run['fit_s'] / 60:.2f}",
            f"{run['peak_mb']:,.0f}",
            f"{run['stolen_share']:.2f}",
        ]
        for run in runs
    ]
    goal = ["to keep", *(f"{GOALS[p]:.2f}" if p in GOALS else "" for p in ("evaluate", "train")), "", "", "", ""]
    rows.append([*goal, f"{MOST_MINUTES:.2f}", f"{MOST_PEAK_MB:,.0f}", ""])
    phases = ["evaluate s", "train s", "evolve s", "validate s", "generation s"]
    return table(["threads", *phases, "start s", "whole run min", "peak RSS MB", "stolen"], rows)


def _memory(run: Figures) -> str:
    imports, start, end = (run[f"{when}_mb"] for when in ("imports", "start", "end"))
    owners = {name: size for name, size in run["owners_mb"].items() if name not in NOT_ANONYMOUS}
    late = end["anonymous"] - imports["anonymous"] - sum(owners.values())
    rows = [
        ["Python, torch, Lightning, pandas and eigen2 imported: objects and data", imports["anonymous"]],
        ["the same: their programs and libraries, as far as they were run", end["libraries"]],
        *([f"{name}: what it says it holds", size] for name, size in owners.items()),
        ["pages of panel and described days that were read, mapped from files", end["panel"]],
        ["other mapped files", end["other files"]],
        ["the rest: later imports (matplotlib, TensorBoard), torch's work space, free pieces of the heap", late],
    ]
    total = sum(size for _, size in rows)
    shown = [[what, f"{size:,.1f}"] for what, size in rows]
    summed = table(["of the resident memory after the last generation", "MB"], [*shown, ["sum", f"{total:,.1f}"]])
    more = (
        f"The kernel's own sum is {end['rss']:,.1f} MB; {start['rss']:,.1f} MB were resident before the first "
        f"generation, {run['peak_mb']:,.1f} MB at the highest. Panel and described days are "
        f"{sum(run['owners_mb'][name] for name in NOT_ANONYMOUS):,.1f} MB of files, of which a generation reads the "
        "days it plays."
    )
    return f"{summed}\n\n{more}"


def _limit(limits: Sequence[Figures]) -> str:
    rows = [
        ["matrix rate of the machine, GF/s", *(number(each["matrix_gflops_per_s"]) for each in limits)],
        ["an optimizer step's matrix products, GF", *(number(each["operations_gflop"]) for each in limits)],
        ["an optimizer step, ms", *(number(each["step_ms"]) for each in limits)],
        ["reached, GF/s", *(number(each["step_gflops_per_s"]) for each in limits)],
        ["share of the machine's rate", *(f"{each['share_of_rate']:.0%}" for each in limits)],
        ["its matrix products alone, ms", *(number(each["products_alone_ms"]) for each in limits)],
        ["their rate alone, GF/s", *(number(each["products_alone_gflops_per_s"]) for each in limits)],
    ]
    return table(["", *(f"{each['machine']['threads']} threads" for each in limits)], rows)


def _time(limits: Sequence[Figures]) -> str:
    kinds = sorted(limits[0]["time_shares"], key=lambda kind: -limits[0]["time_shares"][kind])
    rows = [[kind, *(f"{each['time_shares'].get(kind, 0):.0%}" for each in limits)] for kind in kinds]
    return table(["share of a profiled step", *(f"{each['machine']['threads']} threads" for each in limits)], rows)


def _tried(limits: Sequence[Figures]) -> str:
    def row(what: str, *path: str, form: str = "{:.2f}") -> list[str]:
        values: list[Any] = list(limits)
        for key in path:
            values = [None if value is None else value[key] for value in values]
        return [what, *("not measured" if value is None else form.format(value) for value in values)]

    rows = [
        row("Adam, fused (eigen2's), ms a step", "adam_ms", "fused"),
        row("Adam, foreach, ms a step", "adam_ms", "foreach"),
        row("Adam, a tensor at a time, ms a step", "adam_ms", "a tensor at a time"),
        row("weights (in, out): forward of the widest layer, times faster", "weights_in_out_ratio", "forward"),
        row("weights (in, out): gradient of its weights, times faster", "weights_in_out_ratio", "gradient of weights"),
        row("convolution of windows, channels first, ms", "convolution_ms", "channels first"),
        row("convolution of windows, channels last, ms", "convolution_ms", "channels last"),
        row("days described from the table in half precision (eigen2's), ms", "describe_days", "table ms"),
        row("days described from prefix sums in float64, ms", "describe_days", "sums ms"),
        row("the table, MB, mapped from a file", "describe_days", "table MB", form="{:,.0f}"),
        row("the prefix sums, MB", "describe_days", "sums MB", form="{:,.0f}"),
        row("torch.compile: seconds until the first step has run", "compile", "compile s", form="{:.0f}"),
        row("torch.compile: times faster afterwards", "compile", "ratio"),
        row("bfloat16, times faster", "bf16_ratio"),
    ]
    return table(["tried", *(f"{each['machine']['threads']} threads" for each in limits)], rows)


def _families(figures: Figures) -> str:
    rows = [
        [each["family"], f"{each['weights']:,}", *(number(each[key]) for key in ("act_ms", "learn_ms", "peak_mb"))]
        for each in figures["families"]
    ]
    return table(["networks", "weights an agent", "a day's decisions ms", "micro-batch ms", "peak RSS MB"], rows)


def main() -> None:
    """Put the figures into the page."""
    PAGE.write_text(fill_in(PAGE.read_text(), tables(load())))


if __name__ == "__main__":
    main()
