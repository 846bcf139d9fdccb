"""Bytes of a stored transition against dense windows."""

import torch

from benchmarks.timing import Row
from eigen2.erl.replay import transition_fields
from eigen2.market.environment import TradingEnvironment, TradingRules


def rows() -> list[Row]:
    """Bytes a transition at 108 investable of 669 columns."""
    compact, dense = replay_bytes()
    return [Row("replay_bytes", "replay, bytes a transition, 108 columns", compact, dense, dense / compact)]


def replay_bytes(columns: int = 108, days: int = 504, all_columns: int = 669, features: int = 9) -> tuple[int, int]:
    """Bytes a transition takes here, and as two dense float32 windows with their action."""
    env = TradingEnvironment(torch.full((2, columns, 4), 1.0), TradingRules(), agents=1)
    compact = sum(field.nbytes for field in transition_fields(env.observation_fields, env.action_shape).values())
    dense = 2 * days * all_columns * features * 4 + columns * 2 * 4 + 6
    return compact, dense
