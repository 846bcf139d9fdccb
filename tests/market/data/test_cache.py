"""The panel's cache: whole or rebuilt, keyed by content and settings."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pandas as pd
import pytest

from eigen2.errors import UserError
from eigen2.market.data import cache
from eigen2.market.data.cache import load_panel
from eigen2.market.data.panel import build_panel
from eigen2.market.features.indicators import FEATURES
from tests.market.data.test_panel import PRICES, SIZES, TRAIN, assert_same, raw_features, spread

NAMES = ("features.npy", "meta.json", "prices.npy", "valid.npy")
FILES = sorted([*NAMES, *(f"{name}.crc32" for name in NAMES)])
BUILT = build_panel(PRICES, **SIZES)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    PRICES.to_parquet(tmp_path / "prices.parquet")
    return tmp_path / "prices.parquet"


@pytest.fixture
def load(source, tmp_path):
    return lambda **changes: load_panel(source, **{**SIZES, "cache_dir": tmp_path / "cache", **changes})


def forbid_building(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(cache, "build_panel", fail)


def caches(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("[!.]*"))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_cold_and_warm_loads_equal_building(load, tmp_path, monkeypatch):
    cold = load()
    (folder,) = caches(tmp_path)
    forbid_building(monkeypatch)
    warm = load()
    for panel in (cold, warm):
        assert_same(panel, BUILT)
        assert (panel.splits, panel.scale, panel.dates.dtype) == (BUILT.splits, BUILT.scale, BUILT.dates.dtype)
        for name in ("features", "valid", "prices"):
            assert isinstance(getattr(panel, name), np.memmap)
            assert getattr(panel, name).dtype == getattr(BUILT, name).dtype
    # writing to a mapped panel does not reach the cache
    warm.features[:] = 7
    assert_same(load(), BUILT)
    assert files(folder) == FILES
    means = np.array(json.loads((folder / "meta.json").read_text())["scale"]["means"])
    rsi = FEATURES.index("rsi")
    np.testing.assert_allclose(means[:, rsi], np.nanmean(raw_features(PRICES)[:TRAIN, :, rsi]), rtol=1e-9)


def test_what_is_said_of_a_table_is_said_at_every_load(load, source, caplog):
    PRICES.assign(
        open=PRICES["open"].where(PRICES.index != 5), close=PRICES["close"].where(PRICES.index != 5)
    ).to_parquet(source)
    said = []
    for _ in range(3):
        caplog.clear()
        load()
        said.append(caplog.messages)
    assert said == [[f"1 of {len(PRICES)} rows left out: no usable open or close"]] * 3


def test_indicators_and_missing_statistics_survive_the_cache(load, source, monkeypatch):
    options = {"indicators": ["SPREAD"], "validation_days": 160}
    table = pd.concat([PRICES, spread()])
    table.to_parquet(source)
    built = build_panel(table, **{**SIZES, **options})
    load(**options)
    forbid_building(monkeypatch)
    assert_same(load(**options), built)
    assert load(**options).traded_value.dtype == np.float64


def test_the_key_is_the_content_and_the_settings(load, source, tmp_path, monkeypatch):
    load()
    source.rename(tmp_path / "renamed.parquet")
    load_panel(tmp_path / "renamed.parquet", **SIZES, cache_dir=str(tmp_path / "cache"))
    assert len(caches(tmp_path)) == 1
    (tmp_path / "renamed.parquet").rename(source)
    changes = ({"validation_days": 41}, {"holdout_days": 21}, {"indicators": ["S0002"]})
    for number, change in enumerate(changes, start=2):
        load(**change)
        assert len(caches(tmp_path)) == number
    # in any order, once or twice
    for indicators in (["S0001", "S0002"], ("S0002", "S0001", "S0002")):
        load(indicators=indicators)
        assert len(caches(tmp_path)) == 5
    monkeypatch.setattr(cache, "FORMAT_VERSION", -1)
    load()
    assert len(caches(tmp_path)) == 6
    changed = PRICES.assign(close=PRICES["close"] * 1.5)
    changed.to_parquet(source)
    assert_same(load(), build_panel(changed, **SIZES))
    assert len(caches(tmp_path)) == 7


def test_a_damaged_cache_is_rebuilt(load, tmp_path, caplog):
    load()
    (folder,) = caches(tmp_path)
    for file in FILES:
        content = (folder / file).read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        for damaged in (content[:-1], flipped, b"", None):
            (folder / file).unlink() if damaged is None else (folder / file).write_bytes(damaged)
            caplog.clear()
            assert_same(load(), BUILT)
            assert "is damaged" in caplog.text
            assert (folder / file).read_bytes() == content
    assert caches(tmp_path) == [folder]
    assert files(folder) == FILES


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("No space left on device")])
@pytest.mark.parametrize("call", ["np.save", "_checksum", "Folder.rename"])
def test_an_interrupted_build_does_not_count(load, tmp_path, monkeypatch, stop, call):
    owner, _, name = call.rpartition(".")
    target = getattr(cache, owner) if owner else cache

    def interrupt(*args, **kwargs):
        if name == "save":
            args[0].write_bytes(b"half")
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(target, name, interrupt)
        with pytest.raises(UserError if isinstance(stop, OSError) else KeyboardInterrupt) as error:
            load()
    assert "\n" not in str(error.value)
    for folder in caches(tmp_path):
        assert not list(folder.glob(".draft*"))
    assert_same(load(), BUILT)


def test_of_loads_that_start_together_one_builds(load, monkeypatch, caplog):
    together, builds = Barrier(4), []
    build, lock = cache.build_panel, cache.Folder.lock

    def built(*args, **options):
        builds.append(args)
        return build(*args, **options)

    def locked(folder, *args, **options):
        together.wait(10)  # all have found no cache
        return lock(folder, *args, **options)

    monkeypatch.setattr(cache, "build_panel", built)
    monkeypatch.setattr(cache.Folder, "lock", locked)
    with ThreadPoolExecutor(4) as pool:
        panels = list(pool.map(lambda _: load(), range(4)))
    assert len(builds) == 1
    assert not caplog.text
    for panel in panels:
        assert_same(panel, BUILT)


def test_a_file_that_changes_while_it_waits_for_its_cache_is_refused(load, source, tmp_path, monkeypatch):
    lock = cache.Folder.lock

    def locked(folder, *args, **options):
        PRICES.assign(close=PRICES["close"] * 1.5).to_parquet(source)
        return lock(folder, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(cache.Folder, "lock", locked)
        with pytest.raises(UserError, match="changed while it was read: run again"):
            load()
    PRICES.to_parquet(source)
    assert_same(load(), BUILT)


def test_refusals(load, tmp_path):
    for name, words in (("no.parquet", "no price file at"), (".", "is a directory")):
        with pytest.raises(UserError, match=words):
            load_panel(tmp_path / name, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the panel cache to"):
        load(cache_dir=tmp_path / "file")
