"""What networks see of a stored observation: the market of its day, and the portfolio."""

import hashlib
import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigen2.core.networks import Inputs
from eigen2.market.data.cache import mapped_array, remapped
from eigen2.market.data.panel import MarketPanel
from eigen2.market.features.averages import (
    CHANNELS,
    CLIP,
    fill_averages,
    groups_of,
    spans,
    standardisation,
    table_shape,
)
from eigen2.market.networks.columns import PORTFOLIO
from eigen2.market.simulation.environment import LEVELS, TradingRules


class MarketEncoder:
    """Describes days of a panel by averages, see `eigen2.market.features.averages`.

    Each investable column is described by the averages of its nine normalised features and of its validity over each
    span: E = spans x 10 numbers. Groups of columns (see `groups_of`) are described by the same numbers of their
    members' mean, so that columns nobody may buy still speak. All days are described at the start, in half precision;
    of a mapped panel in a file beside it, which later runs and other processes share.

    A column without any valid feature in a whole span is described by (0 - mean) / deviation of each average, neither
    masked nor told apart but by its validity.

    Args:
        panel: the market.
        investable: column indices that get a description of their own.
        context_days: the longest span, >= 1.
        device: where the descriptions lie.
        standard: what the averages are standardised by, of the panel that agents were trained on; None takes this
            panel's training days.

    Attributes:
        width: E, numbers a column.
        groups: group descriptions a day, 1 to 3.
        standard: what the averages are standardised by, see `averages.standardisation`.
    """

    def __init__(
        self,
        panel: MarketPanel,
        investable: list[int],
        context_days: int,
        device: torch.device | str = "cpu",
        standard: Float[np.ndarray, "2 spans described 10"] | None = None,
    ) -> None:
        self.investable = investable
        self.groups = len(groups_of(panel, investable))
        shape = table_shape(panel.num_days, len(investable), self.groups, context_days)
        self.width = shape[1] // (len(investable) + self.groups)

        settings: dict[str, Any] = {"investable": investable, "context_days": context_days}
        if standard is None:

            def measure(out: np.ndarray) -> None:
                out[:] = standardisation(remapped(panel), investable, context_days)

            measured = _standard_shape(self.groups, context_days)
            standard = mapped_array(panel.folder, "standard", settings, measured, np.dtype(np.float64), measure)
        self.standard = standard = np.array(standard)
        settings["standard"] = hashlib.blake2b(standard.tobytes(), digest_size=16).hexdigest()

        def fill(out: np.ndarray) -> None:
            fill_averages(remapped(panel), investable, context_days, standard, out)

        table = mapped_array(panel.folder, "averages", settings, shape, np.dtype(np.float16), fill)
        self._table = torch.from_numpy(table).to(device)

    @staticmethod
    def needed_bytes(days: int, columns: int, groups: int, context_days: int) -> int:
        """Bytes of an encoder, for so many columns of their own and groups."""
        rows, numbers = table_shape(days, columns, groups, context_days)
        return 2 * rows * numbers + 8 * math.prod(_standard_shape(groups, context_days))

    @property
    def nbytes(self) -> int:
        """Bytes of the descriptions and of what they are standardised by."""
        return self._table.nbytes + self.standard.nbytes

    def __call__(
        self, days: Int[Tensor, "agents batch"]
    ) -> tuple[Float[Tensor, "agents batch columns width"], Float[Tensor, "agents batch described"]]:
        """Descriptions of each column and of the groups at the close of each day."""
        rows = self._table.index_select(0, days.flatten().long())
        own = len(self.investable) * self.width
        # the columns in one piece: networks fold their axes without another copy
        columns = rows[:, :own].float().view(*days.shape, len(self.investable), self.width)
        return columns, rows[:, own:].float().view(*days.shape, self.groups * self.width)


def _standard_shape(groups: int, context_days: int) -> tuple[int, int, int, int]:
    """Of what averages are standardised by: means and deviations, of columns and of each group."""
    return 2, len(spans(context_days)), 1 + groups, CHANNELS


