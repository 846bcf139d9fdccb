"""The market as arrays over days, columns and features, and its memory-mapped cache."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Bool, Float, Float32, Int, Shaped

from eigen2.errors import UserError
from eigen2.market.indicators import FEATURES, ticker_features
from eigen2.market.source import (
    PRICE_COLUMNS,
    read_prices,
    refuse_infinite_prices,
    require_file,
    unusable_rows,
)

__all__ = ["FEATURES", "MarketPanel", "Splits", "build_panel", "load_panel"]

log = logging.getLogger(__name__)

# part of the cache key: raise it whenever the same prices would give other arrays or files
FORMAT_VERSION = 1
MIN_OWN_VALUES = 60
STD_FLOOR = 1e-6
CLIP = 10.0
BLOCK_COLUMNS = 32
ARRAYS = ("features", "valid", "prices")


@dataclass(frozen=True)
class Splits:
    """Half-open ranges of day indices, contiguous and in this order."""

    train: range
    validation: range
    holdout: range

    @staticmethod
    def from_days(days: int, validation_days: int, holdout_days: int) -> Splits:
        """Cut off the last `holdout_days` as holdout, then `validation_days`; the rest is for training.

        Raises:
            UserError: when a count is negative or no day is left for training.
        """
        if validation_days < 0 or holdout_days < 0:
            raise UserError(
                f"validation_days is {validation_days} and holdout_days {holdout_days}: set both at least 0"
            )
        train_days = days - validation_days - holdout_days
        if train_days <= 0:
            raise UserError(
                f"validation_days {validation_days} + holdout_days {holdout_days} leave no training day"
                f" of the {days} days of prices: lower them, or bring more days"
            )
        holdout = days - holdout_days
        return Splits(range(train_days), range(train_days, holdout), range(holdout, days))


@dataclass(frozen=True)
class MarketPanel:
    """The market: what every environment, encoder and process reads, and nobody writes.

    Attributes:
        dates: (days,) datetime64[D], strictly increasing.
        tickers: one a column, sorted.
        features: (days, columns, 9) float32 in the order of `FEATURES`, normalised by statistics of training
            days, within [-10, 10], exactly 0 where not valid.
        valid: (days, columns, 9) bool, whether the feature has a value.
        prices: (days, columns, 4) float32 open, high, low, close; NaN in all four where the column did not
            trade.
        splits: training, validation and holdout days.
    """

    dates: Shaped[np.ndarray, " days"]
    tickers: tuple[str, ...]
    features: Float32[np.ndarray, "days columns 9"]
    valid: Bool[np.ndarray, "days columns 9"]
    prices: Float32[np.ndarray, "days columns 4"]
    splits: Splits

    @property
    def num_days(self) -> int:
        """Number of days."""
        return len(self.dates)

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.tickers)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, memory-mapped or not."""
        return self.dates.nbytes + self.features.nbytes + self.valid.nbytes + self.prices.nbytes

    def describe(self) -> dict[str, str | int]:
        """Return the panel's size, its features, and the first and last date of each split."""
        splits = {name: getattr(self.splits, name) for name in ("train", "validation", "holdout")}
        return {
            "days": self.num_days,
            "columns": self.num_columns,
            "features": ", ".join(FEATURES),
            **{name: self._date_range(days) for name, days in splits.items()},
            "nbytes": self.nbytes,
        }

    def _date_range(self, days: range) -> str:
        if not days:
            return "no days"
        return f"{self.dates[days.start]} to {self.dates[days.stop - 1]} ({len(days)} days)"


@dataclass(frozen=True)
class _Moments:
    """What training days say about each column's features: counts, means and sums of squared deviations."""

    count: Int[np.ndarray, "columns 9"]
    mean: Float[np.ndarray, "columns 9"]
    squares: Float[np.ndarray, "columns 9"]

    def mean_and_std(self) -> tuple[Float[np.ndarray, "columns 9"], Float[np.ndarray, "columns 9"]]:
        """Return each column's own statistics, or the pooled ones where it has fewer than 60 values.

        Both are NaN for a feature that no column has on any training day.
        """
        count = self.count.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = (self.count * self.mean).sum(axis=0) / count
            between = (self.count * (self.mean - mean) ** 2).sum(axis=0)
            std = np.sqrt((self.squares.sum(axis=0) + between) / count)
            own_std = np.sqrt(self.squares / self.count)
        own = self.count >= MIN_OWN_VALUES
        return np.where(own, self.mean, mean), np.maximum(np.where(own, own_std, std), STD_FLOOR)


