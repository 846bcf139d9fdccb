"""Tables of docs/processes.md."""

from benchmarks.harness import Figures, Row
from benchmarks.pages import Block, Page, table, where

RUNS = {"agents": "{agents}", "processes": "{processes}", "generation s": "{seconds!n}", "speed-up": "{speed_up:.2f}"}
RUNS |= {"train s": "{train!n}", "messages s": "{exchange!n}", "received MB": "{received_mb!n}"}
HELD = {"process": "{rank}", "before MB": "{before:.0f}", "generation MB": "{generation:.0f}"}
HELD |= {"checkpoint MB": "{checkpoint:.0f}", "generation - before": "{generation_own:.0f}"}
HELD |= {"checkpoint - before": "{checkpoint_own:.0f}"}


def runs_table(measured: Figures) -> str:
    """Return measured runs of processes on one machine."""
    rows: list[Row] = []
    alone: dict[int, float] = {}
    for run in measured["fits"]:
        seconds = run["generation"] + run["rest"]
        speed_up = alone.setdefault(run["agents"], seconds) / seconds
        rows.append({**run, "seconds": seconds, "speed_up": speed_up})
    return f"{where(measured)}.\n\n{table(RUNS, rows)}"


def memory_table(measured: Figures) -> str:
    """Return what each process of one run held."""
    windows = ("generation", "checkpoint")
    rows = [
        {**rank, **{f"{window}_own": rank[window] - rank["before"] for window in windows}} for rank in measured["ranks"]
    ]
    return f"""{where(measured)}.
{measured["agents"]:,} agents, whose weights, targets and moments take {measured["rows_mb"]:.0f} MB together, and a
replay buffer of {measured["replay_mb"]:.0f} MB.

{table(HELD, rows)}"""


PAGE = Page({"runs": Block(runs_table, ("processes",)), "memory": Block(memory_table, ("process-memory",))})
