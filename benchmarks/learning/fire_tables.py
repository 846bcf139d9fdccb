"""Tables of docs/fire.md."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from benchmarks.harness import Figures, Row
from benchmarks.pages import Block, Page, spread, table

AGENTS = {"": "{name}", "saved, %": "{mean:.1f}", "each seed": "{each}", "fit, s": "{seconds:.0f}"}
VALIDATE = {
    "placement": "{name}",
    "here, all fires": "{travel_time:.1f}",
    "here, the same 60 fires": "{same_fires:.1f}",
}
VALIDATE |= {"pyretechnics, no canopy": "{surface:.1f}", "pyretechnics, crown fire": "{crown:.1f}"}


def _runs(found: Figures) -> dict[str, list[Row]]:
    """Return the runs of each variant; older figures have them by seed."""
    return {name: list(runs.values()) if isinstance(runs, Mapping) else runs for name, runs in found["runs"].items()}


def agents_table(found: Figures) -> str:
    """Return percent of the burned area saved, a row a variant and, of the first variant's landscapes, a baseline."""
    runs = _runs(found)
    first = next(iter(runs.values()))
    rows = [
        _saved(f"agent, {name}", "champion", each) | {"seconds": median(run["fit_s"] for run in each)}
        for name, each in runs.items()
    ]
    rows += [{**_saved(name, name, first), "seconds": None} for name in first[0]["scores"] if name != "champion"]
    return table(AGENTS, rows)


def _saved(name: str, policy: str, runs: Sequence[Row]) -> Row:
    means = [fmean(run["scores"][policy]) for run in runs]
    return {"name": name, "mean": fmean(means), "each": spread(means)}


def memory_text(found: Figures) -> str:
    """Return where the fits ran, and their resident memory, over all runs of the first variant."""
    half = [each["rss_mb"][len(each["rss_mb"]) // 2 :] for each in next(iter(_runs(found).values()))]
    machine = found["machine"]
    return (
        f"{machine['machine']}, {machine['cores']} cores, torch {machine['torch']}, commit {machine['commit'][:7]}. "
        f"Resident memory in the second half of the fits lay between {min(map(min, half)):.0f} and "
        f"{max(map(max, half)):.0f} MB."
    )


def validate_table(found: Figures) -> str:
    """Return what placements save by this fire model and by pyretechnics, in percent."""
    reduction = found["reduction"].items()
    return table(VALIDATE, [{"name": name, **{key: 100 * each[key] for key in each}} for name, each in reduction])


PAGE = Page(
    {
        "agents": Block(agents_table, ("fire",)),
        "agents_machine": Block(memory_text, ("fire",)),
        "fire_validate": Block(validate_table, ("fire-validate",)),
    }
)
