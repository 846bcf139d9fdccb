"""Training commands: Lightning's command line over the workloads."""

import logging
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from jsonargparse import set_parsing_settings
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from rich.console import Console

from callbacks.budget import MemoryBudget, MemoryBudgetExceeded
from eigen2.cli.parser import OneLineErrors
from eigen2.distributed.strategy import PopulationStrategy, processes
from eigen2.errors import OUT_OF_MEMORY, RunStopped, UserError, require_range
from eigen2.runtime.checkpoint import DurableCheckpointIO
from eigen2.runtime.console import GenerationReport
from eigen2.runtime.logger import RunLogger
from eigen2.runtime.run_folder import RunFolder, find_checkpoint, generations_of, in_turn, locked_folder
from eigen2.runtime.stop import GracefulStop, stops_at_once
from eigen2.runtime.trainer_checks import check_config
from eigen2.runtime.uploader import fetch_last

log = logging.getLogger(__name__)

ERL = ("eigen2.erl.module", "ERLModule")
WORKLOADS = {
    "market": (ERL, ("eigen2.market.datamodule", "MarketDataModule")),
    "control": (ERL, ("eigen2.control.datamodule", "ControlDataModule")),
    "fire": (("eigen2.fire.module", "DQNModule"), ("eigen2.fire.datamodule", "FuelBreakDataModule")),
}
"""Name of each workload, and where its module and data module are: its libraries are loaded for its own runs alone."""
COMMANDS = {
    "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule", "weights_only"},
    "validate": {"model", "dataloaders", "datamodule", "weights_only"},
    "test": {"model", "dataloaders", "datamodule", "weights_only", "verbose"},
}
"""The Trainer's methods offered, with the arguments that the command line fills itself."""
TOLD = {
    "fit": "Train a population of agents.",
    "validate": "Validate the champion of a checkpoint once more.",
    "test": "Play the champion of a checkpoint on what its fit has not seen, and say what to believe of it.",
}
"""What help says of them: of the Trainer's own descriptions Lightning shows the first line, which ends anywhere."""
MOST_THREADS = 1024
"""More than machines have cores; far more threads than this cannot be started, which ends the process."""


