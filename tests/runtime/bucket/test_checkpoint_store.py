"""Only whole checkpoints count in a bucket; on real servers over the loopback too, which fail in every way."""

import asyncio
import hashlib
import http.server
import json
import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from eigen2.cli.main import main
from eigen2.errors import UserError
from eigen2.runtime.bucket import checkpoint_store
from eigen2.runtime.bucket.checkpoint_store import CheckpointStore, part_size
from eigen2.runtime.bucket.object_store import Place, StoreError, connect, describe_error, resolve
from eigen2.runtime.bucket.upload_queue import retry
from tests.command import ROOT
from tests.runtime.buckets import SECRET, Bucket, Line, checkpoint, line_to

PART = 5 * 2**20
"""The least that S3 takes."""


def upload(store: CheckpointStore, path: Path, order: int = 1) -> None:
    with path.open("rb") as file:
        store.upload(file, path.name, order)
    store.delete_old()


def newest(store: CheckpointStore, folder: Path) -> str | None:
    """Return what the newest checkpoint begins with, and every warning on the way."""
    warnings: list[str] = []
    path = store.fetch_newest(folder / "fetched", warnings.append)
    return None if path is None else path.read_text()[:1] + "".join(f" {line}" for line in warnings)


def test_the_newest_comes_back_under_its_name(tmp_path: Path) -> None:
    bucket, names = Bucket(), ["best.ckpt", "epoch=3 step.ckpt", "last.ckpt"]
    store = bucket.checkpoints()
    assert newest(store, tmp_path) is None
    for order, name in enumerate(names, 1):
        upload(store, checkpoint(tmp_path, str(order), name), order)
        assert newest(bucket.checkpoints(), tmp_path) == str(order)
        assert (tmp_path / "fetched" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "fetched").iterdir()) == names
    first = min(bucket.objects())
    assert first == f"a/run-001/000001-{hashlib.sha256(b'1' * 1000).hexdigest()[:16]}-best.ckpt"
    # one of an earlier layout, with a manifest beside it
    bucket.pipe_file(f"bucket/{first}.json", b"{}")
    assert newest(bucket.checkpoints(), tmp_path) == "3"


def test_uploads_that_come_late_are_not_the_newest(tmp_path: Path) -> None:
    bucket = Bucket()
    store = bucket.checkpoints()
    upload(store, checkpoint(tmp_path, "b"), 2)
    upload(store, checkpoint(tmp_path, "a", "best.ckpt"), 1)
    assert newest(bucket.checkpoints(), tmp_path) == "b"


def test_a_resumed_run_goes_on_where_a_new_one_begins_the_next(tmp_path: Path) -> None:
    bucket = Bucket()
    upload(bucket.checkpoints(), checkpoint(tmp_path, "a"), 3)
    upload(bucket.checkpoints(resumed=True), checkpoint(tmp_path, "a"))  # the bucket has it already
    assert bucket.calls.count("put") == 1
    upload(bucket.checkpoints(resumed=True), checkpoint(tmp_path, "b"))
    assert newest(bucket.checkpoints(), tmp_path) == "b"
    upload(bucket.checkpoints(keep=1), checkpoint(tmp_path, "c"))
    assert newest(bucket.checkpoints(), tmp_path) == "c"
    kept = sorted(path[:16] for path in bucket.objects())
    assert kept == ["a/run-001/000003", "a/run-001/000004", "a/run-002/000001"]  # keep is of one run


def test_prefixes_do_not_see_each_other(tmp_path: Path) -> None:
    bucket = Bucket()
    upload(bucket.checkpoints(prefix="a"), checkpoint(tmp_path, "a"))
    assert newest(bucket.checkpoints(prefix="b"), tmp_path) is None
    upload(bucket.checkpoints(prefix="a/b"), checkpoint(tmp_path, "b"))
    assert newest(bucket.checkpoints(prefix="a"), tmp_path) == "a"


def test_the_newest_of_each_kind_are_kept(tmp_path: Path) -> None:
    bucket = Bucket()
    store = bucket.checkpoints(keep=2)
    for order, name in enumerate(("best", *(f"generation-{n}" for n in (1, 3, 4, 5))), 1):
        upload(store, checkpoint(tmp_path, str(order), f"{name}.ckpt"), order)
    assert sorted(path.split("/")[2][:6] for path in bucket.objects()) == ["000001", "000004", "000005"]


