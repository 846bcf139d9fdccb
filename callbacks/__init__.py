"""Callbacks for any Lightning Trainer: measure memory, free it, limit it, plot metrics.

They work with any module. A module with phases may announce the end of each by calling `on_phase_end(trainer, module,
phase)` on every callback of its Trainer that has this method; an object whose bytes should be listed has a method
`memory_owners()`. An epoch is called a generation in files and plots.
"""

from callbacks.budget import MemoryBudget, MemoryBudgetExceeded
from callbacks.garbage import GarbageCollector
from callbacks.memory import MemoryProfiler, get_profiler, log_memory
from callbacks.plots import MetricsPlot
from eigen2.memory.flat import assert_flat
from eigen2.memory.owners import Filling, MemoryOwner

__all__ = [
    "Filling",
    "GarbageCollector",
    "MemoryBudget",
    "MemoryBudgetExceeded",
    "MemoryOwner",
    "MemoryProfiler",
    "MetricsPlot",
    "assert_flat",
    "get_profiler",
    "log_memory",
]
