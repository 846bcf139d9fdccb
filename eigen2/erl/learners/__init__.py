"""Algorithms that train agents by gradients."""
