"""Whatever a price file holds, it is refused in one line or becomes a whole panel; nothing half made stays behind."""

import json
import os
import resource
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.market.data.cache import ARRAYS, load_panel
from eigen2.market.data.cleaning.prepare import changes_path, inspect, prepare
from eigen2.market.data.panel import CLIP, MarketPanel
from eigen2.market.data.source import COLUMNS, read_prices
from tests.fuzz import panels
from tests.fuzz.conftest import LONG, few
from tests.fuzz.panels import TYPES, File, long_table, parquet, text

SECONDS = 60
"""Nothing here takes a tenth of a second: what takes this long hangs."""
ROOM = 4 << 30
"""Bytes that a file of some kB may make the process take."""
SPLITS = {"validation_days": 5, "holdout_days": 5}

LONG_RUN = settings.get_current_profile_name() == LONG
many = settings() if LONG_RUN else settings(few, max_examples=50)


@contextmanager
def bounded() -> Iterator[None]:
    """Neither hang nor fill the memory, nor warn: a warning is a line on the user's terminal that says nothing."""

    def hangs(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ROOM, hard))
    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock")


def check_panel(panel: MarketPanel) -> None:
    assert (np.diff(panel.dates.astype(np.int64)) > 0).all()
    assert list(panel.tickers) == sorted(set(panel.tickers))
    shape = panel.num_days, panel.num_columns
    assert panel.features.shape == panel.valid.shape == (*shape, 9)
    assert panel.prices.shape == (*shape, 4)
    assert np.isfinite(panel.features).all()
    assert (np.abs(panel.features) <= CLIP).all()
    assert (panel.features[~panel.valid] == 0).all()
    traded = ~np.isnan(panel.prices)
    # a row counts if it has an open or a close
    assert (traded[..., [0, 3]].any(axis=2) == traded.any(axis=2)).all()
    assert (panel.prices[traded] > 0).all()
    assert np.isfinite(panel.prices[traded]).all()
    assert traded.any(axis=(1, 2)).all()
    assert np.isfinite(panel.traded_value).all()
    assert (panel.traded_value >= 0).all()
    days = [*panel.splits.train[0], *panel.splits.validation[0], *panel.splits.holdout]
    assert days == list(range(panel.num_days))
    assert (len(panel.splits.validation[0]), len(panel.splits.holdout)) == (5, 5)


def load(path: Path, work: Path) -> bool:
    cache = work / "cache"
    try:
        panel = load_panel(path, **SPLITS, cache_dir=cache)
    except UserError as error:
        check_line(str(error))
        assert not listing(cache)
        return False
    check_panel(panel)
    (folder,) = cache.glob("[!.]*")
    names = ["meta.json", *(f"{name}.npy" for name in ARRAYS)]
    assert listing(folder) == sorted([*names, *(f"{name}.crc32" for name in names)])
    again = load_panel(path, **SPLITS, cache_dir=cache)
    assert again.tickers == panel.tickers
    assert (again.dates == panel.dates).all()
    assert listing(cache) == [folder.name, *(f"{folder.name}/{name}" for name in listing(folder))]
    return True


def look(path: Path, work: Path) -> bool:
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(work))
            report = inspect([path])
    except UserError as error:
        check_line(str(error))
        return False
    finally:
        assert listing(work) == []
    json.dumps(report.as_dict(), allow_nan=False).encode()
    assert report.counts["rows"] > 0
    return True


def clean(path: Path, work: Path) -> bool:
    out = work / "out.parquet"
    try:
        report = prepare([path], out)
    except UserError as error:
        check_line(str(error))
        assert listing(work) == []
        return False
    assert listing(work) == ["out.changes.csv", "out.parquet"]
    prices = read_prices(out)
    assert len(prices) == report.prepared["rows"]
    assert not prices.duplicated(["date", "ticker"]).any()
    values = prices[list(COLUMNS[2:6])]
    assert ((values > 0) | values.isna()).all(axis=None)
    assert len(pd.read_csv(changes_path(out), dtype=str)) >= report.prepared["masked"]
    return True


ROUTES: dict[str, Callable[[Path, Path], bool]] = {"load": load, "inspect": look, "prepare": clean}


def check_line(message: str) -> None:
    assert message.strip()
    assert len(message.splitlines()) == 1
    assert len(message) < 1200
    message.encode()


def check_file(file: File, *routes: str) -> list[bool]:
    """Check that each route reads the file or refuses it in one line; return which routes read it."""
    taken = []
    with tempfile.TemporaryDirectory(prefix="eigen2-fuzz-") as name:
        folder = Path(name)
        path = folder / file.name
        path.write_bytes(file.content)
        for route in routes or ROUTES:
            work = folder / route
            work.mkdir()
            with bounded():
                taken.append(ROUTES[route](path, work))
        assert path.read_bytes() == file.content
        assert {one.name for one in folder.iterdir()} == {file.name, *(routes or ROUTES)}
    return taken