def test_a_store_that_keeps_fewer_bytes_is_found_out(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.fault = lambda call, path: bucket.store[f"/{path}"].truncate(500) if call == "stored" else None
    with pytest.raises(StoreError, match="the bucket has 500 of 1,000 bytes"):
        upload(bucket.checkpoints(), checkpoint(tmp_path, "a"))


@pytest.mark.parametrize("damage", ["byte", "short", "gone"])
def test_of_a_damaged_one_it_is_warned_and_the_one_before_is_taken(damage: str, tmp_path: Path) -> None:
    bucket = Bucket()
    store = bucket.checkpoints()
    for order, text in enumerate("ab", 1):
        upload(store, checkpoint(tmp_path, text), order)
    first, victim = sorted(bucket.store)
    if damage == "gone":  # after it was listed
        bucket.open = lambda path, *args, **options: (  # type: ignore[method-assign]
            MemoryFileSystem.open(bucket, "bucket/gone" if path in victim else path, *args, **options)
        )
    elif damage == "short":
        bucket.store[victim].truncate(10)
    else:
        bucket.store[victim].getbuffer()[0] = 0
    warned = newest(bucket.checkpoints(), tmp_path)
    assert warned is not None
    assert warned.startswith("a cloud: run-001/000002-")
    assert warned.endswith("; taking the one before")
    assert [path.name for path in (tmp_path / "fetched").iterdir()] == ["last.ckpt"]
    bucket.store[first].getbuffer()[0] = 0
    with pytest.raises(UserError, match="none of 2 checkpoints in memory://bucket/a is whole; leave out --ckpt_path"):
        newest(bucket.checkpoints(), tmp_path)


def test_a_file_of_any_size_has_parts_that_s3_takes() -> None:
    assert part_size(1000) == checkpoint_store.PART
    assert part_size(800 * 2**30) * 10_000 >= 800 * 2**30
    assert part_size(800 * 2**30) % 2**18 == 0


def test_an_error_is_named_without_its_text() -> None:
    cause = OSError(5, SECRET)
    error = PermissionError(SECRET)
    error.__cause__ = cause
    assert describe_error(error) == "PermissionError, Input/output error"
    cause.response = {"Error": {"Code": "AccessDenied", "Message": SECRET}}  # type: ignore[attr-defined]
    assert describe_error(error) == "PermissionError, AccessDenied"
    cause.response = {"Error": {"Code": f"https://{SECRET}"}}  # type: ignore[attr-defined]
    assert SECRET not in describe_error(error)
    assert describe_error(ValueError(SECRET)) == "ValueError"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(("CLOUD_", "AWS_", "GOOGLE_", "STORAGE_")):
            monkeypatch.delenv(name)
    return monkeypatch


def test_settings_come_before_the_environment(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setattr("eigen2.runtime.bucket.object_store._library", lambda provider: None)
    environment.setenv("CLOUD_PROVIDER", "GCS")
    environment.setenv("CLOUD_BUCKET", "mine")
    assert resolve(None, None, None, tmp_path / "run-7") == Place("gs", "mine", "run-7")
    assert resolve("s3", "yours", "team/a", tmp_path) == Place("s3", "yours", "team/a")


@pytest.mark.parametrize(
    ("given", "variables", "said"),
    [
        ((None, "mine", None), {}, "needs a provider: set its key provider, or CLOUD_PROVIDER, to s3 or gs"),
        (("s3", None, None), {}, "needs a bucket: set its key bucket, or CLOUD_BUCKET"),
        (("s3", f"https://key:{SECRET}@host/mine", None), {}, "needs a bucket"),
        (("s3", "mine", f"a?token={SECRET}"), {}, "CheckpointUploader.prefix must be letters"),
        (("s3", "mine", "../other"), {}, "CheckpointUploader.prefix must be letters"),
        (("gs", "mine", None), {"GOOGLE_APPLICATION_CREDENTIALS": f'{{"private_key": "{SECRET}"}}'}, "does not name"),
    ],
)
def test_a_place_that_cannot_be_is_refused_without_repeating_it(
    given: tuple[str | None, ...],
    variables: dict[str, str],
    said: str,
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    with pytest.raises(UserError, match=said) as refused:
        resolve(*given, tmp_path)
    assert SECRET not in str(refused.value)


def test_without_the_library_the_extra_is_named(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"needs s3fs for provider s3: pip install 'eigen2\[cloud\]'"):
        resolve("s3", "mine", None, tmp_path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


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
def line(request: pytest.FixtureRequest, environment: pytest.MonkeyPatch) -> Iterator[tuple[Line, CheckpointStore]]:
    """A line to a server, and a store in an empty bucket at its end; between tries nobody waits."""
    environment.setattr(checkpoint_store, "PART", PART)
    name = f"bucket-{abs(hash(request.node.name)) % 10**9}"
    place = Place(request.param, name, "run")
    if place.provider == "s3":
        port = request.getfixturevalue("moto_port")
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        environment.setenv("AWS_SESSION_TOKEN", f"session-{SECRET}")
        variable = "AWS_ENDPOINT_URL_S3"
    else:
        port = request.getfixturevalue("emulator_port")
        environment.setattr("gcsfs.retry.random.random", lambda: 0.0)
        environment.setattr("gcsfs.retry.asyncio", Impatient())
        variable = "STORAGE_EMULATOR_HOST"
    with line_to(port) as opened:
        environment.setenv(variable, f"http://127.0.0.1:{opened.port}")
        filesystem = connect(place, 2.0)
        filesystem.mkdir(name)
        yield opened, CheckpointStore(lambda: filesystem, place, keep=2)


class Impatient:
    """asyncio for a library that waits for seconds between tries."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        """At once."""


def big(folder: Path, text: str) -> Path:
    """More than two parts, most of it a hole."""
    path = folder / "last.ckpt"
    path.write_bytes(text.encode() * 1000)
    os.truncate(path, 2 * PART + 1000)
    return path


def test_real_servers_take_parts_compare_list_delete_and_give_back(
    line: tuple[Line, CheckpointStore], tmp_path: Path
) -> None:
    _, store = line
    for order, text in enumerate("abc", 1):
        upload(store, big(tmp_path, text), order)
    assert newest(store, tmp_path) == "c"
    assert (tmp_path / "fetched" / "last.ckpt").read_bytes() == (tmp_path / "last.ckpt").read_bytes()
    assert [entry.number for entry in store.entries()] == [2, 3]


def test_checksums_travel_with_the_bytes(line: tuple[Line, CheckpointStore], tmp_path: Path) -> None:
    """The server compares what S3's client sends along; Google's client compares what the server answers."""
    opened, store = line
    for order, path in enumerate((checkpoint(tmp_path, "small", "small.ckpt"), big(tmp_path, "b")), 1):
        upload(store, path, order)
    if store.place.provider == "s3":
        assert opened.sent.lower().count(b"\r\nx-amz-checksum-crc32:") >= 4  # the small file, and three parts
    else:
        assert store._fs.consistency == "md5"


@pytest.mark.parametrize(("mode", "failures"), [("error", 4), ("cut", 2), ("stall", 1), ("dead", 4)])
def test_uploads_come_through_a_line_that_fails_for_a_time(
    mode: str, failures: int, line: tuple[Line, CheckpointStore], tmp_path: Path
) -> None:
    opened, store = line
    upload(store, checkpoint(tmp_path, "a"))
    opened.fail(mode, failures)
    path = big(tmp_path, "b")
    retry(lambda: upload(store, path, 2), attempts=8, backoff_s=0.0)
    assert opened.faults == failures
    assert newest(store, tmp_path) == "b"
    assert (tmp_path / "fetched" / "last.ckpt").read_bytes() == path.read_bytes()


def test_half_an_upload_is_nothing_and_the_one_before_stays(line: tuple[Line, CheckpointStore], tmp_path: Path) -> None:
    opened, store = line
    upload(store, checkpoint(tmp_path, "a"))
    opened.whole = PART + PART // 2
    opened.fail("cut")
    with pytest.raises(Exception) as failed:
        upload(store, big(tmp_path, "b"), 2)
    assert SECRET not in describe_error(failed.value)
    assert opened.faults
    opened.mode = "open"
    assert newest(store, tmp_path) == "a"


def test_no_credential_is_logged_or_printed_at_any_level(
    line: tuple[Line, CheckpointStore],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened, store = line
    with caplog.at_level(logging.DEBUG):
        upload(store, checkpoint(tmp_path, "a"))
        opened.fail("error")
        with pytest.raises(Exception) as failed:
            upload(store, checkpoint(tmp_path, "b"), 2)
    said = caplog.text + "".join(capsys.readouterr()) + describe_error(failed.value)
    for secret in (SECRET, "AKIAEXAMPLE", "Signature", "Bearer", "upload_id"):
        assert secret not in said
    if store.place.provider == "s3":  # the oracle can fail: the line saw them
        assert f"session-{SECRET}".encode() in opened.sent


class Tokens(http.server.BaseHTTPRequestHandler):
    """What Google's token service answers."""

    def do_POST(self) -> None:
        answer = json.dumps({"access_token": SECRET, "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("line", ["gs"], indirect=True)
def test_the_credentials_of_google_application_credentials_are_used(
    line: tuple[Line, CheckpointStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives import serialization as form

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()).decode()
    opened, store = line
    with http.server.HTTPServer(("127.0.0.1", 0), Tokens) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        account = {
            "type": "service_account",
            "project_id": "p",
            "private_key_id": "k",
            "private_key": text,
            "client_email": "a@p.iam.gserviceaccount.com",
            "token_uri": f"http://127.0.0.1:{server.server_port}/token",
        }
        (tmp_path / "key.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        upload(CheckpointStore(lambda: connect(store.place, 2.0), store.place), checkpoint(tmp_path, "a"))
        server.shutdown()
    assert f"authorization: bearer {SECRET.lower()}".encode() in opened.sent.lower()


@pytest.mark.slow
@pytest.mark.parametrize("line", ["s3"], indirect=True)
def test_a_fresh_machine_resumes_from_the_bucket(
    line: tuple[Line, CheckpointStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same command in a folder of the same name elsewhere goes on where the first machine died."""
    _, store = line
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
    local = tmp_path / "second" / "run" / "checkpoints" / "last.ckpt"
    fetched = store.fetch_newest(tmp_path / "third", print)
    assert fetched is not None
    assert fetched.read_bytes() == (local.parent / fetched.name).read_bytes()
