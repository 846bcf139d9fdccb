"""Resident memory of the current process as Linux reports it."""

import re
from collections import Counter
from pathlib import Path

from benchmarks.harness import MB
from eigen2.errors import UserError

STATUS, SMAPS = Path("/proc/self/status"), Path("/proc/self/smaps")
KINDS = ("anonymous", "libraries", "panel", "other files")
"""Where resident pages come from: no file; shared objects and programs; the cache of panels; other files."""
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)")


def require_linux() -> None:
    """Raise UserError on a system without /proc, before anything runs."""
    if not SMAPS.exists():
        raise UserError(f"there is no {SMAPS} to read memory from; measure on Linux")


def memory_mb() -> dict[str, float]:
    """Return the resident memory in MB: all of it, anonymous, of mapped files, and the highest so far."""
    kilobytes = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    names = {"rss": "VmRSS", "anon": "RssAnon", "file": "RssFile", "peak": "VmHWM"}
    return {name: int(kilobytes[key].split()[0]) * 1024 / MB for name, key in names.items()}


def resident_mb(cache: str) -> dict[str, float]:
    """Return the resident memory in MB, all of it and by `KINDS`; files in the folder `cache` are the panel's."""
    found: Counter[str] = Counter()
    kind = ""
    for line in SMAPS.read_text().splitlines():
        if mapping := MAPPING.match(line):
            kind = _kind(mapping[1], cache)
        elif line.startswith("Rss:"):
            found["rss"] += int(line.split()[1])
            found[kind] += int(line.split()[1])
        elif line.startswith("Anonymous:"):  # pages of a file that were written to belong to no file any more
            found["anonymous"] += int(line.split()[1])
            found[kind] -= int(line.split()[1])
    return {kind: found[kind] * 1024 / MB for kind in ("rss", *KINDS)}


def _kind(path: str, cache: str) -> str:
    if path.startswith(cache):
        return "panel"
    if ".so" in path or "/bin/" in path:
        return "libraries"
    return "other files" if path.startswith("/") else "anonymous"
