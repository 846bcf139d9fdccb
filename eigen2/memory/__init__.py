"""Measure memory, find leaks, estimate what a run needs."""
