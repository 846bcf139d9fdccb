"""eigen2: evolutionary reinforcement learning of trading agents on PyTorch Lightning."""

import os

import lazy_loader

from eigen2.registration import register

# read at MKL's first call: products have the same bits wherever agents' matrices lie in memory, whoever is beside them
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# names in __init__.pyi are imported on first use: torch and Lightning take seconds, and reading prices needs neither
_import_from_stub, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["MemoryProfiler"]  # in another package, which a stub of lazy_loader cannot name


def __getattr__(name: str) -> object:
    """Import a name on first use."""
    if name == "MemoryProfiler":
        from callbacks import MemoryProfiler

        return MemoryProfiler
    return _import_from_stub(name)


register()  # gymnasium.make("eigen2/Trading-v0")
