"""`eigen2 completion SHELL`: a script by which a shell completes commands, keys and files."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import shtab
from jsonargparse import ArgumentParser, set_parsing_settings
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from eigen2.cli import champion as champion_cli
from eigen2.cli import data as data_cli
from eigen2.cli import fire as fire_cli
from eigen2.cli import report as report_cli
from eigen2.cli import sweep as sweep_cli
from eigen2.cli.parser import OneLineErrors
from eigen2.cli.training import COMMANDS, WORKLOADS, add_run_arguments, classes

FILES = (
    *("config", "trainer.default_root_dir", "data.path", "ckpt_path", "output", "folder", "inputs", "files", "out"),
    *("space", "placements", "python"),
)
"""Keys whose values are files or folders."""


class CompletionParser(OneLineErrors, ArgumentParser):
    """jsonargparse's parser, with errors of one line."""


def run(args: Sequence[str]) -> None:
    """Print the script.

    Args:
        args: the words after `completion`.
    """
    print(shtab.complete(command_line(), shell=_parser().parse_args(list(args)).shell))


def _parser() -> CompletionParser:
    parser = CompletionParser(
        prog="eigen2 completion",
        description="Print a script by which a shell completes the words of eigen2 (the same as python -m eigen2.cli). "
        'In bash: eval "$(eigen2 completion bash)".',
    )
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="The shell.")
    return parser


def command_line() -> argparse.ArgumentParser:
    """Every command with its keys, in argparse's own terms, which know nothing of types."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    whole = argparse.ArgumentParser(prog="eigen2")
    commands = whole.add_subparsers()
    training = _training_actions()
    for name in COMMANDS:
        _add(commands, name, training)
    for group, parsers in (("data", data_cli.parsers()), ("fire", fire_cli.parsers())):
        inner = commands.add_parser(group, help=group).add_subparsers()
        for name, parser in parsers.items():
            _add(inner, name, parser._actions)
    for name, own in champion_cli.parsers().items():
        _add(commands, name, own._actions)
    _add(commands, "report", report_cli.make_parser()._actions)
    _add(commands, "sweep", sweep_cli.make_parser()._actions)
    _add(commands, "completion", _parser()._actions)
    return whole


def _training_actions() -> list[argparse.Action]:
    """Of fit, validate and test: the keys of all workloads, for a configuration file may name any."""
    parser = LightningArgumentParser()
    for option in ("--config", "--ckpt_path", "--seed_everything"):
        parser.add_argument(option)
    add_run_arguments(parser)
    parser.add_lightning_class_args(Trainer, "trainer")
    found = {action.dest: action for action in parser._actions}
    for workload in WORKLOADS:
        module, data = classes(workload)
        alone = LightningArgumentParser()
        alone.add_lightning_class_args(module, "model")
        alone.add_lightning_class_args(data, "data")
        found |= {action.dest: action for action in alone._actions}
    return list(found.values())


def _add(commands: Any, name: str, actions: Iterable[argparse.Action]) -> None:
    parser = commands.add_parser(name, help=name)  # without help it is not public
    for action in actions:
        if action.dest == "help" or action.dest.endswith(".help") or action.dest == argparse.SUPPRESS:
            continue
        words = [word for word in action.option_strings if word.startswith("--")]
        kind = {} if words else {"nargs": action.nargs}
        added = parser.add_argument(*(words or [action.dest]), choices=action.choices, **kind)
        if action.dest in FILES:
            added.complete = shtab.FILE
