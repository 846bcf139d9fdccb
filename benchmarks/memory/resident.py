"""Resident memory of this process, as Linux tells it."""

import re
from collections import Counter
from pathlib import Path

STATUS = Path("/proc/self/status")
SMAPS = Path("/proc/self/smaps")
KINDS = ("anonymous", "libraries", "panel", "other files")
"""Where resident pages come from: nobody's file; shared objects and programs; the cache of panels; other files."""
MB = 1e6


def memory_mb() -> dict[str, float]:
    """Resident memory of this process in MB: all of it, anonymous, of mapped files, and the highest so far."""
    kilobytes = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    names = {"rss": "VmRSS", "anon": "RssAnon", "file": "RssFile", "peak": "VmHWM"}
    return {name: int(kilobytes[key].split()[0]) * 1024 / MB for name, key in names.items()}


def resident_mb(cache: str) -> dict[str, float]:
    """Resident MB of this process by `KINDS`.

    Args:
        cache: folder whose mapped files are the panel's.
    """
    found: Counter[str] = Counter()
    kind = ""
    for line in SMAPS.read_text().splitlines():
        head = re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)", line)
        if head:
            kind = _kind(head.group(1), cache)
        elif line.startswith("Rss:"):
            found["rss"] += int(line.split()[1])
        elif line.startswith("Anonymous:"):  # pages of a file that were written to are nobody's file
            found["anonymous"] += int(line.split()[1])
            found[kind] -= int(line.split()[1])
        if line.startswith("Rss:"):
            found[kind] += int(line.split()[1])
    return {kind: found[kind] * 1024 / MB for kind in ("rss", *KINDS)}


def _kind(path: str, cache: str) -> str:
    if path.startswith(cache):
        return "panel"
    if ".so" in path or "/bin/" in path:
        return "libraries"
    return "other files" if path.startswith("/") else "anonymous"
