"""Algorithms that train agents by gradients."""

from eigen2.erl.learners.ddpg import DDPG
from eigen2.erl.learners.learner import Batch, Learner, Losses
from eigen2.erl.learners.td3 import TD3

__all__ = ["DDPG", "TD3", "Batch", "Learner", "Losses"]
