"""The algorithm: evolutionary reinforcement learning of a population. It knows no market."""
