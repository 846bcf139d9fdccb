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


def ask(page: Path, folder: Path, script: str, *, phone: bool = False) -> Any:
    """What the body of a function in JavaScript returns once all of the page's charts are drawn; errors fail.

    The browser is 1280 pixels wide, or 390 and dark on a phone.
    """
    opened, text = folder / "opened.html", page.read_text()
    if phone:  # no window of this browser is narrower than 500
        text = text.replace("</head>", "<style>html { width: 390px; }</style></head>", 1)
    opened.write_text(f"<script>{DRAWN % script}</script></body>".join(text.rsplit("</body>", 1)))
    size = ["--window-size=390,800", "--force-dark-mode"] if phone else ["--window-size=1280,900"]
    quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    quiet += ["--disable-sync", "--disable-gpu", "--no-sandbox", f"--user-data-dir={folder / 'profile'}"]
    quiet += ["--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"]
    command = [str(BROWSER), "--headless", *quiet, *size, opened.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout)
    assert found is not None
    return json.loads(html.unescape(found.group(1)))
