"""`eigen2 completion SHELL`: a script by which a shell completes commands, keys and files."""

import argparse
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import shtab
from jsonargparse import Namespace
from lightning.pytorch import Trainer

from eigen2.cli.main import MODULES, TRAINING
from eigen2.cli.parser import Parser, subparsers
from eigen2.cli.training import HELP, WORKLOADS, TrainingParser, add_run_arguments, classes

FILES = (
    *("config", "trainer.default_root_dir", "data.path", "ckpt_path", "output", "folder", "inputs", "files", "out"),
    *("space", "placements", "python"),
)
"""Keys whose values are files or folders."""


def make_parser(command: str = "completion") -> Parser:
    """Return the parser of `completion`."""
    parser = Parser(
        prog=f"python -m eigen2.cli {command}",
        description="Print a script by which a shell completes the words of eigen2 (the same as python -m eigen2.cli). "
        'In bash: eval "$(eigen2 completion bash)".',
    )
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="The shell.")
    return parser


def run(command: str, chosen: Namespace) -> None:
    """Print the script."""
    print(shtab.complete(command_line(), shell=chosen.shell))


def command_line() -> argparse.ArgumentParser:
    """Return every command with its keys as a plain parser, which is what shtab reads; types are left out."""
    whole = argparse.ArgumentParser(prog="eigen2")
    commands = whole.add_subparsers()
    training = _training_actions()
    for name in TRAINING:
        _add(commands.add_parser(name, help=HELP[name]), training)
    for name, module in MODULES.items():
        parser = import_module(module).make_parser(name)
        added = commands.add_parser(name, help=name)  # shtab leaves out what has no help
        if not (inner := subparsers(parser)):
            _add(added, parser._actions)
            continue
        group = added.add_subparsers()
        for command, own in inner.items():
            _add(group.add_parser(command, help=command), own._actions)
    return whole


def _training_actions() -> list[argparse.Action]:
    """Return the options of fit, validate and test for all workloads, as a configuration file may name any."""
    parser = TrainingParser()
    for option in ("--config", "--ckpt_path", "--seed_everything"):
        parser.add_argument(option)
    add_run_arguments(parser)
    parser.add_lightning_class_args(Trainer, "trainer")
    found = {action.dest: action for action in parser._actions}
    for workload in WORKLOADS:
        own = TrainingParser()
        module, data = classes(workload)
        own.add_lightning_class_args(module, "model")
        own.add_lightning_class_args(data, "data")
        found |= {action.dest: action for action in own._actions}
    return list(found.values())


def _add(parser: Any, actions: Iterable[argparse.Action]) -> None:
    for action in actions:
        if action.dest in ("help", argparse.SUPPRESS) or action.dest.endswith(".help"):
            continue
        words = [word for word in action.option_strings if word.startswith("--")]
        kind = {} if words else {"nargs": action.nargs}
        added = parser.add_argument(*(words or [action.dest]), choices=action.choices, **kind)
        if action.dest in FILES:
            added.complete = shtab.FILE
