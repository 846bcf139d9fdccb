"""The market as arrays over days, columns and features, built from a table of prices."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Float32, Shaped

from eigen2.errors import UserError
from eigen2.market.data.checks import PRICES, check_ticker, repair_lines, steps_line
from eigen2.market.data.panel_rows import PanelRows, member_days, select_rows, some
from eigen2.market.data.source import CLOSE, PRICE_COLUMNS, VALUES, VOLUME, check_features, check_finite, usable_prices
from eigen2.market.data.splits import Splits
from eigen2.market.features.indicators import FEATURES, indicator_features, ticker_features
from eigen2.memory.limits import require_room

log = logging.getLogger(__name__)

MIN_OWN_VALUES = 60
MANY = 0.1  # share of the tickers; fewer have no value on most days by holes of their own
LONG_DAYS = 126  # from which a ticker has closes enough for its features to be known on most of them
STD_FLOOR = 1e-6
CLIP = 10.0
BLOCK_COLUMNS = 32
MOVE = FEATURES.index("close")  # the close as its change
VOLATILE = [place for place, name in enumerate(FEATURES) if name != "rsi"]  # features that grow with volatility
LEAST_VOLATILITY = 0.01  # of all tickers' volatility, below which no ticker's is taken to be

PerColumn = Float[np.ndarray, "columns features"]


@dataclass(frozen=True, eq=False)
class FeatureScale:
    """Statistics of the training days, by which prices become the features that agents see."""

    tickers: tuple[str, ...]
    """Names of the columns, sorted."""
    indicators: tuple[str, ...]
    """Those of `tickers` that are indicator series, sorted: context only, without prices."""
    units: Float[np.ndarray, " columns"]
    """(columns,) float64, divisor of an indicator's values; 1 for a ticker."""
    means: PerColumn
    """(columns, features) float64, subtracted from features; NaN where a feature is left out."""
    stds: PerColumn
    """(columns, features) float64, by which features are divided."""
    own_features: tuple[str, ...] = ()
    """Columns of the price table that are features beside `FEATURES`, which come first."""

    def __eq__(self, other: object) -> bool:
        """Return whether both scale prices alike."""
        return isinstance(other, FeatureScale) and self.to_dict() == other.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return the scale as JSON values, None for NaN."""
        means, stds = (
            [[None if np.isnan(value) else value for value in row] for row in each.tolist()]
            for each in (self.means, self.stds)
        )
        names = {name: list(getattr(self, name)) for name in ("tickers", "indicators", "own_features")}
        return {**names, "units": self.units.tolist(), "means": means, "stds": stds}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> FeatureScale:
        """Return the scale that `to_dict` describes."""
        tickers, indicators, own = (tuple(values[name]) for name in ("tickers", "indicators", "own_features"))
        shape = len(tickers), len(FEATURES) + len(own)
        means, stds = (np.array(values[name], np.float64).reshape(shape) for name in ("means", "stds"))
        return FeatureScale(tickers, indicators, np.array(values["units"], np.float64), means, stds, own)


@dataclass(frozen=True)
class MarketPanel:
    """The market, read-only and shared by every environment, encoder and process.

    Attributes:
        dates: (days,) datetime64[D], strictly increasing.
        scale: names of the columns, and statistics that standardise their features.
        features: (days, columns, features) float32, those of `FEATURES` and then own ones, within [-10, 10], exactly 0
            where not valid.
        valid: (days, columns, features) bool, whether the feature has a value.
        prices: (days, columns, 4) float32 open, high, low, close; NaN where missing or wrong, and in indicators. A day
            with any has an open or a close. With membership a fifth, 1 on days on which a column may be opened, else 0.
        traded_value: (columns,) float64, median over the training days of close x volume; 0 on days without trading.
        splits: training, validation and holdout days.
        covered: share of the members' days of data.membership that have a close here; None without membership.
    """

    dates: Shaped[np.ndarray, " days"]
    scale: FeatureScale
    features: Float32[np.ndarray, "days columns features"]
    valid: Bool[np.ndarray, "days columns features"]
    prices: Float32[np.ndarray, "days columns bars"]
    traded_value: Float[np.ndarray, " columns"]
    splits: Splits
    covered: float | None = None

    def __deepcopy__(self, memo: object) -> MarketPanel:
        """Return the panel itself, as it is read-only: Gymnasium copies the arguments of an environment."""
        return self

    @property
    def tickers(self) -> tuple[str, ...]:
        """Return the names of the columns, sorted."""
        return self.scale.tickers

    @property
    def indicators(self) -> tuple[str, ...]:
        """Return those of `tickers` that are indicator series, sorted: context only, without prices."""
        return self.scale.indicators

    @property
    def num_days(self) -> int:
        """Return the number of days."""
        return len(self.dates)

    @property
    def num_columns(self) -> int:
        """Return the number of columns."""
        return len(self.tickers)

    @property
    def num_features(self) -> int:
        """Return the number of features of a column."""
        return len(FEATURES) + len(self.scale.own_features)

    @property
    def channels(self) -> int:
        """Return the numbers that describe a column on a day: its features, and the fraction of them that is valid."""
        return self.num_features + 1

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays, memory-mapped or not."""
        arrays = [each for part in (self, self.scale) for each in vars(part).values() if isinstance(each, np.ndarray)]
        return sum(array.nbytes for array in arrays)

    @property
    def content_hash(self) -> str:
        """Return the BLAKE2b of the panel's source and settings; if it is in memory, of its content."""
        if self.folder is not None:
            return self.folder.name
        content = hashlib.blake2b(self.dates.tobytes() + "\0".join(self.tickers).encode(), digest_size=32)
        others = [self.tickers.index(name) for name in self.indicators]  # which have no prices
        for array in (self.prices, self.features[:, others], self.features[..., len(FEATURES) :]):
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()

    @property
    def folder(self) -> Path | None:
        """Return the folder that all arrays are mapped from; None when one of them is in memory."""
        folders = {
            # a view of a mapped array has another base
            Path(array.filename).parent if isinstance(array, np.memmap) and isinstance(array.base, mmap) else None
            for array in (self.features, self.valid, self.prices)
        }
        return folders.pop() if len(folders) == 1 else None


