"""Benchmarks of fuel breaks."""
