"""Checkpoints are whole files that hold no code."""

import contextlib
import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from eigen2.cli.main import main
from eigen2.erl.module import ERLModule
from eigen2.errors import TERMINATED, StoppedBySignal, UserError
from eigen2.files import Folder
from eigen2.runtime.checkpoint import (
    ChampionCheckpoint,
    DurableCheckpointIO,
    GenerationCheckpoint,
    earlier_checkpoints,
    keep_earlier,
    newest_intact,
    save_archive,
    write_part,
)
from eigen2.runtime.checksums import generation_of, verify_checksum, write_checksum
from tests.command import eigen2, in_fork
from tests.erl.probe import AIM, Probe, ProbeRollouts, make_trainer


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    io, path = DurableCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint({"a": torch.ones(3), "pytorch-lightning_version": "2.0.0"}, path)

    def fail(*arguments: object) -> None:
        raise OSError("no space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(os, name, fail)
            with pytest.raises(OSError, match="no space"):
                io.save_checkpoint({"a": torch.zeros(3)}, path)
        assert list(tmp_path.iterdir()) == [path]
        assert torch.equal(io.load_checkpoint(path)["a"], torch.ones(3))


def test_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        DurableCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    finally:
        os.umask(before)
    assert (tmp_path / "last.ckpt").stat().st_mode & 0o777 == 0o640


def damage(path: Path, kind: str) -> None:
    """Replace a file by a damaged one; a hard link to it keeps the content."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "flipped": bytes(content)}[kind])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("empty", "it is empty"), ("cut", "its end is missing, or eigen2.*"), ("flipped", "its checksum does not match")],
)
def test_a_damaged_file_is_named(kind: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    DurableCheckpointIO().save_checkpoint({"a": torch.ones(300)}, path)
    damage(path, kind)
    with pytest.raises(UserError, match=rf"^checkpoint .*last\.ckpt cannot be read \({reason}\); is it damaged"):
        DurableCheckpointIO().load_checkpoint(path)


@pytest.mark.parametrize("version", [{}, {"pytorch-lightning_version": "1.a"}, {"pytorch-lightning_version": "0.1"}])
def test_a_file_of_no_known_version_of_lightning_is_named(version: dict[str, str], tmp_path: Path) -> None:
    """Lightning would change what it takes for an old checkpoint, and fail."""
    DurableCheckpointIO().save_checkpoint({"a": torch.ones(300), **version}, tmp_path / "last.ckpt")
    with pytest.raises(
        UserError, match=r"^checkpoint .*last\.ckpt cannot be read \(.*\); is it damaged\? give another one"
    ):
        DurableCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")


def checkpoints(folder: Path, *generations: int) -> list[Path]:
    """Write `last.ckpt` for the last of `generations`, and earlier files for the others; return them newest first."""
    io, last = DurableCheckpointIO(), folder / "last.ckpt"
    for generation in generations:
        with contextlib.suppress(FileNotFoundError):
            keep_earlier(last)
        io.save_checkpoint({"epoch": generation, "a": torch.ones(300)}, last)
    return [last, *earlier_checkpoints(folder)]


def test_earlier_checkpoints_keep_their_generation_and_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = checkpoints(tmp_path, 8, 9, 10)
    assert [path.name for path in files] == ["last.ckpt", "generation-00009.ckpt", "generation-00008.ckpt"]
    assert [verify_checksum(path) for path in files] == [10, 9, 8]

    def no_links(*paths: object, **options: object) -> None:
        raise OSError("operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    assert [verify_checksum(path) for path in checkpoints(tmp_path, 11)] == [11, 10, 9, 8]
    assert len(list(tmp_path.iterdir())) == 4


MINE = (
    "generation-00002-good.ckpt",
    "generation-2.ckpt.bak",
    ".mine.ckpt.draft",
    "generation-x.ckpt",
    ".last.ckpt.old",
)


def test_files_of_a_user_beside_checkpoints_and_runs_stay(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    root = ("test-1-old", "test-mine", "memory-note.csv", "report.html.bak", "notes.txt")
    for path in (*(folder / name for name in MINE), *(tmp_path / name for name in root)):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    options = ["--config", "tests/small.yaml", "--trainer.max_epochs", 1, "--trainer.default_root_dir", tmp_path]
    done = eigen2("fit", *options)
    assert done.returncode == 0, done.stderr
    moved = tmp_path / "earlier" / "1" / "checkpoints"  # a folder of that name is a run's
    assert {path.name for path in moved.iterdir()} == {*MINE}
    for name in MINE:
        (folder / name).write_text("mine")
    (folder / ".last.ckpt.draft").write_text("torn")
    assert eigen2("fit", *options, "--trainer.max_epochs", 2, "--ckpt_path", "last").returncode == 0
    files = {"last.ckpt", "best.ckpt", "generation-00000.ckpt"}
    assert {path.name for path in folder.iterdir()} == files | {*MINE}
    assert all((folder / name).read_text() == "mine" for name in MINE)
    assert eigen2("fit", *options).returncode == 0
    assert all((tmp_path / name).read_text() == "mine" for name in root)
    assert {path.name for path in (tmp_path / "earlier").iterdir()} == {"1", "2"}


def test_the_newest_intact_checkpoint_is_found_and_damaged_ones_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert newest_intact(tmp_path / "none") is None
    last, before, oldest = checkpoints(tmp_path, 8, 9, 10)
    assert newest_intact(tmp_path) == last
    assert not caplog.records
    for path in (last, before):
        damage(path, "flipped")
    assert newest_intact(tmp_path) == oldest
    assert last.exists(), "who only reads leaves it there"
    caplog.clear()
    assert newest_intact(tmp_path, put_aside=True) == oldest
    named = [record.getMessage().split(" is damaged")[0] for record in caplog.records]
    assert named == [f"checkpoint {last}", f"checkpoint {before}"]
    # the damaged file does not become an earlier checkpoint
    assert (tmp_path / "damaged.ckpt").exists()
    assert not last.exists()
    damage(oldest, "empty")
    with pytest.raises(UserError, match=r"^all 2 checkpoints in .* are damaged; --ckpt_path best"):
        newest_intact(tmp_path)


def test_a_command_that_is_repeated_does_not_start_anew_where_the_only_checkpoint_is_damaged(tmp_path: Path) -> None:
    (last,) = checkpoints(tmp_path, 0)
    damage(last, "flipped")
    for _ in range(2):
        with pytest.raises(UserError, match=r"^all 1 checkpoints in .* are damaged; --ckpt_path best"):
            newest_intact(tmp_path, put_aside=True)


def test_an_earlier_checkpoint_that_cannot_be_deleted_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(folder: Folder, name: str) -> None:
        if name.startswith("generation-") and folder.file(name).exists():
            raise OSError(errno.EIO, "Input/output error")
        folder.file(name).unlink(missing_ok=True)

    monkeypatch.setattr(Folder, "delete", refuse)
    main(["fit", "--config", "tests/small.yaml", f"--trainer.default_root_dir={tmp_path}", "--trainer.max_epochs=3"])
    said = [record.getMessage() for record in caplog.records if "cannot delete" in record.getMessage()]
    assert said == [f"cannot delete {tmp_path / 'checkpoints' / 'generation-00000.ckpt'}: Input/output error"]
    assert verify_checksum(tmp_path / "checkpoints" / "last.ckpt") == 2


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, *_ = checkpoints(tmp_path, 8, 9)

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("eigen2.runtime.checkpoint.verify_checkpoint", fail)
    with pytest.raises(
        UserError, match=r"last\.ckpt cannot be read \(Input/output error\): try again, or give an earlier"
    ):
        newest_intact(tmp_path, put_aside=True)
    assert last.exists()


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "run"),)

    torch.save({"a": Payload()}, tmp_path / "evil.ckpt")
    write_checksum(tmp_path / "evil.ckpt", 1)  # intact, but malicious
    with pytest.raises(UserError, match="cannot be read"):
        DurableCheckpointIO().load_checkpoint(tmp_path / "evil.ckpt", weights_only=False)
    assert not (tmp_path / "run").exists()


def fill_disk(path: Path) -> set[str]:
    """Write a checkpoint to a disk that takes ever more of it; return the errors' texts."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    io, told = DurableCheckpointIO(), set[str]()
    checkpoint = {"epoch": 1, "large": torch.zeros(20_000), **{str(i): torch.zeros(100) for i in range(30)}}
    io.save_checkpoint(checkpoint, path)
    before = path.read_bytes()
    for size in (*range(0, 4000, 97), *range(4000, len(before), 3001), *range(len(before) - 100, len(before), 7)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        with pytest.raises(OSError) as error:
            io.save_checkpoint({**checkpoint, "large": torch.ones(20_000)}, path)
        told.add(str(error.value))
        assert path.read_bytes() == before, size
        assert [*path.parent.iterdir()] == [path], size
    return told


def test_a_disk_that_takes_any_part_of_a_file_raises_oserror_and_keeps_the_old_one(tmp_path: Path) -> None:
    assert in_fork(fill_disk, tmp_path / "last.ckpt") == {"[Errno 27] File too large"}


def test_a_run_resumed_from_an_earlier_generation_leaves_none_of_the_abandoned_ones(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"

    def fit(epochs: int, ckpt_path: Path | None = None) -> list[int]:
        keeper = GenerationCheckpoint(keep=3)
        settings = {"default_root_dir": tmp_path, "enable_checkpointing": True}
        trainer = make_trainer(keeper, epochs=epochs, **settings)
        trainer.fit(ERLModule(population_size=2, gradient_steps=1), ProbeRollouts(AIM), ckpt_path=ckpt_path)
        return [verify_checksum(path) for path in (folder / "last.ckpt", *earlier_checkpoints(folder))]

    assert fit(6) == [5, 4, 3]
    keeper = GenerationCheckpoint(keep=3)
    trainer = Trainer(fast_dev_run=True, default_root_dir=tmp_path, callbacks=keeper, accelerator="cpu")
    trainer.fit(ERLModule(population_size=2, gradient_steps=1), ProbeRollouts(AIM))
    assert len(earlier_checkpoints(folder)) == 2  # a trial deletes nothing
    assert fit(5, folder / "generation-00003.ckpt") == [4, 3]  # of the 4 and 5 that were, none is left
    assert fit(7, folder / "last.ckpt") == [6, 5, 4]


def test_the_champion_of_a_branch_that_was_left_is_replaced(tmp_path: Path) -> None:
    """Its score is none of the generations that are played again, in which no agent may reach it."""
    best = tmp_path / "checkpoints" / "best.ckpt"
    still = Probe(lambda x, action, step: 0 * action)  # whose first champion stays

    def fit(epochs: int, resumed: str | None = None) -> int:
        callbacks = ChampionCheckpoint(), GenerationCheckpoint(keep=3)
        trainer = make_trainer(*callbacks, epochs=epochs, default_root_dir=tmp_path, enable_checkpointing=True)
        module, path = ERLModule(population_size=2, gradient_steps=1), resumed and best.with_name(resumed)
        trainer.fit(module, ProbeRollouts(still), ckpt_path=path, weights_only=True)
        return generation_of(best)

    assert fit(3) == 0
    written = best.read_bytes()
    assert fit(4, "generation-00001.ckpt") == 0
    assert best.read_bytes() == written
    for generation, kept in ((1, 1), (2, 2), (3, 2)):
        save_archive({"of": "another branch"}, best, generation)
        assert fit(4, "generation-00001.ckpt") == kept
        content = torch.load(best, weights_only=True)
        assert ("of" in content) == (generation == 1)


@pytest.mark.parametrize("plugins", [[], [AsyncCheckpointIO(DurableCheckpointIO())]])
def test_checkpoints_without_checksums_or_in_the_background_are_refused(plugins: list[Any], tmp_path: Path) -> None:
    """The first would be taken for damaged; an error of the others is raised when the next one is written."""
    trainer = make_trainer(ChampionCheckpoint(), default_root_dir=tmp_path, enable_checkpointing=True, plugins=plugins)
    with pytest.raises(UserError, match=r"^ChampionCheckpoint needs eigen2.DurableCheckpointIO\(\) among"):
        trainer.fit(ERLModule(population_size=2, gradient_steps=1), ProbeRollouts(AIM))


def test_another_logger_does_not_move_the_checkpoints(tmp_path: Path) -> None:
    settings = {"default_root_dir": tmp_path, "enable_checkpointing": True}
    trainer = make_trainer(GenerationCheckpoint(), logger=CSVLogger(tmp_path / "elsewhere"), **settings)
    trainer.fit(ERLModule(population_size=2, gradient_steps=1), ProbeRollouts(AIM))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["last.ckpt"]


def test_an_error_of_a_logger_is_none_of_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Offline(CSVLogger):
        def after_save_checkpoint(self, checkpoint_callback: object) -> None:
            raise ConnectionError("no network")

    settings = {"default_root_dir": tmp_path, "enable_checkpointing": True}
    trainer = make_trainer(GenerationCheckpoint(), logger=Offline(tmp_path), **settings)
    with pytest.raises(ConnectionError):
        trainer.fit(ERLModule(population_size=2, gradient_steps=1), ProbeRollouts(AIM))
    assert verify_checksum(tmp_path / "checkpoints" / "last.ckpt") == 0
    assert "cannot write" not in caplog.text


@pytest.mark.parametrize("name", [None, "elsewhere"])
def test_the_last_checkpoint_is_found_whatever_the_logger(name: str | None, tmp_path: Path) -> None:
    """Lightning looks for it before setup, where the first logger writes."""
    settings = {"default_root_dir": tmp_path, "enable_checkpointing": True}
    settings["logger"] = False if name is None else CSVLogger(tmp_path / name)
    for epochs, first in ((2, 0), (4, 2)):
        begun = list[int]()
        counter = LambdaCallback(on_train_epoch_start=lambda trainer, _, seen=begun: seen.append(trainer.current_epoch))
        trainer = make_trainer(GenerationCheckpoint(), counter, epochs=epochs, **settings)
        trainer.fit(ERLModule(population_size=2, gradient_steps=1), ProbeRollouts(AIM), ckpt_path="last")
        assert begun == [first, first + 1]


def test_a_signal_is_not_taken_for_a_damaged_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do other handlers of errors see it."""
    DurableCheckpointIO().save_checkpoint({"a": torch.ones(3)}, tmp_path / "last.ckpt")

    def stop(path: Path) -> int:
        raise StoppedBySignal("stopped by SIGTERM", TERMINATED)

    monkeypatch.setattr("eigen2.runtime.checkpoint.verify_checksum", stop)
    with pytest.raises(StoppedBySignal, match="SIGTERM"):
        DurableCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")


def test_parts_are_kept_for_checkpoints_of_any_name(tmp_path: Path) -> None:
    part = write_part(tmp_path / "final.pt", {"weights": torch.ones(2)}, 0, 1)
    unused = write_part(tmp_path / "final.pt", {"weights": torch.zeros(2)}, 0, 1)
    DurableCheckpointIO().save_checkpoint({"epoch": 1, "parts": [part]}, tmp_path / "final.pt")
    assert [path.stem for path in (tmp_path / "parts").iterdir()] == [part] != [unused]
    DurableCheckpointIO().save_checkpoint({"epoch": 2}, tmp_path / "last.ckpt")
    assert [path.stem for path in (tmp_path / "parts").iterdir()] == [part]