def build_panel(
    prices_long: pd.DataFrame,
    *,
    validation_days: int | None = None,
    holdout_days: int | None = None,
    validation_spans: int = 1,
    validation_from: str | None = None,
    holdout_from: str | None = None,
    indicators: Iterable[str] = (),
    features: Sequence[str] = (),
    scale: FeatureScale | None = None,
    membership: pd.DataFrame | None = None,
    file: str = PRICES,
) -> MarketPanel:
    """Build the panel in memory.

    A row depends on the prices of its day and earlier ones, and on the training days, whose statistics standardise
    features: (value - mean) / standard deviation, clipped to [-10, 10], see `_means_and_stds`. Days and tickers without
    a usable row (`usable_prices`) are left out, with a warning, and so are stray days (`stray_days`).

    Args:
        prices_long: as `eigen2.market.data.source.read_prices` returns it; rows may come in any order.
        validation_days: days of each validation span, at least 0; None for the default, see `splits.default_days`.
        holdout_days: last days of the table, which only the final test may use, at least 0; None for the default.
        validation_spans: spans of validation days before the holdout, at least 1, see `Splits.from_days`.
        validation_from: date of the first validation day in place of `validation_days`, see `Splits.from_dates`.
        holdout_from: date of the first holdout day in place of `holdout_days`.
        indicators: tickers that are series of any sign, without prices: their features are differences, a day with
            only them is left out, and so is a feature with fewer than 60 training values.
        features: further columns of the table that are features of their row's day, as they are; NaN where unknown.
        scale: the scale of the panel that agents were trained on, whose columns, indicators, features and statistics
            replace this table's. Columns that the table lacks never trade; other tickers are left out.
        membership: the days on which tickers may be opened, see `universe.read_membership`; None for all.
        file: name of the table's file, for the command that repairs it.

    Raises:
        UserError: no row is usable, a price is infinite, a (date, ticker) appears twice, an indicator is unknown or
            has no value, no day is left for training, no ticker is the scale's, or the panel does not fit into memory.
    """
    own = tuple(features) if scale is None else scale.own_features
    prices_long, names, rows = _select(prices_long, indicators, own, scale)
    tickers, units = (scale.tickers, scale.units) if scale else (tuple(rows.groups), np.ones(len(rows.groups)))
    spans = validation_days, holdout_days, validation_spans, validation_from, holdout_from
    splits, shape = Splits.from_dates(rows.dates, *spans), (len(rows.dates), len(tickers))
    _require_panel_room(*shape, len(FEATURES) + len(own))
    train, standardised = splits.train_days, np.empty((*shape, len(FEATURES) + len(own)), dtype=np.float32)
    prices = np.full((*shape, len(PRICE_COLUMNS)), np.nan, dtype=np.float32)
    traded_value, checks, moments = np.zeros(len(tickers)), {}, np.zeros((3, *standardised.shape[1:]))
    for column, (ticker, by_day) in enumerate(_values_by_day(prices_long, rows, tickers, (*VALUES, *own))):
        bars, close, volume = by_day[:, :4], by_day[:, CLOSE], by_day[:, VOLUME]
        if ticker not in names:
            prices[:, column] = bars = usable_prices(bars)
            raw = ticker_features(bars)
            traded_value[column] = _median_traded_value(bars[train, CLOSE], volume[train])
            checks[ticker] = check_ticker(np.column_stack([bars, volume]), rows.dates)
        else:
            units[column] = _mean_size(close[train]) if scale is None else units[column]
            # the unit cancels when features are standardised, except in the comparison with `STD_FLOOR`
            raw = indicator_features(np.where(np.isnan(bars), close[:, None], bars) / units[column])
        raw = np.hstack([raw, by_day[:, len(VALUES) :]])
        moments[:, column] = _moments(raw[train])
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are clipped with the rest
            standardised[:, column] = raw
    scale = scale or _measured_scale(tickers, names, units, own, moments)
    for line in repair_lines(checks, file):
        log.warning("%s", line)
    prices, covered = _with_members(prices, membership, tickers, rows.dates)
    valid = _standardise(standardised, scale)  # in place
    _warn_of_calendars(rows.dates, tickers, prices, valid)
    return MarketPanel(rows.dates, scale, standardised, valid, prices, traded_value, splits, covered)


