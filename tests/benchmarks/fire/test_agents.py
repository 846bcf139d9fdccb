"""Tables of fuel breaks from known rows, and what each case changes."""

from typing import Any

from benchmarks.fire import agents
from benchmarks.fire.agents import BENCHMARKS, CASES


def run(seed: int, champion: list[float], greedy: list[float]) -> dict[str, Any]:
    searched = [2 * score for score in champion]
    others = {"adaptive_downstream": greedy, "greedy": greedy, "local_search": searched, "champion_swaps": searched}
    return {"seed": seed, "fit_s": 10.0 * seed, "scores": {"champion": champion, **others}}


RUNS = [run(1, [50.0, 60.0], [49.0, 61.0]), run(2, [40.0, 60.0], [38.0, 56.0])]
FIGURES = {"runs": {"default": RUNS, "10 x 10, 3 breaks": RUNS[:1]}}


def test_the_agent_is_compared_on_the_same_landscapes() -> None:
    lines = agents.against_table(FIGURES).splitlines()
    # seeds gain 0 and 3: 1.5, and 12.706 standard errors of 1.5 to either side
    assert lines[3] == "| greedy | +1.5 (-17.6 to +20.6) | 3 of 4 |"
    assert lines[4].endswith("| 0 of 4 |")


def test_cases_are_shares_of_what_local_search_saves() -> None:
    lines = agents.others_table(FIGURES).splitlines()
    assert lines[2] == "| default | 2 | 52.5 | 51.0 | 105.0 | 50.0 | 100.0 | 15 |"
    assert lines[3] == "| default, seeds as below | 1 | 55.0 | 55.0 | 110.0 | 50.0 | 100.0 | 10 |"
    assert lines[4] == "| 10 x 10, 3 breaks | 1 | 55.0 | 55.0 | 110.0 | 50.0 | 100.0 | 10 |"


def test_the_configuration_has_more_seeds_than_changes_of_it() -> None:
    benchmark = BENCHMARKS["fire"]
    tasks = benchmark.tasks({"seeds": 3, "few": 1})
    assert [task.case for task in tasks] == ["default"] * 3 + [*CASES][1:]
    keys = [benchmark.key(task, {}) for task in tasks]
    assert keys[0] == keys[1]
    assert len({str(key) for key in keys}) == len(CASES)