def test_any_file_is_refused_in_one_line_or_becomes_a_whole_panel(capsys: pytest.CaptureFixture[str]) -> None:
    tally: Counter[str] = Counter()

    @many
    @given(panels.FILES, st.sampled_from(["prepare", "prepare", "prepare", "inspect"]))
    def check(file: File, route: str) -> None:
        for name, taken in zip(("load", route), check_file(file, "load", route), strict=True):
            tally[f"{name}: {'valid' if taken else 'refused'}"] += 1

    check()
    # a strategy whose files are all refused, or all taken, would test half of the promise
    with capsys.disabled():
        print("\nprice files:", dict(sorted(tally.items())))
    for route in ROUTES if LONG_RUN else ("load", "prepare"):  # a few files need not be of every kind
        assert tally[f"{route}: valid"] > 0
        assert tally[f"{route}: refused"] > 0


def typed() -> list[tuple[str, str]]:
    """Every kind of values in every column; in the suite those that were once taken wrongly."""
    if LONG_RUN:
        return [(kind, column) for kind in sorted(TYPES) for column in COLUMNS]
    kinds = ("date32 extremes", "not UTF-8", "binary")
    found = [(kind, column) for kind in kinds for column in ("date", "ticker", "close")]
    found += [(kind, "date") for kind in ("timestamp extremes", "timestamp us extremes", "no such zone")]
    found += [(kind, column) for kind in ("list", "struct", "map") for column in ("date", "ticker")]
    return [*found, ("far apart", "close")]


@pytest.mark.parametrize(("kind", "column"), typed())
def test_a_column_of_any_type(kind: str, column: str) -> None:
    table = long_table()
    table = table.set_column(table.column_names.index(column), column, TYPES[kind]())
    check_file(File("p.parquet", parquet(table), kind))


def test_parquet_cut_anywhere() -> None:
    whole = parquet(long_table(), row_group_size=60)
    step = 7 if LONG_RUN else 1997
    for size in [*range(0, 12, 3), *range(12, len(whole) - 12, step), *range(len(whole) - 12, len(whole), 3)]:
        assert not any(check_file(File("p.parquet", whole[:size], "cut")))


def test_the_clean_file_is_taken() -> None:
    for name, content in (("p.parquet", parquet(long_table())), ("p.csv", text(long_table()).encode())):
        assert all(check_file(File(name, content, "clean")))


@settings(few, max_examples=4)
@given(panels.FILES)
def test_the_command_line_leaves_with_2_or_a_whole_file(file: File) -> None:
    with tempfile.TemporaryDirectory(prefix="eigen2-fuzz-") as folder:
        path, work = Path(folder) / file.name, Path(folder) / "work"
        path.write_bytes(file.content)
        work.mkdir()
        codes: list[Any] = []
        for words in (["inspect", str(path)], ["prepare", str(path), str(work / "out.parquet")]):
            try:
                main(["data", *words])
                codes.append(0)
            except SystemExit as left:
                codes.append(left.code)
        assert set(codes) <= {0, 2}
        assert listing(work) == (["out.changes.csv", "out.parquet"] if codes[1] == 0 else [])


NO_FILES: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "loop": lambda path: path.symlink_to(path),
    "dangling": lambda path: path.symlink_to(path.with_name("gone")),
    "empty": Path.touch,
    "missing": str,
}
NO_NAMES = (
    *("/dev/null", "/dev/zero", "/proc/self/mem", "a\0b.parquet", "a" * 300 + ".parquet", "a/" * 4000 + "p.parquet"),
    *("a\nb.parquet", os.fsdecode(b"\xff.parquet"), "", "~nobody/p.parquet", str(Path(__file__) / "p.parquet")),
)


@pytest.mark.parametrize("kind", [*NO_FILES, *NO_NAMES], ids=lambda kind: ascii(kind)[:20])
def test_what_is_no_file_is_refused_in_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "p.parquet" if kind in NO_FILES else kind
    NO_FILES.get(kind, str)(tmp_path / "p.parquet")
    before, work = listing(tmp_path), tmp_path / "work"
    work.mkdir()
    with bounded(), pytest.raises(UserError) as error:
        load_panel(path, **SPLITS, cache_dir=work / "cache")
    check_line(str(error.value))
    for words in (["inspect", path], ["prepare", path, str(work / "out.parquet")]):
        with bounded(), pytest.raises(SystemExit) as left:
            main(["data", *words])
        assert left.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
    work.rmdir()
    assert listing(tmp_path) == before


def test_a_file_that_may_not_be_read_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.parquet"
    path.write_bytes(parquet(long_table()))

    def denied(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", denied)
    for route in (lambda: load_panel(path, **SPLITS, cache_dir=tmp_path / "cache"), lambda: inspect([path])):
        with pytest.raises(UserError, match="Permission denied"):
            route()
    assert listing(tmp_path) == ["p.parquet"]
