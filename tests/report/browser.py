"""A report in a real browser."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
DRAWN = """
  (async () => {
    const places = [...document.querySelectorAll("[data-chart]")];
    while (!places.every((place) => place.dataset.drawn)) await new Promise((done) => setTimeout(done, 50));
    const told = await (async () => { %s })();
    document.body.insertAdjacentHTML("beforeend", "<pre id=told></pre>");
    document.getElementById("told").textContent = JSON.stringify(told);
  })();
"""
"""Runs a script once all charts are drawn and writes what it returns into the document."""


def browse(page: Path, folder: Path, script: str = "", *, phone: bool = False) -> tuple[str, list[str]]:
    """The document after a browser has opened the page and run a script in it, and what its console said.

    Args:
        page: the report.
        folder: to work in.
        script: in JavaScript.
        phone: 390 pixels wide and dark, else 1280 pixels.
    """
    opened, text = folder / "opened.html", page.read_text()
    if phone:  # no window of this browser is narrower than 500
        text = text.replace("</head>", "<style>html { width: 390px; }</style></head>", 1)
    opened.write_text(f"<script>{script}</script></body>".join(text.rsplit("</body>", 1)))
    size = ["--window-size=390,800", "--force-dark-mode"] if phone else ["--window-size=1280,900"]
    quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    quiet += ["--disable-sync", "--disable-gpu", "--no-sandbox", f"--user-data-dir={folder / 'profile'}"]
    quiet += ["--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"]
    done = subprocess.run(
        [str(BROWSER), "--headless", *quiet, *size, opened.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout, re.findall(r"CONSOLE[^\"]*\"(.*)\"", done.stderr)


def ask(page: Path, folder: Path, script: str, *, phone: bool = False) -> Any:
    """What the body of a function in JavaScript returns once all of the page's charts are drawn."""
    document, console = browse(page, folder, DRAWN % script, phone=phone)
    assert console == []
    found = re.search(r'<pre id="told">(.*?)</pre>', document)
    assert found is not None
    return json.loads(html.unescape(found.group(1)))
