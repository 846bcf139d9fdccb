"""`python -m eigen2.cli sweep`: many fits of other settings, to find better ones."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from rich.console import Console
from rich.table import Table

from eigen2.cli.parser import Parser
from eigen2.errors import RunStopped, UserError, require_range
from eigen2.runtime.signals import CODES, requeue
from eigen2.sweep import trial
from eigen2.sweep.space import Space, check_key, corners, read_mapping, read_space, word

if TYPE_CHECKING:
    from eigen2.sweep.study import Sweep

SHOWN = 15
"""Trials in the table at the end, the best ones."""


def make_parser(command: str = "sweep") -> Parser:
    """Return the parser of `sweep`."""
    parser = Parser(
        prog=f"python -m eigen2.cli {command}",
        description="Fit again and again with other settings, chosen by Optuna, for the highest validation fitness of "
        "the champion (extra: eigen2[sweep]). The same command goes on with a sweep that was stopped or killed.",
    )
    parser.add_argument("--config", type=str, required=True, help="Configuration of fit that all trials begin from.")
    parser.add_argument(
        "--space",
        type=str,
        required=True,
        help="YAML file: full keys of fit, each with {low, high}, and log: true or step if need be, or {choices}.",
    )
    parser.add_argument(
        "--folder", type=str, default="lightning_logs/sweep", help="The sweep's folder, made if need be."
    )
    parser.add_argument(
        "--trials", type=int, default=50, help="Trials to have, complete and pruned together (1 or more)."
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="Trials at a time, each a process (1 or more). With one, the seed alone decides what is tried.",
    )
    parser.add_argument("--seed", type=int, default=42, help="Of the choices (0 or more); a fit's is seed_everything.")
    parser.add_argument(
        "--prune_after.trials", type=int, default=5, help="Complete trials before any is pruned (0 or more)."
    )
    parser.add_argument(
        "--prune_after.generations",
        type=int,
        default=5,
        help="Generations before a trial is pruned, as it then is when its best generation is below the median of the "
        "complete trials at the same generation (0 or more).",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="A key of fit for all trials; may be repeated."
    )
    return parser


def run(command: str, chosen: Namespace) -> None:
    """Run a sweep, or resume one.

    Raises:
        UserError: bad input, in one line.
        RunStopped: a signal ended it before its time, and it can go on.
    """
    for name, least in (("trials", 1), ("workers", 1), ("seed", 0)):
        require_range(f"--{name}", chosen[name], least=least, most=2**31 if name != "workers" else 1024)
    for name in ("trials", "generations"):
        require_range(f"--prune_after.{name}", chosen.prune_after[name], least=0)
    try:
        from eigen2.sweep.study import Sweep
    except ImportError as error:
        raise UserError(f"sweep needs Optuna ({error}): pip install 'eigen2[sweep]'") from error
    space = read_space(chosen.space)
    config = json.dumps(read_mapping("--config", chosen.config), sort_keys=True, default=str)
    made_of = {"--config": config, "--space": space, "--set": chosen.set}
    words = [f"--config={chosen.config}", *_fixed(chosen, space)]
    after = (chosen.prune_after.trials, chosen.prune_after.generations)
    folder = Path(chosen.folder)
    if not (folder / "study.db").exists():  # what it was begun with has been read before, and is asked for again
        _refuse_what_fit_refuses(chosen.space, words, space)
    sweep = Sweep(folder, words, space, made_of, chosen.seed, after)
    with _signals(sweep) as asked:
        sweep.run(chosen.trials, chosen.workers)
    _tell(sweep)
    if asked and sweep.done() < chosen.trials:
        more = f"; {requeue()}" if asked[0] == signal.SIGUSR1 else ""
        raise RunStopped(f"stopped by {asked[0].name}; the same command goes on{more}", CODES[asked[0]])


def _fixed(chosen: Namespace, space: Space) -> list[str]:
    """What --set sets, as options of fit."""
    for setting in chosen.set:
        key, given, _ = setting.partition("=")
        check_key("--set", key)
        if not given:
            raise UserError(f"--set {setting} sets nothing; write --set {key}=VALUE")
        if key in space:
            raise UserError(f"--set {setting}: {key} is in --space {chosen.space} too; leave one out")
    return [f"--{setting}" for setting in chosen.set]


def _refuse_what_fit_refuses(file: str, words: Sequence[str], space: Space) -> None:
    """Let fit read each end and each choice before the first trial, in processes: its libraries fill 300 MB.

    Raises:
        UserError: what it does not read, in one line.
    """

    def read(settings: dict[str, Any]) -> str | None:
        line = [*trial.PROGRAM, *words, *(f"--{key}={word(value)}" for key, value in settings.items())]
        done = subprocess.run([*line, "--print_config"], capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it said nothing"])[-1]

    with ThreadPoolExecutor(2) as pool:
        for error in filter(None, pool.map(read, corners(space))):
            reason = error.removeprefix("error: ")
            raise UserError(f"--space {file}: {reason}" if any(key in reason for key in space) else reason)


@contextmanager
def _signals(sweep: "Sweep") -> Iterator[list[signal.Signals]]:
    """Ask trials to end after their generations when SIGINT, SIGTERM or SIGUSR1 comes; gives those that came."""
    asked: list[signal.Signals] = []

    def handle(number: int, frame: object) -> None:
        asked.append(signal.Signals(number))
        sweep.stops += 1
        if len(asked) == 1:
            sys.stderr.write(
                f"{asked[0].name}: trials end after their generations; a second signal ends them at once\n"
            )

    before = {each: signal.signal(each, handle) for each in CODES}
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _tell(sweep: "Sweep") -> None:
    """The best trials, and how to use the best one."""
    console = Console(highlight=False, width=80)
    ended = [one for one in sweep.trials if one.state.is_finished()]
    ranked = sorted(ended, key=lambda one: -float("inf") if one.value is None else one.value, reverse=True)
    table = Table("trial", "state", "fitness", "generations", "settings")
    for one in ranked[:SHOWN]:
        value = "" if one.value is None else f"{one.value:g}"
        settings = "\n".join(f"{key} {_rounded(one.params[key])}" for key in sweep.space)
        table.add_row(str(one.number), one.state.name.lower(), value, str(len(one.intermediate_values)), settings)
    if ranked:
        console.print(table)
    console.print(f"trials       {sweep.folder / 'trials.csv'}, {len(ended)} in all", soft_wrap=True, markup=False)
    complete = [one for one in ranked if one.state.name == "COMPLETE"]
    if complete:
        config = sweep.folder / "trials" / str(complete[0].number) / "config.yaml"
        words = f"python -m eigen2.cli test --config {config} --ckpt_path best"
        console.print(f"the best     {words}", soft_wrap=True, markup=False)


def _rounded(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else word(value)
