"""The market as a Gymnasium environment: one account in one window."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float32

from eigen2.core.config import from_settings
from eigen2.errors import UserError, one_line, require_range
from eigen2.market.data.cache import load_panel
from eigen2.market.data.panel import MarketPanel
from eigen2.market.data.sample import sample_path
from eigen2.market.data.source import name_list
from eigen2.market.data.splits import default_days
from eigen2.market.data.universe import Universe, resolve
from eigen2.market.features.averages import CLIP
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.networks.columns import RIDGE
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.portfolio import make_environment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.windows import window_options, window_starts
from eigen2.market.synthetic.generator import SyntheticMarket

PARTS = ("market", "columns", RIDGE, "portfolio")  # parts of an observation, in this order
SPLITS = ("train", "validation", "holdout")
Observation = Float32[np.ndarray, " size"]


class TradingEnv(gymnasium.Env[Any, Any]):
    """One account in one window: a standard single-agent environment, `gymnasium.make("eigen2/Trading-v0", ...)`.

    An observation is a float32 vector in [-5, 5], the concatenated inputs of `AverageEncoder`: `market`, the groups'
    descriptions and the fraction of the window left; `columns`, each column's description; `ridge`, its forecast;
    `portfolio`, eight numbers per column, or three where the rules' mode is weights.

    An action is a float32 vector in [-1, 1], two numbers per column: size and take-profit, from the lowest to
    the highest that the rules allow; values outside are clipped. In mode weights it is a score per column, and a step
    lasts until the next rebalancing.

    An episode is a window drawn evenly from `starts` by `np_random`; `reset(options={"start_idx": day})` fixes it. It
    terminates at its end and is never truncated. `info` holds `day`, an index, and `date`, such as "2013-02-08"; the
    last `info` also holds `summary`, from the environment's `get_episode_summary`.

    Further arguments are as in `MarketDataModule`; `synthetic`, `investable`, `rules`, `account` may be dictionaries.
    For `validation_spans`, `validation_from` and `holdout_from` give a panel that was built with them; there is no
    `benchmark`.

    Args:
        panel: a panel in place of prices, with its splits and indicators; environments may share it.
        split: the days from which windows are drawn: "train", "validation" or "holdout".
        cache_dir: folder of memory-mapped panels of price files, which processes share; None writes nothing.

    Attributes:
        investable: indices of the panel's columns that agents may buy.
        layout: slice of an observation for each name in `PARTS`.
        starts: day indices on which a window may start; all its days lie in the split.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as the base class has it

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        synthetic: SyntheticMarket | Mapping[str, Any] | None = None,
        panel: MarketPanel | None = None,
        investable: Universe | Mapping[str, Any] | None = None,
        indicators: Sequence[str] = (),
        features: Sequence[str] = (),
        membership: str | Path | None = None,
        split: str = "train",
        context_days: int | None = None,
        trading_days: int | None = None,
        settlement_days: int = 20,
        validation_days: int | None = None,
        holdout_days: int | None = None,
        rules: TradingRules | Mapping[str, Any] | None = None,
        account: AccountRules | Mapping[str, Any] | None = None,
        cache_dir: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None:
            raise UserError(f"render_mode is {render_mode!r}; Trading-v0 draws nothing: leave it out")
        lengths = {"context_days": context_days, "trading_days": trading_days, "settlement_days": settlement_days}
        split_days = {"validation_days": validation_days, "holdout_days": holdout_days}
        for name, value in (lengths | split_days).items():
            if value is not None or name == "settlement_days":
                require_range(name, value, least=int(name in lengths), whole=True)
        if split not in SPLITS:
            raise UserError(f"split is {split!r}; set it to one of {', '.join(SPLITS)}")
        if sum(market is not None for market in (path, synthetic, panel)) > 1:
            raise UserError("more than one of path, synthetic and panel is given; leave out all but one")
        rules = from_settings(TradingRules, "rules", rules)
        options: dict[str, Any] = {**split_days, "indicators": name_list("indicators", indicators)}
        options["features"] = name_list("features", features)
        if panel is None:
            market = None if synthetic is None else from_settings(SyntheticMarket, "synthetic", synthetic)
            folder = cache_dir if market is None else None
            panel = load_panel(market or path or sample_path(), **options, membership=membership, cache_dir=folder)
        elif given := [
            name for name, value in {**options, "membership": membership}.items() if value not in (None, [])
        ]:
            raise UserError(f"{given[0]} is given, but the panel was built with its own; leave out one of them")
        self.panel = panel
        context_days = default_days("context_days", panel.num_days) if context_days is None else context_days
        trading_days = default_days("trading_days", panel.num_days) if trading_days is None else trading_days
        self._lengths = (trading_days, trading_days + settlement_days)
        splits = panel.splits
        spans = {"train": splits.train, "validation": splits.validation, "holdout": (splits.holdout,)}[split]
        # the window's first day is the context's last
        self.starts = [*chain(*window_starts(spans, self._lengths[1], context_days - 1))]
        if not self.starts:
            raise UserError(
                f"split {split!r} has {sum(map(len, spans))} of {panel.num_days} days, too few for a window of "
                f"{self._lengths[1]} (trading_days + settlement_days) that starts on the last of context_days "
                f"{context_days}; lower one"
            )
        self.investable = resolve(from_settings(Universe, "investable", investable), panel)
        account = from_settings(AccountRules, "account", account)
        episode = EpisodeSettings(rules, account, trading_days, settlement_days)
        self._encoder = AverageEncoder(panel, self.investable, context_days, episode)
        capacity = account.capacity(panel.traded_value[self.investable])
        money: dict[str, Any] = {"account": account, "capacity": capacity, "stops": splits.stops}
        self._env = make_environment(panel.prices[:, self.investable], rules, 1, **money)
        self.action_space = spaces.Box(-1, 1, (math.prod(self._env.action_shape),), np.float32)
        ends = np.cumsum([0, *(math.prod(self._encoder.input_shapes[name]) for name in PARTS)]).tolist()
        self.layout = {name: slice(*ends[i : i + 2]) for i, name in enumerate(PARTS)}
        self.observation_space = spaces.Box(-CLIP, CLIP, (ends[-1],), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a new window; raise UserError for an option other than `start_idx`, or a start not in `starts`."""
        super().reset(seed=seed)
        is_known = options is None or (isinstance(options, Mapping) and set(options) <= {"start_idx"})
        start = options["start_idx"] if options and is_known else None
        if not is_known or not (start is None or (isinstance(start, Integral) and start in self.starts)):
            known = f"the only one is start_idx, a day index from {self.starts[0]} to {self.starts[-1]}"
            raise UserError(f"reset options are {options}; {known}")
        if start is None:
            start = self.starts[self.np_random.integers(len(self.starts))]
        observation, _ = self._env.reset(options=window_options([int(start)], *self._lengths))
        return self._seen(observation)

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decide at the close of the current day, then advance to the close of the next decision.

        Raises UserError for an action of another shape or that is not finite, RuntimeError once the window has ended.
        """
        expected = self.action_space.shape
        try:
            unit = np.array(action, np.float32)
        except (TypeError, ValueError) as error:
            raise UserError(f"an action that is no array ({one_line(error)}); give {expected} numbers") from error
        if unit.shape != expected or not np.isfinite(unit).all():
            raise UserError(f"an action of shape {unit.shape}; give {expected} numbers in [-1, 1], all of them finite")
        native = self._env.native_action(torch.from_numpy(unit).reshape(1, 1, *self._env.action_shape))
        observation, reward, terminated, _, _ = self._env.step(native)
        over = bool(terminated)
        vector, info = self._seen(observation)
        if over:
            info["summary"] = {name: value.item() for name, value in self._env.get_episode_summary().items()}
        return vector, float(reward), over, False, info

    def _seen(self, observation: dict[str, torch.Tensor]) -> tuple[Observation, dict[str, Any]]:
        """Return the vector and the info of an observation."""
        inputs, day = self._encoder(observation), int(observation["day"])
        vector = torch.cat([inputs[name].flatten() for name in PARTS]).numpy()
        return vector, {"day": day, "date": str(self.panel.dates[day])}
