"""The settings of a checkpoint's fit, which `validate` and `test` take unless the command line names others."""

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from inspect import isclass
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from eigen2.cli.parser import options_of
from eigen2.core.export import read_checkpoint
from eigen2.core.saved_run import altered_as_user_error, saved_part, saved_run
from eigen2.errors import UserError
from eigen2.runtime.run_folder import find_checkpoint
from eigen2.runtime.yaml_files import parse_yaml, read_yaml, yaml_line

ROOT = "trainer.default_root_dir"
KEPT = re.compile(r"[0-9a-f]{16}\.parquet")  # names of the tables that `eigen2.fit` keeps


def given(args: Sequence[str], key: str) -> Any:
    """Return the last value that options and configurations, in files or written out, give a key; None without one.

    The parser refuses those that cannot be read.
    """
    found = None
    for option, value in options_of(args):
        if option == f"--{key}":
            found = value
        elif option in ("--config", "-c"):
            try:
                config = parse_yaml(value) if value.lstrip().startswith("{") else read_yaml(value)
            except (OSError, ValueError, yaml.YAMLError):
                continue
            for part in key.split("."):
                config = config.get(part) if isinstance(config, Mapping) else None
            found = found if config is None else config
    return found


def _gives_any(args: Sequence[str], group: str) -> bool:
    """Return whether options or configuration files give a group of keys, or one of its keys."""
    return given(args, group) is not None or any(arg.startswith(f"--{group}.") for arg in args)


def with_settings_of_fit(args: Sequence[str], default_root: str) -> list[str]:
    """Put the settings of a checkpoint's fit before all options of `validate` or `test`, which override them.

    Results go to the run's folder, found by the path of the checkpoint and not by its content. Settings that would
    import code other than eigen2's are not taken: a UserError names them, unless the command line gives them.
    """
    path = given(args, "ckpt_path") or "best"
    if "--help" in args or "-h" in args:
        return [*args]
    root = Path(os.path.expanduser(str(given(args, ROOT) or default_root)))
    file = Path(find_checkpoint(root, str(path), or_start=False) or "")
    checkpoint = read_checkpoint(file)
    with altered_as_user_error(f"checkpoint {file}"):
        return _with_settings(args, saved_part(saved_run(checkpoint), "config"), file)


def _with_settings(args: Sequence[str], fit: Mapping[str, Any], file: Path) -> list[str]:
    """Put the configuration of a fit before all options; see `with_settings_of_fit`."""
    if given(args, "workload") not in (None, fit["workload"]):
        return [*args]  # it is refused when it is loaded
    config = copy.deepcopy(dict(fit))
    model, data = config["model"], config["data"]
    for prefix, group in (("model", model), ("data", data)):
        for name in [name for name, value in group.items() if any(_code(name, value, prefix == "model"))]:
            if given(args, key := f"{prefix}.{name}") is None:
                code = next(_code(name, group[name], prefix == "model"))
                raise UserError(
                    f"{key} of the checkpoint's fit is {code}, which is not eigen2's own, and loading it would run its "
                    f"code; if you trust that, give --config {quote(str(file.parent.parent / 'config.yaml'))}"
                )
            del group[name]
    _replace_data(args, data, file)
    config["trainer"] = {"precision": config["trainer"]["precision"]}
    if given(args, ROOT) is None and file.parent.name == "checkpoints":
        config["trainer"]["default_root_dir"] = str(file.parent.parent)
    return [args[0], "--config", yaml_line(config), *args[1:], f"--ckpt_path={file}"]


def _replace_data(args: Sequence[str], data: dict[str, Any], file: Path) -> None:
    """Change the data settings of a fit to suit the options of `validate` or `test`."""
    data.pop("cache_dir", None)  # where it writes is not for a checkpoint to say
    if _gives_any(args, "data.region"):
        data["region"] = None  # a raster of it would not lie on the grid of the others
    if given(args, "data.path") is not None:
        data |= {"path": None, "synthetic": None}
    elif _gives_any(args, "data.synthetic"):
        data["path"] = None
    elif (prices := data.get("path")) is not None and not Path(prices).exists():
        # `eigen2.fit` keeps a DataFrame in the folder of the run, which may have moved, or in that of `earlier`
        name, folders = Path(prices).name, (file.parents[1], *file.parents[3:4])
        kept = [folder / "prices" / name for folder in folders if (folder / "prices" / name).is_file()]
        if not (kept and KEPT.fullmatch(name)):
            raise UserError(f"the fit read prices from {prices}, which does not exist here; give --data.path")
        data["path"] = str(kept[0])
    counted = [span for span in ("validation", "holdout") if given(args, f"data.{span}_days") is not None]
    data |= dict.fromkeys(f"{span}_from" for span in counted)  # the fit's dates would count in their place


def foreign_code(config: Mapping[str, Any]) -> str | None:
    """Return what the configuration of a fit would import that is not eigen2's own; None if there is nothing."""
    settings = ((group, *item) for group in ("model", "data") for item in config[group].items())
    return next(chain.from_iterable(_code(name, value, group == "model") for group, name, value in settings), None)


def _code(name: str, value: Any, names_classes: bool) -> Iterator[str]:
    """Yield what a setting would import that is not eigen2's own, whether by class or by Gymnasium's `module:id`."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _code(key, part, names_classes)
    elif isinstance(value, list):
        for part in value:
            yield from _code(name, part, names_classes)
    elif isinstance(value, str):
        imports = name == "class_path" or (names_classes and "." in value) or (name == "env_id" and ":" in value)
        if imports and not _is_own(value):
            yield value


def _is_own(path: str) -> bool:
    """Return whether a path names a class of eigen2; only eigen2's modules are imported to find out."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name, None) if module.startswith("eigen2.") else None
    except ImportError:
        return False
    return isclass(found) and found.__module__.startswith("eigen2.")
