"""The benchmark of a real region: its table from known scores, and what it needs."""

from pathlib import Path

import pytest

from benchmarks.fire.ground import BENCHMARK, VARIABLE, ground_table
from eigen2.errors import UserError


def test_champions_are_compared_tile_by_tile() -> None:
    others = {"adaptive_downstream": [10.0, 20.0], "greedy": [30.0, 40.0]}
    hill = {"adaptive_downstream": [30.0], "greedy": [50.0]}
    champions = [
        {"scores": {"valley": {"240": {"champion": saved}}, "hill": {"240": {"champion": [60.0]}}}}
        for saved in ([20.0, 30.0], [22.0, 36.0])
    ]
    baselines = [{"scores": {"valley": {"240": others}, "hill": {"240": hill}}}]
    lines = ground_table({"runs": {"baselines": baselines, "champion": champions}}).splitlines()[2:]
    # in the valley champions save 21 and 33 on average, 11 and 13 more: 12, and 12.706 standard errors of 1
    assert lines[0] == "| valley | 240 | 2 | 2 | 27.0 | 15.0 | 35.0 | +12.0 (-0.7 to +24.7) | -8.0 (-20.7 to +4.7) |"
    assert lines[1] == "| hill | 240 | 2 | 1 | 60.0 | 30.0 | 50.0 | +30.0 | +10.0 |"
    assert lines[2].startswith("| all | 240 | 2 | 3 | 38.0 | 20.0 | 40.0 | +18.0 (")
    assert len(lines) == 3


def test_it_starts_only_with_rasters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError, match=f"set {VARIABLE} to folders of elevation"):
        BENCHMARK.tasks(BENCHMARK.settings)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "elevation.asc").touch()
    with pytest.raises(UserError, match=r"which lacks fuels\.asc; name folders of elevation\.asc and fuels\.asc"):
        BENCHMARK.tasks(BENCHMARK.settings)
    (tmp_path / "fuels.asc").touch()
    monkeypatch.setenv(VARIABLE, f"{tmp_path}:{tmp_path / 'other'}")
    with pytest.raises(UserError, match=r"other, which lacks elevation\.asc"):
        BENCHMARK.tasks(BENCHMARK.settings)
    monkeypatch.setenv(VARIABLE, f"{tmp_path}:{tmp_path / 'other' / tmp_path.name}")
    with pytest.raises(UserError, match="two folders have one name"):
        BENCHMARK.tasks(BENCHMARK.settings)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match="--against 'fire': there is none; choose from adaptive_downstream, greedy"):
        BENCHMARK.tasks({**BENCHMARK.settings, "against": ["fire"]})
    assert [task.seed for task in BENCHMARK.tasks(BENCHMARK.settings)] == [0, 1, 2]
