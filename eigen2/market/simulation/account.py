"""The account: cash, shares and equity of every agent in every window, and the record of one agent's trades."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Float16, Float32, Int, Shaped

from eigen2.errors import UserError, require_choices, require_range
from eigen2.market.performance import RUIN, YEAR
from eigen2.market.simulation.events import ClosedPositions, OpenedPositions, events_of_agent
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules

INTEGERS = ("window", "column", "entry_day", "exit_day", "reason")  # fields of a trade that are integers
DUST = 1e-9  # share of the initial cash up to which a value is a rounding error, and no trade
Capacity = Float[np.ndarray, " columns"] | None
SHARE_TOLERANCE = 1e-6  # of a share, by which a number of shares may be below a whole one for rounding errors
NEWTON_STEPS = 8
COLUMNS = "window column entry_day entry_price exit_day exit_price reason coefficient shares gain_pct reward profit"
TRADE = np.dtype([(name, np.int64 if name in INTEGERS else np.float64) for name in COLUMNS.split()])


@dataclass
class AccountRules:
    """Money of an agent and its division over positions."""

    initial_cash: float = 100_000.0
    """Money at the start of a window (above 0, at most 1e12)."""
    unit_share: float = 0.01
    """Share of the equity that an order of size 1 puts into a position (1e-6 to 1)."""
    max_leverage: float = 1.0
    """Gross exposure allowed, as a multiple of the equity (above 0, at most 100; 1 borrows nothing). Orders of a day
    that ask for more than is left of it are scaled down to that."""
    min_order: float = 1e-4
    """Smallest share of the equity that an order takes (1e-6 to unit_share). Where so little is left that one of the
    orders of a day might get less, none opens. Target weights trade every change, however small."""
    whole_shares: bool = False
    """Whether positions are whole numbers of shares, rounded down. An order is not paid for where they would take less
    than `min_order` at the close of the decision, and does not fill where they would at its fill. Agents and critics
    see orders before rounding."""
    volume_cap: float = 0.0
    """Largest share of a column's daily traded value (the median of close x volume over the training days) that an
    order takes, or by which a rebalancing raises a position (0 to 1; 0: any). An order that would take less than
    `min_order` is not paid for. Agents see what they hold, critics judge orders before it."""

    min_commission: float = 0.0
    """Least commission, in money, of each purchase and sale (0 to 1e6): what `data.rules.cost_bps` are short of it is
    taken from the cash. It is no part of gains and rewards of orders."""
    cash_rate_pct: float = 0.0
    """Interest that cash earns, and borrowed cash costs, in percent a year (0 to 100): a 252nd of it for each day, on
    the cash at the last close. What short sales bring is cash. It is no part of the rewards of orders."""
    borrow_fee_pct: float = 0.0
    """Fee on positions sold short, in percent a year of their value (0 to 1000): a 252nd of it for each day, on the
    value at the last close."""

    def __post_init__(self) -> None:
        require_choices("data.account", type(self), vars(self))
        for name, most in (("initial_cash", 1e12), ("max_leverage", 100)):
            require_range(f"data.account.{name}", getattr(self, name), above=0, most=most)
        for name, most in (("cash_rate_pct", 100), ("borrow_fee_pct", 1000)):
            require_range(f"data.account.{name}", getattr(self, name), least=0, most=most)
        require_range("data.account.volume_cap", self.volume_cap, least=0, most=1)
        require_range("data.account.min_commission", self.min_commission, least=0, most=1e6)
        require_range("data.account.unit_share", self.unit_share, least=1e-6, most=1)
        require_range("data.account.min_order", self.min_order, least=1e-6)
        if self.min_order > self.unit_share:
            raise UserError(
                f"data.account.min_order is {self.min_order:g}; it must be at most data.account.unit_share "
                f"{self.unit_share:g}: lower min_order too"
            )

    def least_room(self, trading: TradingRules, columns: int) -> float:
        """Return the share of the equity that must be left for a day's orders, so that each takes `min_order` or more.

        Of n orders that share what is left, the smallest gets the least of it where its coefficient is 1 and those of
        the others are `max_coefficient`. Raises UserError if it is more than there can be.
        """
        orders = min(trading.max_opens_per_day, columns)
        least = self.min_order * (1 + (orders - 1) * trading.max_coefficient)
        if least > self.max_leverage:
            raise UserError(
                f"data.account.min_order is {self.min_order:g}: {orders} orders a day of coefficients up to "
                f"{trading.max_coefficient:g} need {least:g} x the equity, more than data.account.max_leverage "
                f"{self.max_leverage:g}; lower data.rules.max_opens_per_day or min_order"
            )
        return least

    def capacity(self, traded_value: Float[np.ndarray, " columns"]) -> Capacity:
        """Return the most money that an order puts into each column, given their daily traded values; None is any.

        Raises UserError if no column has volume.
        """
        if not self.volume_cap:
            return None
        if not traded_value.any():
            raise UserError(
                f"data.account.volume_cap is {self.volume_cap:g}, but no investable column has volume on the training "
                "days; bring prices with volume, or set it to 0"
            )
        return self.volume_cap * traded_value

    def extra_commission(self, value: np.ndarray, trading: TradingRules) -> np.ndarray:
        """Return what the commission on trades of some values is short of `min_commission`, in money; 0 for `DUST`."""
        traded, commission = value > DUST * self.initial_cash, trading.cost_bps / 10_000 * value
        return traded * (self.min_commission - commission).clip(min=0)


class Accounts:
    """Money of several accounts that trade the same columns, updated by each day's fills and closes.

    With c the costs of a side as a fraction of the price, a bought share costs price x (1 + c) and a sold one brings
    price x (1 - c). An order's stake is what is paid for a position bought, or received for one sold short, so that its
    profit is the stake times its percent gain. What a short sale brings is kept as cash, the shares owed are a
    liability. Positions are marked at their last valid close; the gross exposure is the sum of their absolute values.
    An account whose equity falls to 0 or below, by leverage or short sales, is ruined: it gives no further order.
    `capacity` is the most money that an order puts into each column; None is any.

    Cells are indices into the flattened (accounts, columns); money is float64.
    """

    def __init__(
        self, rules: AccountRules, trading: TradingRules, accounts: int, columns: int, capacity: Capacity = None
    ) -> None:
        self.rules, self.trading, self.columns, self.capacity = rules, trading, columns, capacity
        self.side_cost = trading.side_cost
        self.cash, self.equity, self.exposure = self._money = np.zeros((3, accounts))  # at the last close
        self.downside = np.zeros(accounts)  # sum of squared negative daily log returns since the reset
        self.ruined = np.zeros(accounts, np.bool_)
        self.shares = np.zeros(accounts * columns)  # negative where sold short
        self.reset()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the state."""
        return sum(part.nbytes for part in (self._money, self.downside, self.ruined, self.shares))

    def reset(self) -> None:
        """Give every account its initial cash and nothing else."""
        self.cash.fill(self.rules.initial_cash)
        self.equity.fill(self.rules.initial_cash)
        for state in (self.exposure, self.downside, self.ruined, self.shares):
            state.fill(0)

    def log_return_pct(self) -> Float[np.ndarray, " accounts"]:
        """Return the log return since the reset, in percent, of what is left, or of a millionth, as after ruin."""
        left = np.where(self.ruined, 0, self.equity)
        growth: np.ndarray = np.log((left / self.rules.initial_cash).clip(min=RUIN))
        return 100 * growth

    def cash_share(self) -> Float[np.ndarray, " accounts"]:
        """Return cash as a share of the equity; 0 of ruined accounts."""
        return np.divide(self.cash, self.equity, out=np.zeros_like(self.cash), where=~self.ruined)

    def room(self) -> Float[np.ndarray, " accounts"]:
        """Return the share of the equity that `max_leverage` leaves for orders; 0 of ruined accounts."""
        used = np.divide(self.exposure, self.equity, out=np.full_like(self.cash, np.inf), where=~self.ruined)
        return (self.rules.max_leverage - used).clip(min=0)

    def stakes(
        self,
        cell: Int[np.ndarray, " orders"],
        coefficient: Float[np.ndarray, " orders"],
        close: Float[np.ndarray, "windows columns"],
        least_room: float,
    ) -> Float[np.ndarray, " orders"]:
        """Return the share of the equity at the last close that each order of a day takes; 0 if it cannot be paid for.

        An order asks for |coefficient| x unit_share; together the orders of an account take no more than its `room`,
        and nothing of less than `least_room`. Whole shares must be payable at the close.
        """
        account, asked = cell // self.columns, np.abs(coefficient) * self.rules.unit_share
        if self.capacity is not None:
            most = self.capacity[cell % self.columns] / self.equity[account].clip(min=RUIN)
            asked = np.minimum(asked, most)
        room = self.room()
        room[observed_room(room).astype(np.float32) < least_room] = 0
        total = np.bincount(account, asked, len(room))
        scale: np.ndarray = np.divide(room, total, out=np.ones_like(room), where=total > room)
        stakes: np.ndarray = asked * scale[account]
        if self.capacity is not None:
            stakes[stakes < self.rules.min_order] = 0
        if self.rules.whole_shares:
            stakes[self.filled_stakes(cell, np.sign(coefficient), stakes, close.take(cell % close.size)) == 0] = 0
        return stakes

    def filled_stakes(
        self,
        cell: Int[np.ndarray, " orders"],
        side: Float[np.ndarray, " orders"],
        stakes: Float[np.ndarray, " orders"],
        price: Float[np.ndarray, " orders"],
    ) -> Float[np.ndarray, " orders"]:
        """Return the share of the equity that each order takes at its price; 0 if it does not fill.

        Sides are -1 for short sales, else 1. The price is NaN where there is none.
        """
        if not self.rules.whole_shares:
            return np.where(price > 0, stakes, 0)
        equity = self.equity[cell // self.columns]
        share = price.astype(np.float64) * (1 + side * self.side_cost)
        money = np.floor(stakes * equity / share + SHARE_TOLERANCE) * share
        fills = (stakes > 0) & (money >= self.rules.min_order * equity)
        return np.divide(money, equity, out=np.zeros_like(stakes), where=fills)

    def accrue(self) -> None:
        """Add a day's interest on cash, and take the fee on short positions, from the last close to the next day."""
        rules = self.rules
        if rules.cash_rate_pct or rules.borrow_fee_pct:
            # absolute values of positions less signed ones are twice the short positions
            short = (self.exposure - (self.equity - self.cash)) / 2
            self.cash += (rules.cash_rate_pct * self.cash - rules.borrow_fee_pct * short) / (100 * YEAR)

    def open(self, fills: OpenedPositions) -> None:
        """Buy, or sell short, what orders of the last close filled."""
        account, price = fills.cell // self.columns, fills.price.astype(np.float64)
        side = np.sign(fills.coefficient, dtype=np.float64)
        stake = fills.stake * self.equity[account]
        shares = side * stake / (price * (1 + side * self.side_cost))
        if self.rules.whole_shares:
            shares = np.rint(shares)
        self.shares[fills.cell] = shares
        self._pay(account, shares, price)

    def close(self, cell: Int[np.ndarray, " closed"], price: Float32[np.ndarray, " closed"]) -> None:
        """Sell, or buy back, the shares of some cells."""
        self._pay(cell // self.columns, -self.shares[cell], price.astype(np.float64))
        self.shares[cell] = 0

    def _pay(self, account: np.ndarray, shares: np.ndarray, price: np.ndarray) -> None:
        """Take from accounts what bought shares cost, and add what sold ones bring, where negative."""
        flow = self.cash_flow(shares, price) - self.rules.extra_commission(np.abs(shares) * price, self.trading)
        self.cash += np.bincount(account, flow, len(self.cash))

    def rebalance(
        self,
        weights: Float[np.ndarray, "agents windows columns"],
        price: Float[np.ndarray, "windows columns"],
        trades: Bool[np.ndarray, "windows columns"],
    ) -> tuple[Float[np.ndarray, " accounts"], Float[np.ndarray, " accounts"]]:
        """Trade to target weights, and return the money bought and sold, and the equity before costs.

        All columns are valued at their price, and those in `trades` are traded at it. A position then is worth weight x
        max_leverage x what is left of the equity after costs and without the untraded positions, which count as their
        absolute value / max_leverage: where absolute weights sum to 1 or less, the gross exposure is within
        max_leverage, except for what `min_commission` takes. No position grows, on either side, by more than
        `capacity`, and with `whole_shares` it is rounded down to these. A ruined account sells what it holds.
        """
        shape, leverage = weights.shape[:-1], self.rules.max_leverage
        shares, cash, ruined = (part.reshape(*shape, -1) for part in (self.shares, self.cash, self.ruined))
        held = shares * price
        equity = cash + held.sum(-1, keepdims=True)
        weights, own = np.where(trades, leverage * weights, 0), np.where(trades, held, 0)
        most = equity - np.abs(held - own).sum(-1, keepdims=True) / leverage
        most = np.where(ruined, 0, most).clip(min=0)
        # basis + costs(basis) = most, which is convex and piecewise linear in the basis: from above, Newton's method
        # ends after a few steps
        basis = most
        for _ in range(NEWTON_STEPS):
            change = weights * basis - own
            excess = basis - most + self.side_cost * np.abs(change).sum(-1, keepdims=True)
            slope = 1 + self.side_cost * (weights * np.sign(change)).sum(-1, keepdims=True)
            basis = (basis - excess / slope).clip(min=0)
        wanted = weights * basis
        if self.capacity is not None:
            wanted = wanted.clip(np.minimum(own, 0) - self.capacity, np.maximum(own, 0) + self.capacity)
        if self.rules.whole_shares:
            count = np.divide(wanted, price, out=np.zeros_like(wanted), where=np.broadcast_to(trades, wanted.shape))
            wanted = np.trunc(count + np.copysign(SHARE_TOLERANCE, count)) * price
        change = wanted - own
        traded = np.abs(change).sum(-1, keepdims=True)
        cash -= change.sum(-1, keepdims=True) + self.side_cost * traded
        cash -= self.rules.extra_commission(np.abs(change), self.trading).sum(-1, keepdims=True)
        shares += np.divide(change, price, out=np.zeros_like(change), where=np.broadcast_to(trades, change.shape))
        if self.rules.whole_shares:
            np.rint(shares, out=shares)
        return traded.reshape(-1), equity.reshape(-1)

    def cash_flow(self, shares: Float[np.ndarray, " some"], price: Float[np.ndarray, " some"]) -> np.ndarray:
        """Return the cash that comes in when shares are bought, or sold where negative, without `extra_commission`."""
        return -price * (shares + self.side_cost * np.abs(shares))

    def mark(self, last_close: Float[np.ndarray, "windows columns"]) -> None:
        """Value what is held at the last valid closes of each window; accounts are in the order (agents, windows)."""
        values = self.shares.reshape(-1, *last_close.shape) * last_close
        before = self.equity.copy()
        np.add(self.cash, values.sum(-1).reshape(-1), out=self.equity)
        np.abs(values, out=values).sum(-1, out=self.exposure.reshape(values.shape[:2]))
        growth = np.divide(self.equity, before, out=np.ones_like(before), where=(before > 0) & (self.equity > 0))
        self.downside += np.log(growth).clip(max=0) ** 2
        self.ruined |= self.equity <= 0


def observed_room(room: Float[np.ndarray, " accounts"]) -> Float16[np.ndarray, " accounts"]:
    """Round the share left for orders down to what observations hold, so that what looks payable is."""
    shown = room.astype(np.float16)
    return np.where(shown > room, np.nextafter(shown, np.float16(0)), shown)


class AccountRecord:
    """Daily equity and trades of one agent's accounts, in each window since the last reset."""

    def __init__(self, accounts: Accounts, trading: TradingRules, agent: int, windows: int) -> None:
        self.agent, self._accounts, self._trading = agent, accounts, trading
        self._own = slice(agent * windows, (agent + 1) * windows)
        cells = windows * accounts.columns
        self._entry_day = np.zeros(cells, np.int64)
        self._entry_price, self._coefficient = np.zeros((2, cells))
        self._start = np.zeros(windows, np.int64)
        self._rebalanced = np.zeros(windows)  # money bought and sold by rebalancing
        self._curves: list[np.ndarray] = []  # (3, windows) of each day
        self._trades: list[np.ndarray] = []  # closed on each day, in the order of windows

    @property
    def nbytes(self) -> int:
        """Return the bytes of the record."""
        state = [part for part in vars(self).values() if isinstance(part, np.ndarray)]
        return sum(part.nbytes for part in (*state, *self._curves, *self._trades))

    def reset(self, start: Int[np.ndarray, " windows"]) -> None:
        """Forget what was recorded; each window starts on its first day."""
        self._start, self._curves, self._trades = start, [], []
        self._rebalanced.fill(0)
        self.mark()

    def trade(self, fills: OpenedPositions, closes: ClosedPositions, shares: Float[np.ndarray, " closed"]) -> None:
        """Record the positions of a day that were opened, and those closed with the shares they had; of all agents."""
        cells = len(self._entry_day)
        mine = closes.cell // cells == self.agent
        fills, closes = events_of_agent(fills, self.agent, cells), events_of_agent(closes, self.agent, cells)
        today, at_close = self._start + len(self._curves), self._trading.execution == "close"
        cell, columns = fills.cell, self._accounts.columns
        self._entry_day[cell] = today[cell // columns] - at_close
        self._entry_price[cell], self._coefficient[cell] = fills.price, fills.coefficient
        cell, shares = closes.cell, shares[mine]
        trades = np.zeros(len(cell), TRADE)
        trades["window"], trades["column"], trades["reason"] = cell // columns, cell % columns, closes.reason
        trades["entry_day"] = self._entry_day[cell]
        trades["exit_day"] = today[cell // columns] - (at_close & (closes.reason == CLOSE_REASONS.index("signal")))
        trades["entry_price"], trades["exit_price"] = self._entry_price[cell], closes.price
        trades["coefficient"], trades["shares"] = self._coefficient[cell], shares
        trades["gain_pct"], trades["reward"] = closes.gain_pct, closes.reward
        trades["profit"] = np.abs(self._accounts.cash_flow(shares, trades["entry_price"])) * closes.gain_pct / 100
        for price in (trades["entry_price"], trades["exit_price"]):
            trades["profit"] -= self._accounts.rules.extra_commission(np.abs(shares) * price, self._trading)
        self._trades.append(trades)

    def rebalance(self, traded: Float[np.ndarray, " accounts"]) -> None:
        """Record the money that each account bought and sold to change its weights; of all agents."""
        self._rebalanced += traded[self._own]

    def traded(self) -> Float[np.ndarray, " windows"]:
        """Return the money bought and sold together since the last reset, for closed positions and by rebalancing."""
        trades = self.trades()
        paid = trades["shares"].abs() * (trades["entry_price"] + trades["exit_price"])
        return np.bincount(trades["window"], paid, minlength=len(self._start)) + self._rebalanced

    def mark(self) -> None:
        """Record equity, cash and exposure at a close."""
        accounts = self._accounts
        money = (accounts.equity, accounts.cash, accounts.exposure)
        self._curves.append(np.stack([each[self._own] for each in money]))

    def equity(self, dates: Shaped[np.ndarray, " days"] | None = None) -> pd.DataFrame:
        """Return window, equity, cash and exposure since the last reset, a row for each window and day so far.

        The index is "day", or "date" if `dates` is not None; a window's first row precedes any order.
        """
        curves = np.stack(self._curves, axis=-1)
        window, day = np.indices(curves.shape[1:]).reshape(2, -1)
        days = self._start[window] + day
        index = pd.Index(days, name="day") if dates is None else pd.Index(dates[days], name="date")
        columns = dict(zip(("equity", "cash", "exposure"), curves.reshape(3, -1), strict=True))
        return pd.DataFrame({"window": window, **columns}, index=index)

    def trades(self) -> pd.DataFrame:
        """Return the trades closed since the last reset, one per row, by window and then in the order they closed.

        Columns are the `COLUMNS`: the reason is one of `CLOSE_REASONS`, coefficient and shares are negative for short
        sales, the profit is in money, net of costs, borrow fees and least commissions, prices are before costs.
        """
        trades = pd.DataFrame(np.concatenate([np.zeros(0, TRADE), *self._trades]))
        trades["reason"] = np.array(CLOSE_REASONS, object)[trades["reason"]]
        return trades.sort_values("window", kind="stable", ignore_index=True)
