"""Only intact checkpoints count in a bucket, also on real servers on the loopback, which fail in every way."""

import asyncio
import errno
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.runtime import bucket as bucket_module
from eigen2.runtime.bucket import CheckpointFile, CheckpointStore, Place, connect, describe_error, resolve
from eigen2.runtime.checkpoint import listed_parts, read_part
from eigen2.runtime.uploader import UploadQueue, retry
from tests.command import ROOT, free_port
from tests.runtime.buckets import SECRET, Bucket, Proxy, checkpoint, failing, proxy_to
from tests.runtime.test_checkpoint_parts import write

PART = 5 * 2**20
"""The smallest part that S3 accepts."""


def upload(store: CheckpointStore, path: Path) -> None:
    with path.open("rb") as file:
        assert store.upload(file, path.name) is None


def newest(store: CheckpointStore, folder: Path) -> str | None:
    """Return the first byte of the newest checkpoint, followed by all warnings."""
    warnings: list[str] = []
    path = store.fetch_newest(folder / "fetched", warnings.append)
    return None if path is None else path.read_bytes()[:1].decode() + "".join(f" {line}" for line in warnings)


def test_the_newest_last_checkpoint_comes_back(tmp_path: Path) -> None:
    bucket = Bucket()
    store = bucket.checkpoints()
    assert newest(store, tmp_path) is None
    for text, name in (("1", "last.ckpt"), ("2", "last.ckpt"), ("b", "best.ckpt")):
        upload(store, checkpoint(tmp_path, text, name))
    assert list(bucket.objects()) == [f"a/run-001/00000{name}.ckpt" for name in ("1-last", "2-last", "3-best")]
    assert newest(bucket.checkpoints(), tmp_path) == "2"
    assert [path.name for path in (tmp_path / "fetched").iterdir()] == ["last.ckpt"]
    bucket.pipe_file("bucket/a/run-001/000005-last.ckpt.json", b"{}")
    assert newest(bucket.checkpoints(), tmp_path) == "2"


def test_runs_and_prefixes_are_apart_and_a_resumed_run_continues(tmp_path: Path) -> None:
    bucket = Bucket()
    upload(bucket.checkpoints(resumed=True), checkpoint(tmp_path, "a"))
    upload(bucket.checkpoints(resumed=True), checkpoint(tmp_path, "b"))
    assert newest(bucket.checkpoints(), tmp_path) == "b"
    upload(bucket.checkpoints(keep=1), checkpoint(tmp_path, "c"))
    assert newest(bucket.checkpoints(), tmp_path) == "c"
    kept = [path.partition("-last")[0] for path in bucket.objects()]
    assert kept == ["a/run-001/000001", "a/run-001/000002", "a/run-002/000001"]  # keep is of one run
    assert newest(bucket.checkpoints(prefix="b"), tmp_path) is None
    upload(bucket.checkpoints(prefix="a/b"), checkpoint(tmp_path, "d"))
    assert newest(bucket.checkpoints(), tmp_path) == "c"


def test_the_newest_of_each_name_are_kept(tmp_path: Path) -> None:
    bucket = Bucket()
    store = bucket.checkpoints(keep=2)
    for name in ("best", "last", "last", "last", "last"):
        upload(store, checkpoint(tmp_path, "a", f"{name}.ckpt"))
    assert [path.split("/")[2][:6] for path in bucket.objects()] == ["000001", "000004", "000005"]
    bucket.rm_file = failing(1, "bucket/a/run-001/000004-last.ckpt")
    with checkpoint(tmp_path, "a").open("rb") as file:
        warning = store.upload(file, "last.ckpt")
    assert warning == "older checkpoints cannot be deleted (OSError, Input/output error)"
    assert len(bucket.objects()) == 4


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_no_part_stays_if_a_deletion_was_refused(deleted: int, tmp_path: Path) -> None:
    bucket, delete = Bucket(), Bucket.rm_file
    store, refused = bucket.checkpoints(keep=1), [False] * deleted + [True]

    def rm_file(path: str) -> None:
        if refused and refused.pop(0):
            raise OSError(errno.EIO, "refused")
        delete(bucket, path)

    bucket.rm_file = rm_file
    for generation in range(3):
        with CheckpointFile(write(tmp_path, generation, world=2)) as file:
            warning = store.upload(file, "last.ckpt")
        assert (warning is None) == (generation != 1)
    assert sorted(bucket.objects()) == [f"a/run-001/000003-last.ckpt{part}" for part in ("", ".0", ".1")]


