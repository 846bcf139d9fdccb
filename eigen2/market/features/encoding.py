"""Encoders of stored observations into network inputs, one for each value of `data.encoding`."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from eigen2.core.networks import Inputs
from eigen2.errors import UserError
from eigen2.market.data.cache import mapped_array, remapped
from eigen2.market.data.panel import MarketPanel
from eigen2.market.data.panel_rows import MEMBER
from eigen2.market.features.averages import CLIP, average_statistics, column_groups, fill_averages, spans
from eigen2.market.features.ridge import Ridge, fit_ridge
from eigen2.market.networks.columns import DRAWS, PORTFOLIO, RIDGE, ColumnActor, ColumnCritic
from eigen2.market.networks.windows import ConvolutionActor, ConvolutionCritic
from eigen2.market.simulation.bars import tie_breaks
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.environment import LEVELS
from eigen2.market.simulation.returns import relative_returns


class MarketEncoder(ABC):
    """Turns observations of a `TradingEnvironment` or a `PortfolioEnvironment` into network inputs.

    The columns in `investable` are those agents may buy. `saved` is the `state_dict` of a fit's encoder, whose
    statistics of its training days this one uses; None measures them on this panel's training days.
    """

    actor: ClassVar[type[ColumnActor | ConvolutionActor]]
    critic: ClassVar[type[ColumnCritic | ConvolutionCritic]]
    networks_read_days: ClassVar[bool] = False  # whether networks are built for the days of the context
    input_shapes: dict[str, tuple[int, ...]]  # without the axes of agents and batch; of `panel` without the days
    nbytes: int  # held beside the panel

    def __init__(
        self,
        panel: MarketPanel,
        investable: list[int],
        context_days: int,
        episode: EpisodeSettings,
        device: torch.device | str = "cpu",
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self.investable, self.context_days, self.episode = investable, context_days, episode
        self._scale = panel.scale
        prices = panel.prices[:, investable]
        self._draws = torch.from_numpy(tie_breaks(prices)).to(device)
        self._members = torch.from_numpy(prices[..., MEMBER:].any(-1)).to(device) if _has_members(panel) else None
        self.nbytes = self._draws.nbytes + (0 if self._members is None else self._members.nbytes)
        self._prepare(panel, device, saved)

    @abstractmethod
    def _prepare(self, panel: MarketPanel, device: torch.device | str, saved: Mapping[str, Any] | None) -> None:
        """Prepare the tables that `__call__` reads, and set the attributes."""

    @abstractmethod
    def __call__(self, observation: dict[str, Tensor]) -> Inputs:
        """Return the network inputs of an observation; the agent axis is 1 where all agents see the same."""

    @staticmethod
    def needed_bytes(panel: MarketPanel, investable: list[int], context_days: int) -> int:
        """Return the bytes of RAM that an encoder on the CPU takes beside its panel."""
        return (2 + _has_members(panel)) * panel.num_days * len(investable)

    def is_of(self, saved: Mapping[str, Any]) -> bool:
        """Return whether it is the encoder that `restore` would build of `saved`.

        Raises a UserError if networks that were built for this one would read other days.
        """
        days = saved["context_days"]
        if self.networks_read_days and days != self.context_days:
            what = f"data.context_days is {self.context_days}, but the champion's networks read {days} days"
            raise UserError(f"{what}; give --data.context_days {days}")
        same = days == self.context_days and isinstance(self, ENCODERS[saved["encoding"]])
        return same and all(saved.get(name) == value for name, value in self.state_dict().items())

    @staticmethod
    def restore(
        saved: Mapping[str, Any],
        panel: MarketPanel,
        episode: EpisodeSettings,
        device: torch.device | str = "cpu",
    ) -> "MarketEncoder":
        """Build the encoder of an earlier fit for a panel of other prices that was built with the fit's scale.

        `saved` is the `state_dict` of the fit's encoder, with the fit's `encoding` and `context_days`.
        """
        columns = [panel.tickers.index(ticker) for ticker in saved["investable"]]
        return ENCODERS[saved["encoding"]](panel, columns, saved["context_days"], episode, device, saved)

    def state_dict(self) -> dict[str, Any]:
        """Return scale, columns and statistics, on which the encoder depends beside its settings, as plain values."""
        tickers = [self._scale.tickers[column] for column in self.investable]
        return {"scale": self._scale.to_dict(), "investable": tickers, "standard": None, "ridge": None}

    def shared_inputs(self, observation: dict[str, Tensor]) -> tuple[Inputs, Tensor]:
        """Return `portfolio` and `draws`, see `AverageEncoder`, and the fraction of the window left."""
        day = observation["day"].long()
        draws = self._draws[day]
        may_open = draws >= 0 if self._members is None else (draws >= 0) & self._members[day]
        mode = self.episode.rules.mode
        describe = self._describe_orders if mode == "orders" else self._describe_weights
        parts, shape = describe(observation, may_open), observation["cash"].shape + draws.shape[-1:]
        portfolio = torch.stack([parts[name].expand(shape).float() for name in PORTFOLIO[mode]], dim=-1)
        time_left = (observation["days_left"].float() / self.episode.window_days)[..., None]
        return {"portfolio": portfolio, DRAWS: draws}, time_left

    def _describe_weights(self, observation: dict[str, Tensor], may_open: Tensor) -> dict[str, Tensor]:
        """Return whether a column may be held, its weight in units of equal weights, and the cash."""
        equal = self.episode.account.max_leverage / observation["weight"].shape[-1]
        return {
            "tradable": may_open,
            "weight": (observation["weight"].float() / equal).clamp(-CLIP, CLIP),
            "cash": observation["cash"].float().clamp(-CLIP, CLIP)[..., None],
        }

    def _describe_orders(self, observation: dict[str, Tensor], may_open: Tensor) -> dict[str, Tensor]:
        """Return whether a column can be ordered, its position, the cash, and the room for orders."""
        episode, held_days, coefficient = self.episode, observation["held_days"], observation["coefficient"]
        least_room = episode.account.least_room(episode.rules, held_days.shape[-1])
        free = (observation["days_left"] >= episode.settlement_days) & (observation["room"].float() >= least_room)
        return {
            "orderable": may_open & (held_days == 0) & free[..., None],
            "held": held_days > 0,
            "held_days": (held_days.float() / episode.rules.max_holding_days).clamp(max=CLIP),
            "gain": (observation["gain"].float() / 0.1).clamp(-CLIP, CLIP),
            "target": observation["target"].float() / LEVELS,
            # signed where short sales are allowed
            "coefficient": coefficient.float() / torch.iinfo(coefficient.dtype).max,
            "cash": observation["cash"].float().clamp(-CLIP, CLIP)[..., None],
            "room": (observation["room"].float() / episode.account.max_leverage)[..., None],
        }


class AverageEncoder(MarketEncoder):
    """Encodes a day by averages of the features over 1, 2, 4, ... `context_days` days, see `features.averages`.

    Each investable column is described by `width` = spans x channels numbers, the averages of its standardised features
    and of its validity, and so is the mean of each group (see `column_groups`). All days are encoded at the start, in
    half precision; for a mapped panel in a file beside it, which later runs and other processes share. From its
    averages a ridge regression, see `features.ridge`, forecasts what a position in each column will earn; forecasts
    count for what they are worth, so that most of those of chance are 0.
    """

    actor, critic = ColumnActor, ColumnCritic
    statistics: Float[np.ndarray, "2 spans described channels"]

    def _prepare(self, panel: MarketPanel, device: torch.device | str, saved: Mapping[str, Any] | None) -> None:
        settings: dict[str, Any] = {"investable": self.investable, "context_days": self.context_days}
        shape, sizes = _shapes(panel, **settings)
        self.groups, self.width, columns = sizes[2] - 1, sizes[1] * sizes[3], len(self.investable)

        def measure(out: np.ndarray) -> None:
            out[:] = average_statistics(remapped(panel), self.investable, self.context_days)

        def fill(out: np.ndarray) -> None:
            fill_averages(remapped(panel), self.investable, self.context_days, self.statistics, out)

        if saved is None:
            statistics = mapped_array(panel.folder, "standard", settings, sizes, np.dtype(np.float64), measure)
        else:
            statistics = saved["standard"]
        self.statistics = np.array(statistics)
        settings["standard"] = hashlib.blake2b(self.statistics.tobytes(), digest_size=16).hexdigest()
        table = mapped_array(panel.folder, "averages", settings, shape, np.dtype(np.float16), fill)
        self._table = torch.from_numpy(table)
        ridge = self.fit_ridge(panel, panel.splits.train) if saved is None else Ridge(np.array(saved["ridge"]))
        forecasts = (ridge.worth * ridge.scores(self.rows, panel.prices[:, self.investable])).clip(-CLIP, CLIP)
        self._forecasts, self.ridge_weights = torch.from_numpy(forecasts).half().to(device), ridge.worth * ridge.weights
        self._table = self._table.to(device)
        held = self._table, self._forecasts, self.statistics, self.ridge_weights
        self.nbytes += sum(each.nbytes for each in held)
        portfolio = (columns, len(PORTFOLIO[self.episode.rules.mode]))
        shapes = {"columns": (columns, self.width), RIDGE: (columns,), "portfolio": portfolio, DRAWS: (columns,)}
        self.input_shapes = {**shapes, "market": (self.groups * self.width + 1,)}

    def fit_ridge(self, panel: MarketPanel, spans: Sequence[range]) -> Ridge:
        """Return the ridge regression of the returns of positions ordered on the days of `spans`.

        Prices of the holdout do not count: a ticker that stops trading before it may trade again there.
        """
        prices = panel.prices[: panel.splits.holdout.start, self.investable]
        returns = relative_returns(prices, self.episode.rules, panel.splits.stops)
        return fit_ridge(self.rows, returns, self.complete(spans), self.episode.rules.holding_days)

    def complete(self, spans: Sequence[range]) -> list[range]:
        """Return the days of `spans` whose averages are over all of the context."""
        return [range(max(span.start, self.context_days - 1), span.stop) for span in spans]

    def ridge_scores(self, panel: MarketPanel, spans: Sequence[range]) -> Float[np.ndarray, "days columns"]:
        """Return the forecasts of all days by `fit_ridge`."""
        return self.fit_ridge(panel, spans).scores(self.rows, panel.prices[:, self.investable])

    def rows(self, days: Int[np.ndarray, " days"]) -> Float[np.ndarray, "days columns width"]:
        """Return the averages of each column."""
        columns, _ = self.describe(torch.from_numpy(days)[None])
        return columns[0].double().cpu().numpy()

    def state_dict(self) -> dict[str, Any]:
        """Return what the base class returns, with the statistics and the weights of the ridge regression."""
        fitted = {"standard": self.statistics.tolist(), "ridge": self.ridge_weights.tolist()}
        return {**super().state_dict(), **fitted}

    @staticmethod
    def needed_bytes(panel: MarketPanel, investable: list[int], context_days: int) -> int:
        """Return the bytes of the encoded days and of the statistics, besides."""
        table, statistics = _shapes(panel, investable, context_days)
        forecasts = 2 * panel.num_days * len(investable)
        beside = MarketEncoder.needed_bytes(panel, investable, context_days) + forecasts
        weights = statistics[1] * statistics[3]
        return beside + 2 * math.prod(table) + 8 * (math.prod(statistics) + weights)

    def describe(
        self, days: Int[Tensor, "agents batch"]
    ) -> tuple[Float[Tensor, "agents batch columns width"], Float[Tensor, "agents batch described"]]:
        """Return the averages of each column and of the groups at the close of each day."""
        rows = self._table.index_select(0, days.flatten().long())
        split = len(self.investable) * self.width
        # the columns are contiguous, so that networks fold their axes without another copy
        columns = rows[:, :split].float().view(*days.shape, len(self.investable), self.width)
        return columns, rows[:, split:].float().view(*days.shape, self.groups * self.width)

    def forecasts(self, days: Int[Tensor, "agents batch"]) -> Float[Tensor, "agents batch columns"]:
        """Return the ridge forecasts at the close of each day."""
        return self._forecasts[days.long()].float()

    def __call__(self, observation: dict[str, Tensor]) -> Inputs:
        """Return the network inputs of an observation.

        `columns` (agents, batch, columns, width); `ridge` (agents, batch, columns), the forecasts of the ridge
        regression; `portfolio` (agents, batch, columns, 8): whether the column can be ordered (priced, a member, not
        held, on a trading day, with money left), held, days held / max, unrealised gain in units of 10 percent,
        take-profit / highest, size / highest, negative for a short sale, cash / equity, and room for orders /
        max_leverage; or, where agents decide on target weights, 3: whether it may be held, its weight in units of equal
        weights, and cash / equity; `draws` (agents, batch, columns) int16, see `tie_breaks`; `market` (agents, batch,
        groups x width + 1), ending with the fraction of the window that is left.
        """
        columns, groups = self.describe(observation["day"])
        shared, time_left = self.shared_inputs(observation)
        return {
            "columns": columns,
            RIDGE: self.forecasts(observation["day"]),
            **shared,
            "market": torch.cat([groups, time_left], dim=-1),
        }


def _has_members(panel: MarketPanel) -> bool:
    return bool(panel.prices.shape[-1] > MEMBER)


def _shapes(
    panel: MarketPanel, investable: list[int], context_days: int
) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Return the shapes of the table of averages and of the statistics that standardise it."""
    groups, lengths = len(column_groups(panel, investable)), len(spans(context_days))
    numbers = (len(investable) + groups) * lengths * panel.channels
    return (panel.num_days, numbers), (2, lengths, 1 + groups, panel.channels)


