"""The market as Gymnasium environments: one account in one window, or many windows stepped as one batch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Float32, Float64

from eigen2.errors import UserError, require_range
from eigen2.market.data.cache import load_panel
from eigen2.market.data.panel import MarketPanel, build_panel
from eigen2.market.data.sample import sample_path
from eigen2.market.data.source import read_prices
from eigen2.market.data.universe import Universe, resolve
from eigen2.market.features.averages import CLIP
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket

PARTS = ("market", "columns", "portfolio")  # parts of an observation, in this order
SPLITS = ("train", "validation", "holdout")
Settings = TypeVar("Settings", TradingRules, SyntheticMarket, Universe)
Observations = Float32[np.ndarray, "windows size"]
Info = dict[str, Any]


class TradingWindows:
    """One account in each of several windows of a split, in NumPy: what both environments below are made of.

    An observation is a float32 vector in [-5, 5], the inputs of `AverageEncoder` one after the other: `market`, the
    groups' descriptions and the fraction of the window left; `columns`, each column's description, column by column;
    `portfolio`, five numbers a column, column by column: held, days held / max, unrealised gain in units of 10 percent,
    sale target / highest, coefficient / highest.

    An action is a float32 vector in [-1, 1], two numbers a column, column by column: coefficient and sale target, from
    the lowest to the highest that the rules allow; beyond, they are clipped.

    Args:
        windows: windows stepped side by side (1 or more).
        path, synthetic, investable, indicators, rules: as in `MarketDataModule`; a synthetic market, investable columns
            and rules may be given as dictionaries of their settings.
        panel: a panel in place of prices; it brings its own splits and indicators.
        split: the days from which windows are drawn: "train", "validation" or "holdout".
        context_days: days of the past an agent sees (1 or more); no window starts before they have passed.
        trading_days, settlement_days: days of a window on which positions may be opened, and days after them (1 or
            more).
        validation_days, holdout_days: days of these splits (0 or more).
        cache_dir: folder of memory-mapped panels of price files, which processes share; None keeps the panel in memory
            and writes nothing.

    Attributes:
        panel: the market.
        investable: indices of the panel's columns agents may buy.
        observation_space, action_space: Boxes of one window's observation and action.
        layout: slice of an observation by name of `PARTS`.
        starts: day indices on which a window may start; all its days lie in the split.

    Raises:
        UserError: a setting is out of range, more than one market is given, the prices are unfit, or no window fits
            into the split.
    """

    def __init__(
        self,
        windows: int,
        *,
        path: str | Path | None = None,
        synthetic: SyntheticMarket | Mapping[str, Any] | None = None,
        panel: MarketPanel | None = None,
        investable: Universe | Mapping[str, Any] | None = None,
        indicators: Sequence[str] = (),
        split: str = "train",
        context_days: int = 504,
        trading_days: int = 125,
        settlement_days: int = 20,
        validation_days: int = 252,
        holdout_days: int = 252,
        rules: TradingRules | Mapping[str, Any] | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        lengths = {"context_days": context_days, "trading_days": trading_days, "settlement_days": settlement_days}
        for name, value in {"num_envs": windows, **lengths}.items():
            require_range(name, value, least=1)
        if split not in SPLITS:
            raise UserError(f"split is {split!r}; set it to one of {', '.join(SPLITS)}")
        markets = {"path": path, "synthetic": synthetic, "panel": panel}
        given = [name for name, market in markets.items() if market is not None]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} are given; leave out all but one")
        rules = _settings(TradingRules, "rules", rules)
        universe = _settings(Universe, "investable", investable)
        options = {"validation_days": validation_days, "holdout_days": holdout_days, "indicators": indicators}
        if panel is None:
            panel = _panel(path, synthetic, cache_dir, options)
        self.panel, self.split, self.windows = panel, split, windows
        self.trading_days, self.window_days = trading_days, trading_days + settlement_days
        self.starts = self._starts(context_days)
        self.investable = resolve(universe, panel)
        self._encoder = AverageEncoder(panel, self.investable, context_days, rules, self.window_days)
        prices = np.ascontiguousarray(panel.prices[:, self.investable])
        self._env = TradingEnvironment(prices, rules, agents=1, windows=windows)
        self.action_space = spaces.Box(-1, 1, (math.prod(self._env.action_shape),), np.float32)
        ends = np.cumsum([0, *(math.prod(self._encoder.input_shapes[name]) for name in PARTS)]).tolist()
        self.layout = {name: slice(*ends[i : i + 2]) for i, name in enumerate(PARTS)}
        self.observation_space = spaces.Box(-CLIP, CLIP, (ends[-1],), np.float32)

    def _starts(self, context_days: int) -> range:
        splits = self.panel.splits
        days = {"train": splits.train, "validation": splits.validation, "holdout": splits.holdout}[self.split]
        first = max(days.start, context_days - 1)  # the window's first day is the context's last
        starts = range(first, days.stop - self.window_days + 1)
        if not starts:
            raise UserError(
                f"split {self.split!r} has {len(days)} of {self.panel.num_days} days, too few for a window of "
                f"{self.window_days} (trading_days + settlement_days) that starts on the last of context_days "
                f"{context_days}; lower one or bring more days"
            )
        return starts

    def reset(
        self, generators: Sequence[np.random.Generator], options: Mapping[str, Any] | None
    ) -> tuple[Observations, list[Info]]:
        """Start new windows; return the observations and an info for each.

        Each start is drawn by the window's generator, evenly over `starts`, or given by the option `start_idx`, a day
        index for all windows or one for each.

        Raises:
            UserError: an option is unknown, or a start is not one of `starts`.
        """
        starts = self._chosen_starts(options or {})
        if starts is None:
            starts = [int(generator.integers(self.starts.start, self.starts.stop)) for generator in generators]
        self._observation, _ = self._env.reset(options=window_options(starts, self.trading_days, self.window_days))
        return self._encoded(), self._infos()

    def _chosen_starts(self, options: Mapping[str, Any]) -> list[int] | None:
        unknown = set(options) - {"start_idx"}
        if unknown:
            raise UserError(f"unknown reset options {sorted(unknown)}; the only one is start_idx")
        chosen = options.get("start_idx")
        if chosen is None:
            return None
        values = np.atleast_1d(np.asarray(chosen)).tolist()
        values = values * self.windows if len(values) == 1 else values
        if len(values) != self.windows or not all(value in self.starts for value in values):
            raise UserError(
                f"start_idx is {chosen}; give one day index or {self.windows}: a window of split {self.split!r} starts "
                f"on day {self.starts[0]} to {self.starts[-1]}"
            )
        return [int(value) for value in values]

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observations, Float64[np.ndarray, " windows"], bool, list[dict[str, Any]]]:
        """Decide at the close of the current day, then live through the next one.

        Args:
            actions: (windows, numbers of `action_space`).

        Returns:
            Observations, rewards, whether the windows end, all on the same day, and an info for each window.

        Raises:
            UserError: the actions do not have the spaces' shape or are not finite.
            RuntimeError: the windows have ended, or were never started.
        """
        expected = (self.windows, *self.action_space.shape)
        unit = np.array(actions, np.float32)
        if unit.shape != expected or not np.isfinite(unit).all():
            found = f"shape {unit.shape}" if unit.shape != expected else "numbers that are not finite"
            raise UserError(f"actions with {found}; give {expected} finite numbers in [-1, 1]")
        native = self._env.native_action(torch.from_numpy(unit).reshape(1, self.windows, *self._env.action_shape))
        self._observation, reward, terminated, _, _ = self._env.step(native)
        ended = bool(terminated.all())
        return self._encoded(), reward[0].double().numpy(), ended, self._infos(ended)

    def _encoded(self) -> Observations:
        inputs = self._encoder(self._observation)
        return torch.cat([inputs[name][0].flatten(1) for name in PARTS], 1).numpy()

    def _infos(self, ended: bool = False) -> list[Info]:
        days = self._observation["day"][0].tolist()
        infos: list[Info] = [{"day": day, "date": str(self.panel.dates[day])} for day in days]
        if ended:
            for i, info in enumerate(infos):
                summary = self._env.get_episode_summary(slice(i, i + 1))
                info["summary"] = {name: value.item() for name, value in summary.items()}
        return infos

    def describe(self) -> str:
        """Return the first window's date, days left and positions on one line."""
        state = {name: value[0, 0] for name, value in self._observation.items()}
        held = [
            f"{self.panel.tickers[self.investable[i]]} {state['gain'][i]:+.1%} in {state['held_days'][i]} days"
            for i in state["held_days"].nonzero().flatten().tolist()
        ]
        date = self.panel.dates[int(state["day"])]
        return f"{date}, {state['days_left']} days left: {', '.join(held) or 'nothing held'}"


