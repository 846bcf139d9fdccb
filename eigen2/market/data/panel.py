"""The market as arrays over days, columns and features, built from a table of prices."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Float32, Int, Shaped

from eigen2.errors import UserError
from eigen2.market.data.panel_rows import PanelRows, select_rows, some
from eigen2.market.data.source import PRICE_COLUMNS, VALUES, check_finite
from eigen2.market.features.indicators import FEATURES, indicator_features, ticker_features

__all__ = ["FEATURES", "FeatureScale", "MarketPanel", "Splits", "build_panel", "window_starts"]

log = logging.getLogger(__name__)

MIN_OWN_VALUES = 60
STD_FLOOR = 1e-6
CLIP = 10.0
BLOCK_COLUMNS = 32

PerColumn = Float[np.ndarray, "columns 9"]


@dataclass(frozen=True)
class Splits:
    """Day indices for training, validation and holdout, which cover all days.

    Each span of training days is followed by one of validation days; the holdout is last.
    """

    train: tuple[range, ...]
    validation: tuple[range, ...]
    holdout: range

    @staticmethod
    def from_days(days: int, validation_days: int, holdout_days: int, validation_spans: int = 1) -> Splits:
        """Split off the last `holdout_days`, then spans of `validation_days`; what is between them is for training.

        The last span ends where the holdout starts, the others where equal parts of the days before it do; the first
        part has none, as training and the context of validation need days before.

        Raises:
            UserError: when a count is negative or no day is left for training before a span.
        """
        holdout = days - holdout_days
        stops = [holdout * (part + 2) // (validation_spans + 1) for part in range(validation_spans)]
        starts = [stop - validation_days for stop in stops]
        train = tuple(map(range, [0, *stops], starts))
        if min(validation_days, holdout_days, validation_spans - 1) < 0 or not all(train):
            raise UserError(
                f"validation_days {validation_days} x validation_spans {validation_spans} + holdout_days "
                f"{holdout_days} leave no training days of the {days} days of prices: set them at least to 0, 1 and 0, "
                "lower them, or bring more days"
            )
        return Splits(train, tuple(map(range, starts, stops)), range(holdout, days))

    @property
    def train_days(self) -> Int[np.ndarray, " days"]:
        """Return the training days, ascending."""
        return np.concatenate([np.arange(span.start, span.stop) for span in self.train])


def window_starts(spans: Iterable[range], window_days: int, first: int = 0) -> list[range]:
    """Return, for each span of days, the first days of windows that lie within it, from day `first` on."""
    return [range(max(span.start, first), span.stop - window_days + 1) for span in spans]


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
    """(columns, 9) float64, subtracted from features; NaN where a feature is left out."""
    stds: PerColumn
    """(columns, 9) float64, by which features are divided."""

    def __eq__(self, other: object) -> bool:
        """Return whether both scale prices alike."""
        return isinstance(other, FeatureScale) and self.to_dict() == other.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return the scale as JSON values, None for NaN."""
        means, stds = (
            [[None if np.isnan(value) else value for value in row] for row in each.tolist()]
            for each in (self.means, self.stds)
        )
        names = {"tickers": list(self.tickers), "indicators": list(self.indicators)}
        return {**names, "units": self.units.tolist(), "means": means, "stds": stds}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> FeatureScale:
        """Return the scale that `to_dict` describes."""
        means, stds = (np.array(values[name], np.float64).reshape(-1, len(FEATURES)) for name in ("means", "stds"))
        units = np.array(values["units"], np.float64)
        return FeatureScale(tuple(values["tickers"]), tuple(values["indicators"]), units, means, stds)