class WindowEncoder(MarketEncoder):
    """Passes days and the panel, on a CPU mapped from its file, to networks that look up the last days themselves."""

    actor, critic = ConvolutionActor, ConvolutionCritic
    networks_read_days = True

    def _prepare(self, panel: MarketPanel, device: torch.device | str, saved: Mapping[str, Any] | None) -> None:
        self._features = torch.from_numpy(panel.features).to(device)[None]
        self._investable = torch.tensor(self.investable, device=device)[None]
        self.nbytes += self._features.nbytes if self._features.device.type != "cpu" else 0
        columns = len(self.investable)
        shapes = {"day": (), "panel": tuple(panel.features.shape[1:]), "investable": (columns,)}
        portfolio = (columns, len(PORTFOLIO[self.episode.rules.mode]))
        self.input_shapes = {**shapes, "portfolio": portfolio, DRAWS: (columns,), "market": (1,)}

    def __call__(self, observation: dict[str, Tensor]) -> Inputs:
        """Return the network inputs of an observation.

        `day` (agents, batch) int64; `panel` (1, days, all columns, features) float32, standardised, 0 where not valid;
        `investable` (1, columns) int64; `portfolio` and `draws` as in `AverageEncoder`; `market` (agents,
        batch, 1), the fraction of the window that is left.
        """
        shared, time_left = self.shared_inputs(observation)
        windows = {"day": observation["day"].long(), "panel": self._features, "investable": self._investable}
        return {**windows, **shared, "market": time_left}


ENCODERS: dict[str, type[AverageEncoder | WindowEncoder]] = {"averages": AverageEncoder, "windows": WindowEncoder}
"""Encoders by the value of `data.encoding`."""
