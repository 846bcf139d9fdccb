"""Every call to the disk that a command makes fails in turn: a warning, or one line; checkpoints stay whole.

`make test` lets some of them fail, `make slow` all. (SQLite is tested so: "How SQLite Is Tested", section 3.)
"""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime.checksums import DamagedFile, verify_checksum
from tests.command import ROOT, Started, eigen2
from tests.disk import count_file, failing, short_files

SMALL = ["--config", ROOT / "tests" / "small.yaml"]
SIZES = (2500, 5000, 10_000, 20_000, 100_000, 300_000)  # bytes of the largest file; less holds no error output
COMMANDS: dict[str, list[object]] = {
    "fit": ["fit", *SMALL, "--trainer.max_epochs", 2],
    "resume": ["fit", *SMALL, "--trainer.max_epochs", 2, "--ckpt_path", "last"],
    "again": ["fit", *SMALL, "--trainer.max_epochs", 1],  # moves the run in the folder aside
    "test": ["test", *SMALL, "--ckpt_path", "best"],
    "validate": ["validate", *SMALL, "--ckpt_path", "best"],
    "export": ["export", "--output", "RUN/exported"],
    "predict": ["predict", "--data.path", "RUN/prices.parquet", "--output", "RUN/orders.csv"],
    "report": ["report", "RUN"],
    "prepare": ["data", "prepare", "RUN/prices.parquet", "RUN/clean.parquet"],
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of one generation, with its prices beside."""
    folder = tmp_path_factory.mktemp("fitted") / "run"
    done = eigen2("fit", *SMALL, "--trainer.max_epochs", 1, "--trainer.default_root_dir", folder)
    assert done.returncode == 0, done.stderr
    SyntheticMarket(days=300, columns=6).generate().to_parquet(folder / "prices.parquet")
    return folder


def faults(name: str, fitted: Path, folder: Path, prepare: Callable[[], None]) -> list[str]:
    """Run a command whose disk fails; return what is wrong with what it says and leaves, and delete `folder`."""
    if name != "fit":
        shutil.copytree(fitted, folder)
    words = [str(word).replace("RUN", str(folder)) for word in COMMANDS[name]]
    root = [] if name in ("report", "prepare") else ["--trainer.default_root_dir", str(folder)]
    done = Started([*words, *root], prepare=prepare).ended(300)
    lines, found = done.stderr.splitlines(), list[str]()
    if done.returncode not in (0, 2) or "Traceback" in done.stderr:
        found.append(f"exit code {done.returncode}: {done.stderr}")
    if done.returncode == 2 and not lines[-1].startswith("error: "):
        found.append(f"no error: {done.stderr}")
    checkpoints = [path for path in folder.rglob("*.ckpt") if not path.name.startswith(".")]
    for path in checkpoints:
        try:
            verify_checksum(path)
        except DamagedFile as damage:
            found.append(f"{path} {damage}")
    if name != "fit" and not any(path.name == "last.ckpt" for path in checkpoints):
        found.append("the last checkpoint is gone")
    shutil.rmtree(folder, ignore_errors=True)
    return found


def turns(folder: Path, step: int) -> Iterator[int]:
    """Yield the calls that fail, every `step`-th, until there are no more."""
    fails = 1
    while True:
        yield fails
        if int(count_file(folder).read_text() or 0) < fails:
            return
        fails += step


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 61])
def test_every_call_fails_in_turn(name: str, step: int, lasting: bool, fitted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for fails in turns(folder, step):
        error = errno.ENOSPC if fails % 2 else errno.EIO
        assert faults(name, fitted, folder, failing(folder, fails, lasting, error)) == [], fails


@pytest.mark.slow
@pytest.mark.parametrize("most", SIZES)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_file_grows_beyond_a_size(name: str, most: int, fitted: Path, tmp_path: Path) -> None:
    assert faults(name, fitted, tmp_path / "run", short_files(most)) == []