def build_panel(prices_long: pd.DataFrame, *, validation_days: int = 252, holdout_days: int = 252) -> MarketPanel:
    """Build the panel in memory.

    A row of the panel depends on the prices of its day and earlier ones, and on the training days, whose
    statistics normalise every feature: (value - mean) / standard deviation, clipped to [-10, 10], by column,
    or over all columns for a column with fewer than 60 training values of the feature. Days and tickers
    without a single usable row (`unusable_rows`) are left out, with a warning.

    Args:
        prices_long: long table as `eigen2.market.source.read_prices` returns it; rows may come in any order.
        validation_days: days before the holdout kept for validation, at least 0.
        holdout_days: last days of the table, which nothing but the final test may touch, at least 0.

    Raises:
        UserError: when no row is usable, a price is infinite, a (date, ticker) appears twice, or no day is
            left for training.
    """
    return _build(prices_long, validation_days, holdout_days)[0]


def load_panel(
    path: str | Path, *, validation_days: int = 252, holdout_days: int = 252, cache_dir: str | Path
) -> MarketPanel:
    """Return the panel of a price file, memory-mapped from its cache, which is built when it is not there.

    The cache is a folder in `cache_dir` named by the SHA-256 of the file's content, the two settings and the
    format version. It appears complete or not at all; a damaged one is rebuilt. Arrays are mapped
    copy-on-write: processes share their pages, and writing to them does not reach the cache.

    Args:
        path: price file for `eigen2.market.source.read_prices`.
        validation_days: days before the holdout kept for validation, at least 0.
        holdout_days: last days of the table, which nothing but the final test may touch, at least 0.
        cache_dir: folder for caches; made when missing.

    Raises:
        UserError: when the file or the settings are not fit for a panel, or the cache cannot be written.
    """
    path = require_file(path)
    settings = {"version": FORMAT_VERSION, "validation_days": validation_days, "holdout_days": holdout_days}
    key = hashlib.sha256(json.dumps([_file_sha256(path), settings], sort_keys=True).encode()).hexdigest()
    folder = Path(cache_dir) / key
    panel = _open_cache(folder)
    if panel is None:
        built, meta = _build(read_prices(path), validation_days, holdout_days)
        try:
            _write_cache(folder, built, meta)
        except OSError as error:
            raise UserError(
                f"cannot write the panel cache to {str(cache_dir)!r} ({error.strerror or error}): name a"
                f" cache_dir that can be written, with {built.nbytes / 1e6:.0f} MB free"
            ) from error
        # None only if another process is replacing the folder at this moment
        panel = _open_cache(folder) or built
        # Arrow would keep the memory of the table it read: 120 MB for 2.5 million rows
        pa.default_memory_pool().release_unused()
    return panel


def _build(prices_long: pd.DataFrame, validation_days: int, holdout_days: int) -> tuple[MarketPanel, dict[str, Any]]:
    """Build the panel and what the cache notes beside its arrays."""
    refuse_infinite_prices(prices_long)
    rows = _usable(prices_long)
    dates, day_of_row, tickers, row_groups = _index(prices_long, rows)
    splits = Splits.from_days(len(dates), validation_days, holdout_days)
    shape = (len(dates), len(tickers))
    features = np.empty((*shape, len(FEATURES)), dtype=np.float32)
    prices = np.empty((*shape, len(PRICE_COLUMNS)), dtype=np.float32)
    moments = _Moments(*(np.zeros((len(tickers), len(FEATURES)), dtype) for dtype in (np.int64, float, float)))
    values = [prices_long[name].to_numpy() for name in PRICE_COLUMNS]
    for column, group in enumerate(row_groups):
        column_prices = np.full((len(dates), len(PRICE_COLUMNS)), np.nan)
        for i, value in enumerate(values):
            column_prices[day_of_row[group], i] = value[group]
        raw = ticker_features(column_prices)
        _note_moments(moments, column, raw[: splits.train.stop])
        features[:, column] = raw
        prices[:, column] = column_prices
    means, stds = moments.mean_and_std()
    valid = _normalise(features, means, stds)
    panel = MarketPanel(dates, tickers, features, valid, prices, splits)
    return panel, _meta(panel, means, stds)


def _usable(prices_long: pd.DataFrame) -> Int[np.ndarray, " usable"]:
    """Positions of the usable rows; warn about the others."""
    reasons = unusable_rows(prices_long)
    rows = np.flatnonzero(~np.logical_or.reduce(list(reasons.values())))
    if len(rows) == 0:
        raise UserError(f"none of the {len(prices_long)} rows of prices is usable: bring rows with four prices above 0")
    if len(rows) < len(prices_long):
        counts = ", ".join(f"{mask.sum()} {reason}" for reason, mask in reasons.items() if mask.any())
        log.warning("%d of %d rows left out: %s", len(prices_long) - len(rows), len(prices_long), counts)
    return rows


