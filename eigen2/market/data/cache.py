"""The panel in files: written once, then memory-mapped and shared by all processes that use it."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import shutil
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pandas as pd
import pyarrow as pa

from eigen2.errors import UserError
from eigen2.market.data.panel import FeatureScale, MarketPanel, Splits, build_panel
from eigen2.market.data.source import read_prices, require_file
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime.files import move_into_place

log = logging.getLogger(__name__)

# part of every key: raise it whenever the same prices would give other arrays or files
FORMAT_VERSION = 4
ARRAYS = ("features", "valid", "prices")


def load_panel(
    path: str | Path,
    *,
    validation_days: int = 252,
    holdout_days: int = 252,
    indicators: Iterable[str] = (),
    scale: FeatureScale | None = None,
    cache_dir: str | Path,
) -> MarketPanel:
    """Return the panel of a price file, memory-mapped from its cache, which is built when it is not there.

    The cache is a folder in `cache_dir` named by the BLAKE2b of the file's content, the settings and the format
    version. It appears complete or not at all; a damaged one is rebuilt. Arrays are mapped copy-on-write:
    processes share their pages, and writing to them does not reach the cache.

    Args:
        path: price file for `eigen2.market.data.source.read_prices`.
        validation_days: days before the holdout kept for validation, at least 0.
        holdout_days: last days of the table, which nothing but the final test may touch, at least 0.
        indicators: the tickers that are indicator series, see `build_panel`.
        scale: of the panel that agents were trained on, see `build_panel`.
        cache_dir: folder for caches; made when missing.

    Raises:
        UserError: when the file or the settings are not fit for a panel, or the cache cannot be written.
    """
    path = require_file(path)
    # three times as fast as SHA-256 on processors without instructions for it
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "blake2b").hexdigest()
    return _load(content, lambda: read_prices(path), validation_days, holdout_days, indicators, scale, cache_dir)


def load_synthetic(
    market: SyntheticMarket,
    *,
    validation_days: int = 252,
    holdout_days: int = 252,
    indicators: Iterable[str] = (),
    scale: FeatureScale | None = None,
    cache_dir: str | Path,
) -> MarketPanel:
    """Return the panel of a made-up market from a cache as `load_panel` does; the market's settings name it.

    Raises:
        UserError: when the settings are not fit for a panel, or the cache cannot be written.
    """
    return _load(asdict(market), market.generate, validation_days, holdout_days, indicators, scale, cache_dir)


def mapped_array(
    folder: Path | None,
    name: str,
    settings: dict[str, Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    fill: Callable[[np.ndarray], None],
) -> np.ndarray:
    """An array that depends on a panel and on settings alone, mapped copy-on-write from a file in the panel's folder.

    The file is written when it is not there or damaged, and appears complete or not at all. Where it cannot be
    written, and without a folder, the array is in memory.

    Args:
        folder: of the panel; None for a panel in memory.
        name: what the array is; the file's name begins with it.
        settings: what it depends on beside the panel.
        shape: of the array.
        dtype: of the array.
        fill: writes every value into the array it is given.
    """
    if folder is not None:
        file = folder / f"{name}-{_key(settings)[:32]}.npy"
        try:
            if not _as_noted(file):
                _write_array(file, shape, dtype, fill)
            mapped: np.ndarray = np.load(file, mmap_mode="c", allow_pickle=False)
            return mapped
        except OSError as error:
            log.warning("cannot keep %s in %s (%s): they are in memory", name, folder, error.strerror or error)
    array = np.empty(shape, dtype)
    fill(array)
    return array


def remapped(panel: MarketPanel) -> MarketPanel:
    """The same panel under mappings of its own: what is read through them leaves the process when they go."""
    if panel.folder is None:
        return panel
    features, valid, prices = _mapped(panel.folder)
    return replace(panel, features=features, valid=valid, prices=prices)


def _load(
    content: Any,
    read: Callable[[], pd.DataFrame],
    validation_days: int,
    holdout_days: int,
    indicators: Iterable[str],
    scale: FeatureScale | None,
    cache_dir: str | Path,
) -> MarketPanel:
    options = {"validation_days": validation_days, "holdout_days": holdout_days, "indicators": sorted(set(indicators))}
    given = {} if scale is None else {"scale": scale.plain()}
    folder = Path(cache_dir) / _key([content, {**options, **given}])
    panel = _open_cache(folder)
    if panel is None:
        built = build_panel(
            read(), validation_days=validation_days, holdout_days=holdout_days, indicators=indicators, scale=scale
        )
        try:
            _write_cache(folder, built)
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


def _write_cache(folder: Path, panel: MarketPanel) -> None:
    """Write beside the final place, then rename, so that the folder is complete whenever it is there."""
    draft = folder.parent / f".{folder.name[:16]}-{uuid4().hex}"
    draft.mkdir(parents=True)
    try:
        for name in ARRAYS:
            np.save(draft / f"{name}.npy", getattr(panel, name), allow_pickle=False)
        (draft / "meta.json").write_text(json.dumps(_meta(panel), allow_nan=False))
        sums = {path.name: _checksum(path) for path in sorted(draft.iterdir())}
        (draft / "checksums.json").write_text(json.dumps(sums))
        if folder.exists() and _open_cache(folder) is None:
            log.warning("the panel cache %s is damaged: replacing it", folder)
            with suppress(FileNotFoundError):  # another process replaces it too
                folder.rename(draft / "damaged")
        try:
            draft.replace(folder)
        except OSError:
            if not folder.exists():
                raise
        else:  # else another process was there before, with the same
            shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _meta(panel: MarketPanel) -> dict[str, Any]:
    splits = (panel.splits.train, panel.splits.validation, panel.splits.holdout)
    return {
        "dates": np.datetime_as_string(panel.dates).tolist(),
        "splits": [[days.start, days.stop] for days in splits],
        "traded_value": panel.traded_value.tolist(),
        "scale": panel.scale.plain(),
    }


def _open_cache(folder: Path) -> MarketPanel | None:
    """Map the cached panel, or None when it is not there or not as it was written."""
    try:
        sums = json.loads((folder / "checksums.json").read_text())
        if any(_checksum(folder / name) != sums[name] for name in ("meta.json", *(f"{a}.npy" for a in ARRAYS))):
            return None
        meta = json.loads((folder / "meta.json").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    features, valid, prices = _mapped(folder)
    return MarketPanel(
        features=features,
        valid=valid,
        prices=prices,
        dates=np.array(meta["dates"], dtype="datetime64[D]"),
        scale=FeatureScale.from_plain(meta["scale"]),
        traded_value=np.array(meta["traded_value"], dtype=np.float64),
        splits=Splits(*(range(start, stop) for start, stop in meta["splits"])),
    )


def _mapped(folder: Path) -> list[np.ndarray]:
    """The arrays in the order of `ARRAYS`."""
    return [np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS]


def _write_array(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Callable[[np.ndarray], None]) -> None:
    """Write the array's file and the note of its checksum; a file without a fitting note counts as damaged."""
    drafts = [file.with_name(f".{uuid4().hex}{suffix}") for suffix in (".npy", ".json")]
    try:
        array = np.lib.format.open_memmap(drafts[0], mode="w+", dtype=dtype, shape=shape)
        fill(array)
        array.flush()
        del array
        drafts[1].write_text(json.dumps({"crc32": _checksum(drafts[0])}))
        for draft, final in zip(drafts, (file, file.with_suffix(".json")), strict=True):
            move_into_place(draft, final)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)


def _as_noted(file: Path) -> bool:
    """Whether the file is there and as it was written."""
    try:
        return bool(json.loads(file.with_suffix(".json").read_text())["crc32"] == _checksum(file))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _key(content: Any) -> str:
    """Name of what is made of this content."""
    text = json.dumps([FORMAT_VERSION, content], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _checksum(path: Path) -> int:
    """CRC-32 of a file: finds what disks and crashes do, at memory speed; nobody is kept from forging it."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return zlib.crc32(content)