def _warn_of_calendars(
    dates: Shaped[np.ndarray, " days"],
    tickers: Sequence[str],
    prices: Float32[np.ndarray, "days columns prices"],
    valid: Bool[np.ndarray, "days columns features"],
) -> None:
    """Warn if days are not those of a daily table, or the MACD of many tickers is unknown on most days with a close.

    The calendars of such tickers differ from others'.
    """
    if (steps := steps_line(dates)) is not None:
        log.warning("%s", steps)
    closes, known = np.isfinite(prices[..., CLOSE]).sum(0), valid[..., FEATURES.index("macd")].sum(0)
    columns = zip(tickers, closes, known, strict=True)  # an indicator has no prices
    torn = [ticker for ticker, days, defined in columns if days >= LONG_DAYS and 2 * defined < days]
    if len(torn) > MANY * len(tickers):
        log.warning(
            "slow features of %d of %d tickers, such as MACD, have no value on most of their days (%s): days without a "
            "row interrupt them, as weekends beside tickers that trade daily, or holidays of another market; train on "
            "the tickers of one market",
            *(len(torn), len(tickers), some(torn)),
        )


def _select(
    prices_long: pd.DataFrame, indicators: Iterable[str], own: Sequence[str], scale: FeatureScale | None
) -> tuple[pd.DataFrame, tuple[str, ...], PanelRows]:
    """Check the table; return the rows that the scale knows, the names of indicators, and days and tickers to keep."""
    check_features(own, prices_long.columns)
    check_finite(prices_long, (*PRICE_COLUMNS, *own))
    if scale is None:
        names = tuple(sorted(set(indicators)))
        return prices_long, names, select_rows(prices_long, names)
    known = _known_rows(prices_long, scale)
    return known, scale.indicators, select_rows(known, sorted({*scale.indicators} & {*known["ticker"]}))


