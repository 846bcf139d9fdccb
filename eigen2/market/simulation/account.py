"""The account: cash, shares and equity of every agent in every window, and the record of one agent's trades."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Float16, Float32, Int, Shaped

from eigen2.errors import require_range
from eigen2.market.simulation.events import Closes, Fills, events_of_agent
from eigen2.market.simulation.rules import CLOSE_REASONS, TradingRules

RUIN = 1e-6  # share of the initial cash below which a log return no longer falls
WHOLE = ("window", "column", "entry_day", "exit_day", "reason")  # the integers of a trade
NEWTON_STEPS = 8
COLUMNS = "window column entry_day entry_price exit_day exit_price reason coefficient shares gain_pct reward profit"
TRADE = np.dtype([(name, np.int64 if name in WHOLE else np.float64) for name in COLUMNS.split()])


@dataclass
class AccountRules:
    """Money of an agent and its division over positions."""

    initial_cash: float = 100_000.0
    """Money at the start of a window (above 0, at most 1e12)."""
    unit_share: float = 0.01
    """Share of the equity that a coefficient of 1 puts into a position (above 0, at most 1)."""
    max_leverage: float = 1.0
    """Gross exposure allowed, as a multiple of the equity (above 0, at most 100; 1 borrows nothing). Orders of a day
    that ask for more than is left of it are scaled down to that."""
    min_order: float = 1e-4
    """Share of the equity that must be left for orders; with less none opens (1e-6 to 1)."""

    def __post_init__(self) -> None:
        for name, most in (("initial_cash", 1e12), ("unit_share", 1), ("max_leverage", 100)):
            require_range(f"data.account.{name}", getattr(self, name), above=0, most=most)
        require_range("data.account.min_order", self.min_order, least=1e-6, most=1)


class Accounts:
    """Money of several accounts that trade the same columns, updated by each day's fills and closes.

    With c the costs of a side as a fraction of the price, a bought share costs price x (1 + c) and a sold one brings
    price x (1 - c). An order's stake is what is paid for a position bought, or received for one sold short, so that its
    profit is the stake times its percent gain. What a short sale brings is kept as cash, the shares owed are a
    liability. Positions are marked at their last valid close; the gross exposure is the sum of their absolute values.
    An account whose equity falls to 0 or below, by leverage or short sales, is ruined: it gives no further order.

    Cells are indices into the flattened (accounts, columns); money is float64.
    """

    def __init__(self, rules: AccountRules, side_cost: float, accounts: int, columns: int) -> None:
        self.rules, self.side_cost, self.columns = rules, side_cost, columns
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
        """Return the log return since the reset, in percent, of what is left of the equity or of a millionth."""
        growth: np.ndarray = np.log((self.equity / self.rules.initial_cash).clip(min=RUIN))
        return 100 * growth

    def cash_share(self) -> Float[np.ndarray, " accounts"]:
        """Return cash as a share of the equity; 0 of ruined accounts."""
        share: np.ndarray = np.divide(self.cash, self.equity, out=np.zeros_like(self.cash), where=~self.ruined)
        return share

    def room(self) -> Float[np.ndarray, " accounts"]:
        """Return the share of the equity that `max_leverage` leaves for orders; 0 of ruined accounts."""
        used = np.divide(self.exposure, self.equity, out=np.full_like(self.cash, np.inf), where=~self.ruined)
        left: np.ndarray = (self.rules.max_leverage - used).clip(min=0)
        return left

    def stakes(
        self, cell: Int[np.ndarray, " orders"], coefficient: Float[np.ndarray, " orders"]
    ) -> Float[np.ndarray, " orders"]:
        """Return the share of the equity at the last close that each order of a day takes; 0 if it cannot be paid for.

        An order asks for |coefficient| x unit_share; together the orders of an account take no more than its `room`.
        """
        account, asked = cell // self.columns, np.abs(coefficient) * self.rules.unit_share
        room = self.room()
        room[observed_room(room) < self.rules.min_order] = 0
        total = np.bincount(account, asked, len(room))
        scale: np.ndarray = np.divide(room, total, out=np.ones_like(room), where=total > room)
        stakes: np.ndarray = asked * scale[account]
        return stakes

    def open(self, fills: Fills) -> None:
        """Buy, or sell short, what orders of the last close filled."""
        account, price = fills.cell // self.columns, fills.price.astype(np.float64)
        side = np.sign(fills.coefficient, dtype=np.float64)
        stake = fills.stake * self.equity[account]
        self.shares[fills.cell] = side * stake / (price * (1 + side * self.side_cost))
        self.cash += np.bincount(account, self.cash_flow(self.shares[fills.cell], price), len(self.cash))

    def close(self, cell: Int[np.ndarray, " closed"], price: Float32[np.ndarray, " closed"]) -> None:
        """Sell, or buy back, the shares of some cells."""
        flow = self.cash_flow(-self.shares[cell], price.astype(np.float64))
        self.cash += np.bincount(cell // self.columns, flow, len(self.cash))
        self.shares[cell] = 0

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
        max_leverage. A ruined account sells what it holds.
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
        change = weights * basis - own
        traded = np.abs(change).sum(-1, keepdims=True)
        cash -= change.sum(-1, keepdims=True) + self.side_cost * traded
        shares += np.divide(change, price, out=np.zeros_like(change), where=np.broadcast_to(trades, change.shape))
        return traded.reshape(-1), equity.reshape(-1)

    def cash_flow(self, shares: Float[np.ndarray, " some"], price: Float[np.ndarray, " some"]) -> np.ndarray:
        """Return the cash that comes in when shares are bought, or sold where negative."""
        flow: np.ndarray = -price * (shares + self.side_cost * np.abs(shares))
        return flow

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

    def trade(self, fills: Fills, closes: Closes, shares: Float[np.ndarray, " closed"]) -> None:
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
        paid, got = ((shares, trades["entry_price"]), (-shares, trades["exit_price"]))
        trades["profit"] = self._accounts.cash_flow(*got) + self._accounts.cash_flow(*paid)
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
        sales, the profit is in money, prices are before costs.
        """
        trades = pd.DataFrame(np.concatenate([np.zeros(0, TRADE), *self._trades]))
        trades["reason"] = np.array(CLOSE_REASONS, object)[trades["reason"]]
        return trades.sort_values("window", kind="stable", ignore_index=True)
