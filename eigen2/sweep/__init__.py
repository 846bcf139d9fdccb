"""Sweeps: many fits with different settings, to find better ones."""