class _Market:
    """Holds the windows of an environment until it is closed."""

    _windows: TradingWindows | None

    @property
    def market(self) -> TradingWindows:
        """Return the windows behind the environment; a RuntimeError once it was closed."""
        if self._windows is None:
            raise RuntimeError("the environment is closed: make a new one")
        return self._windows


class TradingEnv(_Market, gymnasium.Env[Any, Any]):
    """One account in one window: a standard single-agent environment, `gymnasium.make("eigen2/Trading-v0", ...)`.

    Each episode is a window drawn evenly from the split by `np_random`; `reset(options={"start_idx": day})` fixes it.
    It terminates at the window's end and is never truncated. `info` holds `day`, an index, and `date`, as
    "2013-02-08"; the last one also `summary`, the numbers of `TradingEnvironment.get_episode_summary`.

    Args:
        render_mode: None, or "ansi": `render` returns a line of text.
        settings: those of `TradingWindows`, which also says what observations and actions mean.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as the base class has it

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f"render_mode is {render_mode!r}; set it to None or one of {self.metadata['render_modes']}")
        self.render_mode = render_mode
        self._windows = TradingWindows(1, **settings)
        self.observation_space = self.market.observation_space
        self.action_space = self.market.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32[np.ndarray, " size"], Info]:
        """Start a new window; see the class for `options`, and `TradingWindows.reset` for what is refused."""
        super().reset(seed=seed)
        observations, infos = self.market.reset([self.np_random], options)
        return observations[0], infos[0]

    def step(self, action: np.ndarray) -> tuple[Float32[np.ndarray, " size"], float, bool, bool, Info]:
        """Live through a day; see `TradingWindows.step` for what is refused."""
        observations, rewards, terminated, infos = self.market.step(np.asarray(action)[None])
        return observations[0], float(rewards[0]), terminated, False, infos[0]

    def render(self) -> str | None:
        """Return a line on date, days left and positions with render mode "ansi", None without."""
        return None if self.render_mode is None else self.market.describe()

    def close(self) -> None:
        """Release panel, encoder and environment; may be called again."""
        self._windows = None


class TradingVectorEnv(_Market, VectorEnv[Any, Any, Any]):
    """Many windows in one batch: `gymnasium.make_vec("eigen2/Trading-v0", num_envs=..., ...)`.

    Does what `gymnasium.vector.SyncVectorEnv` does with as many `TradingEnv`, of which it needs but one. All windows
    are of one length and end with the same step; the step after it resets all of them and ignores its actions
    (autoreset mode NEXT_STEP). Each window is drawn by a generator of its own.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as the base class has it
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(self, num_envs: int = 1, **settings: Any) -> None:
        self._windows = TradingWindows(num_envs, **settings)
        self.num_envs = num_envs
        self.single_observation_space = self.market.observation_space
        self.single_action_space = self.market.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._random = [seeding.np_random() for _ in range(num_envs)]  # generator and seed of each window
        self._ended = False

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Return the generator of each window."""
        return tuple(generator for generator, _ in self._random)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the seed of each window's generator."""
        return tuple(seed for _, seed in self._random)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, Info]:
        """Start new windows, see `TradingWindows.reset`.

        A seed is that of the first window, the second gets one more and so on; a list has one for each, None to keep
        its generator, and a UserError refuses another length.
        """
        seeds: list[int | None] = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed or []
        if seed is not None:
            if len(seeds) != self.num_envs:
                raise UserError(f"{len(seeds)} seeds given for {self.num_envs} windows: give one or {self.num_envs}")
            pairs = zip(self._random, seeds, strict=True)
            self._random = [kept if new is None else seeding.np_random(new) for kept, new in pairs]
        observations, infos = self.market.reset(self.np_random, options)
        self._ended = False
        return observations, self._batched(infos)

    def step(
        self, actions: np.ndarray
    ) -> tuple[
        Observations, Float64[np.ndarray, " windows"], Bool[np.ndarray, " windows"], Bool[np.ndarray, " windows"], Info
    ]:
        """Live through a day in every window, or start new ones after the last; see `TradingWindows.step`."""
        if self._ended:
            observations, infos = self.market.reset(self.np_random, None)
            rewards, self._ended = np.zeros(self.num_envs), False
        else:
            observations, rewards, self._ended, infos = self.market.step(actions)
        terminated, truncated = (np.full(self.num_envs, flag) for flag in (self._ended, False))
        return observations, rewards, terminated, truncated, self._batched(infos)

    def _batched(self, infos: list[Info]) -> Info:
        batched: Info = {}
        for i, info in enumerate(infos):
            batched = self._add_info(batched, info, i)
        return batched

    def close_extras(self, **kwargs: Any) -> None:
        """Release panel, encoder and environment."""
        self._windows = None


def _settings(cls: type[Settings], name: str, value: Settings | Mapping[str, Any] | None) -> Settings:
    """Return an instance as it is, or make one from settings."""
    if value is not None and not isinstance(value, Mapping):
        return value
    try:
        return cls(**(value or {}))
    except TypeError as error:
        raise UserError(f"{name} is {dict(value or {})}; give settings of {cls.__name__}: {error}") from error


def _panel(
    path: str | Path | None,
    synthetic: SyntheticMarket | Mapping[str, Any] | None,
    cache_dir: str | Path | None,
    options: dict[str, Any],
) -> MarketPanel:
    if synthetic is not None:
        return build_panel(_settings(SyntheticMarket, "synthetic", synthetic).generate(), **options)
    file = sample_path() if path is None else path
    return load_panel(file, **options, cache_dir=cache_dir) if cache_dir else build_panel(read_prices(file), **options)
