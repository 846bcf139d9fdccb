"""Bytes of a stored transition against dense windows."""

from benchmarks.speed.full_scale import FullScale
from benchmarks.timing import Row

BOUND = 7000.0


def rows(full: FullScale) -> list[Row]:
    """Bytes a transition of the configured market."""
    data = full.data
    _, columns, features = data.panel.features.shape
    compact = data.buffer.bytes_per_transition
    investable = len(data.investable_columns)
    dense = dense_bytes(investable, data.context_days, columns, features)
    what = f"replay, bytes a transition, {investable} of {columns} columns"
    return [Row("replay_bytes", what, compact, dense, dense / compact, BOUND)]


def dense_bytes(investable: int, days: int, columns: int, features: int) -> int:
    """Bytes of two float32 windows (days, columns, features), a float32 action, a reward and two flags."""
    return 2 * days * columns * features * 4 + investable * 2 * 4 + 6
