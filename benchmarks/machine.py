"""Where figures come from: machine, versions and the state of the source."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import lightning
import torch

ROOT = Path(__file__).parents[1]


def describe_machine() -> dict[str, Any]:
    """What a figure depends on beside the code; None where it cannot be known, or there is no accelerator."""
    status = _git("status", "--porcelain")
    return {
        "machine": _processor(),
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
    }


def _processor() -> str:
    """The processor's model, or its architecture."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for fact in facts.read_text().splitlines():
            name, _, value = fact.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def _git(*words: str) -> str | None:
    """What git answers about the source, None without git or outside a clone."""
    try:
        answer = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
