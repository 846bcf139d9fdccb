"""eigen2: evolutionary reinforcement learning of trading agents on PyTorch Lightning."""

import lazy_loader

from eigen2.registration import register

# the names of __init__.pyi, imported on first use: torch and Lightning take seconds, and prices need neither
_of_stub, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["MemoryProfiler"]  # of another package, which lazy_loader takes from no stub


def __getattr__(name: str) -> object:
    """Import a name on first use."""
    if name == "MemoryProfiler":
        from callbacks import MemoryProfiler

        return MemoryProfiler
    return _of_stub(name)


register()  # gymnasium.make("eigen2/Trading-v0")
