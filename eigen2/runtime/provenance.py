"""Where a result comes from: versions, machine, commit and settings. Imports neither torch nor Lightning."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]  # root of the source, in a clone


def describe_run() -> dict[str, Any]:
    """Return versions, machine, and the commit if eigen2 runs from a clone; None for what is unknown."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--", ".", ":!docs")  # docs change no result, and benchmarks write them
    versions = {name: version(name) for name in ("eigen2", "torch", "lightning")}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "commit": commit,
        "dirty": None if commit is None or changes is None else bool(changes),
    }


def processor() -> str:
    """Return the processor's model, or else its architecture."""
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return match[1].strip() if match else platform.processor() or platform.machine()


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Describe each setting whose full key begins with `prefix` and that differs between two runs, by that key."""
    keys = [key for key in sorted({*before, *now}) if key.startswith(prefix) and before.get(key) != now.get(key)]
    unset = "not set"
    return {key: f"{key} {_shorten(before.get(key, unset))}, now {_shorten(now.get(key, unset))}" for key in keys}


def _shorten(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _git(*arguments: str) -> str | None:
    """Return what git prints about the source; None without git, or outside a clone of eigen2."""
    if not (ROOT / ".git").exists():
        return None
    try:
        run = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
