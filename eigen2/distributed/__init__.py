"""Several processes of one run: how they find each other, share a population and exchange its rows."""

from importlib import import_module
from typing import Any

__all__ = ["PopulationStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("eigen2.distributed.strategy").PopulationStrategy  # imports Lightning, only when asked for
