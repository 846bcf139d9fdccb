"""Cache the panel, and arrays that depend on it, in files that all processes map."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from eigen2.errors import UserError
from eigen2.market.data.files import require_file
from eigen2.market.data.panel import FeatureScale, MarketPanel, Splits, build_panel
from eigen2.market.data.source import read_prices
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime.files import move_into_place

log = logging.getLogger(__name__)

# part of every key: raise it whenever the same prices would give other arrays or files
FORMAT_VERSION = 4
ARRAYS = ("features", "valid", "prices")


def load_panel(
    source: str | Path | SyntheticMarket,
    *,
    validation_days: int = 252,
    holdout_days: int = 252,
    indicators: Iterable[str] = (),
    scale: FeatureScale | None = None,
    cache_dir: str | Path,
) -> MarketPanel:
    """Return the panel of some prices, memory-mapped from its cache, which is built when it is not there.

    The cache is a folder in `cache_dir` named by the BLAKE2b of the file's content or the market's settings, of the
    arguments and the format version. It appears complete or not at all; a damaged one is rebuilt. Arrays are mapped
    copy-on-write: processes share their pages, and writing to them does not reach the cache.

    Args:
        source: price file for `eigen2.market.data.source.read_prices`, or a synthetic market.
        validation_days: days before the holdout kept for validation, at least 0.
        holdout_days: last days of the table, which nothing but the final test may touch, at least 0.
        indicators: the tickers that are indicator series, see `build_panel`.
        scale: of the panel that agents were trained on, see `build_panel`.
        cache_dir: folder for caches; made when missing.

    Raises:
        UserError: when the prices or the arguments are not fit for a panel, or the cache cannot be written.
    """
    content: Any
    if isinstance(source, SyntheticMarket):
        content = asdict(source)
    else:
        # three times as fast as SHA-256 on processors without instructions for it
        with require_file(source).open("rb") as file:
            content = hashlib.file_digest(file, "blake2b").hexdigest()
    options = {"validation_days": validation_days, "holdout_days": holdout_days, "indicators": sorted(set(indicators))}
    given = {} if scale is None else {"scale": scale.to_dict()}
    folder = Path(cache_dir) / _key([content, {**options, **given}])
    panel = _open_cache(folder)
    if panel is None:
        prices = source.generate() if isinstance(source, SyntheticMarket) else read_prices(source)
        built = build_panel(
            prices, validation_days=validation_days, holdout_days=holdout_days, indicators=indicators, scale=scale
        )
        del prices
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


def mapped_array(
    folder: Path | None,
    name: str,
    settings: dict[str, Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    fill: Callable[[np.ndarray], None],
) -> np.ndarray:
    """Map copy-on-write, from a file in the panel's folder, an array that depends on a panel and on settings alone.

    The file is written when it is not there or damaged, and appears complete or not at all. Where it cannot be
    written, and without a folder, the array is in memory.

    Args:
        folder: of the panel; None for a panel in memory.
        name: begins the file's name.
        settings: what the array depends on beside the panel.
        shape: of the array.
        dtype: of the array.
        fill: writes every value into the array it is given.
    """
    if folder is not None:
        file = folder / f"{name}-{_key(settings)[:32]}.npy"
        try:
            if not _is_intact(file):
                _write_array(file, shape, dtype, fill)
            mapped: np.ndarray = np.load(file, mmap_mode="c", allow_pickle=False)
            return mapped
        except OSError as error:
            log.warning("cannot keep %s in %s (%s): they are in memory", name, folder, error.strerror or error)
    array = np.empty(shape, dtype)
    fill(array)
    return array


def remapped(panel: MarketPanel) -> MarketPanel:
    """Return the same panel under mappings of its own, whose pages leave the process when they are deleted."""
    if panel.folder is None:
        return panel
    features, valid, prices = _mapped(panel.folder)
    return replace(panel, features=features, valid=valid, prices=prices)


def _write_cache(folder: Path, panel: MarketPanel) -> None:
    """Write beside the final place, then rename, so that the folder is complete whenever it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name[:16]}-") as temporary:
        draft = Path(temporary) / "panel"
        draft.mkdir()
        for name, array in zip(ARRAYS, (panel.features, panel.valid, panel.prices), strict=True):
            np.save(draft / f"{name}.npy", array, allow_pickle=False)
        splits = (panel.splits.train, panel.splits.validation, panel.splits.holdout)
        meta = {
            "dates": np.datetime_as_string(panel.dates).tolist(),
            "splits": [[days.start, days.stop] for days in splits],
            "traded_value": panel.traded_value.tolist(),
            "scale": panel.scale.to_dict(),
        }
        (draft / "meta.json").write_text(json.dumps(meta, allow_nan=False))
        sums = {path.name: _checksum(path) for path in sorted(draft.iterdir())}
        (draft / "checksums.json").write_text(json.dumps(sums))
        if folder.exists() and _open_cache(folder) is None:
            log.warning("the panel cache %s is damaged: replacing it", folder)
            with suppress(FileNotFoundError):  # another process replaces it too
                folder.rename(Path(temporary) / "damaged")
        try:
            draft.replace(folder)
        except OSError:
            if not folder.exists():
                raise
            # another process was faster, with the same panel


def _open_cache(folder: Path) -> MarketPanel | None:
    """Map the cached panel; None when it is not there or not as it was written."""
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
        scale=FeatureScale.from_dict(meta["scale"]),
        traded_value=np.array(meta["traded_value"], dtype=np.float64),
        splits=Splits(*(range(start, stop) for start, stop in meta["splits"])),
    )


def _mapped(folder: Path) -> list[np.ndarray]:
    """Map the arrays, in the order of `ARRAYS`."""
    return [np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS]


def _write_array(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Callable[[np.ndarray], None]) -> None:
    """Write the array's file and, after it, the file of its checksum, without which it counts as damaged."""
    with TemporaryDirectory(dir=file.parent, prefix=".array-") as temporary:
        draft, note = Path(temporary) / "array.npy", Path(temporary) / "checksum.json"
        array = np.lib.format.open_memmap(draft, mode="w+", dtype=dtype, shape=shape)
        fill(array)
        array.flush()
        del array
        note.write_text(json.dumps({"crc32": _checksum(draft)}))
        move_into_place(draft, file)
        move_into_place(note, file.with_suffix(".json"))


def _is_intact(file: Path) -> bool:
    """Return whether the array's file is there and as it was written."""
    try:
        return bool(json.loads(file.with_suffix(".json").read_text())["crc32"] == _checksum(file))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _key(content: Any) -> str:
    """Return the name of what is made of this content."""
    text = json.dumps([FORMAT_VERSION, content], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file, at memory speed: it finds what disks and crashes do, not forgery."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return zlib.crc32(content)
