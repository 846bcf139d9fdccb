"""Cache the panel, and arrays that depend on it, in files that all processes map."""

import hashlib
import json
import logging
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from eigen2.errors import UserError, is_shortage
from eigen2.files import Folder, writing
from eigen2.market.data.checks import PRICES
from eigen2.market.data.files import require_file
from eigen2.market.data.panel import FeatureScale, MarketPanel, build_panel
from eigen2.market.data.source import BYTES_PER_ROW, read_prices
from eigen2.market.data.splits import Splits
from eigen2.market.data.universe import read_membership
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.memory.limits import require_room

log = logging.getLogger(__name__)

PriceSource = str | Path | SyntheticMarket | pd.DataFrame
"""A price file, a synthetic market, or a table as `read_prices` returns it."""
# part of every key: raise it whenever the same prices would give other arrays or files
FORMAT_VERSION = 13
ARRAYS = ("features", "valid", "prices")


def load_panel(
    source: PriceSource,
    *,
    validation_days: int | None = None,
    holdout_days: int | None = None,
    validation_spans: int = 1,
    validation_from: str | None = None,
    holdout_from: str | None = None,
    indicators: Iterable[str] = (),
    features: Sequence[str] = (),
    scale: FeatureScale | None = None,
    membership: str | Path | None = None,
    cache_dir: str | Path | None,
) -> MarketPanel:
    """Return the panel of some prices, memory-mapped from its cache, which is built if it is missing.

    The cache is a folder in `cache_dir` named by the BLAKE2b of the file's content or the market's settings, of the
    arguments and the format version. An incomplete or damaged one is rebuilt. Arrays are mapped copy-on-write:
    processes share their pages, and writing to them does not reach the cache. A table, or without `cache_dir`
    everything, is built in memory. `membership` is a file of it. The other arguments are those of `build_panel`.

    Raises:
        UserError: when no panel can be built from the prices and arguments, the file changes meanwhile, or the cache
            cannot be written.
    """
    sizes = {"validation_days": validation_days, "holdout_days": holdout_days, "validation_spans": validation_spans}
    dates = {"validation_from": validation_from, "holdout_from": holdout_from}
    options: dict[str, Any] = {**sizes, **dates, "indicators": sorted(set(indicators)), "features": list(features)}
    own = features if scale is None else scale.own_features
    spans = None if membership is None else read_membership(membership)
    if cache_dir is None or isinstance(source, pd.DataFrame):
        return build_panel(source_table(source, own), **options, scale=scale, membership=spans)
    content = _content(source)
    # options that are not set leave the keys of earlier versions, which checkpoints hold, as they were
    named = {name: value for name, value in options.items() if name == "indicators" or value not in (None, [])}
    named |= {} if spans is None else {"membership": spans.to_csv(index=False)}
    folder = Path(cache_dir) / _key([content, named, None if scale is None else scale.to_dict()])
    panel = _open_cache(folder)
    file = PRICES if isinstance(source, SyntheticMarket) else quote(str(source))
    if panel is None:
        what, remedy = f"the panel cache to {str(cache_dir)!r}", "name a cache_dir that can be written"
        with writing(what, remedy):
            lock = Folder(Path(cache_dir)).lock(".lock", wait=True)
        # of processes that start together one builds, and the others find what it has written
        with lock or nullcontext():
            if (panel := _open_cache(folder)) is None:
                with _recorded_warnings() as warnings:
                    options |= {"scale": scale, "membership": spans, "file": file}
                    built = build_panel(_table_of(content, source, own), **options)
                with writing(what, f"{remedy}, with {built.nbytes / 1e6:.0f} MB free"):
                    _write_cache(folder, built, [line.replace(file, PRICES) for line in warnings])
                # Arrow would keep the memory of the table it read: 120 MB for 2.5 million rows
                pa.default_memory_pool().release_unused()
                return _open_cache(folder) or built
    for line in json.loads((folder / "meta.json").read_text())["warnings"]:
        log.warning("%s", line.replace(PRICES, file))
    return panel


def _content(source: str | Path | SyntheticMarket) -> Any:
    """Return what names a panel's source: a market's settings, or the hash of a file."""
    if isinstance(source, SyntheticMarket):
        return asdict(source)
    # three times as fast as SHA-256 on processors without instructions for it
    with require_file(source).open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()


def _table_of(content: Any, source: str | Path | SyntheticMarket, features: Sequence[str]) -> pd.DataFrame:
    """Return the prices of a source; raise a UserError if their file no longer has the content."""
    table = source_table(source, features)
    if _content(source) != content:
        raise UserError(f"{str(source)!r} changed while it was read: run again when it is complete")
    return table