def _index(
    prices_long: pd.DataFrame, rows: Int[np.ndarray, " usable"]
) -> tuple[Shaped[np.ndarray, " days"], Int[np.ndarray, " rows"], tuple[str, ...], list[Int[np.ndarray, " _"]]]:
    """Where the rows go: the dates, the day index of every row, the tickers, and each ticker's rows."""
    all_dates = prices_long["date"].to_numpy().astype("datetime64[D]")
    dates = np.unique(all_dates[rows])
    day_of_row = np.searchsorted(dates, all_dates)
    codes, names = pd.factorize(prices_long["ticker"].take(rows), sort=True)
    for kind, left, all_ in (
        ("days", len(dates), len(np.unique(all_dates))),
        ("tickers", len(names), prices_long["ticker"].nunique()),
    ):
        if left < all_:
            log.warning("%d of %d %s left out: no usable row", all_ - left, all_, kind)
    order = np.lexsort((day_of_row[rows], codes))
    rows, codes = rows[order], codes[order]
    groups = [rows[start:stop] for start, stop in pairwise(np.searchsorted(codes, np.arange(len(names) + 1)))]
    for name, group in zip(names, groups, strict=True):
        repeated = np.flatnonzero(np.diff(day_of_row[group]) == 0)
        if len(repeated):
            date = dates[day_of_row[group[repeated[0]]]]
            raise UserError(f"the price table has more than one row of {str(name)!r} on {date}: keep one of them")
    return dates, day_of_row, tuple(str(name) for name in names), groups


def _note_moments(moments: _Moments, column: int, train: Float[np.ndarray, "days 9"]) -> None:
    known = ~np.isnan(train)
    count = known.sum(axis=0)
    mean = np.where(known, train, 0).sum(axis=0) / np.maximum(count, 1)
    moments.count[column] = count
    moments.mean[column] = mean
    moments.squares[column] = np.where(known, (train - mean) ** 2, 0).sum(axis=0)


def _normalise(
    features: Float32[np.ndarray, "days columns 9"],
    means: Float[np.ndarray, "columns 9"],
    stds: Float[np.ndarray, "columns 9"],
) -> Bool[np.ndarray, "days columns 9"]:
    """Normalise in place, in blocks of columns to keep float64 intermediates small; return where valid."""
    unknown = [name for name, mean in zip(FEATURES, means.T, strict=True) if np.isnan(mean).all()]
    if unknown:
        log.warning("no training day has a value of %s: left out on all days", ", ".join(unknown))
    valid = np.empty(features.shape, dtype=np.bool_)
    for start in range(0, features.shape[1], BLOCK_COLUMNS):
        block = slice(start, start + BLOCK_COLUMNS)
        normal = (features[:, block] - means[block]) / stds[block]
        valid[:, block] = ~np.isnan(normal)
        features[:, block] = np.nan_to_num(np.clip(normal, -CLIP, CLIP), copy=False, nan=0.0)
    return valid


def _meta(
    panel: MarketPanel, means: Float[np.ndarray, "columns 9"], stds: Float[np.ndarray, "columns 9"]
) -> dict[str, Any]:
    splits = (panel.splits.train, panel.splits.validation, panel.splits.holdout)
    return {
        "dates": np.datetime_as_string(panel.dates).tolist(),
        "tickers": list(panel.tickers),
        "splits": [[days.start, days.stop] for days in splits],
        # null: no training value
        "means": [[None if np.isnan(value) else value for value in row] for row in means.tolist()],
        "stds": [[None if np.isnan(value) else value for value in row] for row in stds.tolist()],
    }


def _write_cache(folder: Path, panel: MarketPanel, meta: dict[str, Any]) -> None:
    """Write beside the final place, then rename, so that the folder is complete whenever it is there."""
    draft = folder.parent / f".{folder.name[:16]}-{uuid4().hex}"
    draft.mkdir(parents=True)
    try:
        for name in ARRAYS:
            np.save(draft / f"{name}.npy", getattr(panel, name), allow_pickle=False)
        (draft / "meta.json").write_text(json.dumps(meta, allow_nan=False))
        sums = {path.name: _file_sha256(path) for path in sorted(draft.iterdir())}
        (draft / "sha256.json").write_text(json.dumps(sums))
        if folder.exists() and _open_cache(folder) is None:
            log.warning("the panel cache %s is damaged: replacing it", folder)
            folder.rename(draft / "damaged")
        if not folder.exists():
            draft.replace(folder)
            shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _open_cache(folder: Path) -> MarketPanel | None:
    """Map the cached panel, or None when it is not there or not as it was written."""
    try:
        sums = json.loads((folder / "sha256.json").read_text())
        if any(_file_sha256(folder / name) != sums[name] for name in ("meta.json", *(f"{a}.npy" for a in ARRAYS))):
            return None
        meta = json.loads((folder / "meta.json").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS}
    return MarketPanel(
        dates=np.array(meta["dates"], dtype="datetime64[D]"),
        tickers=tuple(meta["tickers"]),
        splits=Splits(*(range(start, stop) for start, stop in meta["splits"])),
        **arrays,
    )


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
