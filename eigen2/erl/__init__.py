"""Evolutionary reinforcement learning."""
