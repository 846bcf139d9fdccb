"""`eigen2 completion SHELL`: a script by which a shell completes commands, keys and files."""

import argparse
from importlib import import_module
from typing import Any

import shtab
from jsonargparse import Namespace
from lightning.pytorch import Trainer

from eigen2.cli.main import MODULES, TRAINING
from eigen2.cli.parser import Parser
from eigen2.cli.training import HELP, WORKLOADS, TrainingParser, add_run_arguments, classes
from eigen2.compat import parser_options, subparsers

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
    training = _training_options()
    for name in TRAINING:
        _add(commands.add_parser(name, help=HELP[name]), training)
    for name, module in MODULES.items():
        parser = import_module(module).make_parser(name)
        added = commands.add_parser(name, help=name)  # shtab leaves out what has no help
        if not (inner := subparsers(parser)):
            _add(added, parser_options(parser))
            continue
        group = added.add_subparsers()
        for command, own in inner.items():
            _add(group.add_parser(command, help=command), parser_options(own))
    return whole


def _training_options() -> dict[str, argparse.Action]:
    """Return the options of fit, validate and test for all workloads, as a configuration file may name any."""
    parser = TrainingParser()
    for option in ("--config", "--ckpt_path", "--seed_everything"):
        parser.add_argument(option)
    add_run_arguments(parser)
    parser.add_lightning_class_args(Trainer, "trainer")
    found = parser_options(parser)
    for workload in WORKLOADS:
        own = TrainingParser()
        module, data = classes(workload)
        own.add_lightning_class_args(module, "model")
        own.add_lightning_class_args(data, "data")
        found |= parser_options(own)
    return found


def _add(parser: Any, options: dict[str, argparse.Action]) -> None:
    for key, option in options.items():
        words = [word for word in option.option_strings if word.startswith("--")]
        kind = {} if words else {"nargs": option.nargs}
        added = parser.add_argument(*(words or [key]), choices=option.choices, **kind)
        if key in FILES:
            added.complete = shtab.FILE
