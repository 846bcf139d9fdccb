"""The benchmark of a real region: its table from known scores, and what it needs."""

from pathlib import Path

import pytest

from benchmarks.fire.ground import BENCHMARK, VARIABLE, ground_table
from eigen2.errors import UserError


def test_champions_are_compared_tile_by_tile() -> None:
    champions = [
        {
            "scores": {"valley": {"240": valley}, "hill": {"240": [60.0]}},
            "drawn": {"valley": {"240": drawn}, "hill": {"240": [1.0]}},
        }
        for valley, drawn in (([20.0, 30.0], [5.0, 5.0]), ([22.0, 36.0], [4.0, 6.0]))
    ]
    known = {"scores": {"valley": {"240": [10.0, 20.0]}, "hill": {"240": [30.0]}}}
    baselines = [{**known, "drawn": {"valley": {"240": [4.5, 4.5]}, "hill": {"240": [2.0]}}}]
    lines = ground_table({"runs": {"adaptive_downstream": baselines, "champion": champions}}).splitlines()[2:]
    # in the valley champions save 21 and 33 on average, 11 and 13 more: 12, and 12.706 standard errors of 1;
    # the second champion's first tile and both of the hill seem worse than the baseline, whose 10 and 30 replace theirs
    assert lines[0].startswith("| valley | 240 | 2 | 2 | 15.0 | 27.0 | 24.0 | +12.0 (-0.7 to +24.7) | +9.0 (")
    assert lines[1] == "| hill | 240 | 2 | 1 | 30.0 | 60.0 | 30.0 | +30.0 | +0.0 |"
    assert lines[2].startswith("| all | 240 | 2 | 3 | 20.0 | 38.0 | 26.0 | +18.0 (")
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
    task, settings = BENCHMARK.tasks(BENCHMARK.settings)[0], BENCHMARK.settings
    before = BENCHMARK.key(task, settings)
    (tmp_path / "fuels.asc").write_text("other")
    assert BENCHMARK.key(task, settings) != before  # rows of other rasters are measured again
    monkeypatch.setenv(VARIABLE, f"{tmp_path}:{tmp_path / 'other'}")
    with pytest.raises(UserError, match=r"other, which lacks elevation\.asc"):
        BENCHMARK.tasks(BENCHMARK.settings)
    monkeypatch.setenv(VARIABLE, f"{tmp_path}:{tmp_path / 'other' / tmp_path.name}")
    with pytest.raises(UserError, match="two folders have one name"):
        BENCHMARK.tasks(BENCHMARK.settings)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert [task.seed for task in BENCHMARK.tasks(BENCHMARK.settings)] == [0, 1, 2]
