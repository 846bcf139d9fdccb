"""Build each parser of the command line, and parse each docstring, once and not for each of hundreds of commands."""

import functools
from typing import Any

import docstring_parser

from eigen2.cli.training import EigenCLI

docstring_parser.parse_from_object = functools.cache(docstring_parser.parse_from_object)
_setup = EigenCLI.setup_parser
_made: dict[object, dict[str, Any]] = {}


def _setup_once(cli: Any, runs: bool, *kwargs: dict[str, Any]) -> None:
    key = cli.datamodule_class, runs, *cli._commands
    if key not in _made:
        before = {*vars(cli)}
        _setup(cli, runs, *kwargs)
        _made[key] = {name: value for name, value in vars(cli).items() if name not in before}
    vars(cli).update(_made[key])


EigenCLI.setup_parser = _setup_once  # type: ignore[method-assign]
