"""Whether a run fits into memory, told before anything is allocated."""

from pathlib import Path

import psutil

from eigen2.errors import UserError

GB = 1e9
MB = 1e6
_CGROUP = Path("/sys/fs/cgroup")


def rss_bytes() -> int:
    """Resident bytes of this process."""
    return int(psutil.Process().memory_info().rss)


def available_bytes() -> int:
    """Bytes this process may still take: what the system can give, or a container's limit if that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except OSError:  # no cgroup v2 here: a machine without containers, or not Linux
        return available
    return available if limit == "max" else min(available, int(limit) - used)


def arithmetic(needed: dict[str, int]) -> str:
    """'replay 90.1 + population 20.3 = 110.4 MB', largest first; in GB from one GB on."""
    total = sum(needed.values())
    unit, name = (GB, "GB") if total >= GB else (MB, "MB")
    parts = sorted(needed.items(), key=lambda item: -item[1])
    return " + ".join(f"{owner} {size / unit:,.1f}" for owner, size in parts) + f" = {total / unit:,.1f} {name}"


def require_ram(needed: dict[str, int], remedy: str) -> str:
    """Refuse to start what cannot fit.

    Args:
        needed: bytes by owner, all still to be allocated.
        remedy: what the user can lower.

    Returns:
        The arithmetic in words, for the user.

    Raises:
        UserError: the sum exceeds what is available; with the arithmetic.
    """
    available = available_bytes()
    if sum(needed.values()) > available:
        raise UserError(f"this run needs {arithmetic(needed)} of RAM, {available / GB:.2f} GB are available; {remedy}")
    return f"{arithmetic(needed)} to allocate, {available / GB:.1f} GB available"
