"""Plant faults of one line, one at a time, and report which the tests catch: `python -m tests.mutation [NAME ...]`.

The same tests must pass before, without a fault.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict


class Fault(TypedDict):
    """A fault: the text of a file that is replaced, and the tests that should fail."""

    name: str
    file: str
    find: str
    replace: str
    tests: list[str]


def read_faults() -> list[Fault]:
    """Return the faults of faults.json."""
    return json.loads((Path(__file__).parent / "faults.json").read_text())


def run(tests: Iterable[str], root: Path) -> subprocess.CompletedProcess[str]:
    """Run tests in a checkout until one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def caught(fault: Fault, root: Path) -> bool:
    """Return whether a test fails with the fault in a checkout; its file is restored afterwards."""
    path = root / fault["file"]
    before = path.read_text()
    try:
        path.write_text(before.replace(fault["find"], fault["replace"]))
        ended = run(fault["tests"], root)
    finally:
        path.write_text(before)
    if ended.returncode not in (0, 1, 2):  # 2: the fault breaks the collection of tests
        raise SystemExit(f"{fault['name']}: pytest ended with {ended.returncode}\n{ended.stdout[-2000:]}")
    return ended.returncode != 0


def main() -> int:
    """Print a line for each fault; return 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults to plant; all without")
    given = parser.parse_args()
    faults = read_faults()
    if unknown := set(given.names) - {fault["name"] for fault in faults}:
        parser.error(f"faults.json has no fault named {', '.join(sorted(unknown))}")
    chosen = [fault for fault in faults if not given.names or fault["name"] in given.names]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkout"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", root, "HEAD"], check=True)
        try:
            control = run(sorted({test for fault in chosen for test in fault["tests"]}), root)
            if control.returncode:
                raise SystemExit(f"a test fails without a fault\n{control.stdout[-2000:]}")
            found = {fault["name"]: caught(fault, root) for fault in chosen}
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", root], check=True)
    for name, was in found.items():
        print(f"{'caught' if was else 'MISSED'}  {name}")
    print(f"{sum(found.values())} of {len(found)} faults caught")
    return not all(found.values())


if __name__ == "__main__":
    sys.exit(main())
