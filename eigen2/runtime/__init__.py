"""How a run lives on Lightning: phases, checkpoints, folder, logger, terminal, several processes."""

from importlib import import_module
from typing import Any

__all__ = ["PopulationStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("eigen2.distributed.strategy").PopulationStrategy  # when asked for: it takes Lightning
