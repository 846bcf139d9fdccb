"""The panel's cache: whole or not there, keyed by content and settings."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.errors import UserError
from eigen2.market.data import cache
from eigen2.market.data.cache import load_panel
from eigen2.market.data.panel import build_panel
from tests.market.data.test_panel import PRICES, SIZES, TRAIN, assert_same, raw_features, spread

FILES = ["checksums.json", "features.npy", "meta.json", "prices.npy", "valid.npy"]


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
    return sorted((tmp_path / "cache").iterdir())


def test_cold_and_warm_loads_equal_building(load, monkeypatch):
    built, cold = build_panel(PRICES, **SIZES), load()
    forbid_building(monkeypatch)
    warm = load()
    for panel in (cold, warm):
        assert_same(panel, built)
        assert panel.splits == built.splits
        assert panel.dates.dtype == built.dates.dtype
        assert panel.describe() == built.describe()
        for name in ("features", "valid", "prices"):
            assert isinstance(getattr(panel, name), np.memmap)
            assert getattr(panel, name).dtype == getattr(built, name).dtype
    # writing to a mapped panel does not reach the cache
    warm.features[:] = 7
    assert_same(load(), built)


def test_meta_says_how_features_were_normalised(load, tmp_path):
    load()
    (cache,) = caches(tmp_path)
    meta = json.loads((cache / "meta.json").read_text())
    train = raw_features(PRICES)[:TRAIN]
    np.testing.assert_allclose(meta["scale"]["means"], np.nanmean(train, axis=0), rtol=1e-9)
    np.testing.assert_allclose(meta["scale"]["stds"], np.nanstd(train, axis=0), rtol=1e-9)
    assert meta["scale"]["tickers"] == ["S0000", "S0001", "S0002", "S0003"]
    assert meta["dates"][0] == "2000-01-03"
    assert meta["splits"] == [[0, 140], [140, 180], [180, 200]]


@pytest.mark.parametrize("options", [{"indicators": ["SPREAD"]}, {"validation_days": 160, "holdout_days": 20}])
def test_indicators_and_missing_statistics_survive_the_cache(load, source, monkeypatch, options):
    table = pd.concat([PRICES, spread()]) if "indicators" in options else PRICES
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


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "empty"])
def test_a_damaged_cache_is_rebuilt(load, tmp_path, monkeypatch, file, damage):
    load()
    (cache,) = caches(tmp_path)
    content = (cache / file).read_bytes()
    middle = len(content) // 2
    if damage == "remove":
        (cache / file).unlink()
    else:
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        (cache / file).write_bytes({"cut": content[:-1], "flip": flipped, "empty": b""}[damage])
    assert_same(load(), build_panel(PRICES, **SIZES))
    assert caches(tmp_path) == [cache]
    assert sorted(path.name for path in cache.iterdir()) == FILES
    forbid_building(monkeypatch)
    load()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("No space left on device")])
@pytest.mark.parametrize("call", ["np.save", "json.dumps", "_checksum", "Path.replace"])
def test_an_interrupted_build_leaves_nothing(load, tmp_path, monkeypatch, stop, call):
    load(holdout_days=21)
    before = caches(tmp_path)
    owner, _, name = call.rpartition(".")
    target = getattr(cache, owner) if owner else cache
    original, calls = getattr(target, name), []

    def interrupt(*args, **kwargs):
        calls.append(args)
        # the first call makes the key
        if len(calls) == 1 and name == "dumps":
            return original(*args, **kwargs)
        if name == "save":
            args[0].write_bytes(b"half")
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(target, name, interrupt)
        with pytest.raises((KeyboardInterrupt, UserError)) as error:
            load()
    assert calls
    assert "\n" not in str(error.value)
    assert caches(tmp_path) == before
    assert_same(load(), build_panel(PRICES, **SIZES))


def test_a_concurrent_build_that_was_faster_is_kept(load, tmp_path, monkeypatch):
    original = cache.build_panel

    def overtaken(*args, **options):
        monkeypatch.setattr(cache, "build_panel", original)
        load()
        return original(*args, **options)

    monkeypatch.setattr(cache, "build_panel", overtaken)
    assert_same(load(), build_panel(PRICES, **SIZES))
    assert len(caches(tmp_path)) == 1


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("call", ["replace", "rename"])
def test_a_concurrent_build_may_come_first_until_the_end(load, tmp_path, monkeypatch, damaged, call):
    if damaged:
        load()
        (caches(tmp_path)[0] / "valid.npy").unlink()
    original = getattr(Path, call)

    def overtaken(path, target):
        monkeypatch.setattr(Path, call, original)
        load()
        return original(path, target)

    monkeypatch.setattr(Path, call, overtaken)
    assert_same(load(), build_panel(PRICES, **SIZES))
    assert len(caches(tmp_path)) == 1


def test_a_cache_folder_that_cannot_be_written(load, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the panel cache to"):
        load(cache_dir=tmp_path / "file")


def test_source_errors_come_through(tmp_path):
    for name, words in (("no.parquet", "no price file"), (".", "is a directory")):
        with pytest.raises(UserError, match=words):
            load_panel(tmp_path / name, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