def test_the_run_that_began_last_takes_a_prefix_over_and_no_run_deletes_anothers(tmp_path: Path) -> None:
    bucket = Bucket()
    first, second = (bucket.checkpoints(keep=1, resumed=True) for _ in range(2))
    upload(first, checkpoint(tmp_path, "a"))
    upload(second, checkpoint(tmp_path, "b"))
    before = bucket.objects()
    with pytest.raises(UserError, match="another run has begun to write to memory://bucket/a; give each a prefix"):
        upload(first, checkpoint(tmp_path, "c"))
    assert bucket.objects() == before
    upload(second, checkpoint(tmp_path, "d"))
    assert newest(bucket.checkpoints(), tmp_path) == "d"
    warnings: list[str] = []
    queue = UploadQueue(first.upload, attempts=5, wait=lambda seconds: pytest.fail("it tried again"))
    queue.submit("last.ckpt", checkpoint(tmp_path, "e").open("rb"))
    assert not queue.drain(10)
    warnings.append(str(queue.pop_warning()))
    queue.close()
    assert warnings[0].startswith("last.ckpt was not uploaded (another run has begun to write to")


@pytest.mark.parametrize("name", ["run-999999999999/000001", "run-001/" + "9" * 5000, "run-" + "9" * 5000 + "/000001"])
def test_names_that_no_run_wrote_are_left_out(name: str, tmp_path: Path) -> None:
    bucket = Bucket()
    upload(bucket.checkpoints(), checkpoint(tmp_path, "a"))
    bucket.pipe_file(f"bucket/a/{name}-last.ckpt", b"x")
    assert newest(bucket.checkpoints(), tmp_path) == "a"
    upload(bucket.checkpoints(resumed=True), checkpoint(tmp_path, "b"))
    assert newest(bucket.checkpoints(), tmp_path) == "b"


@pytest.mark.parametrize("error", [ValueError, OverflowError, KeyError, RecursionError, TypeError, AssertionError])
def test_an_answer_that_cannot_be_read_costs_one_checkpoint(error: type[Exception], tmp_path: Path) -> None:
    bucket = Bucket()
    for text in "ab":
        upload(bucket.checkpoints(resumed=True), checkpoint(tmp_path, text))
    whole = bucket.open

    def opened(path: str, *args: Any, **options: Any) -> Any:
        if "000002" in path:
            raise error(SECRET)  # as of a size of 1e999, or JSON nested a thousand deep
        return whole(path, *args, **options)

    bucket.open = opened
    warned = str(newest(bucket.checkpoints(), tmp_path))
    assert warned.startswith(f"a cloud: bucket/a/run-001/000002-last.ckpt is damaged ({error.__name__})")
    assert SECRET not in warned


