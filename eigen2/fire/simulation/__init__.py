"""Fires on landscapes, fuel breaks as an environment, and placements without learning."""
