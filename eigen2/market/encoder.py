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


def groups_of(panel: MarketPanel, investable: list[int]) -> list[list[int]]:
    """Columns that are described by their mean: the investable ones, other tickers, indicators; none of them empty.

    Indicators have a group of their own because among hundreds of tickers a few of them would not be heard.
    """
    own = set(investable)
    context = [column for column in range(panel.num_columns) if column not in own]
    indicators = [column for column in context if panel.tickers[column] in panel.indicators]
    tickers = [column for column in context if panel.tickers[column] not in panel.indicators]
    return [group for group in (investable, tickers, indicators) if group]


class MarketEncoder:
    """Encodes days of a panel for the networks.

    Each investable column is described by the averages of its nine normalised features and of its validity over each
    span: E = spans x 10 numbers. Groups of columns (see `groups_of`) are described by the same numbers of their
    members' mean, so that columns nobody may buy still speak.

    Each average is standardised over the training days: of columns by a mean and deviation pooled over all of them, of
    a group, whose mean moves less than a column, by its own. Days on which a column has no valid feature count as 0,
    the mean of the feature, with a validity of 0; a column without any in a whole span is described by
    (0 - mean) / deviation of each average, neither masked nor told apart but by its validity.

    Args:
        panel: the market.
        investable: column indices that get a description of their own.
        context_days: the longest span, >= 1.
        device: where the prefix sums lie.

    Attributes:
        width: E, numbers a column.
        groups: group descriptions a day, 1 to 3.
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
        channels = panel.features.shape[2] + 1
        members = groups_of(panel, investable)
        self.groups = len(members)
        self.width = len(self.spans) * channels
        table = np.zeros((panel.num_days + 1, len(investable) + self.groups, channels))
        _running_sums(panel, investable, members, out=table)
        self._sums = torch.from_numpy(table).to(device)
        self._spans = torch.tensor(self.spans, device=device)
        self._mean, self._scale = self._standardisation(panel.splits.train, context_days)

    @staticmethod
    def needed_bytes(days: int, columns: int, groups: int) -> int:
        """Bytes of the prefix sums, float64, for so many columns of their own and groups."""
        return 8 * (days + 1) * (columns + groups) * (len(FEATURES) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the prefix sums."""
        return self._sums.nbytes

    def _standardisation(
        self, train: range, context_days: int
    ) -> tuple[Float[Tensor, "spans described channels"], Float[Tensor, "spans described channels"]]:
        """Mean and 1 / deviation of each average over training days: of columns pooled, of each group its own."""
        usable = range(min(train.start + context_days - 1, train.stop - 1), train.stop)
        days = torch.tensor(usable[:: max(1, len(usable) // 256)], device=self._sums.device)
        columns = len(self.investable)
        mean, deviation = (torch.empty(len(self.spans), *self._sums.shape[1:], device=days.device) for _ in range(2))
        # span by span, so that what is held at a time does not grow with their number
        for i, span in enumerate(self._spans):
            averages = self._averages(days, span[None])[:, 0]
            for part, axes in ((slice(columns), (0, 1)), (slice(columns, None), (0,))):
                mean[i, part] = averages[:, part].mean(axes)
                deviation[i, part] = averages[:, part].std(axes, correction=0)
        # the validity of a complete panel does not vary: a floor keeps it at 0 rather than at noise
        return mean, 1 / deviation.clamp(min=1e-3)

    def _averages(
        self, days: Int[Tensor, " batch"], spans: Int[Tensor, " spans"]
    ) -> Float[Tensor, "batch spans described channels"]:
        end = days.long() + 1
        start = (end[:, None] - spans).clamp(min=0)
        total = self._sums[end][:, None] - self._sums[start]
        return (total / spans[:, None, None]).float()

    def __call__(
        self, days: Int[Tensor, "agents batch"]
    ) -> tuple[Float[Tensor, "agents batch columns width"], Float[Tensor, "agents batch described"]]:
        """Descriptions of each column and of the groups at the close of each day."""
        averages = self._averages(days.flatten(), self._spans)
        encoded = (averages - self._mean) * self._scale
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
            unrealised gain in units of 10 percent, sale target / highest, coefficient / highest, negative for a short
            sale; and `market` (agents, batch, groups x width + 1) with the share of the window left at its end. The
            agent axis is 1 where all agents see the same.
        """
        columns, groups = self.market(observation["day"])
        held_days = observation["held_days"].float()
        steps = torch.iinfo(observation["coefficient"].dtype).max  # signed where short sales are allowed
        portfolio = torch.stack(
            [
                (held_days > 0).float(),
                held_days / self.rules.max_holding_days,
                (observation["gain"].float() * 10).clamp(-CLIP, CLIP),
                observation["target"].float() / LEVELS,
                observation["coefficient"].float() / steps,
            ],
            dim=-1,
        )
        left = (observation["days_left"].float() / self.window_days)[..., None]
        return {"columns": columns, "portfolio": portfolio, "market": torch.cat([groups, left], dim=-1)}
