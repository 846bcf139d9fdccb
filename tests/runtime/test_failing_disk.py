"""Every call to the disk that a command makes fails in turn: a warning, or one line; checkpoints stay whole.

`make test` lets some of them fail, `make slow` all. (SQLite is tested so: "How SQLite Is Tested", section 3.)
"""

import errno
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from eigen2.errors import UserError
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime import uploader
from eigen2.runtime.bucket import CheckpointStore, Place
from eigen2.runtime.checkpoint import DurableCheckpointIO
from tests.command import ROOT, eigen2
from tests.disk import count_file, ended, failing, short_files
from tests.sweep import test_study as sweep

SMALL = ["--config", ROOT / "tests" / "small.yaml"]
SIZES = (0, 1, 1000, 2500, 5000, 10_000, 20_000, 60_000, 100_000, 300_000, 600_000)  # bytes of the largest file
EVERY = [pytest.param(1, False, marks=pytest.mark.slow), pytest.param(1, True, marks=pytest.mark.slow)]
"""Every call fails, alone or with all that follow."""
COMMANDS: dict[str, list[object]] = {
    "fit": ["fit", *SMALL, "--trainer.max_epochs", 3],
    "resume": ["fit", *SMALL, "--trainer.max_epochs", 3, "--ckpt_path", "last"],
    "again": ["fit", *SMALL, "--trainer.max_epochs", 1],  # moves the run in the folder aside
    "test": ["test", *SMALL, "--ckpt_path", "best"],
    "validate": ["validate", *SMALL, "--ckpt_path", "best"],
    "export": ["export", "--output", "RUN/exported"],
    "predict": ["predict", "--data.path", "RUN/prices.parquet", "--output", "RUN/orders.csv"],
    "report": ["report", "RUN"],
    "prepare": ["data", "prepare", "RUN/prices.parquet", "RUN/clean.parquet"],
}
SOME = [("fit", 1), ("fit", 152), ("resume", 55), ("validate", 7), ("export", 8), ("predict", 3), ("prepare", 6)]
"""Calls that `make test` lets fail: every odd one alone, every even one with all that follow."""
OTHERS = [name for name in COMMANDS if name not in ("fit", "resume")]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of one generation, with its prices beside."""
    folder = tmp_path_factory.mktemp("fitted") / "run"
    done = eigen2("fit", *SMALL, "--trainer.max_epochs", 1, "--trainer.default_root_dir", folder)
    assert done.returncode == 0, done.stderr
    SyntheticMarket(days=300, columns=6).generate().to_parquet(folder / "prices.parquet")
    return folder


def complaints(done: CompletedProcess[str], folder: Path) -> list[str]:
    """Return what is wrong with what a command on a failing disk says, and with the checkpoints that it leaves."""
    lines, found = done.stderr.splitlines(), list[str]()
    if done.returncode not in (0, 2) or "Traceback" in done.stderr:
        found.append(f"exit code {done.returncode}: {done.stderr}")
    if done.returncode == 2 and not lines[-1].startswith("error: "):
        found.append(f"no error: {done.stderr}")
    for path in folder.rglob("*.ckpt"):
        if not path.name.startswith("."):
            try:
                DurableCheckpointIO().load_checkpoint(path)
            except UserError as error:
                found.append(str(error))
    return found


def faults(name: str, fitted: Path, folder: Path, prepare: Callable[[], None]) -> list[str]:
    """Run a command whose disk fails; return what is wrong with what it says and leaves, and delete `folder`."""
    if name != "fit":
        shutil.copytree(fitted, folder)
    words = [str(word).replace("RUN", str(folder)) for word in COMMANDS[name]]
    root = [] if name in ("report", "prepare") else ["--trainer.default_root_dir", str(folder)]
    found = complaints(ended([*words, *root], prepare), folder)
    if name != "fit" and not any(folder.rglob("last.ckpt")):
        found.append("the last checkpoint is gone")
    shutil.rmtree(folder, ignore_errors=True)
    return found


def turns(folder: Path, step: int, fails: int = 1) -> Iterator[int]:
    """Yield the calls that fail, every `step`-th, until there are no more."""
    while True:
        yield fails
        if int(count_file(folder).read_text() or 0) < fails:
            return
        fails += step


def errors(name: str, fails: int, lasting: bool, fitted: Path, tmp_path: Path) -> list[str]:
    """Return what is wrong where a call fails; every other error is another one."""
    error, folder = errno.ENOSPC if fails % 2 else errno.EIO, tmp_path / "run"
    return faults(name, fitted, folder, failing(folder, fails, lasting, error))


@pytest.mark.parametrize(("name", "fails"), SOME)
def test_a_call_fails(name: str, fails: int, fitted: Path, tmp_path: Path) -> None:
    assert errors(name, fails, fails % 2 == 0, fitted, tmp_path) == []
    assert int(count_file(tmp_path / "run").read_text()) >= fails, "there are not so many calls"


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_call_fails_in_turn(name: str, lasting: bool, fitted: Path, tmp_path: Path) -> None:
    found = {fails: errors(name, fails, lasting, fitted, tmp_path) for fails in turns(tmp_path / "run", 1)}
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "most", [pytest.param(most, marks=() if most == 60_000 else pytest.mark.slow) for most in SIZES]
)
@pytest.mark.parametrize("name", [*("fit", "resume"), *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_no_file_grows_beyond_a_size(name: str, most: int, fitted: Path, tmp_path: Path) -> None:
    assert faults(name, fitted, tmp_path / "run", short_files(most)) == []


def database_fails(folder: Path, fails: int, lasting: bool) -> None:
    """Let a sweep's calls and transactions fail; its fits, processes of milliseconds, have a disk that works."""
    sweep.fake()
    failing(folder, fails, lasting, databases=True)()


