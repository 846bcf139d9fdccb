"""Benchmarks of speed, memory, learning and scale; docs pages quote their figures."""
