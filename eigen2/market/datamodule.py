"""The trading workload as a data module: prices to panel, panel to windows, windows to environments."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from eigen2.core.config import from_settings
from eigen2.core.datamodule import RolloutDataModule, TableColumns, TestResult, TrainedPolicies
from eigen2.core.environment import Environment, Observation
from eigen2.core.environment import Policy as AgentPolicy
from eigen2.core.networks import Inputs
from eigen2.core.randomness import Role, generator
from eigen2.core.saved_run import flatten
from eigen2.errors import UserError, require_choices, require_range
from eigen2.files import Folder
from eigen2.market.data.cache import PriceSource, load_panel, remapped, source_table
from eigen2.market.data.checks import survivors_line
from eigen2.market.data.frames import frame_prices
from eigen2.market.data.panel import FeatureScale, MarketPanel, build_panel
from eigen2.market.data.panel_rows import MEMBER, check_known, describe_barred, describe_members
from eigen2.market.data.sample import sample_path
from eigen2.market.data.source import check_features, name_list
from eigen2.market.data.splits import ENOUGH_DAYS, default_days, describe_days, require_unused, require_window
from eigen2.market.data.universe import Universe, read_membership, resolve
from eigen2.market.evaluation.backtest import Market, backtest, write
from eigen2.market.evaluation.champion_record import named_trades, write_champion
from eigen2.market.evaluation.episodes import episode_metrics
from eigen2.market.evaluation.rankers import fit_rankers
from eigen2.market.evaluation.robustness import Leak, find_leak
from eigen2.market.features.encoding import ENCODERS, MarketEncoder
from eigen2.market.networks.columns import MarketSizes, TradeModel
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import MAX_OBSERVED, EpisodeSettings, MarketEnvironment
from eigen2.market.simulation.portfolio import make_environment, needed_bytes
from eigen2.market.simulation.returns import relative_returns
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.simulate import Policy, hide_window_end
from eigen2.market.simulation.windows import draw_starts, walk_forward, window_options, window_starts
from eigen2.market.synthetic.generator import SyntheticMarket


class MarketDataModule(RolloutDataModule):
    """Daily prices, split into training, validation and holdout days, and the windows agents trade in.

    Args:
        path: long-format Parquet, CSV or Excel file of daily prices: date, ticker, open, high, low, close, volume; null
            takes the sample that ships with eigen2 (closes of 20 US stocks, 2008 to 2022).
        synthetic: settings of a synthetic market in place of a file; null takes `path`.
        context_days: days of the past an agent sees (1 or more). null: 504, or at most a tenth of the days of a table
            that has fewer than 1152.
        trading_days: days of a window on which agents may open positions (1 or more). null: 125, or at most an eighth
            of the days of such a short table.
        settlement_days: run-off days after trading_days, on which positions only close (1 or more; with fewer than
            rules.max_holding_days, the last day sells what is left).
        validation_days: days of each span on which champions are chosen, never trained on (at least a window). null:
            252, or at most a fifth of the days of such a short table.
        validation_spans: spans of validation days, spread over the days before the holdout; the last ends where that
            starts (1 or more). Training windows lie between them.
        holdout_days: last days of the file, never used by fit (0 or more). null: 252, or at most a fifth of the days.
        validation_from: first date of the validation days, YYYY-MM-DD, or the next day of trading; validation_days is
            not used then, and validation_spans must be 1. null: validation_days.
        holdout_from: first date of the holdout, YYYY-MM-DD, or the next day of trading; holdout_days is not used then.
            null: holdout_days.
        windows_per_generation: windows whose mean return is an agent's fitness, the same for every agent (0 or more; 0
            takes that of the exploration windows, noise included).
        exploration_windows: further windows per generation, played with exploration noise to fill the replay buffer
            and not counted in fitness (0 or more).
        validation_windows: windows that walk forward over the validation days, overlapping where they must; the mean
            return in them chooses the champion (1 or more; as many for each span, and enough to cover it).
        replay_capacity: transitions the shared replay buffer holds (1 or more).
        replay_min_size: transitions in the buffer before training starts (batch_size to replay_capacity).
        batch_size: transitions per micro-batch; each agent draws its own sample (1 or more).
        rules: what agents may do and what it costs.
        account: the money of an agent in a window, and its division over positions.
        cache_dir: folder of the memory-mapped panel; null takes `cache` under trainer.default_root_dir.
        investable: columns agents may buy; all others are context only.
        benchmark: ticker of the table, such as an index fund, beside which `test` puts the champion: alpha, beta and
            information ratio are against it; context only, never investable. null: buy-and-hold of the investable
            columns in equal parts.
        indicators: tickers that are indicator series (volatility indices, rates, spreads), not prices: values may be
            zero or negative, and a close is enough; context only, never investable. Names that YAML reads as
            something else need quotes.
        features: further numeric columns of the table that networks see beside the nine features of prices, such as
            sentiment or fundamentals. The value of a day must have been known at its close; an empty cell is a missing
            value.
        membership: Parquet or CSV file of the days on which tickers may be bought, such as an index's past members:
            ticker, first, last (a day, or empty), a row for each span. null: all days.
        encoding: what networks see of the market: `averages` of every feature over 1, 2, 4 ... context_days days,
            computed once for all networks; or `windows`, the features of the last context_days days themselves, for
            networks that read series, at a much higher cost.
    """

    table_columns: TableColumns = (("trades", "trading/trades", 1.0), ("win %", "trading/win_rate", 100.0))

    workload = "market"
    context_days: int  # the defaults until `setup` knows the table
    trading_days: int
    panel: MarketPanel
    investable_columns: list[int]  # indices of the panel's columns agents may buy, ascending
    encoder: MarketEncoder
    _outcomes: Tensor  # of each day and investable column
    eval_env: MarketEnvironment
    val_env: MarketEnvironment

    def __init__(
        self,
        path: str | None = None,
        synthetic: SyntheticMarket | None = None,
        context_days: int | None = None,
        trading_days: int | None = None,
        settlement_days: int = 20,
        validation_days: int | None = None,
        holdout_days: int | None = None,
        validation_from: str | None = None,
        holdout_from: str | None = None,
        validation_spans: int = 1,
        windows_per_generation: int = 8,
        exploration_windows: int = 2,
        validation_windows: int = 6,
        replay_capacity: int = 100_000,
        replay_min_size: int = 10_000,
        batch_size: int = 8,
        rules: TradingRules = TradingRules(),
        account: AccountRules = AccountRules(),
        cache_dir: str | None = None,
        investable: Universe = Universe(),
        benchmark: str | None = None,
        indicators: list[str] = [],  # noqa: B006 - read, never changed
        features: list[str] = [],  # noqa: B006 - read, never changed
        membership: str | None = None,
        encoding: Literal["averages", "windows"] = "averages",
    ) -> None:
        super().__init__(windows_per_generation, exploration_windows, replay_capacity, replay_min_size, batch_size)
        self._given = {"context_days": context_days, "trading_days": trading_days}
        self._set_lengths(ENOUGH_DAYS)
        self.settlement_days, self.validation_spans = settlement_days, validation_spans
        self.validation_days, self.holdout_days = validation_days, holdout_days
        self.validation_from, self.holdout_from, self.cache_dir = validation_from, holdout_from, cache_dir
        self.validation_windows, self.encoding = validation_windows, encoding
        require_choices("data", MarketDataModule.__init__, vars(self))
        names = "context_days trading_days settlement_days validation_days validation_spans validation_windows"
        for name in (*names.split(), "holdout_days"):
            if (value := getattr(self, name)) is not None:
                require_range(f"data.{name}", value, least=int(name != "holdout_days"), whole=True)
        if path is not None and synthetic is not None:
            raise UserError(f"data.path {path} and data.synthetic are both given; set one of them to null")
        self.path = path
        self.synthetic = None if synthetic is None else from_settings(SyntheticMarket, "synthetic", synthetic)
        self.rules = rules = from_settings(TradingRules, "rules", rules)
        self.account = from_settings(AccountRules, "account", account)
        self.investable = from_settings(Universe, "investable", investable)
        if rules.mode == "weights":
            self.table_columns = (("turnover", "trading/turnover", 1.0),)
        unit = "log return less risk penalty, % a window" if rules.risk_aversion else "log return, % a window"
        shaped = rules.mode == "orders" and rules.reward == "shaped"
        self.fitness_labels = {"unit": "reward a window" if shaped else unit, "over": "agents"}
        self.benchmark, self.membership = benchmark, membership
        self.indicators, self.features = name_list("indicators", indicators), name_list("features", features)
        check_features(self.features)
        self._frame: pd.DataFrame | None = None  # prices in place of a file
        self._spec: Mapping[str, Any] | None = None  # inference spec of the fit whose champion is used

    @classmethod
    def from_frame(cls, prices: pd.DataFrame, **settings: Any) -> "MarketDataModule":
        """Return the data module of prices in a DataFrame, see `frame_prices`, which are cached in no file.

        Settings are those of the class except `path` and `synthetic`. The DataFrame is no setting, so that
        configuration files hold all settings.
        """
        data = cls(**settings)
        if data.path is not None or data.synthetic is not None:
            raise UserError("prices are given as a DataFrame, but path or synthetic too; leave these out")
        data._frame = frame_prices(prices, data.features)
        return data

    def _set_lengths(self, days: int) -> None:
        """Set the days of context and trading, by default those for a table of `days`."""
        for name, given in self._given.items():
            setattr(self, name, default_days(name, days) if given is None else given)

    @property
    def window_days(self) -> int:
        """Return the days of a window, trading and run-off."""
        return self.trading_days + self.settlement_days

    longest_episode = window_days

    @property
    def episode(self) -> EpisodeSettings:
        """Return rules, money and days of the windows."""
        return EpisodeSettings(self.rules, self.account, self.trading_days, self.settlement_days)

    def setup(self, stage: str) -> None:
        """Load the panel, choose the investable columns and check that a window fits into the splits."""
        self._spec = None
        self._load()
        self._set_lengths(self.panel.num_days)
        dated = [name for name in ("validation_from", "holdout_from") if vars(self)[name] is not None]
        require_window(self.panel.splits, self.context_days, self.trading_days, self.settlement_days, dated)
        self.investable_columns = resolve(self.investable, self.panel, self.benchmark)
        self._traded_value = self.panel.traded_value[self.investable_columns]

    def _load(self, scale: FeatureScale | None = None) -> None:
        splits = ("validation_days", "holdout_days", "validation_spans", "validation_from", "holdout_from")
        options = {"scale": scale} | {n: getattr(self, n) for n in (*splits, "indicators", "features", "membership")}
        root = "lightning_logs" if self.trainer is None else self.trainer.default_root_dir
        # a script without a Trainer writes no files for a synthetic market
        writes = self.trainer is not None or self.synthetic is None
        self.panel = load_panel(
            self._source, **options, cache_dir=self.cache_dir or (Path(root) / "cache" if writes else None)
        )

    @property
    def _source(self) -> PriceSource:
        return self.synthetic or self.path or sample_path() if self._frame is None else self._frame

    def build(self, agents: int, device: torch.device) -> None:
        """Make the encoder and the two environments."""
        columns, rules, stops = self.investable_columns, self.rules, self.panel.splits.stops
        if self._spec is None:
            self.encoder = ENCODERS[self.encoding](self.panel, columns, self.context_days, self.episode, device)
        else:
            self.encoder = MarketEncoder.restore(self._spec, self.panel, self.episode, device)
        prices = remapped(self.panel).prices[: self.panel.splits.holdout.start, columns]
        percent = TradeModel(rules, self.account).reward_per_percent(len(columns))
        outcomes = torch.from_numpy(relative_returns(prices, rules, stops) * percent).clamp(-MAX_OBSERVED, MAX_OBSERVED)
        self._outcomes = outcomes.half().to(device)
        windows = self.windows_per_generation + self.exploration_windows
        self.capacity = self.account.capacity(self._traded_value)
        money: dict[str, Any] = {"account": self.account, "capacity": self.capacity, "stops": stops}
        self.eval_env = make_environment(prices, rules, agents, windows, device, credit_orders=True, **money)
        self.val_env = make_environment(prices, rules, agents + 1, len(self.validation_starts()), device, **money)

    def needed_bytes(self, agents: int) -> dict[str, int]:
        """Return the bytes of the encoder and of both environments, and of mapped prices, which all are read."""
        days, columns = self.panel.splits.holdout.start, self.investable_columns
        windows = self.windows_per_generation + self.exploration_windows
        sizes = (agents, windows), (agents + 1, len(self.validation_starts()))
        markets = [needed_bytes(self.rules, days, len(columns), *size) for size in sizes]
        encoder = ENCODERS[self.encoding].needed_bytes(self.panel, columns, self.context_days)
        prices = 0 if self.panel.folder is None else self.panel.prices.nbytes
        return {"encoder": encoder, "prices": prices, "outcomes": 2 * days * len(columns), "environments": sum(markets)}

    def network_inputs(self, observation: Observation) -> Inputs:
        """Return the encoded market and portfolio, see `MarketEncoder`."""
        return self.encoder(observation)

    def outcomes(self, observation: Observation) -> Tensor:
        """Return what a position in each column earned beside the others, (agents, batch, columns).

        That is its return by `relative_returns`, as the reward of a weight of 1 (see
        `TradeModel.reward_per_percent`); NaN where the window ends before.
        """
        held = observation["days_left"] >= self.rules.holding_days
        return torch.where(held[..., None], self._outcomes[observation["day"].long()].float(), torch.nan)

    @property
    def discount(self) -> float:  # type: ignore[override]
        """Return the discount for which the default networks learn most.

        Orders are credited with all that they earn, decisions to sell with what they change, so nothing is to come.
        What target weights cost depends on those before.
        """
        return 0.5 if self.rules.mode == "weights" else 0.0

    @property
    def sizes(self) -> MarketSizes:
        """Return the shapes of network inputs and of an action, the days of the context, and what an action trades."""
        shapes = self.encoder.input_shapes, self.eval_env.action_shape
        return MarketSizes(*shapes, self.context_days, TradeModel(self.rules, self.account))

    def make_actor(self) -> nn.Module:
        """Build the encoding's default actor."""
        return self.encoder.actor(self.sizes)

    def make_critic(self) -> nn.Module:
        """Build the encoding's default critic."""
        return self.encoder.critic(self.sizes)

    def window_options(self, starts: Iterable[int]) -> dict[str, Any]:
        """Return the reset options of windows, given their first days."""
        return window_options(starts, self.trading_days, self.window_days)

    def training_options(self, generation: int, seed: int) -> dict[str, Any]:
        """Draw one window from each of equal parts of the training days, so that every generation sees every era."""
        starts = [*chain(*window_starts(self.panel.splits.train, self.window_days, self.context_days - 1))]
        counts = self.windows_per_generation, self.exploration_windows
        return self.window_options(draw_starts(starts, counts, generator(seed, Role.WINDOWS, generation)))

    def validation_starts(self) -> list[int]:
        """Return the first days of the validation windows, see `walk_forward`."""
        return walk_forward(self.panel.splits.validation, self.window_days, self.validation_windows)

    def validation_options(self) -> dict[str, Any]:
        """Return the reset options of the validation windows."""
        return self.window_options(self.validation_starts())

    def record_validation(self) -> None:
        """Record the account of the first agent, the champion, in the next validation windows."""
        self.val_env.record_agent(0)

    def scores(self, env: Environment, returns: Tensor) -> Tensor:
        """Return the fitness of each episode just played, see `MarketEnvironment.scores`."""
        assert isinstance(env, MarketEnvironment)
        return env.scores(returns)

    def save_champion_record(self, generation: int) -> None:
        """Write the champion's daily equity and its trades, if it has any, to `champion/` in the run's folder."""
        trainer = self.trainer
        if trainer is None or not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        folder, record = Folder(trainer.default_root_dir) / "champion", self.val_env.record
        write_champion(record.equity(self.panel.dates), self._trades(record.trades()), generation, folder)

    def _trades(self, closed: pd.DataFrame) -> pd.DataFrame | None:
        """Return closed positions by ticker and date; None with target weights, which open and close none."""
        return None if self.rules.mode == "weights" else named_trades(closed, self.panel, self.investable_columns)

    @property
    def survivors(self) -> str | None:
        """Return a line on how many tickers trade to the end; None if the prices are synthetic."""
        if self.synthetic is not None:
            return None
        return survivors_line(self.panel.prices, self.rules.delisting_return, self.panel.covered)

    def data_used(self) -> dict[str, Any]:
        """Return the first and the last date of training and validation."""
        splits, dates = self.panel.splits, self.panel.dates
        return {"first": str(dates[0])[:10], "last": str(dates[splits.holdout.start - 1])[:10]}

    def require_unused(self, used: Mapping[str, Any]) -> None:
        """Raise UserError if the holdout has days of a fit's `data_used`; the context before it may have some."""
        require_unused(self.panel.dates[self.panel.splits.holdout], used["first"], used["last"], self.holdout_from)

    def inference_spec(self) -> dict[str, Any]:
        """Return what turns prices into network inputs and actions into orders."""
        names = ("context_days", "trading_days", "settlement_days", "encoding")
        rules = {"rules": asdict(self.rules), "account": asdict(self.account)}
        columns = {**self.encoder.state_dict(), "traded_value": self._traded_value.tolist()}
        return {**{name: getattr(self, name) for name in names}, **rules, **columns, "members": bool(self.membership)}

    def apply_inference_spec(self, spec: Mapping[str, Any]) -> None:
        """Compute features and averages again with the statistics of the fit's training days."""
        if self.encoder.is_of(spec):
            return
        self._spec, self.context_days, self.encoding = spec, spec["context_days"], spec["encoding"]
        self._load(FeatureScale.from_dict(spec["scale"]))
        check_known("data.benchmark", [*filter(None, [self.benchmark])], self.panel.tickers, "the fit's prices do")
        self.investable_columns = [self.panel.tickers.index(name) for name in spec["investable"]]
        self._traded_value = np.array(spec["traded_value"])
        self.indicators, self.features = list(self.panel.indicators), list(self.panel.scale.own_features)
        self.build(self.eval_env.agents, self.eval_env.device)

    def test(self, policies: TrainedPolicies) -> TestResult:
        """Trade the holdout as one window beside baselines; write `test/` in the run's folder."""
        holdout, env, name = self.panel.splits.holdout, self.eval_env, self.benchmark

        def native(agent: AgentPolicy) -> Policy:
            return hide_window_end(lambda seen: env.native_action(agent(seen).to(env.device)).cpu(), self.window_days)

        prices, days = self.panel.prices[:, self.investable_columns], range(holdout.start - 1, holdout.stop)
        benchmark = None if name is None else (name, self.panel.prices[:, [self.panel.tickers.index(name)], :MEMBER])
        more: dict[str, Any] = {"benchmark": benchmark, "survivors": self.survivors, "capacity": self.capacity}
        market = Market(prices, self.rules, self.account, days, self.panel.dates, **more)  # which refuses too few days
        market = replace(market, scores=fit_rankers(self.encoder, self.panel, self.rules.holding_days, days))
        champion, agents = native(policies.champion), [native(agent) for agent in policies.agents]
        leak = self._find_leak(champion, days, policies.seed) if policies.checks else None
        counts = {"tried": policies.tried, "generation": policies.generation}
        rng, others = generator(policies.seed, Role.LUCK), [native(other) for other in policies.others]
        ensemble = native(policies.ensemble) if others else None
        result = backtest(market, champion, agents, **counts, rng=rng, others=others, ensemble=ensemble, leak=leak)
        if self.trainer is not None:
            root = Folder(self.trainer.default_root_dir)
            write(result, self._trades(result.champion.closed), root, flatten({"data": self.settings()}))
        return TestResult(result.scalars(), result.text())

    def _find_leak(self, champion: Policy, days: range, seed: int) -> Leak:
        """Look for decisions of the champion that change with prices of later days, see `find_leak`."""

        def rebuilt(change: Callable[[pd.DataFrame], pd.DataFrame]) -> MarketPanel:
            spans = None if self.membership is None else read_membership(self.membership)
            table, scale = change(source_table(self._source, self.features)), self.panel.scale
            return build_panel(table, validation_days=0, holdout_days=0, scale=scale, membership=spans)

        rng, device = generator(seed, Role.LUCK, agent=1), self.eval_env.device
        return find_leak(champion, self, self.panel, rebuilt, days, self.capacity, rng, device)

    def episode_metrics(self, summary: dict[str, Tensor], fitness: Tensor) -> dict[str, float]:
        """Return trading in the windows, and the rank correlation of fitness and money."""
        windows = self.windows_per_generation or self.exploration_windows
        return episode_metrics(self.rules.mode, summary, fitness, windows, self.window_days)

    def describe(self) -> dict[str, str]:
        """Return what to print at the start of a run, by name."""
        panel, splits = self.panel, self.panel.splits
        path = "a DataFrame" if self._frame is not None else self.path or "sample shipped with eigen2"
        windows = len(self.validation_starts())
        members = describe_members(panel.prices[:, self.investable_columns])
        return {
            "prices": str("synthetic market" if self.synthetic else path),
            **({} if self.survivors is None else {"survivors": self.survivors}),
            "panel": f"{panel.num_days:,} days x {panel.num_columns} columns x {panel.num_features} features",
            "columns": f"{len(self.investable_columns)} investable of {panel.num_columns} columns, "
            f"{self.investable.describe()}; indicators: {', '.join(panel.indicators) or 'none'}",
            **({} if self.membership is None else {"membership": f"{self.membership}: {members}"}),
            **describe_barred(self.account.volume_cap, self._traded_value, panel.tickers, self.investable_columns),
            "training": describe_days(splits.train, panel.dates),
            "validation": f"{describe_days(splits.validation, panel.dates)}, {windows} window{'s' * (windows != 1)}",
            "holdout": f"{describe_days((splits.holdout,), panel.dates)}, untouched by fit",
            "window": f"{self.trading_days} trading + {self.settlement_days} run-off days, context {self.context_days}",
        }

    def config(self) -> dict[str, Any]:
        """Return the arguments it was made with; prices in a DataFrame have to be given again, as a file."""
        return super().config() | ({} if self._frame is None else {"path": "a DataFrame"})

    def settings(self) -> dict[str, Any]:
        """Return the settings of every workload and the market's; prices as a hash."""
        plain = ("context_days", "trading_days", "settlement_days", "validation_windows", "encoding")
        return {
            **super().settings(),
            **{name: getattr(self, name) for name in (*plain, "benchmark", "indicators")},
            "features": self.features or None,  # as checkpoints of earlier versions have it
            **{name: asdict(getattr(self, name)) for name in ("rules", "account", "investable")},
            "validation_days": len(self.panel.splits.validation[0]),
            "validation_spans": self.validation_spans,
            "holdout_days": len(self.panel.splits.holdout),
            "prices": self.panel.content_hash,
        }

    def memory_owners(self) -> dict[str, object]:
        """Return what holds bytes, for a memory profiler."""
        return {**super().memory_owners(), "panel": self.panel, "encoder": self.encoder, "outcomes": self._outcomes}
