"""A checkpoint of somebody else reads and writes no file outside the run's folder."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from eigen2.runtime.checkpoint import DurableCheckpointIO
from tests.command import eigen2
from tests.runs import contents

SMALL = ["--config", "tests/small.yaml", "--trainer.max_epochs", 3]
GROUPS = ("callbacks", "hyper_parameters", "eigen2.settings", "eigen2.config", "eigen2.inference", "eigen2.data_used")


def strings(value: Any, place: str = "") -> Iterator[str]:
    """Yield the places of all texts in nested dictionaries and lists."""
    if isinstance(value, str):
        yield place
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        yield from strings(part, f"{place}.{key}" if place else str(key))


def altered(value: Any, text: str, chosen: Callable[[str], bool], place: str = "") -> Any:
    """Copy nested dictionaries and lists with another text in the chosen places."""
    if isinstance(value, str):
        return text if chosen(place) else value
    below = f"{place}." if place else ""
    if isinstance(value, dict):
        return {key: altered(part, text, chosen, f"{below}{key}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(altered(part, text, chosen, f"{below}{i}") for i, part in enumerate(value))
    return value


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the checkpoint of a short run, with the paths that Lightning's callback would keep in it."""
    root = tmp_path_factory.mktemp("whole")
    done = eigen2("fit", *SMALL, "--trainer.max_epochs", 2, "--trainer.default_root_dir", root)
    assert done.returncode == 0, done.stderr
    checkpoint = DurableCheckpointIO().load_checkpoint(root / "checkpoints" / "last.ckpt")
    for state in (state for name, state in checkpoint["callbacks"].items() if "Checkpoint" in name):
        paths = ("best_model_path", "kth_best_model_path", "last_model_path", "dirpath", "owed")
        state |= dict.fromkeys(paths, "a path") | {"monitor": "a name"}
    return checkpoint


def check(
    whole: dict[str, Any],
    chosen: Callable[[str], bool],
    tmp_path: Path,
    thorough: bool = True,
    commands: Sequence[str] = ("fit", "validate", "test"),
) -> None:
    """Use the checkpoint with hostile texts; files beside the run's folder must stay."""
    outside, run = tmp_path / "outside", tmp_path / "run"
    for folder in (outside, run / "checkpoints"):
        folder.mkdir(parents=True)
    (outside / "keys").write_text("the only ones")
    (outside / "best.ckpt").write_text("somebody's")
    before = contents(outside)
    texts = (str(run / "checkpoints" / ".." / ".." / "outside" / "keys"), str(outside / "best.ckpt"), str(outside))
    for text in texts if thorough else texts[:1]:
        checkpoint = altered(whole, text, chosen)
        for state in checkpoint["callbacks"].values():
            # the folder that Lightning compares, and the file that it deletes once there is a better one
            state |= {"best_k_models": {text: torch.tensor(-1e9)}, "kth_value": torch.tensor(-1e9)}
            state |= {"best_model_score": torch.tensor(-1e9)} if "best_model_score" in state else {}
        # only a fit restores callbacks, and only callbacks get further texts
        for command in commands if text is texts[0] else commands[:1]:
            path = run / "checkpoints" / "last.ckpt"
            DurableCheckpointIO().save_checkpoint(checkpoint, path)
            done = eigen2(command, *SMALL, "--ckpt_path", path, "--trainer.default_root_dir", run)
            assert done.returncode in (0, 2), done.stderr
            assert "Traceback" not in done.stderr
        assert contents(outside) == before
        assert [*tmp_path.iterdir()] in ([outside, run], [run, outside])


@pytest.mark.parametrize("group", GROUPS)
def test_texts_of_a_checkpoint_name_no_file(group: str, whole: dict[str, Any], tmp_path: Path) -> None:
    assert any(place.startswith(group) for place in strings(whole))
    check(whole, lambda place: place.startswith(group), tmp_path, group == "callbacks", ("fit", "validate"))


@pytest.mark.slow
def test_no_text_of_a_checkpoint_names_a_file(whole: dict[str, Any], tmp_path: Path) -> None:
    for number, place in enumerate(strings(whole)):
        check(whole, place.__eq__, tmp_path / str(number), thorough=place.startswith("callbacks"))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("state_dict/population.mean_actor", {}),
        ("MarketDataModule/replay/storage/day", None),
        ("optimizer_states/0/state/1/exp_avg", torch.zeros(3)),
        ("optimizer_states/0/state/0/step", None),
        ("eigen2/inference/data/account/unit_share", float("nan")),
    ],
)
def test_other_values_than_a_run_writes_end_in_one_line(
    place: str, value: object, whole: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = deepcopy(whole)
    part, path = checkpoint, tmp_path / "checkpoints" / "last.ckpt"
    *groups, name = [int(key) if key.isdigit() else key for key in place.split("/")]
    for group in groups:
        part = part[group]
    assert name in part
    part[name] = value
    DurableCheckpointIO().save_checkpoint(checkpoint, path)
    if groups[0] == "eigen2":
        done = eigen2("export", "--ckpt_path", path, "--output", tmp_path / "exported")
    else:
        done = eigen2("fit", *SMALL, "--ckpt_path", path, "--trainer.default_root_dir", tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "what eigen2 did not write" in done.stderr
