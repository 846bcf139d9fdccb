"""The trading workload as a data module: prices to panel, panel to windows, windows to environments."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigen2.erl.population import Inputs
from eigen2.erl.randomness import Role, generator
from eigen2.erl.rollouts import Observation, Rollouts
from eigen2.errors import UserError, require_range
from eigen2.market.encoder import MarketEncoder, ObservationEncoder
from eigen2.market.environment import TradingEnvironment, TradingRules
from eigen2.market.networks import ColumnActor, ColumnCritic
from eigen2.market.panel import FEATURES, MarketPanel, build_panel, load_panel
from eigen2.market.sample import sample_path
from eigen2.market.synthetic import SyntheticMarket


class RolloutDataModule(Rollouts):
    """Daily prices, split into training, validation and holdout days, and the windows agents trade in.

    Args:
        path: long-format Parquet or CSV file of daily prices: date, ticker, open, high, low, close, volume; null
            takes the sample that ships with eigen2 (five US stocks, 2000 to 2013).
        synthetic: settings of a made-up market in place of a file; null takes `path`.
        context_days: days of the past an agent sees (1 or more).
        trading_days: days of a window on which agents may open positions (1 or more).
        settlement_days: days after them in which positions run out (1 or more; rules.max_holding_days of them let all
            run out, with fewer the last day sells the rest).
        validation_days: days before the holdout on which champions are chosen, never trained on (at least a window).
        holdout_days: last days of the file, touched by nothing in fit (0 or more).
        windows_per_generation: windows whose mean return is an agent's fitness, the same for every agent (1 or more).
        exploration_windows: further windows a generation, played with exploration noise to fill the replay buffer and
            not counted in fitness (0 or more).
        validation_windows: windows that walk forward over the validation days, overlapping where they must; the mean
            return in them chooses the champion (1 or more; at least as many as cover all validation days).
        replay_capacity: transitions the shared replay buffer holds (1 or more).
        replay_min_size: transitions in the buffer before training starts (batch_size to replay_capacity).
        batch_size: transitions of a micro-batch, for each agent its own sample (1 or more).
        rules: what agents may do and what it costs.
        cache_dir: where the memory-mapped panel is kept; null takes `cache` under trainer.default_root_dir.
    """

    panel: MarketPanel
    encoder: ObservationEncoder
    eval_env: TradingEnvironment
    val_env: TradingEnvironment

    def __init__(
        self,
        path: str | None = None,
        synthetic: SyntheticMarket | None = None,
        context_days: int = 504,
        trading_days: int = 125,
        settlement_days: int = 20,
        validation_days: int = 252,
        holdout_days: int = 252,
        windows_per_generation: int = 8,
        exploration_windows: int = 2,
        validation_windows: int = 6,
        replay_capacity: int = 50_000,
        replay_min_size: int = 10_000,
        batch_size: int = 16,
        rules: TradingRules = TradingRules(),  # noqa: B008 - read, never changed
        cache_dir: str | None = None,
    ) -> None:
        super().__init__(windows_per_generation, exploration_windows, replay_capacity, replay_min_size, batch_size)
        for name, value, least in (
            ("context_days", context_days, 1),
            ("trading_days", trading_days, 1),
            ("settlement_days", settlement_days, 1),
            ("validation_days", validation_days, 1),
            ("holdout_days", holdout_days, 0),
            ("validation_windows", validation_windows, 1),
        ):
            require_range(f"data.{name}", value, least=least)
        if path is not None and synthetic is not None:
            raise UserError(f"data.path {path} and data.synthetic are both given; set one of them to null")
        self.path, self.synthetic = path, synthetic
        self.context_days = context_days
        self.trading_days, self.settlement_days = trading_days, settlement_days
        self.validation_days, self.holdout_days = validation_days, holdout_days
        self.validation_windows = validation_windows
        self.rules = rules
        self.cache_dir = cache_dir

    @property
    def window_days(self) -> int:
        """Days of a window, trading and settlement."""
        return self.trading_days + self.settlement_days

    def setup(self, stage: str) -> None:
        """Load the panel and make sure that a window fits into its splits."""
        splits = {"validation_days": self.validation_days, "holdout_days": self.holdout_days}
        if self.synthetic is not None:
            self.panel = build_panel(self.synthetic.generate(), **splits)
        else:
            root = "lightning_logs" if self.trainer is None else self.trainer.default_root_dir
            cache = self.cache_dir or str(Path(root) / "cache")
            self.panel = load_panel(self.path or sample_path(), **splits, cache_dir=cache)
        self._check_days()

    def _check_days(self) -> None:
        train, validation = self.panel.splits.train, self.panel.splits.validation
        needed = self.context_days - 1 + self.window_days  # the window's first day is the context's last
        if len(train) < needed:
            raise UserError(
                f"{self.panel.num_days} days leave {len(train)} to train on after {len(validation)} validation and "
                f"{len(self.panel.splits.holdout)} holdout days, but context_days {self.context_days}, ending "
                f"with the first of trading_days {self.trading_days} + settlement_days {self.settlement_days}, need "
                f"{needed}; lower one or bring more days"
            )
        if len(validation) < self.window_days:
            raise UserError(
                f"data.validation_days is {len(validation)}, but a window takes trading_days {self.trading_days} + "
                f"settlement_days {self.settlement_days} = {self.window_days} days; raise validation_days or shorten "
                "the window"
            )

    def build(self, agents: int, device: torch.device) -> None:
        """Make the encoder and the two environments."""
        investable = list(range(self.panel.num_columns))
        market = MarketEncoder(self.panel, investable, self.context_days, device)
        self.encoder = ObservationEncoder(market, self.rules, self.window_days)
        prices = torch.from_numpy(np.ascontiguousarray(self.panel.prices[:, investable]))
        windows = self.windows_per_generation + self.exploration_windows
        self.eval_env = TradingEnvironment(prices, self.rules, agents, windows, device)
        self.val_env = TradingEnvironment(prices, self.rules, agents, len(self.validation_starts()), device)

    def needed_bytes(self, agents: int) -> dict[str, int]:
        """Bytes of the encoder's prefix sums and of both environments."""
        panel, columns = self.panel, self.panel.num_columns
        windows = self.windows_per_generation + self.exploration_windows + len(self.validation_starts())
        return {
            "encoder": MarketEncoder.needed_bytes(panel.num_days, columns, 2),
            "environments": TradingEnvironment.needed_bytes(panel.num_days, columns, agents, windows)
            + TradingEnvironment.needed_bytes(panel.num_days, columns, 0, 0),
        }

    def network_inputs(self, observation: Observation) -> Inputs:
        """Encoded market and portfolio, see `ObservationEncoder`."""
        return self.encoder(observation)

    def make_actor(self) -> nn.Module:
        """A `ColumnActor` of this panel's sizes."""
        market = self.encoder.market
        return ColumnActor(market.width, market.groups * market.width + 1)

    def make_critic(self) -> nn.Module:
        """A `ColumnCritic` of this panel's sizes."""
        market = self.encoder.market
        return ColumnCritic(market.width, market.groups * market.width + 1)

    def training_options(self, generation: int, seed: int) -> dict[str, Any]:
        """One window from each of equal parts of the training days, so that every generation sees every era."""
        train = self.panel.splits.train
        first, last = train.start + self.context_days - 1, train.stop - self.window_days
        chance = generator(seed, Role.WINDOWS, generation)
        # fitness windows and exploration windows are each spread over the whole span
        shares = [
            (part + chance.random()) / windows
            for windows in (self.windows_per_generation, self.exploration_windows)
            for part in range(windows)
        ]
        # a share just below 1 may round to 1
        return self._window(min(first + int(share * (last - first + 1)), last) for share in shares)

    def validation_starts(self) -> list[int]:
        """First days of windows walking forward evenly; the last window ends on the last validation day."""
        days = self.panel.splits.validation
        to_cover_all = -(-len(days) // self.window_days)
        room = len(days) - self.window_days + 1
        count = min(max(self.validation_windows, to_cover_all), room)
        starts = np.linspace(days.start, days.stop - self.window_days, count)
        return [round(float(start)) for start in starts]

    def validation_options(self) -> dict[str, Any]:
        """The validation windows."""
        return self._window(self.validation_starts())

    def _window(self, starts: Any) -> dict[str, Any]:
        starts = list(starts)
        return {
            "start_idx": starts,
            "trading_end_idx": [start + self.trading_days for start in starts],
            "end_idx": [start + self.window_days for start in starts],
        }

    def episode_metrics(self, summary: dict[str, Tensor]) -> dict[str, float]:
        """Trades an agent and window, share of winners, share of trading days with a position."""
        windows = self.windows_per_generation
        idle, busy = summary["days_without_position"].sum(), summary["days_with_position"].sum()
        closed = (summary["wins"] + summary["losses"]).sum()
        return {
            "trading/trades": float(summary["trades"].double().mean()) / windows,
            "trading/win_rate": float(summary["wins"].sum() / closed.clamp(min=1)),
            "trading/exposure": float(busy / (idle + busy)),
        }

    def describe(self) -> dict[str, str]:
        """What was loaded, in words."""
        splits = self.panel.splits

        def span(days: range) -> str:
            if not days:
                return "none"
            return f"{self.panel.dates[days[0]]} to {self.panel.dates[days[-1]]} ({len(days)} days)"

        source = "synthetic market" if self.synthetic else self.path or "sample shipped with eigen2"
        return {
            "prices": str(source),
            "panel": f"{self.panel.num_days:,} days x {self.panel.num_columns} columns x {len(FEATURES)} features",
            "training": span(splits.train),
            "validation": f"{span(splits.validation)}, {len(self.validation_starts())} windows",
            "holdout": f"{span(splits.holdout)}, untouched by fit",
            "window": f"{self.trading_days} trading + {self.settlement_days} settlement days, "
            f"context {self.context_days}",
        }

    def memory_owners(self) -> dict[str, int]:
        """Bytes by owner, for a memory profiler."""
        return {
            **super().memory_owners(),
            "panel": self.panel.nbytes,
            "encoder": self.encoder.market.nbytes,
        }