def _with_members(
    prices: Float32[np.ndarray, "days columns 4"],
    membership: pd.DataFrame | None,
    tickers: Sequence[str],
    dates: Shaped[np.ndarray, " days"],
) -> tuple[np.ndarray, float | None]:
    """Append to prices whether a column is a member; return them, and the share of members' days that have a price."""
    if membership is None:
        return prices, None
    may_open, count = member_days(membership, tickers, dates)
    covered = float((may_open & np.isfinite(prices[..., CLOSE])).sum() / max(count.sum(), 1))
    return np.concatenate([prices, may_open[..., None].astype(np.float32)], axis=-1), covered


def _require_panel_room(days: int, columns: int, features_each: int) -> None:
    """Refuse a panel that does not fit: a few rows, each of another day and ticker, make one of their square."""
    what, cell_bytes = f"the panel of {days:,} days x {columns:,} columns", 5 * features_each + 16
    require_room(what, days * columns, cell_bytes, "keep fewer tickers or fewer days")


def _measured_scale(
    tickers: tuple[str, ...],
    indicators: tuple[str, ...],
    units: Float[np.ndarray, " columns"],
    own: tuple[str, ...],
    moments: Float[np.ndarray, "3 columns features"],
) -> FeatureScale:
    """Return the scale of training days by their `_moments`; warn about tickers that lack a feature.

    Raises UserError for a feature of the user's that has no value on them.
    """
    means, stds = _means_and_stds(moments, np.array([ticker not in indicators for ticker in tickers]))
    lacks = np.isnan(means)
    if empty := [name for name, lack in zip(own, lacks[:, len(FEATURES) :].all(axis=0), strict=True) if lack]:
        raise UserError(f"data.features has {empty[0]!r}, which has no value on the training days: leave it out")
    if lacking := [ticker for ticker, lack in zip(tickers, lacks[:, : len(FEATURES)], strict=True) if lack.any()]:
        log.warning("features without enough training values are left out on all days: %s", some(lacking))
    return FeatureScale(tickers, indicators, units, means, stds, own)


def _values_by_day(
    prices_long: pd.DataFrame, rows: PanelRows, tickers: Iterable[str], columns: Sequence[str]
) -> Iterator[tuple[str, Float[np.ndarray, "days values"]]]:
    """Yield each ticker with its values of some columns on all days, NaN where it has no row."""
    values = [prices_long[name].to_numpy() for name in columns]
    for ticker in tickers:
        by_day = np.full((len(rows.dates), len(values)), np.nan)
        if ticker in rows.groups:
            group = rows.groups[ticker]
            by_day[rows.day[group]] = np.column_stack([value[group] for value in values])
        yield ticker, by_day


def _known_rows(prices_long: pd.DataFrame, scale: FeatureScale) -> pd.DataFrame:
    """Return the rows of a scale's tickers; warn about other tickers, and about those without rows."""
    present = set(prices_long["ticker"].unique())
    missing, unknown = sorted(set(scale.tickers) - present), sorted(present - set(scale.tickers))
    if len(missing) == len(scale.tickers):
        count = len(missing)
        raise UserError(f"the prices have none of the agents' {count} tickers ({some(missing)}): bring prices of these")
    if missing:
        log.warning("no prices of %d of the agents' %d tickers: %s", len(missing), len(scale.tickers), some(missing))
    if unknown:
        log.warning("%d of %d tickers left out, not known to the agents: %s", len(unknown), len(present), some(unknown))
    return prices_long[prices_long["ticker"].isin(scale.tickers)].reset_index(drop=True) if unknown else prices_long