class TrainingParser(OneLineErrors, LightningArgumentParser):
    """Lightning's parser, with errors of one line and help on groups within groups, for whole words alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def parse_args(self, args: Sequence[str] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        """Parse; `--group.inner.help` is handed on as what jsonargparse takes for it."""
        words = None if args is None else [part for word in args for part in self._help_words(word)]
        return super().parse_args(words, **kwargs)

    def _help_words(self, word: str) -> list[str]:
        known, group = self._option_string_actions, word.removesuffix(".help")
        if group == word or word in known:
            return [word]
        while group:
            group = group.rpartition(".")[0]
            if f"{group}.help" in known:  # of a group's help it skips the first word and shows that of the second
                return [f"{group}.help", f"{group}.help", word]
        return [word]


class EigenCLI(LightningCLI):
    """Lightning's command line with a run folder, durable checkpoints and errors of one line.

    Args:
        asked: first word of the command line; empty if it is not known.
    """

    def __init__(self, *args: Any, asked: str = "", **kwargs: Any) -> None:
        self._asked = asked
        super().__init__(*args, **kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what belongs to neither trainer, model nor data."""
        add_run_arguments(parser)

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        """Add the commands, with what help says of each."""
        told = {name: {"description": TOLD[name], **kwargs.get(name, {})} for name in self.subcommands()}
        super()._add_subcommands(parser, **told)
        for shown in parser._subcommands_action._choices_actions:  # type: ignore[union-attr]
            shown.help = TOLD[shown.dest]

    def before_instantiate_classes(self) -> None:
        """Set the threads before anything is computed, and refuse an impossible budget."""
        threads = int(self._get(self.config, "num_threads"))
        require_range("num_threads", threads, least=1, most=MOST_THREADS)
        torch.set_num_threads(threads)
        try:
            MemoryBudget(**vars(self._get(self.config, "budget")))
        except ValueError as error:
            raise UserError(f"budget: {error}") from error

    def _parse_ckpt_path(self) -> None:
        """Leave the configuration alone: Lightning would overrule it with the checkpoint's hyper-parameters."""

    def _set_seed(self) -> None:
        """Check the seed before Lightning hands it to NumPy."""
        seed = self._get(self.config, "seed_everything")
        if isinstance(seed, int) and not isinstance(seed, bool):
            require_range("seed_everything", seed, least=0, most=2**32 - 1)
        super()._set_seed()

    def fit(self, ckpt_path: str | None = None, **kwargs: Any) -> None:
        """Train in the run's folder, which is this process's until it ends; `last` starts or resumes."""
        root = Path(self.trainer.default_root_dir)
        if self._get(self.config, "trainer").get("fast_dev_run"):
            self.trainer.fit(ckpt_path=ckpt_path, **kwargs)
            return
        first = self.trainer.is_global_zero
        with locked_folder(root) if first else nullcontext(), stops_at_once():
            # set in place of handed over, so that it is known at set-up, where memory is planned
            with nullcontext() if self.trainer.world_size == 1 else in_turn(root):
                found = find_checkpoint(root, ckpt_path, or_start=True, put_aside=first)
                self.trainer.ckpt_path = found or fetch_last(self.trainer, ckpt_path)
            self.trainer.fit(**kwargs)
            self._report(root)

    def _report(self, root: Path) -> None:
        """Write the run's page, which is worth no failure of a run."""
        if not self._get(self.config, "report") or not self.trainer.is_global_zero:
            return
        from eigen2.report.page import write_report  # its libraries are not for the time of training

        try:
            written = write_report(root)
        except OSError as error:
            log.warning("cannot write the report to %s: %s", root, error.strerror or error)
        except UserError as error:
            log.warning("there is no report of this run: %s", error)
        else:
            Console(highlight=False).print(f"report       {written}", soft_wrap=True)

    def validate(self, ckpt_path: str | None = None, **kwargs: Any) -> None:
        """Validate the champion of a checkpoint."""
        if ckpt_path is None:
            raise UserError("validate needs a checkpoint: --ckpt_path best, last or a file")
        path = find_checkpoint(Path(self.trainer.default_root_dir), ckpt_path, or_start=False)
        self.trainer.validate(ckpt_path=path, **kwargs)

    def test(self, ckpt_path: str | None = None, **kwargs: Any) -> None:
        """Play the champion of a checkpoint on what its fit has not seen, and say what to believe of it."""
        if ckpt_path is None:
            raise UserError("test needs a checkpoint: --ckpt_path best, last or a file")
        root = Path(self.trainer.default_root_dir)
        path = find_checkpoint(root, ckpt_path, or_start=False)
        with locked_folder(root):
            self.model.generations_run = generations_of(path)
            self.trainer.test(ckpt_path=path, verbose=False, **kwargs)
        assert self.model.tested is not None
        Console(highlight=False).print(self.model.tested.text, soft_wrap=True)
        if (root / "metrics.csv").is_file():
            self._report(root)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Give the trainer what the configuration does not bring: logger, checkpoint writer and report.

        Lightning's own bar keeps a task for each validation (RichProgressBar), which adds up over generations.
        """
        config = self._get(self.config_init, "trainer", default={})
        check_config(vars(config))
        callbacks = _as_list(config.get("callbacks"))
        shows = config.get("enable_progress_bar") is not False and not config.get("barebones")
        if shows and not any(isinstance(callback, ProgressBar) for callback in callbacks):
            kwargs["callbacks"] = [*callbacks, GenerationReport()]
        if config.get("logger") is None:  # what is played afterwards must not write into the curves of the fit
            kwargs["logger"] = RunLogger(config["default_root_dir"]) if self.subcommand == "fit" else False
        kwargs["plugins"] = [*_as_list(config.get("plugins")), DurableCheckpointIO()]
        here, machines = processes(vars(config)) if self.subcommand == "fit" else (1, 1)
        most = getattr(self.model, "most_processes", None)
        if most is not None and here * machines > most:  # before any is started
            raise UserError(
                f"trainer.devices and trainer.num_nodes make {here * machines} processes, but {most} is the most that "
                f"workload {self._get(self.config, 'workload')} uses; lower them"
            )
        kwargs |= {"devices": here, "num_nodes": machines} if here * machines > 1 or self.subcommand != "fit" else {}
        if here * machines > 1 and config.get("strategy", "auto") == "auto":
            kwargs["strategy"] = PopulationStrategy()
        if SLURMEnvironment.detect():  # Lightning would save within a generation and queue the job again by itself
            kwargs["plugins"].append(SLURMEnvironment(auto_requeue=False))
        try:
            return super().instantiate_trainer(**kwargs)
        # Lightning checks most of its settings itself, and says so in any of these
        except (MisconfigurationException, ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise UserError(f"trainer: {error}") from error

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Those whose parsers are built, a second of work each: the one that was asked for, all if none was."""
        return {self._asked: COMMANDS[self._asked]} if self._asked in COMMANDS else COMMANDS


