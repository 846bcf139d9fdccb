"""Fill the tables of docs pages from the JSON figures: `python -m benchmarks.pages [PAGE ...]`.

A block of a page stands between `<!-- measured: NAME -->` and `<!-- end -->`; the modules below make its text.
"""

import importlib
import json
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import FIGURES, MEASURED_ON, ROOT, Figures
from eigen2.market.intervals import over_trainings

PAGES = {  # pages in docs/ by name, each with the module that defines it as `PAGE`
    "results": "speed.tables",
    "memory": "memory.tables",
    "control": "learning.control",
    "fire": "fire.agents",
    "learning": "learning.tables",
    "study": "learning.study_tables",
    "scaling": "scale.scaling_tables",
    "processes": "scale.processes_tables",
}


class Block(NamedTuple):
    """The text of a block, or a picture, as a deterministic function of figures."""

    make: Callable[..., Any]
    """Takes the contents of the JSON files and returns a text; draws a picture to the path before them."""
    figures: tuple[str, ...]  # names of the JSON files


class Page(NamedTuple):
    """Blocks of a page by name, its pictures by path in docs/, and what computes its figures from their tables."""

    blocks: Mapping[str, Block]
    pictures: Mapping[str, Block] = {}
    recompute: Callable[[Path], None] = lambda figures: None


def load(name: str) -> Page:
    """Return a page by name."""
    return importlib.import_module(f"benchmarks.{PAGES[name]}").PAGE


def read(block: Block, figures: Path = FIGURES) -> list[Figures] | None:
    """Return the figures of a block, None if any was not measured yet."""
    paths = [figures / f"{name}.json" for name in block.figures]
    return [json.loads(path.read_text()) for path in paths] if all(path.exists() for path in paths) else None


def blocks(page: Page, figures: Path = FIGURES) -> dict[str, str]:
    """Return the text of each block of a page."""
    sources = {name: (block.make, read(block, figures)) for name, block in page.blocks.items()}
    return {name: "Not measured yet." if source is None else make(*source) for name, (make, source) in sources.items()}


def fill(text: str, texts: Mapping[str, str]) -> str:
    """Return a page's text with the blocks in `texts` replaced."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- measured: {name} -->\n{texts[name]}\n<!-- end -->" if name in texts else match[0]

    return re.sub(r"<!-- measured: (\w+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)


def interval(values: np.ndarray, digits: int = 1) -> str:
    """Return a mean and its 95 % interval by Student's t distribution; the mean alone of a single value."""
    if len(values) < 2:
        return f"{values.mean():+z.{digits}f}"
    mean, low, high = (f"{value:+z.{digits}f}" for value in over_trainings(values))
    return f"{mean} ({low} to {high})"


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table from a format per column: `!n` applies `number`; None, or a field of None, is empty."""
    cells = [[CELLS.vformat(form, (), row) for form in columns.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [list(columns), ["--:"] * len(columns), *cells])


def number(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def spread(values: Sequence[float], form: str = ",.1f") -> str:
    """Return formatted values, separated by commas."""
    return ", ".join(format(value, form) for value in values)


def where(figures: Figures, *commits: str) -> str:
    """Return the processors, threads and commits of the rows of figures, or those of the command if there are none.

    `commits` are those of figures that do not keep their rows. It says of how many rows what others tell is not known.
    """
    machine = figures["machine"]
    command = {**machine, "processor": machine["machine"]}
    kept = [row for rows in figures.get("runs", {}).values() for row in rows]
    rows = kept or [{**command, "commit": each} for each in commits] or [command]
    measured = [{name: row.get(name, command.get(name)) for name in MEASURED_ON} for row in rows]
    processors = " and ".join(sorted({row["processor"] for row in measured}))
    threads = " or ".join(map(str, sorted({row["threads"] for row in measured if row["threads"]})))
    changed = {True: " with changes", False: "", None: ", with or without changes"}
    code = ", ".join(sorted({f"{str(row['commit'])[:7]}{changed[row.get('dirty', False)]}" for row in rows}))
    gpu = f", {machine['accelerator']}" if machine.get("accelerator") else ""
    used = f" with {threads} thread{'s' * (threads != '1')}" if threads else ""
    place, code_of = (sum(name not in row for row in rows) for name in ("processor", "dirty"))
    notes = f"; {place} of {len(rows)} rows do not say on which processor: this is the command's" * (
        0 < place < len(rows)
    )
    notes += f"; {code_of} of {len(rows)} do not say whether the code had changes" * (0 < code_of < len(rows))
    return f"{processors}, {machine['cores']} cores{gpu}, torch {machine['torch']}{used}, commit {code}{notes}"


def machines(names: Sequence[str], *figures: Figures) -> str:
    """Return a list of named figures with their machines and commits."""
    return "\n".join(f"- {name}: {where(source)}." for name, source in zip(names, figures, strict=True))


class _Cells(string.Formatter):
    """Formatter for fields of None, which are empty, and numbers with `!n`."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except TypeError:
            return None, field_name

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "n":
            return None if value is None else number(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        return "" if value is None else super().format_field(value, format_spec)


CELLS = _Cells()


def main(names: Sequence[str] | None = None) -> None:
    """Fill the named pages, or all, and draw their pictures."""
    docs = ROOT / "docs"
    for name in (sys.argv[1:] if names is None else names) or PAGES:
        if name not in PAGES:
            raise SystemExit(f"error: no page is named {name!r}; choose from {', '.join(PAGES)}")
        page, path = load(name), docs / f"{name}.md"
        page.recompute(FIGURES)
        path.write_text(fill(path.read_text(), blocks(page)))
        for picture, block in page.pictures.items():
            if (figures := read(block)) is not None:
                block.make(docs / picture, *figures)


if __name__ == "__main__":
    main()
