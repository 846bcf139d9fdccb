"""Limits of every kind are read."""

from pathlib import Path

import pytest

from eigen2.memory import limits as limits_module
from eigen2.memory.limits import Limit, limits

V2, V1 = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")


@pytest.mark.parametrize(
    ("groups", "names", "files", "expected"),
    [
        ("0::/job/step\n", V2, {"job/step": ("max", 500, 100), "job": (1000, 700, 100)}, {" (/job)": (600, 1000)}),
        (
            "4:memory:/x\n0::/\n",
            V1,
            {"memory/x": (2000, 900, 300), "memory": (2**63 - 4096, 9, 3)},
            {" (/x)": (600, 2000)},
        ),
        # groups within each other are told apart
        (
            "0::/job/step\n",
            V2,
            {"job/step": (1000, 500, 100), "job": (1000, 700, 100)},
            {" (/job)": (600, 1000), " (/job/step)": (400, 1000)},
        ),
        # in a container the path is that of the machine, and the mount shows the container's own group
        ("4:cpu,memory:/docker/ab\n", V1, {"memory": (2000, 900, 300)}, {"": (600, 2000)}),
        ("0::/\n3:cpu:/x\n", V2, {}, {}),
    ],
)
def test_control_groups_of_both_versions_are_read_up_to_the_root(
    groups: str,
    names: tuple[str, str],
    files: dict[str, tuple[object, int, int]],
    expected: dict[str, tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for folder, (limit, used, inactive) in files.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        stat = f"inactive_file {inactive}\n" if names is V2 else f"inactive_file 5\ntotal_inactive_file {inactive}\n"
        for name, text in zip((*names, "memory.stat"), (limit, used, stat), strict=True):
            (tmp_path / folder / name).write_text(f"{text}")
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(limits_module, "_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(limits_module, "_ROOT", tmp_path)
    found = [limit for limit in limits() if limit.name.startswith("the control group's memory")]
    assert found == [Limit(f"the control group's memory{name}", *each, True) for name, each in expected.items()]
