"""The faults that `python -m tests.mutation` plants still fit the code."""

import ast
from itertools import groupby
from pathlib import Path

from tests.mutation.__main__ import read_faults

ROOT = Path(__file__).parents[2]


def test_each_fault_changes_one_place_and_names_tests_that_exist() -> None:
    faults = sorted(read_faults(), key=lambda fault: fault["file"])
    assert len({fault["name"] for fault in faults}) == len(faults)
    for file, group in groupby(faults, key=lambda fault: fault["file"]):
        text = (ROOT / file).read_text()
        for fault in group:
            assert text.count(fault["find"]) == 1, fault["name"]
            assert fault["find"] != fault["replace"], fault["name"]
            if file.endswith(".py"):  # an error of syntax would fail any test
                ast.parse(text.replace(fault["find"], fault["replace"]), fault["name"])
            for test in fault["tests"]:
                path, *names = test.split("::")
                code = (ROOT / path).read_text() if path.endswith(".py") else ""
                assert (ROOT / path).exists(), test
                assert all(f"def {name.split('[')[0]}(" in code or f"class {name}" in code for name in names), test
