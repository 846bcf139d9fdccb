"""Run JavaScript in a report that is open in a real browser."""

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
    const charts = [...document.querySelectorAll("[data-chart]")];
    while (!charts.every((chart) => chart.dataset.drawn)) await new Promise((done) => setTimeout(done, 50));
    const result = await (async () => { %s })();
    document.body.insertAdjacentHTML("beforeend", "<pre id=result></pre>");
    document.getElementById("result").textContent = JSON.stringify(result);
  })();
"""
"""Runs a script once all charts are drawn, and writes its result into the document."""


def evaluate(page: Path, folder: Path, script: str, *, phone: bool = False) -> Any:
    """Return the result of `script`, a function's body, once all charts of the page are drawn; console errors fail.

    The browser is 1280 pixels wide, or 390 and dark for a phone.
    """
    opened, text = folder / "opened.html", page.read_text()
    if phone:  # the browser's minimum width is 500
        text = text.replace("</head>", "<style>html { width: 390px; }</style></head>", 1)
    opened.write_text(f"<script>{DRAWN % script}</script></body>".join(text.rsplit("</body>", 1)))
    size = ["--window-size=390,800", "--force-dark-mode"] if phone else ["--window-size=1280,900"]
    flags = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    flags += ["--disable-sync", "--disable-gpu", "--no-sandbox", f"--user-data-dir={folder / 'profile'}"]
    flags += ["--enable-logging=stderr", "--virtual-time-budget=10000", "--dump-dom"]
    command = [str(BROWSER), "--headless", *flags, *size, opened.as_uri()]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in process.stderr
    match = re.search(r'<pre id="result">(.*?)</pre>', process.stdout)
    assert match is not None
    return json.loads(html.unescape(match.group(1)))