def add_run_arguments(parser: LightningArgumentParser) -> None:
    """Add workload, threads, and what limits every run."""
    parser.add_argument(
        "--workload",
        type=Literal[tuple(WORKLOADS)],
        default="market",
        help="What agents do, and with it which keys `model` and `data` have: trade daily prices (market), act in a "
        "Gymnasium environment with continuous actions (control) or place fuel breaks against wildfire (fire).",
    )
    parser.add_argument(
        "--num_threads",
        type=int,
        default=1,
        help="CPU threads of torch (1 or more). Results are bit-identical for the same number only; several are "
        "slower than one on a busy machine.",
    )
    parser.add_argument(
        "--report", type=bool, default=True, help="Write report.html into the run's folder after fit and test."
    )
    parser.add_lightning_class_args(MemoryBudget, "budget")
    parser.add_lightning_class_args(GracefulStop, "stop")


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def run(args: ArgsType) -> None:
    """Run a training command.

    Args:
        args: words of the command line; None takes the process's.

    Raises:
        UserError: bad input, in one line.
        RunStopped: the run ended before its time, and can be resumed.
    """
    _quiet()
    words = [str(word) for word in args] if isinstance(args, list) else sys.argv[1:]
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    try:
        EigenCLI(
            *classes(_workload(words)),
            asked=next(iter(words), ""),
            parser_class=TrainingParser,
            parser_kwargs={
                "prog": "python -m eigen2.cli",
                "description": "Train, validate and use populations of agents.",
                "epilog": "Price files: python -m eigen2.cli data {inspect,prepare,synthesize} --help. "
                "A run's page: python -m eigen2.cli report --help. "
                "The champion at work: python -m eigen2.cli {predict,export} --help. "
                "Many fits of other settings: python -m eigen2.cli sweep --help. "
                "Keys completed by the shell: python -m eigen2.cli completion --help",
            },
            seed_everything_default=42,
            trainer_defaults={
                "default_root_dir": "lightning_logs",
                "devices": 1,
                "enable_model_summary": False,
                "num_sanity_val_steps": 0,
                "log_every_n_steps": 1,
            },
            save_config_callback=RunFolder,
            save_config_kwargs={"overwrite": True},
            auto_configure_optimizers=False,
            args=args,
        )
    except MemoryBudgetExceeded as error:
        raise RunStopped(str(error), OUT_OF_MEMORY) from error
    except MisconfigurationException as error:
        raise UserError(" ".join(str(error).split())) from error


def _workload(words: list[str]) -> str:
    """The workload that the words of a command line name, themselves or in their configuration files; the last counts.

    It decides which keys there are, so it must be known before they are read. What is wrong with a file is said then.
    """
    named = "market"
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        key, _, value = word.partition("=")
        value = value or following
        if key == "--workload":
            named = value
        elif key in ("--config", "-c"):
            try:
                config = yaml.safe_load(Path(value).read_text())
            except (OSError, ValueError, yaml.YAMLError):
                continue
            named = config.get("workload", named) if isinstance(config, dict) else named
    if not isinstance(named, str) or named not in WORKLOADS:
        raise UserError(f"workload is {named}; it must be {' or '.join(WORKLOADS)}")
    return named


def classes(workload: str) -> tuple[type[LightningModule], type[LightningDataModule]]:
    """What a workload trains with, and on.

    Raises:
        UserError: a package that it needs is not installed.
    """
    try:
        module, data = (getattr(import_module(home), name) for home, name in WORKLOADS[workload])
    except ModuleNotFoundError as error:
        raise UserError(f"workload {workload} needs {error.name}: pip install 'eigen2[{workload}]'") from error
    return module, data


def _quiet() -> None:
    """Silence what tells a user nothing: Lightning's tips and hardware lines, and notices about DataLoader workers."""
    for name in ("pytorch.utilities.rank_zero", "fabric.utilities.seed", "fabric.utilities.distributed"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    # Lightning 2.6 checks a deprecated pytree type of torch 2.13 on every batch
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
