"""Tables and pictures of docs/memory.md."""

from functools import partial
from pathlib import Path

from matplotlib.image import imsave

from benchmarks.harness import Figures
from benchmarks.pages import Block, Page, table
from callbacks.plots import draw_lines

ESTIMATE = {"run of 5 generations": "{case}", "estimate MB": "{estimate_mb:,.0f}"}
ESTIMATE |= {"peak MB": "{peak_mb:,.0f}", "ratio": "{ratio:.2f}"}
HYGIENE = {"setting": "{setting}", "peak MB": "{peak_mb:,.0f}", "between generations MB": "{between_mb:,.0f}"}
HYGIENE |= {"cleaning ms": "{cleaning_ms:,.0f}", "objects in circles": "{garbage:,.0f}"}
HELD = {"what keeps the transitions": "{case}", "kB a transition": "{kb:,.1f}"}
HELD |= {"live MB an episode": "{live_mb:,.1f}", "RSS MB an episode": "{rss_mb:,.1f}"}
MEASURES = {"setting": "{case}", "live kB an episode": "{live_kb:+,.1f}", "RSS kB an episode": "{rss_kb:+,.1f}"}
MEASURES |= {"RSS MB": "{between_mb:,.0f}", "CPU s": "{cpu_s:,.1f}"}


def hygiene_table(found: Figures) -> str:
    """Return cost and gain of each setting of the collector."""
    settings = [f"`{each['case']}`" if set(each["case"]) & set(":=") else each["case"] for each in found["cases"]]
    return table(HYGIENE, [{**each, "setting": name} for name, each in zip(settings, found["cases"], strict=True)])


def _slope(found: Figures, name: str, unit: str = "") -> str:
    slope = found[f"{name}_slope"]
    median, low, high = (f"{slope[key]:+,.0f}" for key in ("median", "low", "high"))
    return f"{median}{unit} ({'99 %: ' if unit else ''}{low} to {high})"


def _sizes(found: Figures, unit: str) -> str:
    return ", ".join(f"{size:,.1f} MB after {unit} {n}" for n, size in found["rss_mb"].items())


def _counts(found: Figures) -> str:
    return ", ".join(f"{count} {name}" for name, count in found["counts"].items())


def soak_text(found: Figures) -> str:
    """Return what a thousand generations of the market showed."""
    return (
        f"Over {found['generations']:,} generations RSS was {_sizes(found, 'generation')}; its Theil-Sen slope after "
        f"generation 50 is {_slope(found, 'rss', ' bytes a generation')}, the heap's {_slope(found, 'heap')}. Live "
        f"objects were {_counts(found)} from the first generation to the last; {len(found['containers_grown'])} lists, "
        "dictionaries, sets and deques grew."
    )


def fire_soak_text(found: Figures) -> str:
    """Return what five hundred episodes of fuel breaks showed."""
    slopes = {"RSS": "rss", "live memory": "live"}
    grew = " and ".join(f"{name} by {_slope(found, key, ' bytes an episode')}" for name, key in slopes.items())
    return (
        f"Over {found['generations']:,} episodes RSS was {_sizes(found, 'episode')}. After episode 50 {grew} grew, by "
        f"their Theil-Sen slopes; {len(found['containers_grown'])} lists, dictionaries, sets and deques grew, and no "
        f"count of live objects changed ({_counts(found)})."
    )


def profiler_text(found: Figures) -> str:
    """Return the profiler's share of a generation."""
    (row,) = (each for each in found["rows"] if each["key"] == "profiler")
    return (
        f"It takes {row['ours']:.2f} % of a generation at full scale with its defaults, where {row['bound']:g} % is "
        "the most that it may take."
    )


def live_table(run: Figures) -> str:
    """Return live memory over the generations of the full-scale run."""
    live, size = run["live_mb"], run["replay_size"]
    chosen = sorted({0, 1, 2, 4, 9, 14, 19, len(live) - 1} & set(range(len(live))))
    columns = {"generation": "{n}", "transitions in the buffer": "{size:,}", "live MB": "{live:,.2f}"}
    shown = table(columns, [{"n": n, "size": size[n], "live": live[n]} for n in chosen])
    return f"{shown}\n\nOver the last half the slope is {run['live_slope_kb']:+.1f} kB a generation."


def held_table(found: Figures) -> str:
    """Return what the storages of transitions take, and how soon the old one filled a GPU."""
    sizes = found["sizes"]
    state, episode, capacity = (sizes[name] for name in ("state_bytes", "transitions_an_episode", "capacity"))
    shown = table(HELD, [{**each, "kb": each["live_mb"] * 1e3 / episode} for each in found["held"]])
    grows = found["held"][0]["live_mb"] / 1e3
    return (
        f"{shown}\n\nOn a GPU four states of {state / 1e3:,.0f} kB a transition and {episode} transitions an episode "
        f"are {4 * state * episode / 1e6:,.0f} MB: 12 GB of free memory are full after {12 / grows:,.0f} episodes. The "
        f"ring takes {sizes['ring_bytes']:,} bytes a transition, {sizes['ring_bytes'] * capacity / 1e6:,.0f} "
        f"MB for {capacity:,}, once, before the first episode; the old replay took "
        f"{2 * state * capacity / 1e6:,.0f} MB for as many, when full."
    )


def draw_soak(path: Path, source: str, found: Figures, title: str = "A small run") -> None:
    """Draw RSS and heap by generation; figures measured before they kept the curves leave the picture as it is."""
    if "curves_mb" in found:
        imsave(
            path, draw_lines([*range(found["generations"])], found["curves_mb"], title=title, ylabel="MB", band=None)
        )


PAGE = Page(
    {
        "estimate": Block(lambda found: table(ESTIMATE, found["cases"]), ("estimate",)),
        "hygiene": Block(hygiene_table, ("hygiene",)),
        "soak": Block(soak_text, ("soak",)),
        "profiler": Block(profiler_text, ("profiler",)),
        "live": Block(live_table, ("full-live",)),
        "fire_held": Block(held_table, ("fire-memory",)),
        "fire_soak": Block(fire_soak_text, ("soak-fire",)),
        "fire_measures": Block(lambda found: table(MEASURES, found["measures"]), ("fire-memory",)),
    },
    {
        "figures/soak.png": Block(draw_soak, ("soak",)),
        "figures/soak-fire.png": Block(partial(draw_soak, title="Fuel breaks"), ("soak-fire",)),
    },
)