@pytest.mark.parametrize("damage", ["byte", "short", "gone"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(damage: str, tmp_path: Path) -> None:
    bucket = Bucket()
    for text in "ab":
        upload(bucket.checkpoints(resumed=True), checkpoint(tmp_path, text))
    first, victim, _ = sorted(bucket.store)
    if damage == "gone":  # after it was listed
        bucket.open = lambda path, *args, **options: MemoryFileSystem.open(
            bucket, "bucket/gone" if path in victim else path, *args, **options
        )
    elif damage == "short":
        bucket.store[victim].truncate(10)
    else:
        bucket.store[victim].getbuffer()[0] = 0
    warned = newest(bucket.checkpoints(), tmp_path)
    assert warned is not None
    assert warned.startswith("a cloud: bucket/a/run-001/000002-last.ckpt is damaged (")
    assert [path.name for path in (tmp_path / "fetched").iterdir()] == ["last.ckpt"]
    bucket.store[first].getbuffer()[0] = 0
    with pytest.raises(UserError, match="all 2 checkpoints in memory://bucket/a are damaged; leave out --ckpt_path"):
        newest(bucket.checkpoints(), tmp_path)


@pytest.mark.parametrize("size", [1000, 800 * 2**30])
def test_a_file_of_any_size_is_split_into_parts_that_stores_accept(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, path = Bucket(), checkpoint(tmp_path, "a")
    with monkeypatch.context() as patch, path.open("rb") as file:
        patch.setattr(bucket_module.os, "fstat", lambda number: SimpleNamespace(st_size=size))
        bucket.checkpoints(provider="s3").upload(file, path.name)
    part = bucket.options["chunksize"]
    assert part >= bucket_module.PART
    assert part * 10_000 >= size
    assert part % 2**18 == 0


def test_an_error_is_named_without_its_text() -> None:
    assert describe_error(PermissionError(5, SECRET)) == "PermissionError, Input/output error"
    assert describe_error(ValueError(SECRET)) == "ValueError"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(("CLOUD_", "AWS_", "GOOGLE_", "STORAGE_")):
            monkeypatch.delenv(name)
    return monkeypatch


def test_settings_come_before_the_environment(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setattr(bucket_module, "_library", lambda provider: None)
    environment.setenv("CLOUD_PROVIDER", "gs")
    environment.setenv("CLOUD_BUCKET", "mine")
    assert resolve(None, None, None, tmp_path / "run-7") == Place("gs", "mine", "run-7")
    assert resolve("s3", "yours", "team/a", tmp_path) == Place("s3", "yours", "team/a")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ((None, "mine", None), "needs a provider: set its key provider, or CLOUD_PROVIDER, to s3 or gs"),
        (("s3", None, None), "needs a bucket: set its key bucket, or CLOUD_BUCKET"),
        (("s3", f"https://key:{SECRET}@host/mine", None), "needs a bucket"),
        (("s3", "mine", f"a?token={SECRET}"), "CheckpointUploader.prefix must be letters"),
        (("s3", "mine", "../other"), "CheckpointUploader.prefix must be letters"),
        (("s3", "mine", None, Path("my runs")), "name of the run's folder my runs cannot be a prefix: set Checkpoint"),
        (("gs", "mine", None), "GOOGLE_APPLICATION_CREDENTIALS does not name"),
        (("s3", "mine", None), r"needs s3fs for s3: pip install -c constraints.txt -e '\.\[cloud\]'"),
    ],
)
def test_an_invalid_place_is_refused_without_repeating_its_value(
    setting: tuple[Any, ...], message: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", f'{{"private_key": "{SECRET}"}}')
    environment.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=message) as refused:
        resolve(*setting[:3], *(setting[3:] or [tmp_path]))
    assert SECRET not in str(refused.value)


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
    server.start()
    yield server._port
    server.stop()


@pytest.fixture(scope="module")
def emulator_port() -> Iterator[int]:
    pytest.importorskip("gcsfs")
    port = free_port()
    server = pytest.importorskip("gcp_storage_emulator.server").create_server("127.0.0.1", port, in_memory=True)
    server.start()
    yield port
    server.stop()


@pytest.fixture(params=["s3", "gs"])
def proxied(request: pytest.FixtureRequest, environment: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, CheckpointStore]]:
    """Yield a proxy to a server, and a store in an empty bucket behind it; retries do not wait."""
    environment.setattr(bucket_module, "PART", PART)
    environment.setattr(bucket_module, "REQUEST_S", 1.0)
    place = Place(request.param, f"bucket-{abs(hash(request.node.name)) % 10**9}", "run")
    if place.provider == "s3":
        port, variable = request.getfixturevalue("moto_port"), "AWS_ENDPOINT_URL_S3"
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        environment.setenv("AWS_SESSION_TOKEN", f"session-{SECRET}")
    else:
        port, variable = request.getfixturevalue("emulator_port"), "STORAGE_EMULATOR_HOST"
        environment.setattr("gcsfs.retry.random.random", lambda: 0.0)
        environment.setattr("gcsfs.retry.asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": no_sleep}))
    with proxy_to(port) as proxy:
        environment.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        filesystem = connect(place)
        filesystem.mkdir(place.bucket)
        yield proxy, CheckpointStore(lambda: filesystem, place, keep=2)


