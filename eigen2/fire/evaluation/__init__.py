"""Scores and files of placements, and their validation by another fire model."""
