"""Compare what short runs compute before and after a change: `python -m tests.golden REVISION [CASE ...]`.

Bits may differ between processors, so both sides are recorded here and now, each by its own revision's recorder.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.cases import CHANGED, REMOVED, REPLACED

Digests = dict[str, dict[str, str]]


def recorded(folder: Path, out: Path, cases: list[str]) -> Digests:
    """Record the digests of the checkout in a folder."""
    words = [sys.executable, "-m", "tests.golden.record", str(out), *cases]
    subprocess.run(words, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, check=True)
    return json.loads(out.read_text())


def differences(before: Digests, after: Digests) -> list[str]:
    """Return a line for each digest that is not the same, or there on one side alone."""
    cases = sorted({*before, *after} - {*REMOVED})
    both = [(case, before.get(case, {}), after.get(case, {})) for case in cases]
    return [
        f"{case}: {name}: {old.get(name, 'absent')} before, {new.get(name, 'absent')} now"
        for case, old, new in both
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
        and name not in CHANGED
        and not (name.startswith(REPLACED) and not (name in old and name in new))
    ]


def main(revision: str, cases: list[str]) -> int:
    """Print the differences; return 1 if there are any."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        subprocess.run(["git", "worktree", "add", "--detach", str(base), revision], check=True)
        try:
            before = recorded(base, Path(name) / "before.json", cases)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(base)], check=True)
        after = recorded(Path.cwd(), Path(name) / "after.json", cases)
    found = differences(before, after)
    print(*found, f"{sum(map(len, after.values()))} digests in {len(after)} cases, {len(found)} differ", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
