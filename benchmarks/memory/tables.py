"""The figures of docs/memory.md, from what was measured: `python -m benchmarks.memory.tables`, in `make memory`."""

import json
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.pages import fill_in, table

FIGURES = ROOT / "docs" / "figures"
PAGE = ROOT / "docs" / "memory.md"

KINDS = ("estimate", "hygiene", "soak", "profiler", "full-live", "soak-fire", "fire-memory")

Figures = dict[str, Any]


def load(folder: Path = FIGURES) -> dict[str, Figures]:
    """What was measured, by kind."""
    return {kind: json.loads((folder / f"{kind}.json").read_text()) for kind in KINDS}


def tables(measured: dict[str, Figures]) -> dict[str, str]:
    """Markdown by name: the same figures give the same text."""
    return {
        "estimate": _estimate(measured["estimate"]),
        "hygiene": _hygiene(measured["hygiene"]),
        "soak": _soak(measured["soak"]),
        "profiler": _profiler(measured["profiler"]),
        "live": _live(measured["full-live"]),
        "fire_held": _fire_held(measured["fire-memory"]),
        "fire_soak": _fire_soak(measured["soak-fire"]),
        "fire_measures": _fire_measures(measured["fire-memory"]),
    }


def _estimate(found: Figures) -> str:
    rows = [
        [each["case"], f"{each['estimate_mb']:,.0f}", f"{each['peak_mb']:,.0f}", f"{each['ratio']:.2f}"]
        for each in found["cases"]
    ]
    return table(["run of 5 generations", "estimate MB", "peak MB", "ratio"], rows)


def _hygiene(found: Figures) -> str:
    names = ("peak_mb", "between_mb", "cleaning_ms", "garbage")
    rows = [
        [f"`{each['case']}`" if ":" in each["case"] or "=" in each["case"] else each["case"]]
        + [f"{each[name]:,.0f}" for name in names]
        for each in found["cases"]
    ]
    header = ["setting", "peak MB", "between generations MB", "cleaning ms", "objects in circles"]
    return table(header, rows)


def _soak(found: Figures) -> str:
    slope, heap = found["rss_slope"], found["heap_slope"]
    rss = ", ".join(f"{size:,.1f} MB after generation {n}" for n, size in found["rss_mb"].items())
    counts = ", ".join(f"{count} {name}" for name, count in found["counts"].items())
    return (
        f"Over {found['generations']:,} generations RSS was {rss}; its Theil-Sen slope after generation 50 is "
        f"{slope['median']:+,.0f} bytes a generation (99 %: {slope['low']:+,.0f} to {slope['high']:+,.0f}), the heap's "
        f"{heap['median']:+,.0f} ({heap['low']:+,.0f} to {heap['high']:+,.0f}). Live objects were "
        f"{counts} from the first generation to the last; {len(found['containers_grown'])} lists, dictionaries, sets "
        "and deques grew."
    )


def _profiler(found: Figures) -> str:
    (row,) = (each for each in found["rows"] if each["key"] == "profiler")
    return (
        f"It takes {row['ours']:.2f} % of a generation at full scale with its defaults, where {row['bound']:g} % is "
        "the most that it may take."
    )


def _live(run: Figures) -> str:
    live, size = run["live_mb"], run["replay_size"]
    chosen = sorted({0, 1, 2, 4, 9, 14, 19, len(live) - 1} & set(range(len(live))))
    rows = [[f"{n}", f"{size[n]:,}", f"{live[n]:,.2f}"] for n in chosen]
    told = table(["generation", "transitions in the buffer", "live MB"], rows)
    return f"{told}\n\nOver the last half the slope is {run['live_slope_kb']:+.1f} kB a generation."


def _fire_held(found: Figures) -> str:
    sizes = found["sizes"]
    state, episode = sizes["state_bytes"], sizes["transitions_an_episode"]
    rows = [
        [each["case"], f"{each['live_mb'] * 1e3 / episode:,.1f}", f"{each['live_mb']:,.1f}", f"{each['rss_mb']:,.1f}"]
        for each in found["held"]
    ]
    told = table(["what keeps the transitions", "kB a transition", "live MB an episode", "RSS MB an episode"], rows)
    grows = found["held"][0]["live_mb"] / 1e3
    return (
        f"{told}\n\nOn a GPU four states of {state / 1e3:,.0f} kB a transition and {episode} transitions an episode "
        f"are {4 * state * episode / 1e6:,.0f} MB: 12 GB of free memory are full after {12 / grows:,.0f} episodes. The "
        f"ring takes {sizes['ring_bytes']:,} bytes a transition, {sizes['ring_bytes'] * sizes['capacity'] / 1e6:,.0f} "
        f"MB for {sizes['capacity']:,}, once, before the first episode; the old replay took "
        f"{2 * state * sizes['capacity'] / 1e6:,.0f} MB for as many, when full."
    )


def _fire_soak(found: Figures) -> str:
    parts = {"RSS": "rss", "live memory": "live"}
    slopes = {name: found[f"{key}_slope"] for name, key in parts.items()}
    told = " and ".join(
        f"{name} by {slope['median']:+,.0f} bytes an episode (99 %: {slope['low']:+,.0f} to {slope['high']:+,.0f})"
        for name, slope in slopes.items()
    )
    sizes = ", ".join(f"{size:,.1f} MB after episode {n}" for n, size in found["rss_mb"].items())
    return (
        f"Over {found['generations']:,} episodes RSS was {sizes}. After episode 50 {told} grew, by their Theil-Sen "
        f"slopes; {len(found['containers_grown'])} lists, dictionaries, sets and deques grew, and no count of live "
        f"objects changed ({', '.join(f'{count} {name}' for name, count in found['counts'].items())})."
    )


def _fire_measures(found: Figures) -> str:
    rows = [
        [
            each["case"],
            f"{each['live_kb']:+,.1f}",
            f"{each['rss_kb']:+,.1f}",
            f"{each['between_mb']:,.0f}",
            f"{each['cpu_s']:,.1f}",
        ]
        for each in found["measures"]
    ]
    return table(["setting", "live kB an episode", "RSS kB an episode", "RSS MB", "CPU s"], rows)


def main() -> None:
    """Put the figures into the page."""
    PAGE.write_text(fill_in(PAGE.read_text(), tables(load())))


if __name__ == "__main__":
    main()
