"""Trace allocations over a few generations, to find the lines that allocate what stays, and the containers of it.

tracemalloc sees the memory of Python and NumPy; memray, if installed, that of torch, C libraries and mappings too.
"""

import contextlib
import gc
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from eigen2.files import Folder

GENERATIONS = 4  # traced generations; a leak of every third generation is seen in them
_FRAMES = 12  # frames kept of a traceback, to find the line that called a library
_EIGEN2 = Path(__file__).parents[1]
_PROFILER = (str(_EIGEN2 / "memory"), str(_EIGEN2.parent / "callbacks" / "memory.py"))
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_CONTAINERS = (list, dict, set, deque)
_MODULES = ("torch", "lightning", "eigen2", "callbacks", "numpy", "importlib", "tracemalloc", "logging", "linecache")


class Site(NamedTuple):
    """A line that allocates what stays."""

    line: str  # file:number
    nbytes: float  # a generation
    users: bool  # neither of a library nor of eigen2


class Trace(NamedTuple):
    """What a trace found, the most important first."""

    sites: list[Site]
    holders: list[tuple[str, int, int]]  # containers that grew: name, length before and after
    phase: str = ""  # in which the first site keeps most
    path: Path | None = None  # of a flame graph


class PythonTrace:
    """Traces the allocations of Python and NumPy by tracemalloc.

    The first generation fills the trace, or an object that replaces an older one would look like growth. A census of
    what is live is taken at its end and after each phase from there on.
    """

    def __init__(self) -> None:
        self._ours = not tracemalloc.is_tracing()
        if self._ours:
            tracemalloc.start(_FRAMES)
        self._generations = 0
        self._first: Counter[Site] = Counter()
        self._last: Counter[Site] = Counter()
        self._phases: dict[str, Counter[Site]] = {}
        self._lengths = np.zeros((0, 2), np.int64)

    def phase_end(self, phase: str) -> None:
        """Take a census after a phase, but for the generation that fills the trace."""
        if self._generations:
            now = _live()
            kept = self._phases.setdefault(phase, Counter())
            kept.update(now)
            kept.subtract(self._last)
            self._last = now

    def generation_end(self) -> bool:
        """Count a generation, and return whether it was the last one."""
        self._generations += 1
        if self._generations == 1:
            self._first = self._last = _live()
            self._lengths = _lengths()
        return self._generations == GENERATIONS

    def close(self, phase: str) -> Trace:
        """Stop tracing and return what was found; first what grew in the phase of the leak, if that is known."""
        if self._ours:
            tracemalloc.stop()
        traced = max(1, self._generations - 1)
        grown = self._last - self._first
        kept = self._phases.get(phase, grown)
        ranked = sorted(grown, key=lambda site: (not site.users, kept[site] <= 0, -grown[site]))
        sites = [Site(site.line, grown[site] / traced, site.users) for site in ranked]
        if not phase and ranked and self._phases:
            phase = max(self._phases, key=lambda name: self._phases[name][ranked[0]])
        return Trace(sites, _grown(self._lengths) if self._generations > 1 else [], phase)


class NativeTrace:
    """Traces all allocations by memray, the stacks of C included; it writes `leak.html` into a folder."""

    def __init__(self, folder: Folder) -> None:
        import memray

        self._folder, self._scratch = folder, tempfile.TemporaryDirectory()
        self._file = Path(self._scratch.name) / "trace.bin"
        destination = memray.FileDestination(self._file, overwrite=True)
        aggregated = memray.FileFormat.AGGREGATED_ALLOCATIONS
        self._tracker = memray.Tracker(
            destination=destination,
            native_traces=True,
            trace_python_allocators=True,  # else arenas count as kept that Python keeps for later
            file_format=aggregated,
        )
        self._tracker.__enter__()
        self._generations = 0

    @staticmethod
    def available() -> bool:
        """Return whether memray is installed."""
        return importlib.util.find_spec("memray") is not None

    def phase_end(self, phase: str) -> None:
        """Do nothing: memray sees no phases."""

    def generation_end(self) -> bool:
        """Count a generation, and return whether it was the last one."""
        self._generations += 1
        return self._generations == GENERATIONS

    def close(self, phase: str) -> Trace:
        """Stop tracing, draw the flame graph, and return what was found."""
        import memray

        self._tracker.__exit__(None, None, None)
        sizes: Counter[Site] = Counter()
        path = None
        with self._scratch, memray.FileReader(self._file) as reader:
            for record in reader.get_leaked_allocation_records(merge_threads=True):
                frames = [(file, line) for _, file, line in record.stack_trace(max_stacks=50)]
                if (site := _site(frames)) is not None:
                    sizes[site] += record.size
            page = Path(self._scratch.name) / "leak.html"
            options = ["--leaks", "--no-web", "--output", str(page)]
            command = [sys.executable, "-m", "memray", "flamegraph", *options, str(self._file)]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                self._folder.write(page.name, page.read_bytes())
                path = self._folder.file(page.name)
        sites = [Site(site.line, nbytes / max(1, self._generations), site.users) for site, nbytes in sizes.items()]
        sites.sort(key=lambda site: (not site.users, -site.nbytes))
        return Trace(sites, [], phase, path)