class ObservationEncoder:
    """Turns stored observations into what networks that read averages see.

    Args:
        market: describes days.
        rules: scale the positions.
        window_days: length of a window; scales the time left.
    """

    def __init__(self, market: MarketEncoder, rules: TradingRules, window_days: int) -> None:
        self.market = market
        self.rules = rules
        self.window_days = window_days

    @property
    def nbytes(self) -> int:
        """Bytes of the descriptions of days."""
        return self.market.nbytes

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each input, without the axes of agents and batch."""
        columns = len(self.market.investable)
        return {
            "columns": (columns, self.market.width),
            "portfolio": (columns, PORTFOLIO),
            "market": (self.market.groups * self.market.width + 1,),
        }

    def __call__(self, observation: dict[str, Tensor]) -> Inputs:
        """Network inputs of a `TradingEnvironment` observation.

        Returns:
            `columns` (agents, batch, columns, width), `portfolio` (agents, batch, columns, 5), see `portfolio`, and
            `market` (agents, batch, groups x width + 1) with the share of the window left at its end. The agent axis is
            1 where all agents see the same.
        """
        columns, groups = self.market(observation["day"])
        left = time_left(observation, self.window_days)
        return {
            "columns": columns,
            "portfolio": portfolio(observation, self.rules),
            "market": torch.cat([groups, left], dim=-1),
        }


class WindowEncoder:
    """Turns stored observations into what networks that read windows see: the days, and the panel to look them up in.

    The panel's features are handed over as they are, mapped from their file on a CPU, so that a network copies no more
    of a window than it reads.

    Args:
        panel: the market.
        investable: columns agents may buy.
        context_days: days of a window, >= 1.
        rules: scale the positions.
        window_days: length of a trading window; scales the time left.
        device: where the features lie.
    """

    def __init__(
        self,
        panel: MarketPanel,
        investable: list[int],
        context_days: int,
        rules: TradingRules,
        window_days: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.context_days = context_days
        self.rules = rules
        self.window_days = window_days
        self._features = torch.from_numpy(panel.features).to(device)[None]
        self._investable = torch.tensor(investable, device=device)[None]

    @property
    def nbytes(self) -> int:
        """Bytes of the features where they are a copy on a device; those of the panel itself do not count again."""
        return self._features.nbytes if self._features.device.type != "cpu" else 0

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each input, without the axes of agents and batch; of `panel` without the days."""
        columns = self._investable.shape[1]
        return {
            "day": (),
            "panel": tuple(self._features.shape[2:]),
            "investable": (columns,),
            "portfolio": (columns, PORTFOLIO),
            "market": (1,),
        }

    def __call__(self, observation: dict[str, Tensor]) -> Inputs:
        """Network inputs of a `TradingEnvironment` observation.

        Returns:
            `day` (agents, batch) int64; `panel` (1, days, all columns, 9) float32, the normalised features, 0 where
            not valid; `investable` (1, columns) int64, indices into all columns; `portfolio` (agents, batch, columns,
            5), see `portfolio`; `market` (agents, batch, 1), the share of the window left.
        """
        return {
            "day": observation["day"].long(),
            "panel": self._features,
            "investable": self._investable,
            "portfolio": portfolio(observation, self.rules),
            "market": time_left(observation, self.window_days),
        }


def portfolio(observation: dict[str, Tensor], rules: TradingRules) -> Float[Tensor, "agents batch columns 5"]:
    """Positions as networks see them.

    For each column: held, days held / max, unrealised gain in units of 10 percent, sale target / highest, coefficient /
    highest, negative for a short sale.
    """
    held_days, coefficient = observation["held_days"], observation["coefficient"]
    steps = torch.iinfo(coefficient.dtype).max  # signed where short sales are allowed
    parts = (held_days > 0, held_days, observation["gain"], observation["target"], coefficient)
    raw = torch.stack([part.float() for part in parts], dim=-1)
    units = torch.tensor([1, rules.max_holding_days, 0.1, LEVELS, steps], device=raw.device)
    seen = raw / units
    seen[..., 2].clamp_(-CLIP, CLIP)
    return seen


def time_left(observation: dict[str, Tensor], window_days: int) -> Float[Tensor, "agents batch 1"]:
    """Share of the trading window that is left."""
    return (observation["days_left"].float() / window_days)[..., None]