def _median_traded_value(close: Float[np.ndarray, " days"], volume: Float[np.ndarray, " days"]) -> float:
    with np.errstate(over="ignore"):
        value = close * volume
    return float(np.median(np.where(np.isfinite(value) & (value > 0), value, 0)))


def _mean_size(close: Float[np.ndarray, " days"]) -> float:
    """Return the mean absolute value, without NaN; 1 if all are 0."""
    sizes = np.abs(close[~np.isnan(close)])
    return float(sizes.mean()) if sizes.any() else 1.0


def _moments(train: Float[np.ndarray, "days features"]) -> Float[np.ndarray, "3 features"]:
    """Return count, mean and sum of squared deviations of each feature, without NaN."""
    known = ~np.isnan(train)
    count = known.sum(axis=0)
    mean = np.where(known, train, 0).sum(axis=0) / np.maximum(count, 1)
    return np.stack([count, mean, np.where(known, (train - mean) ** 2, 0).sum(axis=0)])


def _means_and_stds(
    moments: Float[np.ndarray, "3 columns features"], tickers: Bool[np.ndarray, " columns"]
) -> tuple[PerColumn, PerColumn]:
    """Return mean and standard deviation of every feature in every column, NaN for an indicator's below 60 values.

    Those of an indicator are its own. Those of a ticker are those of all tickers, once features that grow with its
    volatility, the standard deviation of its daily moves (of all tickers' below 60 values), are in units of it. With
    its own mean a ticker that has risen would be bound to fall on the training days, whose moves add up to 0 (the bias
    of Nickell, "Biases in Dynamic Models with Fixed Effects", 1981), and the standard deviations of its own slow
    features would tell how long its moves last on them.
    """
    counts, means, squares = moments
    enough, total = counts >= MIN_OWN_VALUES, counts[tickers].sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.sqrt(squares / counts)
        overall = np.sqrt(squares[tickers, MOVE].sum() / total[MOVE])
        daily = np.where(enough[:, MOVE], np.maximum(own[:, MOVE], LEAST_VOLATILITY * overall), overall)
        unit = np.where(np.isin(np.arange(means.shape[1]), VOLATILE), daily[:, None], 1.0)
        means_in_units, squares_in_units = means / unit, squares / unit**2
        mean = (counts * means_in_units)[tickers].sum(axis=0) / total
        between = (counts * (means_in_units - mean) ** 2)[tickers].sum(axis=0)
        std = np.sqrt((squares_in_units[tickers].sum(axis=0) + between) / total)
    mean = np.where(tickers[:, None], unit * mean, np.where(enough, means, np.nan))
    std = np.where(tickers[:, None], unit * std, own)
    # a constant stays one in float32, whatever its size; the user's own features may be of any unit
    least = np.where(np.arange(means.shape[1]) < len(FEATURES), 1.0, np.finfo(np.float32).tiny)
    return mean, np.maximum(std, STD_FLOOR * np.maximum(np.abs(mean), least))


def _standardise(
    features: Float32[np.ndarray, "days columns features"], scale: FeatureScale
) -> Bool[np.ndarray, "days columns features"]:
    """Standardise in place, in blocks of columns to keep float64 intermediates small; return where valid."""
    valid = np.empty(features.shape, dtype=np.bool_)
    for start in range(0, features.shape[1], BLOCK_COLUMNS):
        block = slice(start, start + BLOCK_COLUMNS)
        normal = (features[:, block] - scale.means[block]) / scale.stds[block]
        valid[:, block] = ~np.isnan(normal)
        features[:, block] = np.nan_to_num(np.clip(normal, -CLIP, CLIP), copy=False, nan=0.0)
    return valid
