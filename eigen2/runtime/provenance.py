"""What a result depends on beside its settings: versions, the machine and the state of the source."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning
import torch

ROOT = Path(__file__).parents[2]
"""Of the source, in a clone."""


def describe_run() -> dict[str, Any]:
    """Versions, machine, and the commit where eigen2 runs from a clone; None for what cannot be known."""
    commit = _git("rev-parse", "HEAD")
    return {
        "versions": {
            "eigen2": version("eigen2"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lightning": lightning.__version__,
        },
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "commit": commit,
        "dirty": bool(_git("status", "--porcelain")) if commit else None,
    }


def processor() -> str:
    """The processor's model, or its architecture."""
    told = Path("/proc/cpuinfo")
    if told.is_file():
        for fact in told.read_text().splitlines():
            name, _, value = fact.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def _git(*words: str) -> str | None:
    """What git answers about the source; None without git, or outside a clone of eigen2's own."""
    if not (ROOT / ".git").exists():
        return None
    try:
        answer = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
