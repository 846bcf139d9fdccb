"""Trading rules and costs."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eigen2.core.replay import rounded_action
from eigen2.errors import UserError, require_choices, require_range

CLOSE_REASONS = ("target", "gap", "holding", "halted", "delisted", "window_end", "signal")
"""Why a position closed: its take-profit was reached, the open gapped beyond it, it was held for `max_holding_days`,
its column had no price on the day it had to close, and it closed at the next, or stopped trading for good, the window
ended, or the agent closed it."""

EXCLUDED = -1e4  # in the softmax over columns; more than 2 x the largest `concentration` below every score


@dataclass
class TradingRules:
    """Trading rules and costs.

    Target weights depend on `rebalance_days`, `concentration`, `allow_short`, `execution`, costs, `delisting_return`
    and `risk_aversion`; the other settings are those of orders.
    """

    mode: Literal["orders", "weights"] = "orders"
    """What agents decide: `orders`, each a position of its own with a take-profit, or target `weights` of all columns,
    to which the account is rebalanced."""
    rebalance_days: int = 5
    """Days from one decision on target weights to the next (1 to 250)."""
    concentration: float = 4.0
    """Factor on scores in [-1, 1] in the softmax that turns them into target weights (0 to 100; 0 weighs all columns
    equally)."""
    max_coefficient: float = 5.0
    """Largest size of an order, which takes size x data.account.unit_share of the equity (above 1, at
    most 1000). One below 1 opens nothing."""
    allow_short: bool = False
    """Whether sizes may be negative, from -max_coefficient: one of -1 or less sells short."""
    min_target: float = 10.0
    """Lowest take-profit, percent above the entry price, below it for a short sale (0.1 or more)."""
    max_target: float = 50.0
    """Highest take-profit, percent above the entry price, below it for a short sale (min_target to 1000; a short sale
    never reaches 100)."""
    max_opens_per_day: int = 1
    """Orders an agent may give per day (1 or more); one that does not fill is dropped."""
    max_holding_days: int = 20
    """Days after which a position is closed at the close (1 to 250)."""
    early_close: bool = True
    """Whether agents may close positions: a size that would not open the position of its column closes it."""
    execution: Literal["next_open", "close"] = "next_open"
    """When an order fills: at the open of the day after the decision, or at the close the agent has just seen."""
    cost_bps: float = 10.0
    """Commission per side, in basis points of the price (0 to 1000)."""
    slippage_bps: float = 5.0
    """Slippage per side, in basis points of the price (0 to 1000)."""
    delisting_return: float = -0.3
    """Return of a column from its last close when it stops trading for good, as on a delisting (-1 to 0). The default
    is that of companies that failed, on NYSE and AMEX (Shumway, "The Delisting Bias in CRSP Data", 1997). A column
    whose last 10 closes differ by less than 1 % counts as bought for cash, and keeps its last close. With 0 positions
    wait for a price instead."""
    reward: Literal["account", "shaped"] = "account"
    """Reward of a closed position: `account`, its net gain in basis points of the account's equity at the order; or
    `shaped`, size x percent gain, as if money had no limit. Fitness is the account's log return in percent, less
    `zero_trade_penalty` / 100 without a trade, or the sum of shaped rewards."""
    risk_aversion: float = 0.0
    """Factor on a window's downside deviation, in percent, which is subtracted from its log return (0 to 1000; without
    effect on shaped rewards)."""
    loss_penalty: float = 1.0
    """Factor on the reward of a losing position (0 to 1000; 1 counts a loss as much as an equal gain)."""
    inaction_penalty: float = 0.0
    """Subtracted for each trading day without a position at any time (0 to 1e6, in reward units)."""
    zero_trade_penalty: float = 10.0
    """Subtracted once at the end of a window without a single trade (0 to 1e6, in reward units); a hundredth of it is
    subtracted from the window's fitness, in percent, all of it where rewards are shaped."""

    def __post_init__(self) -> None:
        require_choices("data.rules", type(self), vars(self))
        require_range("data.rules.rebalance_days", self.rebalance_days, least=1, most=250, whole=True)
        require_range("data.rules.concentration", self.concentration, least=0, most=100)
        if self.mode == "weights" and self.reward == "shaped":
            raise UserError("data.rules.reward is shaped, which rewards orders; set it to account in mode weights")
        require_range("data.rules.max_coefficient", self.max_coefficient, above=1, most=1000)
        require_range("data.rules.min_target", self.min_target, least=0.1)
        require_range("data.rules.max_target", self.max_target, least=self.min_target, most=1000)
        require_range("data.rules.max_opens_per_day", self.max_opens_per_day, least=1, whole=True)
        require_range("data.rules.max_holding_days", self.max_holding_days, least=1, most=250, whole=True)
        require_range("data.rules.delisting_return", self.delisting_return, least=-1, most=0)
        for name in ("cost_bps", "slippage_bps", "loss_penalty", "risk_aversion"):
            require_range(f"data.rules.{name}", getattr(self, name), least=0, most=1000)
        for name in ("inaction_penalty", "zero_trade_penalty"):
            require_range(f"data.rules.{name}", getattr(self, name), least=0, most=1e6)

    @property
    def holding_days(self) -> int:
        """Return the days for which a decision holds: a position's longest, or those between rebalancings."""
        return self.max_holding_days if self.mode == "orders" else self.rebalance_days

    @property
    def action_range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the lowest and the highest numbers of a column's action: size and take-profit, or its score."""
        if self.mode == "weights":
            return (-1.0,), (1.0,)
        min_coefficient = -self.max_coefficient if self.allow_short else 0.0
        return (min_coefficient, self.min_target), (self.max_coefficient, self.max_target)

    @property
    def side_cost(self) -> float:
        """Return commission and slippage per side as a fraction of the price."""
        return (self.cost_bps + self.slippage_bps) / 10_000

    def native_action(self, unit: Float[Tensor, "... columns numbers"]) -> Float[Tensor, "... columns numbers"]:
        """Scale actions in [-1, 1] to `action_range`: sizes and take-profits in percent, or scores.

        They are rounded first to the steps of the replay buffer, so that a critic sees what was played.
        """
        low, high = np.array(self.action_range, np.float32)
        halves, middles = ((high - low) / 2).tolist(), ((high + low) / 2).tolist()
        numbers = zip(rounded_action(unit).unbind(-1), halves, middles, strict=True)
        # two operations round the same everywhere, a fused one does not; a tensor of the range would have to be copied
        # to a GPU, which a recorded step may not do
        return torch.stack([number * half + middle for number, half, middle in numbers], -1)

    def target_weights(
        self, score: Float[Tensor, "... columns"], tradable: Bool[Tensor, "... columns"]
    ) -> Float[Tensor, "... columns"]:
        """Turn scores in [-1, 1] into target weights of the tradable columns; their absolute values sum to at most 1.

        They are a softmax of the scores. With `allow_short` they are half of it less half of the softmax of the
        negative scores: what is bought and what is sold short are equal.
        """
        logits = self.concentration * score
        sides = (logits, -logits) if self.allow_short else (logits,)
        weights = [torch.softmax(torch.where(tradable, side, EXCLUDED), dim=-1) * tradable for side in sides]
        return (weights[0] - weights[1]) / 2 if self.allow_short else weights[0]
