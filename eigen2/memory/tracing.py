"""Trace allocations over a few generations, to find the lines that allocate what stays.

memray, if installed, sees the memory of Python, torch and C libraries; else tracemalloc that of Python and NumPy.
torch's own history has the memory on GPUs.
"""

import contextlib
import gc
import importlib.util
import logging
import subprocess
import sys
import sysconfig
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eigen2 import compat
from eigen2.files import Folder
from eigen2.memory import process

log = logging.getLogger(__name__)
GENERATIONS = 4  # traced generations; a leak of every third generation is seen in them
_FRAMES = 12  # frames kept of a traceback, to find the line that called a library
_EVENTS = 100_000  # latest allocations on a GPU that the page of them shows
_EIGEN2 = Path(__file__).parents[1]
_PROFILER = (str(_EIGEN2 / "memory"), str(_EIGEN2.parent / "callbacks" / "memory.py"))
_OWN = (f"{_EIGEN2}/", f"{_EIGEN2.parent / 'callbacks'}/")
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Site(NamedTuple):
    """A line that allocates what stays."""

    line: str  # file:number, and whether it is memory on a GPU
    nbytes: float  # a generation
    users: bool  # whether it is the user's, neither a library's nor eigen2's


class Trace(NamedTuple):
    """What a trace found, the most important first."""

    sites: Sequence[Site] = ()
    pages: Sequence[tuple[str, Path]] = ()  # to open in a browser: what each shows, and its file

    def lines(self, least: float = 0) -> list[str]:
        """Format the first three sites, as far as they keep more than `least` bytes a generation, and the pages."""
        large = [site for site in self.sites[:3] if site.nbytes > least]
        sites = [f"{format_size(site.nbytes)} a generation kept from {site.line}" for site in large]
        unseen = "torch's and C's memory, whose size is not traced"
        return [
            *(sites or [f"kept from {site.line}: {unseen}" for site in self.sites[:1]]),
            *(f"{name.replace('_', ' ')} of what is kept: {path}" for name, path in self.pages),
        ]

    def record(self) -> dict[str, Any]:
        """Return what was found as plain values."""
        pages = {name: path.name for name, path in self.pages}
        return {"sites": [site._asdict() for site in self.sites[:5]], **pages}


Recorder = Iterator[tuple[Counter[Site], int, dict[str, Path]] | None]
"""Records from its first value on, leaves out at its second what is live by then, and ends with its third.

That is bytes by site, the number of generations that are left out, and the pages that were written.
"""


class Tracer:
    """Traces the allocations of GENERATIONS generations by memray or tracemalloc, with `gpu` those on GPUs too.

    Without a folder for pages only tracemalloc is used. What cannot be traced is logged and left out.
    """

    def __init__(self, folder: Folder | None = None, gpu: bool = False) -> None:
        self._generations = 0
        self._recorders: list[Recorder] = []
        if folder is not None and gpu and process.uses_cuda():
            self._advance(_record_gpus(folder))  # ended first, or memray would show what it takes
        others = len(self._recorders)
        if folder is not None and importlib.util.find_spec("memray") is not None:
            self._advance(_record_native(folder))
        if len(self._recorders) == others:
            self._advance(_record_python())

    def _advance(self, recorder: Recorder) -> None:
        """Let a recorder go on to its next value, and keep it if it can."""
        with _logged():
            next(recorder)
            self._recorders.append(recorder)

    def generation_end(self) -> bool:
        """Count a generation, and return whether it was the last one."""
        self._generations += 1
        if self._generations == 1:
            recorders, self._recorders = self._recorders, []
            for recorder in recorders:
                self._advance(recorder)
        return self._generations == GENERATIONS

    def close(self) -> Trace:
        """Stop tracing and return what was found."""
        sites: list[Site] = []
        pages: dict[str, Path] = {}
        for recorder in self._recorders:
            with _logged():
                *_, recorded = recorder
                sizes, left_out, written = recorded or (Counter[Site](), 0, {})
                generations = max(1, self._generations - left_out)
                sites += [site._replace(nbytes=nbytes / generations) for site, nbytes in sizes.items()]
                pages |= written
        sites.sort(key=lambda site: (not site.users, -site.nbytes))
        return Trace(sites, [*pages.items()])


