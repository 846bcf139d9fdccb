"""Trainings of a run's configuration with other seeds, for `test --seeds`, and the ensemble of their champions."""

import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from eigen2.cli.checkpoint import ROOT, foreign_code
from eigen2.core.export import ExportedChampion, combine, load, read_checkpoint
from eigen2.core.saved_run import saved_part, saved_run
from eigen2.errors import UserError
from eigen2.files import Folder, writing
from eigen2.runtime.checkpoint import BEST, LAST
from eigen2.runtime.checksums import DamagedFile, generation_of
from eigen2.runtime.run_folder import generations_of
from eigen2.runtime.signals import handling, stopped_by
from eigen2.runtime.yaml_files import yaml_line
from eigen2.sweep.trial import last_line, start

FOLDER = "seeds"  # in a run's folder, with a run's folder for each other seed
CALLBACKS = (
    "callbacks.GarbageCollector",
    "eigen2.runtime.checkpoint.ChampionCheckpoint",
    "eigen2.runtime.checkpoint.GenerationCheckpoint",
)
POLL_S = 1.0  # seconds between checks of a training


def ensemble(checkpoint: Path) -> ExportedChampion:
    """Return the ensemble of a checkpoint's champion and those of all other seeds in its run's folder."""
    folder = checkpoint.parent.parent / FOLDER
    files = sorted(folder.glob("*/checkpoints/best.ckpt"))
    if not files:
        raise UserError(f"there are no trainings with other seeds in {folder}: test --seeds 5 makes them")
    generations = generations_of(str(checkpoint))
    for file in files:
        if not _finished(file.parent, generations):
            raise UserError(
                f"the training in {file.parent.parent} has not reached the run's {generations} generations: repeat "
                "test --seeds, or delete the folder"
            )
    return combine([load(file) for file in (checkpoint, *files)])


def train_seeds(checkpoint: Path, seeds: int, resources: Mapping[str, Mapping[str, Any]]) -> list[ExportedChampion]:
    """Train the fit of a checkpoint with other seeds until there are `seeds` of it; return the other champions.

    The seeds that follow the fit's own train one after the other in processes of their own, each in `seeds/SEED` of the
    run's folder, for as many generations as the run; one that was stopped goes on, and one that is there is left as it
    is. `resources` are settings by group, such as devices, that count in place of the run's; their `data.path` counts
    where the run's prices are no longer. Raises UserError for a training that fails, and StoppedBySignal when a signal
    stops one.
    """
    root, generations = checkpoint.parent.parent, generations_of(str(checkpoint))
    if checkpoint.parent.name != "checkpoints" or not generations:
        raise UserError(f"{checkpoint} is in no run's folder, where the other seeds are: give best or last of a run")
    config = saved_part(saved_run(read_checkpoint(checkpoint)), "config")
    own = int(config["seed_everything"])
    folders = [root / FOLDER / str(seed) for seed in range(own + 1, own + seeds)]
    for folder in folders:
        if not _finished(folder / "checkpoints", generations):
            _train(folder, config, generations, resources)
    champions = [load(each) for each in (checkpoint, *(folder / "checkpoints" / "best.ckpt" for folder in folders))]
    combine(champions)  # refuses those of other settings
    return champions[1:]


def _finished(checkpoints: Path, generations: int) -> bool:
    """Return whether a training has a champion and has saved its last generation, unless its `last.ckpt` is gone."""
    best, last = checkpoints / BEST, checkpoints / LAST
    try:
        saved = generation_of(last) + 1 if last.exists() else generations_of(str(best))
    except (DamagedFile, OSError):
        return False
    return best.is_file() and saved >= generations


def _train(
    folder: Path, config: Mapping[str, Any], generations: int, resources: Mapping[str, Mapping[str, Any]]
) -> None:
    """Start or resume the training in a folder named by its seed, and wait for its end."""
    if (code := foreign_code(config)) is not None:
        run = folder.parent.parent
        raise UserError(
            f"the fit used {code}, which is not eigen2's own, and training with seed {folder.name} would run its code; "
            f"if you trust it, run fit --config {run / 'config.yaml'} --seed_everything {folder.name} --{ROOT} {folder}"
        )
    callbacks = [{"class_path": path} for path in CALLBACKS]
    trainer = {**config["trainer"], "max_epochs": generations, "callbacks": callbacks, "enable_progress_bar": False}
    trainer |= resources.get("trainer", {})
    settings = {**config, **resources, "trainer": trainer, "seed_everything": int(folder.name)}
    settings["data"] = {name: value for name, value in config["data"].items() if name != "cache_dir"}
    if (prices := config["data"].get("path")) is not None and not Path(prices).exists():  # they have moved
        if (moved := resources.get("data", {}).get("path")) is None:
            raise UserError(f"the fit read prices from {prices}, which does not exist here; give --data.path")
        settings["data"]["path"] = moved
    args = ["--config", yaml_line(settings)]
    print(f"seed {folder.name:<8}trains {generations} generations, see {folder / 'output.txt'}", flush=True)
    with writing(f"to {folder}", "make it writable, and test again"):
        running = Folder(folder).lock(".running")
    if running is None:
        raise UserError(f"another process trains in {folder}: wait for it, and test again")
    stops, sent = list[signal.Signals](), 0
    with running, handling(stops.append):
        process = start(Folder(folder), args, running)
        while process.poll() is None:
            for _ in range(sent, len(stops)):  # as often as this process was told to
                process.terminate()
            sent = len(stops)
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    if stops:
        raise stopped_by(stops[0])
    if process.returncode:
        raise UserError(f"the training with seed {folder.name} failed: {last_line(folder)}; see {folder}/output.txt")
