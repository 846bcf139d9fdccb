"""Sweeps: many fits of other settings, to find better ones."""
