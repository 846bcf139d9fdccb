"""Find every limit on the memory of this process, and how much of it is used."""

import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from eigen2.errors import UserError

_CGROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 of control groups writes a number this large or larger for no limit
_RESIDENT = re.compile(rb"(VmSize|VmRSS|VmHWM|Rss\w+):\s*(\d+) kB")


@dataclass(frozen=True, slots=True)
class Limit:
    """A memory limit and what counts towards it, in bytes; `shared` if other processes count towards it too."""

    name: str
    used: int
    limit: int
    shared: bool = False

    @property
    def share(self) -> float:
        """Return the fraction of the limit that is used."""
        return self.used / self.limit

    @property
    def left(self) -> int:
        """Return the bytes left below the limit."""
        return max(0, self.limit - self.used)

    def __str__(self) -> str:
        return f"{self.used / 1e9:.2f} of {self.limit / 1e9:.2f} GB ({self.share:.0%}) of {self.name}"


def limits(budget_bytes: int | None = None) -> list[Limit]:
    """Return the limits of this process, tightest first.

    - The budget, if there is one, counts resident memory without pages of files, which the system may drop.
    - A control group (container, SLURM job) counts all its processes, without file pages not used lately.
    - RLIMIT_AS (`ulimit -v`) counts the address space.
    - The machine counts what is not available.
    """
    memory = resident("self")
    machine = psutil.virtual_memory()
    all_limits = [Limit("the machine's memory", machine.total - machine.available, machine.total, True), *_groups()]
    if budget_bytes is not None:
        all_limits.append(Limit("the memory budget", memory["VmRSS"] - memory.get("RssFile", 0), budget_bytes))
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        all_limits.append(Limit("the address space (RLIMIT_AS)", memory["VmSize"], address_space))
    return sorted(all_limits, key=lambda limit: -limit.share)


def available_bytes(budget_bytes: int | None = None, processes: int = 1) -> int:
    """Return the bytes this process may still allocate by the tightest limit: budget, machine, container or `ulimit`.

    A limit shared between processes is divided equally among the run's `processes` on this machine.
    """
    return min(limit.left // (processes if limit.shared else 1) for limit in limits(budget_bytes))


def require_room(what: str, count: int, each: int, remedy: str, available: int | None = None) -> None:
    """Raise a UserError if `count` things of `each` bytes do not fit into memory; `what` names the count.

    `available` are the bytes left before the first of them was made, by default those left now.
    """
    available = available_bytes() if available is None else available
    if (needed := count * each) > available:
        raise UserError(
            f"{what} x {each:,} bytes = {needed / 1e9:.2f} GB of RAM, with {available / 1e9:.2f} GB available: {remedy}"
        )


def resident(process: str) -> dict[str, int]:
    """Return the bytes in /proc/PROCESS/status by name; on other systems those of this process from psutil."""
    if sys.platform != "linux":
        memory = psutil.Process().memory_info()
        return {"VmRSS": memory.rss, "VmSize": memory.vms}
    with open(f"/proc/{process}/status", "rb", buffering=0) as status:
        return {name.decode(): 1024 * int(kb) for name, kb in _RESIDENT.findall(status.read())}


def allowed_bytes() -> int:
    """Return the bytes of memory that the machine and the control groups allow this process."""
    return min([psutil.virtual_memory().total, *(group.limit for group in _groups())])


def _groups() -> Iterator[Limit]:
    """Yield the limits of the control groups of this process, of both versions, from the innermost up to the root."""
    for line in _CGROUPS.read_text().splitlines() if _CGROUPS.exists() else ():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, names = _ROOT, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = _ROOT / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (limit := _limit(folder, root, *names)) is not None:
                yield limit


def _limit(folder: Path, root: Path, limit_name: str, used_name: str, inactive_name: str) -> Limit | None:
    try:
        limit = (folder / limit_name).read_text().strip()
        used = int((folder / used_name).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # a root group has no limit; a container does not see the groups above its own
        return None
    if limit == "max" or int(limit) >= _NO_LIMIT:
        return None
    name = "" if folder == root else f" (/{folder.relative_to(root)})"
    return Limit(f"the control group's memory{name}", used - int(stat.get(inactive_name, 0)), int(limit), True)
