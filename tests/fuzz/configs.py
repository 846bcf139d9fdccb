"""Every key of a run's configuration, what to set it to, and a process that tries it."""

import copy
import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import yaml

from eigen2.cli.main import main
from eigen2.errors import ALL_AGENTS_FAILED
from tests.command import server
from tests.fuzz.worker import serve

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SECONDS = 120
"""A run here takes about one: what takes this long hangs."""

VALUES: dict[str, Any] = {
    "word": "abc",
    "empty": "",
    "lines": "a\nb",
    "negative": -1,
    "zero": 0,
    "two": 2,
    "10^12": 10**12,
    "2^63": 2**63,
    "1e30": 1e30,
    "nan": float("nan"),
    "inf": float("inf"),
    "true": True,
    "null": None,
    "list": ["a"],
    "mapping": {"a": 1},
}

Key = tuple[str | int, ...]
"""Names and positions from the configuration's root to a value."""

CLASSES: dict[str, Any] = {
    "actor": {"class_path": "eigen2.market.networks.columns.ColumnActor", "init_args": {"hidden": 8}},
    "critic": {"class_path": "eigen2.market.networks.columns.ColumnCritic", "init_args": {"hidden": 8}},
    "learner": {
        "class_path": "eigen2.TD3",
        "init_args": {"policy_delay": 2, "target_noise": 0.2, "target_noise_clip": 0.5},
    },
    "evolution": [
        {"class_path": "eigen2.erl.evolution.Elitism", "init_args": {"share": 0.5}},
        {"class_path": "eigen2.erl.evolution.TournamentCrossover", "init_args": {"share": 0.25, "tournament_size": 3}},
        {
            "class_path": "eigen2.erl.evolution.MagnitudeMutation",
            "init_args": {"fraction": 0.1, "scale": 0.1},
        },
    ],
}
"""Settings of the model that name classes, with arguments: in most configurations they have their defaults."""


@cache
def small(path: str = "tests/small.yaml") -> dict[str, Any]:
    """The run of seconds, for one generation and without callbacks: most of the time here goes into reading them."""
    config: dict[str, Any] = yaml.safe_load((ROOT / path).read_text())
    config["trainer"] |= {"max_epochs": 1, "default_root_dir": "run", "callbacks": []}
    if path == "tests/small.yaml":
        config["data"]["cache_dir"] = "cache"
    return config


def small_fire() -> dict[str, Any]:
    """The same of fuel breaks."""
    return small("tests/fire/small.yaml")


def printed(*options: str) -> dict[str, Any]:
    """The whole configuration of a fit, as the command line prints it: every key with its value."""
    said = io.StringIO()
    with redirect_stdout(said), pytest.raises(SystemExit):
        main(["fit", *options, "--print_config"])
    return yaml.safe_load(said.getvalue())


def every_key(configs: list[Path]) -> list[tuple[dict[str, Any], Key]]:
    """Each key that a fit has, groups and lists too, with a configuration that has it.

    They are those of tests/small.yaml, of the model's classes, of the model and the data of tests/fire/small.yaml, and
    of every callback of tests/small.yaml and further configurations.
    """
    shipped = [printed("--config", str(path)) for path in (ROOT / "tests" / "small.yaml", *configs)]
    found = {key: small() for key in keys({**shipped[0], "trainer": {**shipped[0]["trainer"], "callbacks": None}})}
    for name, value in CLASSES.items():
        config = changed(small(), (("model", name), value))
        found |= {key: config for key in keys(config) if key[:2] == ("model", name)}
    cases = [(config, key) for key, config in found.items()]
    fire = printed("--config", "tests/fire/small.yaml")
    fires = {group: fire[group] for group in ("model", "data")}
    cases += [(small_fire(), key) for key in keys(fires) if len(key) > 1]
    callbacks = [callback for config in shipped for callback in config["trainer"]["callbacks"]]
    for callback in {one["class_path"]: one for one in reversed(callbacks)}.values():
        shows = "GenerationReport" in callback["class_path"]
        run = small_fire() if callback["class_path"].startswith("eigen2.fire.") else small()
        config = changed(run, (("trainer", "callbacks"), [callback]), (("trainer", "enable_progress_bar"), shows))
        cases += [(config, key) for key in keys(config) if key[:3] == ("trainer", "callbacks", 0)]
    return cases


def keys(config: Any, above: Key = ()) -> Iterator[Key]:
    """Every key, groups before what is in them."""
    inside = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    for name, value in inside:
        yield (*above, name)
        yield from keys(value, (*above, name))


def changed(config: dict[str, Any], *changes: tuple[Key, Any]) -> dict[str, Any]:
    """The configuration with other values."""
    config = copy.deepcopy(config)
    for key, value in changes:
        place: Any = config
        for name in key[:-1]:
            if isinstance(place, dict):
                place.setdefault(name, {})
            place = place[name]
        place[key[-1]] = value
    return config


@dataclass(frozen=True)
class Outcome:
    """How a run ended; the exit code is None where the process died or had to be killed."""

    code: int | None
    traceback: str | None
    error: str
    files: list[str]

    @property
    def lines(self) -> list[str]:
        """What was said on standard error; Lightning tells the seed there."""
        return [line for line in self.error.splitlines() if line.strip() and not line.startswith("Seed set to")]

    def fault(self) -> str | None:
        """What is wrong with it; None for a run that was refused or went astray in one line, or went well."""
        if self.traceback is not None:
            return self.traceback
        if self.code == 0:
            return f"{len(self.lines)} lines of warnings: {self.error[:600]}" if len(self.lines) > 8 else None
        astray = self.code == ALL_AGENTS_FAILED and "is not finite" in self.error
        if self.code != 2 and not astray:
            return f"exit code {self.code}: {self.error[-300:]}"
        if len(self.lines) != 1 or not (astray or self.lines[0].startswith("error: ")):
            return f"not one line: {self.error[:600]}"
        if astray:
            return None
        written = [name for name in self.files if Path(name).name not in ("run", ".lock")]
        return f"wrote {written}" if written else None


class Worker:
    """A process that runs one configuration after another, and is started anew when it dies or hangs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: tuple[BaseProcess, Connection] | None = None

    def try_config(self, config: dict[str, Any], generations: int) -> Outcome:
        """Run a configuration up to the start of a generation."""
        path = self._folder / "case.yaml"
        path.write_text(yaml.dump(config, Dumper=yaml.CSafeDumper))
        words = ["fit", "--config", str(path)]
        if self._started is None:
            here, there = server.Pipe()
            process = server.Process(target=serve, args=(self._folder, there), daemon=True)
            process.start()
            there.close()
            self._started = process, here
        _, connection = self._started
        connection.send((words, generations))
        how = "hangs"
        if connection.poll(SECONDS):
            try:
                return Outcome(**connection.recv())
            except EOFError:
                how = "died"
        return Outcome(None, None, f"{how}, exit code {self.close()}", [])

    def close(self) -> int | None:
        """End the process; its exit code."""
        if self._started is None:
            return None
        (process, connection), self._started = self._started, None
        connection.close()
        process.kill()
        process.join()
        return process.exitcode
