"""Fill the tables of docs pages from the JSON figures: `python -m benchmarks.pages [PAGE ...]`.

A block of a page stands between `<!-- measured: NAME -->` and `<!-- end -->`; the modules below say what goes into it.
"""

import hashlib
import importlib
import json
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import FIGURES, ROOT

PAGES = {  # pages in docs/, each with the module that holds it as `PAGE`
    "results": "speed.tables",
    "memory": "memory.tables",
    "control": "learning.control_tables",
    "fire": "learning.fire_tables",
    "learning": "learning.tables",
    "study": "learning.study_tables",
    "scaling": "scale.scaling_tables",
    "processes": "scale.processes_tables",
}
NOT_YET = "Not measured yet."


class Block(NamedTuple):
    """The text of a block, or a picture, made from figures: the same figures make the same."""

    make: Callable[..., Any]
    """Returns a block's text from the contents of the JSON files; a picture's also takes its path and its source."""
    figures: tuple[str, ...]  # names of the JSON files


class Page(NamedTuple):
    """Blocks of a page, and its pictures by their path in docs/."""

    blocks: Mapping[str, Block]
    pictures: Mapping[str, Block] = {}


def load(name: str) -> Page:
    """Return a page by name."""
    page: Page = importlib.import_module(f"benchmarks.{PAGES[name]}").PAGE
    return page


def blocks(page: Page, figures: Path = FIGURES) -> dict[str, str]:
    """Return the text of each block of a page; one whose figures are not there says so."""
    texts = {}
    for name, block in page.blocks.items():
        paths = [figures / f"{each}.json" for each in block.figures]
        ready = all(path.exists() for path in paths)
        texts[name] = block.make(*(json.loads(path.read_text()) for path in paths)) if ready else NOT_YET
    return texts


def draw(page: Page, docs: Path, figures: Path = FIGURES) -> None:
    """Draw the pictures of a page whose figures are there."""
    for name, picture in page.pictures.items():
        (path,) = (figures / f"{each}.json" for each in picture.figures)
        if path.exists():
            (docs / name).parent.mkdir(parents=True, exist_ok=True)
            picture.make(docs / name, digest(path), json.loads(path.read_text()))


def digest(path: Path) -> str:
    """Return what a picture carries to name the figures it was drawn from."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def fill(text: str, texts: Mapping[str, str]) -> str:
    """Return a page's text with these blocks replaced; others stay."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- measured: {name} -->\n{texts[name]}\n<!-- end -->" if name in texts else match[0]

    return re.sub(r"<!-- measured: (\w+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)


def grid(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table of cells, its columns aligned to the right."""
    lines = [header, ["--:"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of rows, a format a column; `!n` is `number`, and None or a field of it is empty."""
    return grid(list(columns), [[CELLS.vformat(form, (), row) for form in columns.values()] for row in rows])


def across(header: str, lines: Mapping[str, str], columns: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table with a line for each format, a column for each of several figures."""
    cells = {label: [CELLS.vformat(form, (), each) for each in columns.values()] for label, form in lines.items()}
    rows = [[label, *(cell or "not measured" for cell in each)] for label, each in cells.items()]
    return grid([header, *columns], rows)


def number(value: float) -> str:
    """Return a number with three significant digits, or all of those before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def spread(values: Sequence[float], form: str = ",.1f") -> str:
    """Return each of several values, separated by commas."""
    return ", ".join(format(value, form) for value in values)


def commit(machine: Mapping[str, Any]) -> str:
    """Return the short commit of a machine's description, and whether the work tree had changes."""
    return f"commit {str(machine['commit'])[:7]}{' with changes' * bool(machine['dirty'])}"


class _Cells(string.Formatter):
    """Formats fields that may lie in None, and numbers with `!n`."""

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


def main(words: Sequence[str] | None = None) -> None:
    """Fill the pages named, or all."""
    for name in (sys.argv[1:] if words is None else words) or PAGES:
        if name not in PAGES:
            raise SystemExit(f"error: no page is named {name!r}; choose from {', '.join(PAGES)}")
        page, path = load(name), ROOT / "docs" / f"{name}.md"
        path.write_text(fill(path.read_text(), blocks(page)))
        draw(page, path.parent)


if __name__ == "__main__":
    main()
