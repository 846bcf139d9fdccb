"""The champion and the market for other programs."""