async def no_sleep(seconds: float) -> None:
    """Replace the sleep of a library between retries."""


def big(folder: Path, text: str) -> Path:
    """Return a checkpoint of more than two parts."""
    return checkpoint(folder, text, size=2 * PART)


def test_real_servers_store_parts_with_checksums_list_delete_and_return_them(
    proxied: tuple[Proxy, CheckpointStore], tmp_path: Path
) -> None:
    """S3's client sends checksums, which the server verifies; Google's verifies what the server returns."""
    proxy, store = proxied
    for path in (checkpoint(tmp_path, "a"), big(tmp_path, "b"), big(tmp_path, "c")):
        upload(store, path)
    assert newest(store, tmp_path) == "c"
    assert (tmp_path / "fetched" / "last.ckpt").read_bytes() == (tmp_path / "last.ckpt").read_bytes()
    assert [entry.number for entry in store.entries()] == [2, 3]
    if store.place.provider == "s3":
        assert proxy.sent.lower().count(b"\r\nx-amz-checksum-crc32:") >= 4  # the small file, and three parts
    else:
        assert store._fs.consistency == "md5"


@pytest.mark.parametrize(("mode", "failures"), [("error", 4), ("cut", 2), ("stall", 1), ("dead", 4)])
def test_uploads_succeed_through_a_proxy_that_fails_for_a_time(
    mode: str, failures: int, proxied: tuple[Proxy, CheckpointStore], tmp_path: Path
) -> None:
    proxy, store = proxied
    upload(store, checkpoint(tmp_path, "a"))
    proxy.fail(mode, failures)
    path = big(tmp_path, "b")
    retry(lambda: upload(store, path), attempts=8, wait=lambda seconds: None)
    assert proxy.faults == failures
    assert newest(store, tmp_path) == "b"
    assert (tmp_path / "fetched" / "last.ckpt").read_bytes() == path.read_bytes()


def test_an_incomplete_upload_leaves_nothing_and_no_credential_is_logged_or_printed(
    proxied: tuple[Proxy, CheckpointStore],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proxy, store = proxied
    output = ""
    with caplog.at_level(logging.DEBUG):
        upload(store, checkpoint(tmp_path, "a"))
        proxy.limit = PART + PART // 2
        for mode in ("error", "cut"):
            proxy.fail(mode)
            with pytest.raises(Exception) as failed:
                upload(store, big(tmp_path, "b"))
            assert not isinstance(failed.value, AssertionError)
            output += describe_error(failed.value)
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("gcp_storage_emulator")]
    output += "".join([*logged, *capsys.readouterr()])
    for secret in (SECRET, "AKIAEXAMPLE", "Signature", "Bearer", "upload_id"):
        assert secret not in output
    if store.place.provider == "s3":  # the check above can fail: the proxy saw them
        assert f"session-{SECRET}".encode() in proxy.sent
    assert proxy.faults
    proxy.failures = 0
    assert newest(store, tmp_path) == "a"


