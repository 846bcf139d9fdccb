"""`python -m eigen2.cli sweep`: search for better settings with many fits."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.errors import UserError, install_hint, require_range
from eigen2.files import writing
from eigen2.runtime.signals import handling, stopped_by
from eigen2.sweep import trial

if TYPE_CHECKING:
    from eigen2.sweep.study import Sweep

NUMBERS = {
    "trials": (50, 1, "Trials to complete or prune in total (1 or more)."),
    "workers": (1, 1, "Trials to run in parallel (1 or more). Only with one are the choices reproducible by the seed."),
    "seed": (42, 0, "Seed of the sampler (0 or more); the fits use seed_everything."),
    "prune_after.trials": (5, 0, "Complete trials before the first is pruned (0 or more)."),
    "prune_after.generations": (5, 0, "Generations of a trial before it is pruned if below the median (0 or more)."),
}
"""Default, minimum and help of the numeric options."""


def make_parser(command: str = "sweep") -> Parser:
    """Return the parser of `sweep`."""
    parser = Parser(
        prog=f"python -m eigen2.cli {command}",
        description="Run fit with settings chosen by Optuna to maximize the champion's validation fitness (needs "
        "the extra sweep). The same command resumes a sweep that was stopped or killed.",
    )
    config = "Configuration of fit shared by all trials; of several, later ones change earlier ones, as for fit."
    parser.add_argument("--config", action="append", required=True, help=config)
    space = "YAML file of full keys of fit, each with {low, high}, optionally log: true or step, or with {choices}."
    parser.add_argument("--space", type=str, required=True, help=space)
    parser.add_argument("--folder", type=str, default="lightning_logs/sweep", help="Folder of the sweep.")
    for name, (default, _, text) in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    setting = "A setting of fit for all trials; may be repeated."
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=setting)
    return parser


def run(command: str, options: Namespace) -> None:
    """Start or resume a sweep."""
    for name, (_, least, _) in NUMBERS.items():
        require_range(f"--{name}", options[name], least=least, most=1024 if name == "workers" else 2**31)
    try:
        from optuna.distributions import distribution_to_json

        from eigen2.sweep.space import check_key, corners, read_space
        from eigen2.sweep.study import Sweep
    except ImportError as error:
        raise UserError(f"sweep needs Optuna ({error}): {install_hint('sweep')}") from error
    space, configs = read_space(options.space), [_read_config(file, options.set) for file in options.config]
    fixed = {
        "--config": json.dumps(configs, sort_keys=True, default=str),
        "--space": {key: distribution_to_json(distribution) for key, distribution in space.items()},
        "--set": options.set,
        **{f"--{name}": options[name] for name in NUMBERS if name not in ("trials", "workers")},
    }
    for setting in options.set:
        key, _, value = setting.partition("=")
        check_key("--set", key)
        if not value:
            raise UserError(f"--set {setting} has no value; write --set {key}=VALUE")
        if key in space:
            raise UserError(f"--set {setting}: {key} is also in --space {options.space}; remove one of them")
    # trials start later, when the files may be others
    dump = partial(yaml.safe_dump, default_flow_style=True, width=2**31, sort_keys=False, allow_unicode=True)
    args = [f"--config={str(dump(config)).strip()}" for config in configs]
    args += [f"--{setting}" for setting in options.set]
    folder, prune_after = Path(options.folder), (options.prune_after.trials, options.prune_after.generations)
    with writing(f"to --folder {folder}", "choose another"):
        begun = (folder / "study.db").exists()
    if not begun:  # a resumed sweep was checked when it started
        _check_settings(options.space, args, corners(space))
    sweep, received = Sweep(folder, args, space, fixed, options.seed, prune_after), list[signal.Signals]()

    def stop(number: signal.Signals) -> None:
        received.append(number)
        sweep.stops += 1
        if len(received) == 1:
            sys.stderr.write(f"{number.name}: trials stop after this generation; a second signal stops them at once\n")

    with handling(stop):
        sweep.run(options.trials, options.workers)
    _print_best(sweep)
    if received and sweep.finished() < options.trials:
        raise stopped_by(received[0])


def _read_config(file: str, settings: Sequence[str]) -> dict[str, Any]:
    """Return the configuration in a file, and in those beside it that it names for its groups.

    Raises UserError for a CheckpointUploader: trials of all sweeps have the same names, so one would resume another's.
    """
    from eigen2.sweep.space import read_mapping

    config = read_mapping("--config", file)
    for group in ("trainer", "model", "data"):
        if isinstance(name := config.get(group), str):
            config[group] = read_mapping(f"--config {file}: {group}", str(Path(file).parent / name))
    if "CheckpointUploader" in str([config.get("trainer"), *settings]):
        raise UserError(
            "the trials of a sweep would share checkpoints in the bucket of CheckpointUploader; take it out of "
            "--config and --set"
        )
    return config


def _check_settings(file: str, args: Sequence[str], samples: Sequence[dict[str, Any]]) -> None:
    """Let fit parse every bound and choice before the first trial, in processes since its imports take 300 MB."""

    def check(settings: dict[str, Any]) -> str | None:
        command = [*trial.PROGRAM, *args, *(f"--{key}={trial.to_text(value)}" for key, value in settings.items())]
        result = subprocess.run([*command, "--print_config"], capture_output=True, text=True, check=False)
        return None if result.returncode == 0 else (result.stderr.strip().splitlines() or ["it printed nothing"])[-1]

    with ThreadPoolExecutor(2) as pool:
        for error in filter(None, pool.map(check, samples)):
            reason = error.removeprefix("error: ")
            raise UserError(f"--space {file}: {reason}" if any(key in reason for key in samples[0]) else reason)


def _print_best(sweep: "Sweep") -> None:
    """Print the path of the table of trials, and the best trial with the command that tests it."""
    if (table := sweep.folder / "trials.csv").exists():
        print(f"trials       {table}")
    if complete := [result for result in sweep.trials if result.state.name == "COMPLETE"]:
        best = max(complete, key=lambda result: result.value or 0.0)
        settings = ", ".join(f"{key} {trial.to_text(best.params[key])}" for key in sweep.space)
        print(f"best         trial {best.number}, validation fitness {best.value:g}: {settings}")
        checkpoint = sweep.folder / "trials" / str(best.number) / "checkpoints" / "best.ckpt"
        print(f"next         python -m eigen2.cli test --ckpt_path {shlex.quote(str(checkpoint))}")
