"""Synthetic markets, and policies that know how they were made."""
