"""Several processes of one run: how they find each other, share a population and exchange its rows."""

import lazy_loader

# imports Lightning, only when asked for
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"strategy": ["PopulationStrategy"]})
