"""Hooks of MkDocs: add the page of all settings, and files from outside docs/ with the links they have there."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from eigen2.cli.reference import reference

PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the settings, README.md and CONTRIBUTING.md as pages, and the files that pages link to."""
    root = Path(config.config_file_path).parent
    files.append(File.generated(config, "configuration.md", content=reference()))
    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=_moved((root / source).read_text())))
    pages = [root / source for source in PAGES.values()] + sorted((root / "docs").glob("*.md"))
    targets = {(page.parent / link).resolve() for page in pages for link in LINK.findall(page.read_text())}
    for target in sorted(targets):
        inside = target.is_relative_to(root / "docs") or str(target.relative_to(root)) in PAGES.values()
        if not inside and target.is_file():
            name = str(target.relative_to(root)) + (".txt" if target.suffix == ".md" else "")
            files.append(File.generated(config, name, content=target.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave docs/, and show links to folders as text, as a site has no page for them."""
    markdown = re.sub(r"\[([^]]+)\]\([\w./]+/\)", r"`\1`", markdown)
    return _moved(markdown.replace("](../", "](")) if "/" not in page.file.src_uri else markdown


def _moved(markdown: str) -> str:
    def rewrite(match: re.Match[str]) -> str:
        link = match[1].removeprefix("docs/")
        page = next((name for name, source in PAGES.items() if link == source), None)
        outside_page = link.endswith(".md") and "/" in link
        return page or (f"{link}.txt" if outside_page else link)

    return LINK.sub(rewrite, markdown)
