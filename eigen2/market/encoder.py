"""A day's market as numbers: causal averages over doubling spans, read from prefix sums.

The average of a feature over the s days up to day t is (S[t + 1] - S[t + 1 - s]) / s with S the running sum: every
span costs the same, for any day in any order, and no window of days is ever copied.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigen2.erl.population import Inputs
from eigen2.market.environment import LEVELS, TradingRules
from eigen2.market.panel import FEATURES, MarketPanel

CLIP = 5.0
"""Encoded values lie in [-CLIP, CLIP], in standard deviations over the training days."""


def spans(context_days: int) -> list[int]:
    """1, 2, 4, ... and the context itself, in days."""
    doubling = [2**k for k in range(context_days.bit_length()) if 2**k < context_days]
    return [*doubling, context_days]


class MarketEncoder:
    """Encodes days of a panel for the networks.

    Each investable column is described by the averages of its nine normalised features and of its validity over each
    span: E = spans x 10 numbers. Groups of columns (the investable ones, and the context ones where there are any) are
    described by the same numbers of their members' mean, so that columns nobody may buy still speak.

    Averages are standardised by their own mean and deviation over the training days, pooled over columns.

    Args:
        panel: the market.
        investable: column indices that get a description of their own.
        context_days: the longest span, >= 1.
        device: where the prefix sums lie.

    Attributes:
        width: E, numbers a column.
        groups: group descriptions a day, 1 or 2.
    """

    def __init__(
        self,
        panel: MarketPanel,
        investable: list[int],
        context_days: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.spans = spans(context_days)
        self.investable = investable
        context = [column for column in range(panel.num_columns) if column not in set(investable)]
        channels = panel.features.shape[2] + 1
        members = [group for group in (investable, context) if group]
        self.groups = len(members)
        self.width = len(self.spans) * channels
        table = np.zeros((panel.num_days + 1, len(investable) + self.groups, channels))
        _running_sums(panel, investable, members, out=table)
        self._sums = torch.from_numpy(table).to(device)
        self._spans = torch.tensor(self.spans, device=device)
        self._mean = torch.zeros(len(self.spans), channels, device=device)
        self._scale = torch.ones(len(self.spans), channels, device=device)
        self._standardise(panel.splits.train, context_days)

    @staticmethod
    def needed_bytes(days: int, columns: int, groups: int) -> int:
        """Bytes of the prefix sums, float64, for so many columns of their own and groups."""
        return 8 * (days + 1) * (columns + groups) * (len(FEATURES) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the prefix sums."""
        return self._sums.nbytes

    def _standardise(self, train: range, context_days: int) -> None:
        usable = range(min(train.start + context_days - 1, train.stop - 1), train.stop)
        days = torch.tensor(usable[:: max(1, len(usable) // 256)], device=self._sums.device)
        averages = self._averages(days)[:, :, : len(self.investable)]
        self._mean = averages.mean((0, 2))
        # the validity of a complete panel does not vary: a floor keeps it at 0 rather than at noise
        self._scale = 1 / averages.std((0, 2), correction=0).clamp(min=1e-3)

    def _averages(self, days: Int[Tensor, " batch"]) -> Float[Tensor, "batch spans columns channels"]:
        end = days.long() + 1
        start = (end[:, None] - self._spans).clamp(min=0)
        total = self._sums[end][:, None] - self._sums[start]
        return (total / self._spans[:, None, None]).float()

    def __call__(
        self, days: Int[Tensor, "agents batch"]
    ) -> tuple[Float[Tensor, "agents batch columns width"], Float[Tensor, "agents batch described"]]:
        """Descriptions of each column and of the groups at the close of each day."""
        averages = self._averages(days.flatten())
        encoded = (averages - self._mean[:, None]) * self._scale[:, None]
        encoded = encoded.clamp_(-CLIP, CLIP).transpose(1, 2).flatten(2)
        encoded = encoded.reshape(*days.shape, *encoded.shape[1:])
        columns, groups = torch.split(encoded, [len(self.investable), self.groups], dim=2)
        return columns, groups.flatten(2)


def _running_sums(
    panel: MarketPanel, investable: list[int], members: list[list[int]], out: np.ndarray, block: int = 256
) -> None:
    """Prefix sums over days of (features, validity) of the investable columns and of the groups' means, into `out`."""
    for first in range(0, panel.num_days, block):
        days = slice(first, min(first + block, panel.num_days))
        values = np.concatenate(
            [panel.features[days], panel.valid[days].mean(2, keepdims=True, dtype=np.float32)], axis=2
        )
        described = [values[:, investable], *(values[:, group].mean(1, keepdims=True) for group in members)]
        rows = out[days.start + 1 : days.stop + 1]
        rows[:] = np.concatenate(described, axis=1)
        np.cumsum(rows, axis=0, out=rows)
        rows += out[days.start]


class ObservationEncoder:
    """Turns stored observations into what networks see.

    Args:
        market: describes days.
        rules: scale the positions.
        window_days: length of a window; scales the time left.
    """

    def __init__(self, market: MarketEncoder, rules: TradingRules, window_days: int) -> None:
        self.market = market
        self.rules = rules
        self.window_days = window_days

    def __call__(self, observation: dict[str, Tensor]) -> Inputs:
        """Network inputs of a `TradingEnvironment` observation.

        Returns:
            `columns` (agents, batch, columns, width), `portfolio` (agents, batch, columns, 5): held, days held / max,
            unrealised gain in units of 10 percent, sale target / highest, coefficient / highest; and `market` (agents,
            batch, groups x width + 1) with the share of the window left at its end. The agent axis is 1 where all
            agents see the same.
        """
        columns, groups = self.market(observation["day"])
        held_days = observation["held_days"].float()
        portfolio = torch.stack(
            [
                (held_days > 0).float(),
                held_days / self.rules.max_holding_days,
                (observation["gain"].float() * 10).clamp(-CLIP, CLIP),
                observation["target"].float() / LEVELS,
                observation["coefficient"].float() / LEVELS,
            ],
            dim=-1,
        )
        left = (observation["days_left"].float() / self.window_days)[..., None]
        return {"columns": columns, "portfolio": portfolio, "market": torch.cat([groups, left], dim=-1)}
