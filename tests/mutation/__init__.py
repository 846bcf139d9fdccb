"""Faults of one line, planted to see whether the tests catch them."""