class _Recorder(logging.Handler):
    """Keeps warnings, and prints them where logging would if this were no handler: it prints none once there is one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if not logging.getLogger().handlers and logging.lastResort is not None:
            logging.lastResort.handle(record)


@contextmanager
def _recorded_warnings() -> Iterator[list[str]]:
    """Collect the warnings about a table while its panel is built; `load_panel` repeats them for a cached panel."""
    recorder, logger = _Recorder(), logging.getLogger("eigen2.market.data")
    logger.addHandler(recorder)
    try:
        yield recorder.lines
    finally:
        logger.removeHandler(recorder)


def source_table(source: PriceSource, features: Sequence[str]) -> pd.DataFrame:
    """Return the prices of a source; raise a UserError for a synthetic market that memory cannot hold."""
    if isinstance(source, pd.DataFrame):
        return source
    if not isinstance(source, SyntheticMarket):
        return read_prices(source, features)
    rows = source.days * source.columns
    require_room(f"data.synthetic makes {rows:,} days x columns", rows, BYTES_PER_ROW, "lower one of them")
    return source.generate()


def mapped_array(
    folder: Path | None,
    name: str,
    settings: dict[str, Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    fill: Callable[[np.ndarray], None],
) -> np.ndarray:
    """Map an array that depends only on a panel and settings, copy-on-write, from a file in the panel's folder.

    The file, whose name begins with `name`, is filled by `fill` if it is missing or damaged, and appears complete or
    not at all. If it cannot be written, or there is no folder, the array is in memory.
    """

    def write(draft: Path) -> None:
        array = np.lib.format.open_memmap(draft, mode="w+", dtype=dtype, shape=shape)
        with draft.open("r+b") as file:  # a full disk raises OSError here; in `fill` it would end the process (SIGBUS)
            os.posix_fallocate(file.fileno(), 0, draft.stat().st_size)
        fill(array)
        array.flush()

    if folder is not None:
        file = folder / f"{name}-{_key(settings)[:32]}.npy"
        try:
            if not _is_intact(file):
                _write_file(file, write)
            return _mapped(file)
        except OSError as error:
            log.warning("cannot write %s to %s (%s): keeping them in memory", name, folder, error.strerror or error)
    array = np.empty(shape, dtype)
    fill(array)
    return array


def remapped(panel: MarketPanel) -> MarketPanel:
    """Return the same panel under new mappings, whose pages leave the process when they are deleted."""
    if panel.folder is None:
        return panel
    features, valid, prices = (_mapped(panel.folder / f"{name}.npy") for name in ARRAYS)
    return replace(panel, features=features, valid=valid, prices=prices)


def _write_cache(folder: Path, panel: MarketPanel, warnings: list[str]) -> None:
    """Write the files of a panel into its folder."""
    if list(folder.glob("[!.]*")):
        log.warning("the panel cache %s is damaged or unfinished: writing it again", folder)
    splits = (panel.splits.train, panel.splits.validation, (panel.splits.holdout,))
    meta = {
        "dates": np.datetime_as_string(panel.dates).tolist(),
        "splits": [[[days.start, days.stop] for days in spans] for spans in splits],
        "traded_value": panel.traded_value.tolist(),
        "scale": panel.scale.to_dict(),
        "covered": panel.covered,
        "warnings": warnings,
    }
    for name, array in zip(ARRAYS, (panel.features, panel.valid, panel.prices), strict=True):
        _write_file(folder / f"{name}.npy", partial(np.save, arr=array, allow_pickle=False))
    _write_file(folder / "meta.json", lambda draft: draft.write_text(json.dumps(meta, allow_nan=False)))


def _open_cache(folder: Path) -> MarketPanel | None:
    """Map the cached panel; return None if it is missing or damaged."""
    if not all(_is_intact(folder / name) for name in ("meta.json", *(f"{name}.npy" for name in ARRAYS))):
        return None
    meta = json.loads((folder / "meta.json").read_text())
    train, validation, (holdout,) = (tuple(range(*days) for days in spans) for spans in meta["splits"])
    return MarketPanel(
        **{name: _mapped(folder / f"{name}.npy") for name in ARRAYS},
        dates=np.array(meta["dates"], dtype="datetime64[D]"),
        scale=FeatureScale.from_dict(meta["scale"]),
        traded_value=np.array(meta["traded_value"], dtype=np.float64),
        splits=Splits(train, validation, holdout),
        covered=meta.get("covered"),  # caches written before there was data.membership lack it
    )


def _mapped(file: Path) -> np.ndarray:
    return np.load(file, mmap_mode="c", allow_pickle=False)


def _write_file(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its final place and rename it; then its checksum, without which it counts as damaged."""
    folder = Folder(file.parent)
    with folder.scratch() as scratch:  # other processes may write the same file
        write(draft := scratch.file(file.name))
        scratch.write("checksum", str(_checksum(draft)))
        folder.rename(f"{scratch.path.name}/{file.name}", file.name)
        folder.rename(f"{scratch.path.name}/checksum", f"{file.name}.crc32")


def _is_intact(file: Path) -> bool:
    """Return whether the file exists and has its checksum."""
    try:
        return file.with_name(f"{file.name}.crc32").read_text() == str(_checksum(file))
    except (OSError, ValueError) as error:
        if is_shortage(error):
            raise
        return False


def _key(content: Any) -> str:
    """Return the cache key of some content."""
    text = json.dumps([FORMAT_VERSION, content], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file, computed at memory speed; it detects damage by disks and crashes, not forgery."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return zlib.crc32(content)