def _record_python() -> Recorder:
    """Record what Python and NumPy allocate, by tracemalloc."""
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start(_FRAMES)
    try:
        yield None
        first = _live()  # an object that replaces one of before the trace is no growth
        yield None
        grown = _live() - first
    finally:
        if ours:
            tracemalloc.stop()
    yield grown, 1, {}


def _record_native(folder: Folder) -> Recorder:
    """Record all allocations by memray, the stacks of C included, and write a flame graph of what is kept."""
    import memray

    with tempfile.TemporaryDirectory() as scratch:
        file, page = Path(scratch) / "trace.bin", Path(scratch) / "leak.html"
        with memray.Tracker(
            destination=memray.FileDestination(file),
            native_traces=True,
            trace_python_allocators=True,  # else arenas count as kept that Python keeps for later
            file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS,
        ):
            yield None
            yield None
        with memray.FileReader(file) as reader:
            records = reader.get_leaked_allocation_records(merge_threads=True)
            stacks = ((record.stack_trace(max_stacks=50), record.size) for record in records)
            sizes = _by_site(([(file, line) for _, file, line in stack], size) for stack, size in stacks)
        options = ["--leaks", "--no-web", "--output", str(page)]
        command = [sys.executable, "-m", "memray", "flamegraph", *options, str(file)]
        pages = {}
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            folder.write(page.name, page.read_bytes())
            pages["flame_graph"] = folder.file(page.name)
    yield sizes, 0, pages


def _record_gpus(folder: Folder) -> Recorder:
    """Record what torch allocates on GPUs, by its own history, and write a timeline of it."""
    compat.record_cuda_history(_EVENTS)
    try:
        first = _live_on_gpus(compat.cuda_snapshot())  # recorded by an earlier trace
        yield None
        yield None
        snapshot = compat.cuda_snapshot()
    finally:
        compat.record_cuda_history(None)
    folder.write("cuda.html", compat.cuda_timeline(snapshot))
    yield _live_on_gpus(snapshot) - first, 0, {"CUDA_timeline": folder.file("cuda.html")}


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Log what keeps a recorder from its work: a full disk, a broken memray, one that traces already, another torch."""
    try:
        yield
    except (OSError, ImportError, AttributeError, RuntimeError) as error:
        log.warning("cannot trace allocations: %s", error)


def format_size(nbytes: float) -> str:
    """Format bytes in kB, from a megabyte on in MB."""
    return f"{nbytes / 1e6:.2f} MB" if abs(nbytes) >= 1e6 else f"{nbytes / 1e3:.0f} kB"


def _live() -> Counter[Site]:
    """Return the live bytes that tracemalloc knows by site."""
    gc.collect()
    stats = tracemalloc.take_snapshot().statistics("traceback")
    stacks = ((reversed(stat.traceback), stat.size) for stat in stats)
    return _by_site(([(frame.filename, frame.lineno) for frame in stack], size) for stack, size in stacks)


def _live_on_gpus(snapshot: Any) -> Counter[Site]:
    """Return the live bytes on GPUs whose allocation torch has recorded by site."""
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    stacks = [([(frame["filename"], frame["line"]) for frame in block["frames"]], block["size"]) for block in live]
    return _by_site(stacks, " on the GPU")


def _by_site(allocations: Iterable[tuple[Sequence[tuple[str, int]], int]], suffix: str = "") -> Counter[Site]:
    """Return bytes by the innermost line of the user, else of eigen2, else of all, from frames and bytes.

    What the profiler allocates itself is left out.
    """
    sizes: Counter[Site] = Counter()
    for frames, nbytes in allocations:
        if frames and not any(file.startswith(_PROFILER) for file, _ in frames):
            outside = [frame for frame in frames if not frame[0].startswith(("<", *_LIBRARIES))]
            users = [frame for frame in outside if not frame[0].startswith(_OWN)]
            file, line = [*users, *outside, frames[0]][0]
            sizes[Site(f"{file}:{line}{suffix}", 0, bool(users))] += nbytes
    return sizes