def test_bad_credentials_do_not_become_anonymous_access(environment: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    google = SimpleNamespace(core=SimpleNamespace(GCSFileSystem=lambda token, **options: token))
    environment.setattr(bucket_module, "_library", lambda provider: google)
    place = Place("gs", "mine", "run")
    assert connect(place) is None  # whatever the machine has
    environment.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1")
    assert connect(place) == "anon"
    environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", "key.json")
    assert connect(place) == "google_default"


@pytest.mark.slow
@pytest.mark.parametrize("proxied", ["s3"], indirect=True)
def test_a_fresh_machine_resumes_from_the_bucket(
    proxied: tuple[Proxy, CheckpointStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same command in a folder of the same name elsewhere goes on where the first machine died."""
    _, store = proxied
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    monkeypatch.setenv("CLOUD_PROVIDER", "s3")
    monkeypatch.setenv("CLOUD_BUCKET", store.place.bucket)

    def fit(machine: str, generations: int) -> list[str]:
        root = str(tmp_path / machine / "run")
        options = ["--config", "tests/small.yaml", "--model.gradient_steps", "1"]
        options += ["--trainer.callbacks=eigen2.runtime.checkpoint.GenerationCheckpoint"]
        options += ["--trainer.callbacks+=eigen2.runtime.uploader.CheckpointUploader"]
        options += ["--trainer.default_root_dir", root, "--trainer.max_epochs", str(generations)]
        main(["fit", *options, "--ckpt_path", "last"])
        rows = (tmp_path / machine / "run" / "metrics.csv").read_text().splitlines()
        return [row.split(",")[0] for row in rows[1:]]

    assert fit("first", 1) == ["0"]
    shutil.rmtree(tmp_path / "first")
    capsys.readouterr()
    assert fit("second", 2) == ["1"]
    assert f"cloud: fetched last.ckpt from s3://{store.place.bucket}/run" in capsys.readouterr().out
    fetched = store.fetch_newest(tmp_path / "third", print)
    assert fetched is not None
    assert fetched.read_bytes() == (tmp_path / "second" / "run" / "checkpoints" / "last.ckpt").read_bytes()


def test_a_checkpoint_without_one_of_its_parts_leaves_no_file_open(tmp_path: Path) -> None:
    path = write(tmp_path, 1, world=3)
    listed_parts(path)[1].unlink()
    before = {*os.listdir("/dev/fd")}
    with pytest.raises(FileNotFoundError):
        CheckpointFile(path)
    assert {*os.listdir("/dev/fd")} == before


def test_the_parts_of_several_processes_go_with_their_checkpoint(tmp_path: Path) -> None:
    bucket, folder = Bucket(), tmp_path / "fetched"
    for generation in (1, 2, 3):
        path = write(tmp_path, generation, world=4 - generation)
        with CheckpointFile(path) as file:
            write(tmp_path, generation + 10)  # replaces all of it meanwhile
            assert bucket.checkpoints(keep=2, resumed=True).upload(file, "last.ckpt") is None
    names = [f"000002-last.ckpt{part}" for part in ("", ".0", ".1")] + ["000003-last.ckpt", "000003-last.ckpt.0"]
    assert sorted(bucket.objects()) == [f"a/run-001/{name}" for name in names]
    assert bucket.checkpoints().fetch_newest(folder, pytest.fail) == folder / "last.ckpt"
    (part,) = listed_parts(folder / "last.ckpt")
    assert read_part(part)["rows"].unique().tolist() == [30]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(folder)
    with pytest.raises(UserError, match="remove the link"):
        bucket.checkpoints().fetch_newest(tmp_path / "run" / "checkpoints", pytest.fail)
    bucket.store["/bucket/a/run-001/000003-last.ckpt.0"].getbuffer()[9] ^= 1
    warned: list[str] = []
    assert bucket.checkpoints().fetch_newest(folder, warned.append) == folder / "last.ckpt"
    assert "000003-last.ckpt is damaged" in warned[0]
    assert [read_part(part)["rows"][0].item() for part in listed_parts(folder / "last.ckpt")] == [20, 21]