def files_short(most: int) -> None:
    """Let no file of a sweep or its fits grow beyond a size."""
    sweep.fake()
    short_files(most)()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Return the table of a sweep of two trials."""
    folder = tmp_path_factory.mktemp("swept") / "sweep"
    assert sweep.started(folder, "--trials", 2).ended(300).returncode == 0
    return sweep.rows(folder)


def check_sweep(folder: Path, swept: list[dict[str, str]], prepare: Callable[[], None]) -> list[str]:
    """Run a sweep whose disk fails, and the same command once it works; return what is wrong, and delete `folder`."""
    found = complaints(ended(sweep.options(folder, sweep.SPACE, "--trials", 2), prepare), folder)
    again = sweep.started(folder, "--trials", 2).ended(300)
    if again.returncode:
        found.append(f"the same command does not resume: {again.stderr}")
    elif sweep.rows(folder) != swept:
        found.append(f"it resumed to other trials: {sweep.rows(folder)}")
    shutil.rmtree(folder, ignore_errors=True)
    return found


# the 99th of some 107 calls is of the last table of trials
@pytest.mark.parametrize(("step", "lasting"), [*EVERY, (49, None)])
def test_a_sweep_resumes_to_the_same_trials_whichever_call_failed(
    step: int, lasting: bool | None, swept: list[dict[str, str]], tmp_path: Path
) -> None:
    folder, found = tmp_path / "sweep", {}
    for fails in turns(folder, step):
        lasts = fails % 2 == 0 if lasting is None else lasting
        found[fails] = check_sweep(folder, swept, partial(database_fails, folder, fails, lasts))
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "most", [pytest.param(most, marks=() if most == 60_000 else pytest.mark.slow) for most in SIZES]
)
def test_a_sweep_resumes_whatever_part_of_its_files_was_written(
    most: int, swept: list[dict[str, str]], tmp_path: Path
) -> None:
    assert check_sweep(tmp_path / "sweep", swept, partial(files_short, most)) == []


def bucket_of(folder: Path) -> DirFileSystem:
    """Return a bucket that is a folder on a disk that works."""
    return DirFileSystem(str(folder), LocalFileSystem(auto_mkdir=True))


def cloud_fails(folder: Path, bucket: Path, fails: int, lasting: bool) -> None:
    """Let a process's disk fail, with a bucket elsewhere; 0 fails nothing, and leaves the count of calls as it is."""
    uploader.connect = lambda place: bucket_of(bucket)
    if fails:
        failing(folder, fails, lasting)()


@pytest.mark.parametrize(("step", "lasting"), [*EVERY, (110, None)])
def test_downloads_and_uploads_are_complete_once_the_disk_works(
    step: int, lasting: bool | None, fitted: Path, tmp_path: Path
) -> None:
    """A fit that goes on from the bucket fails; the same command afterwards leaves its last checkpoint there."""
    folder, bucket, place, found = tmp_path / "run", tmp_path / "bucket", Place("s3", "bucket", "run"), {}
    root, cloud = (
        ["--trainer.default_root_dir", folder],
        ["--trainer.callbacks+=eigen2.runtime.uploader.CheckpointUploader"],
    )
    cloud += [f"--trainer.callbacks.{name}" for name in ("provider=s3", "bucket=bucket", "attempts=1")]
    for fails in turns(folder, step):
        lasts = fails % 2 == 0 if lasting is None else lasting
        with (fitted / "checkpoints" / "last.ckpt").open("rb") as first:
            CheckpointStore(partial(bucket_of, bucket), place).upload(first, "last.ckpt")
        words = [*COMMANDS["resume"], *root, *cloud]
        found[fails] = complaints(ended(words, partial(cloud_fails, folder, bucket, fails, lasts)), folder)
        again = ended(words, partial(cloud_fails, folder, bucket, 0, False))
        if again.returncode:
            found[fails].append(f"the same command does not resume: {again.stderr}")
        newest = CheckpointStore(partial(bucket_of, bucket), place).fetch_newest(tmp_path / "new", pytest.fail)
        if newest is None or newest.read_bytes() != (folder / "checkpoints" / "last.ckpt").read_bytes():
            found[fails].append("the last checkpoint is not in the bucket")
        for path in (folder, bucket):
            shutil.rmtree(path)
    assert not any(found.values()), found
