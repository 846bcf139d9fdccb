"""eigen2: evolutionary reinforcement learning of trading agents on PyTorch Lightning."""

import lazy_loader

from eigen2.registration import register

# the names of __init__.pyi, imported on first use: torch and Lightning take seconds, and prices need neither
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register()  # gymnasium.make("eigen2/Trading-v0")
