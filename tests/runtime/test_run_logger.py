"""The logger of a run: its files hold the generations of its fits, and nothing else."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.demos.boring_classes import BoringModel
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eigen2.erl.module import ERLModule
from eigen2.runtime.checkpoint import GenerationCheckpoint
from eigen2.runtime.logger import EventFile, RunLogger
from tests.erl.probe import AIM, ProbeRollouts, make_trainer


class Logging(BoringModel):
    """Logs results as a module of eigen2 does."""

    def validation_step(self, batch: object, batch_idx: int) -> None:
        self.log("champion/validation_fitness", 1.0)

    test_step = validation_step


def fit(logger: RunLogger, *generations: int) -> None:
    """Log generations as a fit does."""
    for generation in generations:
        logger.log_metrics({"loss": generation + 0.5}, generation)
        logger.save()
    logger.finalize("success")


def rows(root: Path) -> dict[int, float]:
    """Return the losses of metrics.csv by generation, which TensorBoard shows too."""
    header, *lines = (root / "metrics.csv").read_text().splitlines()
    assert header == "generation,loss"
    table = {int(generation): float(loss) for generation, loss in (line.split(",") for line in lines)}
    shown = EventAccumulator(str(root / "tensorboard")).Reload()
    assert shown.Tags()["scalars"] == ["loss"]
    assert {event.step: event.value for event in shown.Scalars("loss")} == table
    return table


def test_validate_and_test_leave_the_curves_of_the_fit(tmp_path: Path) -> None:
    fit(RunLogger(str(tmp_path)), 0, 1)
    trainer = Trainer(
        default_root_dir=tmp_path,
        logger=RunLogger(str(tmp_path)),
        limit_val_batches=1,
        limit_test_batches=1,
        **{"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False},
    )
    assert trainer.test(Logging(), verbose=False) == [{"champion/validation_fitness": 1.0}]
    trainer.validate(Logging(), verbose=False)
    assert rows(tmp_path) == {0: 0.5, 1: 1.5}


def test_one_logger_serves_several_fits(tmp_path: Path) -> None:
    logger = RunLogger(str(tmp_path))
    fit(logger, 0, 1)
    fit(logger, 2, 3)
    assert rows(tmp_path) == {0: 0.5, 1: 1.5, 2: 2.5, 3: 3.5}
    fit(logger, 1, 2)  # resumed from an earlier checkpoint
    assert rows(tmp_path) == {0: 0.5, 1: 1.5, 2: 2.5}
    fit(logger, 0)
    assert rows(tmp_path) == {0: 0.5}


def test_points_that_the_disk_refused_are_not_drawn_again_by_a_fit_from_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, write = RunLogger(str(tmp_path)), EventFile.write

    def refuse(file: EventFile, event: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(EventFile, "write", refuse)
    fit(logger, 0, 1, 2)
    monkeypatch.setattr(EventFile, "write", write)
    fit(logger, 1)
    assert rows(tmp_path) == {0: 0.5, 1: 1.5}


def test_a_folder_that_is_deleted_leaves_no_file_open(tmp_path: Path) -> None:
    logger = RunLogger(str(tmp_path))
    opened = []
    for generation in range(3):
        shutil.rmtree(tmp_path / "tensorboard", ignore_errors=True)
        logger.log_metrics({"loss": 1.0}, generation)
        logger.save()
        opened.append(len(os.listdir("/dev/fd")))
    assert opened == opened[:1] * 3
    logger.finalize("success")


def fit_by_script(root: Path, epochs: int, checkpoint: Path | None = None) -> None:
    """Fit with a Trainer of one's own; weights and data are those of tests."""
    options: dict[str, Any] = {"logger": RunLogger(str(root)), "default_root_dir": root, "enable_checkpointing": True}
    trainer = make_trainer(GenerationCheckpoint(), epochs=epochs, **options)
    module, data = ERLModule(population_size=2, gradient_steps=3), ProbeRollouts(AIM)
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)


def test_a_new_fit_by_a_script_moves_the_run_before_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "run"
    for epochs, path in ((1, None), (3, root / "checkpoints" / "last.ckpt"), (1, None)):
        fit_by_script(root, epochs, path)
    assert capsys.readouterr().out.count(f"An earlier run in {root} was moved to {root / 'earlier' / '1'}.") == 1
    for folder, generations in ((root / "earlier" / "1", 3), (root, 1)):
        assert len(pd.read_csv(folder / "metrics.csv")) == generations
        assert (folder / "checkpoints" / "last.ckpt").exists()
        assert (folder / "config.yaml").exists()


def test_an_earlier_run_that_goes_on_moves_the_later_one_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, earlier = tmp_path / "run", tmp_path / "run" / "earlier"
    for seed in ("7", "8"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        fit_by_script(root, 1)
    fit_by_script(root, 2, earlier / "1" / "checkpoints" / "last.ckpt")
    shutil.copy(root / "checkpoints" / "last.ckpt", tmp_path / "copy.ckpt")
    fit_by_script(root, 3, tmp_path / "copy.ckpt")  # of the very run
    assert sorted(path.name for path in earlier.iterdir()) == ["1", "2"]
    for folder, seed, generations in ((root, 7, [1, 2]), (earlier / "1", 7, [0]), (earlier / "2", 8, [0])):
        assert json.loads((folder / "run.json").read_text())["seed"] == seed
        assert pd.read_csv(folder / "metrics.csv")["generation"].tolist() == generations
        assert (folder / "checkpoints" / "last.ckpt").exists()


def test_lightnings_monitors_leave_generations_alone(tmp_path: Path) -> None:
    """Their steps are batches: the module's row of generation 0 came after one of step 1."""
    root = tmp_path / "run"
    module, data = ERLModule(population_size=2, gradient_steps=3), ProbeRollouts(AIM)
    monitors = [LearningRateMonitor("step"), LearningRateMonitor("epoch")]
    make_trainer(*monitors, epochs=3, logger=RunLogger(str(root)), default_root_dir=root).fit(module, data)
    table = pd.read_csv(root / "metrics.csv")
    assert table["generation"].tolist() == [0, 1, 2]
    assert table["fitness/mean"].notna().all()
    assert not [name for name in table if name.startswith("lr-")], "a point of the first generation alone"
