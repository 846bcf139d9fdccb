"""`python -m eigen2.cli sweep`: many fits with different settings, to find better ones."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.errors import RunStopped, UserError, require_range
from eigen2.runtime.signals import CODES, handling, requeue
from eigen2.sweep import trial

if TYPE_CHECKING:
    from eigen2.sweep.study import Sweep

NUMBERS = {
    "trials": (50, 1, "Complete and pruned trials to have in the end (1 or more)."),
    "workers": (1, 1, "Trials at a time, each a process (1 or more). With one, only the seed decides what is tried."),
    "seed": (42, 0, "Seed of the choices (0 or more); that of the fits is seed_everything."),
    "prune_after.trials": (5, 0, "Complete trials before any is pruned (0 or more)."),
    "prune_after.generations": (5, 0, "Generations before a trial below the median is pruned (0 or more)."),
}
"""Default, least value and help of the options that are numbers."""


def make_parser(command: str = "sweep") -> Parser:
    """Return the parser of `sweep`."""
    parser = Parser(
        prog=f"python -m eigen2.cli {command}",
        description="Fit many times with settings chosen by Optuna, to maximize the champion's validation fitness "
        "(extra: eigen2[sweep]). The same command resumes a sweep that was stopped or killed.",
    )
    parser.add_argument("--config", type=str, required=True, help="Configuration of fit that all trials start from.")
    space = "YAML file: full keys of fit, each with {low, high}, and log: true or step if need be, or {choices}."
    parser.add_argument("--space", type=str, required=True, help=space)
    parser.add_argument("--folder", type=str, default="lightning_logs/sweep", help="The sweep's folder.")
    for name, (default, _, text) in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    setting = "A key of fit for all trials; may be repeated."
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=setting)
    return parser


def run(command: str, chosen: Namespace) -> None:
    """Run a sweep, or resume one."""
    for name, (_, least, _) in NUMBERS.items():
        require_range(f"--{name}", chosen[name], least=least, most=1024 if name == "workers" else 2**31)
    try:
        from optuna.distributions import distribution_to_json

        from eigen2.sweep.space import check_key, corners, read_mapping, read_space
        from eigen2.sweep.study import Sweep
    except ImportError as error:
        raise UserError(f"sweep needs Optuna ({error}): pip install 'eigen2[sweep]'") from error
    space = read_space(chosen.space)
    fixed = {
        "--config": json.dumps(read_mapping("--config", chosen.config), sort_keys=True, default=str),
        "--space": {key: distribution_to_json(each) for key, each in space.items()},
        "--set": chosen.set,
    }
    for setting in chosen.set:
        key, _, value = setting.partition("=")
        check_key("--set", key)
        if not value:
            raise UserError(f"--set {setting} has no value; write --set {key}=VALUE")
        if key in space:
            raise UserError(f"--set {setting}: {key} is in --space {chosen.space} too; leave one out")
    words = [f"--config={chosen.config}", *(f"--{setting}" for setting in chosen.set)]
    folder, prune_after = Path(chosen.folder), (chosen.prune_after.trials, chosen.prune_after.generations)
    if not (folder / "study.db").exists():  # a sweep that is resumed was checked when it was started
        _check_settings(chosen.space, words, corners(space))
    sweep, received = Sweep(folder, words, space, fixed, chosen.seed, prune_after), list[signal.Signals]()

    def stop(asked: signal.Signals) -> None:
        received.append(asked)
        sweep.stops += 1
        if len(received) == 1:
            sys.stderr.write(f"{asked.name}: trials end after their generations; a second signal ends them at once\n")

    with handling(stop):
        sweep.run(chosen.trials, chosen.workers)
    _print_best(sweep)
    if received and sweep.done() < chosen.trials:
        more = f"; {requeue()}" if received[0] == signal.SIGUSR1 else ""
        raise RunStopped(f"stopped by {received[0].name}; the same command resumes{more}", CODES[received[0]])


def _check_settings(file: str, words: Sequence[str], tried: Sequence[dict[str, Any]]) -> None:
    """Let fit parse each end and each choice before the first trial, in other processes as it needs 300 MB."""

    def refusal(settings: dict[str, Any]) -> str | None:
        line = [*trial.PROGRAM, *words, *(f"--{key}={trial.to_text(value)}" for key, value in settings.items())]
        done = subprocess.run([*line, "--print_config"], capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]

    with ThreadPoolExecutor(2) as pool:
        for error in filter(None, pool.map(refusal, tried)):
            reason = error.removeprefix("error: ")
            raise UserError(f"--space {file}: {reason}" if any(key in reason for key in tried[0]) else reason)


def _print_best(sweep: "Sweep") -> None:
    """Print where the trials are listed, and the best one with the command that tests it."""
    print(f"trials       {sweep.folder / 'trials.csv'}")
    if complete := [one for one in sweep.trials if one.state.name == "COMPLETE"]:
        best = max(complete, key=lambda one: one.value or 0.0)
        settings = ", ".join(f"{key} {trial.to_text(best.params[key])}" for key in sweep.space)
        print(f"best         trial {best.number}, validation fitness {best.value:g}: {settings}")
        config = sweep.folder / "trials" / str(best.number) / "config.yaml"
        print(f"next         python -m eigen2.cli test --config {config} --ckpt_path best")