@dataclass(frozen=True)
class MarketPanel:
    """The market, read-only and shared by every environment, encoder and process.

    Attributes:
        dates: (days,) datetime64[D], strictly increasing.
        scale: names of the columns, and statistics that normalise their features.
        features: (days, columns, 9) float32 in the order of `FEATURES`, within [-10, 10], exactly 0 where not valid.
        valid: (days, columns, 9) bool, whether the feature has a value.
        prices: (days, columns, 4) float32 open, high, low, close; all NaN where there was no trade, and in indicators.
        traded_value: (columns,) float64, median over the training days of close x volume; 0 on days without trading.
        splits: training, validation and holdout days.
    """

    dates: Shaped[np.ndarray, " days"]
    scale: FeatureScale
    features: Float32[np.ndarray, "days columns 9"]
    valid: Bool[np.ndarray, "days columns 9"]
    prices: Float32[np.ndarray, "days columns 4"]
    traded_value: Float[np.ndarray, " columns"]
    splits: Splits

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
    def nbytes(self) -> int:
        """Return the bytes of all arrays, memory-mapped or not."""
        arrays = [each for part in (self, self.scale) for each in vars(part).values() if isinstance(each, np.ndarray)]
        return sum(array.nbytes for array in arrays)

    @property
    def content_hash(self) -> str:
        """Return the BLAKE2b of the panel's source and settings; if it is in memory, of dates, tickers and prices."""
        if self.folder is not None:
            return self.folder.name
        content = hashlib.blake2b(self.dates.tobytes() + "\0".join(self.tickers).encode(), digest_size=32)
        content.update(np.ascontiguousarray(self.prices).data)
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
    validation_days: int = 252,
    holdout_days: int = 252,
    validation_spans: int = 1,
    indicators: Iterable[str] = (),
    scale: FeatureScale | None = None,
) -> MarketPanel:
    """Build the panel in memory.

    A row of it depends on the prices of its day and earlier ones, and on the training days, whose statistics normalise
    every feature: (value - mean) / standard deviation, clipped to [-10, 10], per column, or over all tickers for a
    column with fewer than 60 training values. Days and tickers without a usable row (`unusable_rows`) are left out,
    with a warning, and so are stray days, on which fewer than 10 % of at least 10 listed tickers have one.

    Args:
        prices_long: as `eigen2.market.data.source.read_prices` returns it; rows may come in any order.
        validation_days: days of each validation span, at least 0.
        holdout_days: last days of the table, which only the final test may use, at least 0.
        validation_spans: spans of validation days before the holdout, at least 1, see `Splits.from_days`.
        indicators: tickers that are series of any sign, without prices: their features are differences, a day with
            only them is left out, and so is a feature with fewer than 60 training values.
        scale: the scale of the panel that agents were trained on, whose columns, indicators and statistics replace this
            table's. Columns that the table lacks never trade; other tickers are left out.

    Raises:
        UserError: when no row is usable, a price is infinite, a (date, ticker) appears twice, an indicator is unknown
            or has no value, no day is left for training, or the table has none of the scale's tickers.
    """
    check_finite(prices_long)
    if scale is None:
        names = tuple(sorted(set(indicators)))
        rows = select_rows(prices_long, names)
        tickers = tuple(rows.groups)
        units = np.ones(len(tickers))
    else:
        prices_long = _known_rows(prices_long, scale)
        tickers, names, units = scale.tickers, scale.indicators, scale.units
        rows = select_rows(prices_long, sorted(set(names) & set(prices_long["ticker"])))
    splits = Splits.from_days(len(rows.dates), validation_days, holdout_days, validation_spans)
    train = splits.train_days
    shape = len(rows.dates), len(tickers)
    features = np.empty((*shape, len(FEATURES)), dtype=np.float32)
    prices = np.full((*shape, len(PRICE_COLUMNS)), np.nan, dtype=np.float32)
    traded_value, moments = np.zeros(len(tickers)), np.zeros((3, len(tickers), len(FEATURES)))
    for column, (ticker, by_day) in enumerate(_values_by_day(prices_long, rows, tickers)):
        bars, close, volume = by_day[:, :-1], by_day[:, 3], by_day[:, 4]
        if ticker not in names:
            raw = ticker_features(bars)
            prices[:, column] = bars
            traded_value[column] = _median_traded_value(close[train], volume[train])
        else:
            if scale is None:
                units[column] = _mean_size(close[train])
            # the unit cancels when features are standardised, except in the comparison with `STD_FLOOR`
            raw = indicator_features(np.where(np.isnan(bars), close[:, None], bars) / units[column])
        moments[:, column] = _moments(raw[train])
        # values beyond float32 become infinite and are clipped with the rest
        with np.errstate(over="ignore"):
            features[:, column] = raw
    if scale is None:
        means, stds = _means_and_stds(moments, np.array([ticker not in names for ticker in tickers]))
        scale = FeatureScale(tickers, names, units, means, stds)
        if lacking := [ticker for ticker, mean in zip(tickers, means, strict=True) if np.isnan(mean).any()]:
            log.warning("features without enough training values are left out on all days: %s", some(lacking))
    valid = _normalise(features, scale)
    return MarketPanel(rows.dates, scale, features, valid, prices, traded_value, splits)


def _values_by_day(
    prices_long: pd.DataFrame, rows: PanelRows, tickers: Iterable[str]
) -> Iterator[tuple[str, Float[np.ndarray, "days values"]]]:
    """Yield each ticker with its values on all days, NaN where it has no row."""
    values = [prices_long[name].to_numpy() for name in VALUES]
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


def _moments(train: Float[np.ndarray, "days 9"]) -> Float[np.ndarray, "3 9"]:
    """Return count, mean and sum of squared deviations of each feature, without NaN."""
    known = ~np.isnan(train)
    count = known.sum(axis=0)
    mean = np.where(known, train, 0).sum(axis=0) / np.maximum(count, 1)
    return np.stack([count, mean, np.where(known, (train - mean) ** 2, 0).sum(axis=0)])


def _means_and_stds(
    moments: Float[np.ndarray, "3 columns 9"], pooled: Bool[np.ndarray, " columns"]
) -> tuple[PerColumn, PerColumn]:
    """Return mean and standard deviation per column; below 60 values, of all `pooled` columns, or NaN outside them."""
    counts, means, squares = moments
    count = counts[pooled].sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (counts * means)[pooled].sum(axis=0) / count
        between = (counts * (means - mean) ** 2)[pooled].sum(axis=0)
        std = np.sqrt((squares[pooled].sum(axis=0) + between) / count)
        own_std = np.sqrt(squares / counts)
    own = counts >= MIN_OWN_VALUES
    mean, std = (np.where(pooled[:, None], value, np.nan) for value in (mean, std))
    return np.where(own, means, mean), np.maximum(np.where(own, own_std, std), STD_FLOOR)


def _normalise(
    features: Float32[np.ndarray, "days columns 9"], scale: FeatureScale
) -> Bool[np.ndarray, "days columns 9"]:
    """Normalise in place, in blocks of columns to keep float64 intermediates small; return where valid."""
    valid = np.empty(features.shape, dtype=np.bool_)
    for start in range(0, features.shape[1], BLOCK_COLUMNS):
        block = slice(start, start + BLOCK_COLUMNS)
        normal = (features[:, block] - scale.means[block]) / scale.stds[block]
        valid[:, block] = ~np.isnan(normal)
        features[:, block] = np.nan_to_num(np.clip(normal, -CLIP, CLIP), copy=False, nan=0.0)
    return valid