def _live() -> Counter[Site]:
    """Return the live bytes by the line that allocated them."""
    gc.collect()
    sizes: Counter[Site] = Counter()
    for stat in tracemalloc.take_snapshot().statistics("traceback"):
        frames = [(frame.filename, frame.lineno) for frame in reversed(stat.traceback)]
        if (site := _site(frames)) is not None:
            sizes[site] += stat.size
    return sizes


def _site(frames: Iterable[tuple[str, int]]) -> Site | None:
    """Return the innermost line of the user, else of eigen2, else of all; None for what the profiler allocates."""
    frames = list(frames)
    if not frames or any(file.startswith(_PROFILER) for file, _ in frames):
        return None
    outside = [frame for frame in frames if not frame[0].startswith(("<", *_LIBRARIES))]
    users = [frame for frame in outside if not frame[0].startswith(f"{_EIGEN2}/")]
    file, line = [*users, *outside, frames[0]][0]
    return Site(f"{file}:{line}", 0, bool(users))


@contextlib.contextmanager
def tracked_objects() -> Iterator[list[Any]]:
    """List all objects that the garbage collector tracks, frozen ones (`gc.freeze`) included.

    Those are frozen again afterwards, without the garbage, which else would never be freed.
    """
    frozen = gc.get_freeze_count() > 0
    gc.disable()  # a collection in between would stop tracking a tuple that was found tracked
    if frozen:
        gc.unfreeze()
    objects = gc.get_objects()
    try:
        yield objects
    finally:
        objects.clear()
        gc.enable()
        if frozen:
            gc.collect()
            gc.freeze()


def _lengths() -> np.ndarray:
    """Return the address and length of every list, dictionary, set and deque, in one array."""
    with tracked_objects() as objects:
        rows = ((id(each), len(each)) for each in objects if type(each) in _CONTAINERS)
        return np.fromiter(rows, np.dtype((np.int64, 2)))


def _grown(before: np.ndarray) -> list[tuple[str, int, int]]:
    """Return the containers that are longer than before and can be named, the user's first."""
    lengths = dict(before.tolist())
    with tracked_objects() as objects:
        grown = {
            id(each): each
            for each in objects
            if type(each) in _CONTAINERS and lengths.get(id(each), 1 << 60) < len(each)
        }
        functions = [each for each in objects if type(each) is FunctionType and each.__closure__]
        names = dict(_names(grown, functions, objects))
        rows = [(name, lengths[key], len(grown[key])) for key, name in names.items()]
        grown.clear()
    rows = [row for row in rows if not row[0].startswith(("eigen2.memory", "callbacks.memory"))]
    return sorted(rows, key=lambda row: (row[0].startswith(_MODULES), row[1] - row[2]))[:3]


def _names(grown: dict[int, Any], functions: list[Any], objects: list[Any]) -> Iterator[tuple[int, str]]:
    """Yield the address of containers and the name by which an object, a module or a function keeps them."""
    for function in functions:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                if id(cell.cell_contents) in grown:
                    yield id(cell.cell_contents), f"{function.__module__}.{function.__qualname__}: {name}"
    keepers = [each for each in gc.get_referrers(*grown.values()) if each is not grown and each is not objects]
    dicts = {id(each): each for each in keepers if type(each) is dict}
    owners = [*keepers, *gc.get_referrers(*dicts.values())]
    for owner in owners:
        held = getattr(owner, "__dict__", None)
        if isinstance(owner, ModuleType | type) or (isinstance(held, dict) and held is not owner):
            cls = owner if isinstance(owner, type) else type(owner)
            prefix = owner.__name__ if isinstance(owner, ModuleType) else f"{cls.__module__}.{cls.__qualname__}"
            for attribute, value in list((held or {}).items()):
                if id(value) in grown:
                    yield id(value), f"{prefix}.{attribute}"
