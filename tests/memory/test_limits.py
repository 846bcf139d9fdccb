"""How limits of every kind are read."""

from pathlib import Path

import pytest

from eigen2.memory import limits as limits_module
from eigen2.memory.limits import Limit, limits


def test_a_budget_counts_resident_memory_without_files() -> None:
    budget = next(limit for limit in limits(10**9) if limit.name == "the memory budget")
    assert 5e7 < budget.used < 5e9
    assert budget.limit == 10**9
    assert budget.left == max(0, 10**9 - budget.used)


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        (
            "0::/job/step\n",
            "30 24 0:26 / {root} rw - cgroup2 cgroup2 rw\n",
            {
                "job/step": {
                    "memory.max": "max",
                    "memory.current": "500",
                    "memory.stat": "anon 1\ninactive_file 100\n",
                },
                "job": {"memory.max": "1000", "memory.current": "700", "memory.stat": "inactive_file 100\n"},
            },
            [Limit("the control group's memory", 600, 1000, shared=True)],
        ),
        (
            "4:memory:/slurm\n0::/\n",
            "31 24 0:27 / {root} rw - cgroup cgroup rw,memory\n",
            {
                "slurm": {
                    "memory.limit_in_bytes": "2000",
                    "memory.usage_in_bytes": "900",
                    "memory.stat": "inactive_file 5\ntotal_inactive_file 300\n",
                },
                "": {
                    "memory.limit_in_bytes": "9223372036854771712",
                    "memory.usage_in_bytes": "900",
                    "memory.stat": "total_inactive_file 300\n",
                },
            },
            [Limit("the control group's memory", 600, 2000, shared=True)],
        ),
        ("0::/\n", "30 24 0:26 / {root} rw - cgroup2 cgroup2 rw\n", {}, []),
        ("3:cpu:/x\n", "", {}, []),
    ],
)
def test_control_groups_of_both_versions_are_read_up_to_the_root(
    groups: str,
    mounts: str,
    files: dict[str, dict[str, str]],
    expected: list[Limit],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tmp_path / "fs"
    for folder, contents in files.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            (root / folder / name).write_text(text)
    for name, text in (("_OWN_GROUPS", groups), ("_MOUNTS", mounts.format(root=root))):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(limits_module, name, tmp_path / name)
    assert [limit for limit in limits() if limit.name == "the control group's memory"] == expected
