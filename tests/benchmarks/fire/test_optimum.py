"""Small landscapes are measured in parts, each once."""

from benchmarks.fire import optimum
from benchmarks.fire.optimum import BENCHMARK, SETTINGS
from benchmarks.harness import Settings


def landscapes(settings: Settings) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for task in BENCHMARK.tasks(settings):
        found.setdefault(task.case, []).extend(optimum.landscape_seeds(task, settings))
    return found


def test_every_landscape_is_part_of_one_task() -> None:
    small = landscapes({**SETTINGS, "seeds": 7, "large": 5})
    assert small == {
        "10 x 10, 3 breaks": [1, 2, 3, 4, 5, 6, 7],
        "10 x 10, 5 breaks": [1, 2, 3, 4, 5, 6, 7],
        "20 x 20, 3 breaks": [1, 2, 3, 4, 5],
        **{optimum.PROGRAM: [], optimum.SCALE: []},
    }


def test_a_part_with_other_landscapes_is_another_row() -> None:
    first = BENCHMARK.tasks(SETTINGS)[0]
    keys = [BENCHMARK.key(first, {**SETTINGS, "seeds": seeds}) for seeds in (7, 5, 3)]
    assert keys[0] == keys[1] != keys[2]
