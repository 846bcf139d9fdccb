"""Actors and critics of the trading workload."""
