"""Figures put into their places in a Markdown page."""

import re
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned to the right."""
    lines = [header, ["--:"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Three digits that count, four before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def fill_in(page: str, found: dict[str, str]) -> str:
    """The page with each text between `<!-- measured: NAME -->` and the next `<!-- end -->`; others stay."""

    def place(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- measured: {name} -->\n{found[name]}\n<!-- end -->" if name in found else match.group(0)

    return re.sub(r"<!-- measured: (\w+) -->\n.*?<!-- end -->", place, page, flags=re.DOTALL)
