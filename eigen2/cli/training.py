"""`fit`, `validate` and `test`: Lightning's command line for the workloads."""

import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.seed import isolate_rng
from torch import distributed as dist

from callbacks.budget import MemoryBudget, MemoryBudgetExceeded
from eigen2.cli.checkpoint import ROOT, given, with_settings_of_fit
from eigen2.cli.parser import Parser, explain, is_union_error
from eigen2.cli.seeds import train_seeds
from eigen2.core.module import GenerationModule
from eigen2.distributed.strategy import PopulationStrategy, check_world, listed_gpus, processes
from eigen2.errors import OUT_OF_MEMORY, RunStopped, UserError, install_hint, require_range
from eigen2.runtime.checkpoint import ChampionCheckpoint, DurableCheckpointIO, GenerationCheckpoint
from eigen2.runtime.console import GenerationReport, hide_library_messages
from eigen2.runtime.logger import RunLogger
from eigen2.runtime.run_folder import RunFolder, find_checkpoint, generations_of, locked_folder
from eigen2.runtime.stop import GracefulStop, stops_at_once
from eigen2.runtime.trainer_checks import check_config
from eigen2.runtime.uploader import fetch_last

log = logging.getLogger(__name__)
IDLE_SECONDS = 0.2  # for which the cores' load is measured before a fit of more than one thread

ERL = ("eigen2.erl.module", "ERLModule")
WORKLOADS = {
    "market": (ERL, ("eigen2.market.datamodule", "MarketDataModule")),
    "control": (ERL, ("eigen2.control.datamodule", "ControlDataModule")),
    "fire": (("eigen2.dqn.module", "DQNModule"), ("eigen2.fire.datamodule", "FuelBreakDataModule")),
}
"""Module and data module of each workload, imported only if it is run."""
HELP = {
    "fit": "Train a population by evolutionary reinforcement learning, or a fuel-break agent by deep Q-learning.",
    "validate": "Validate a checkpoint's champion again.",
    "test": "Test a checkpoint's champion on data not used in its fit, against baselines and luck.",
}
"""Commands that are methods of the Trainer, with their descriptions."""
PARSER: dict[str, Any] = {
    "prog": "python -m eigen2.cli",
    "description": "Train, validate and test agents.",
    "epilog": "Other commands, each with its own --help: data, predict, export, report, sweep, fire.",
}
CHECKPOINT = {
    True: "The checkpoint to resume from: last is the newest of the run in trainer.default_root_dir, and starts a run "
    "where there is none; or best, or a file.",
    False: "The checkpoint whose champion to take: best or last of the run in trainer.default_root_dir, or a file.",
}
"""Help of `--ckpt_path`, of `fit` and of the others."""
MOST_SEEDS = 1000
MOST_THREADS = 1024
"""More than any machine has cores; the system kills a process that starts far more threads."""
TRAINER_DEFAULTS: dict[str, Any] = {
    "default_root_dir": "lightning_logs",
    "devices": 1,
    "max_epochs": 25,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
}


class TrainingParser(Parser, LightningArgumentParser):
    """The parser of all commands, as Lightning's command line needs it."""


class EigenCLI(LightningCLI):
    """Lightning's command line with run folder and durable checkpoints; builds the parsers of `commands` only."""

    model: GenerationModule[Any]

    def __init__(self, *args: Any, commands: Sequence[str] = (*HELP,), **kwargs: Any) -> None:
        self._commands = commands
        super().__init__(*args, **kwargs)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the commands to build parsers for, with the arguments to skip."""
        skipped = super().subcommands()
        return {name: {*skipped[name], "ckpt_path", "weights_only", "verbose"} for name in self._commands}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of neither trainer, model nor data, and the workload's defaults of the model."""
        add_run_arguments(parser)
        fits = "fit" in self._commands
        parser.add_argument("--ckpt_path", type=str | None, default=None if fits else "best", help=CHECKPOINT[fits])
        if [*self._commands] == ["test"]:
            add_test_arguments(parser)
        defaults: dict[str, Any] = self._model_class.config_defaults  # type: ignore[union-attr]
        parser.set_defaults({f"model.{name}": value for name, value in defaults.items()})

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; check the seed before Lightning passes it to NumPy, and find the home folder in that of the run."""
        super().parse_arguments(parser, args)
        command = self.config.get("subcommand")  # none if a program builds trainer, model and data without running
        config = self.config[command] if command else self.config
        if (root := config.trainer.default_root_dir) is not None:
            config.trainer.default_root_dir = os.path.expanduser(root)
        seed = config.seed_everything
        if isinstance(seed, int) and not isinstance(seed, bool):
            require_range("seed_everything", seed, least=0, most=2**32 - 1)

    def _parse_ckpt_path(self) -> None:
        """Keep the configuration, which Lightning would override with the checkpoint's hyperparameters."""

    def before_instantiate_classes(self) -> None:
        """Set threads and precision of products before any computation."""
        threads = int(self._get(self.config, "num_threads"))
        require_range("num_threads", threads, least=1, most=MOST_THREADS)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(self._get(self.config, "matmul_precision"))
        if self.subcommand == "fit" and threads > 1:
            warn_of_busy_cores(threads)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Create the Trainer, adding logger, checkpoints, console and strategy if the configuration has none.

        The console replaces Lightning's progress bars, which hold on to a task for every validation.
        """
        config = self._get(self.config_init, "trainer", default={})
        check_config(vars(config))
        fits, callbacks = self.subcommand == "fit", _as_list(config.get("callbacks"))

        def lacks(kind: type, switch: str) -> bool:
            return config.get(switch) is not False and not _has(callbacks, kind)

        added: list[Callback] = [GenerationReport()] if lacks(ProgressBar, "enable_progress_bar") else []
        if fits and lacks(Checkpoint, "enable_checkpointing"):
            added += [ChampionCheckpoint(), GenerationCheckpoint()]
        elif fits and lacks(GenerationCheckpoint, "enable_checkpointing"):  # a resume needs it
            added.append(GenerationCheckpoint())
        if added:
            kwargs["callbacks"] = [*callbacks, *added]
        if config.get("logger") is None:  # validate and test must not append to the curves of the fit
            kwargs["logger"] = RunLogger(config["default_root_dir"]) if fits else False
        kwargs["plugins"] = [*_as_list(config.get("plugins")), DurableCheckpointIO()]
        devices, nodes = processes(vars(config)) if fits else (1, 1)
        check_world(devices * nodes, self.model.population_size)  # before they wait for each other
        if devices * nodes > 1 or not fits:
            listed = listed_gpus(vars(config))  # which are kept, as a number would take the first ones
            kwargs |= {"devices": listed[:devices] if len(listed) >= devices else devices, "num_nodes": nodes}
        if devices * nodes > 1 and config.get("strategy", "auto") == "auto":
            kwargs["strategy"] = PopulationStrategy()
        try:
            # Lightning would save in the middle of a generation and requeue the job itself; torchrun numbers its own
            if SLURMEnvironment.detect() and not dist.is_torchelastic_launched():
                kwargs["plugins"].append(SLURMEnvironment(auto_requeue=False))
            return super().instantiate_trainer(**kwargs)
        # the errors that Lightning raises for invalid settings, and for packages that are missing
        except (MisconfigurationException, ImportError, ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise UserError(f"trainer: {error}") from error

    def fit(self, **kwargs: Any) -> None:
        """Train in the run's folder, which is locked meanwhile; `last` resumes, or starts a new run."""
        root, ckpt_path = Path(self.trainer.default_root_dir), self._get(self.config, "ckpt_path")
        if self._get(self.config, "trainer").get("fast_dev_run"):
            self.trainer.fit(ckpt_path=find_checkpoint(root, ckpt_path, or_start=True), **kwargs)
            return
        is_first = self.trainer.is_global_zero
        with locked_folder(root) if is_first else nullcontext(), stops_at_once(self.trainer):
            find = partial(find_checkpoint, root, ckpt_path, or_start=True, put_aside=is_first)
            if (checkpoint := find()) is None:
                # processes fetch a checkpoint in turn: what one downloads, the next one finds
                with nullcontext() if self.trainer.world_size == 1 else locked_folder(root, ".turn", wait=True):
                    checkpoint = find() or fetch_last(self.trainer, ckpt_path)
            # an attribute, not an argument of fit, because setup estimates memory from it
            self.trainer.ckpt_path = checkpoint
            self.trainer.fit(**kwargs)
            if is_first and not self.model.clock.seconds:  # no generation has begun
                print(f"The run has had {self.model.generations_run} generations: raise trainer.max_epochs to go on.")
            self._write_report(root)
        if not _has(self.trainer.checkpoint_callbacks, ChampionCheckpoint):
            log.warning("there is no best.ckpt to test: add eigen2.ChampionCheckpoint to trainer.callbacks")

    def validate(self, **kwargs: Any) -> None:
        """Validate a checkpoint's champion, and print its fitness."""
        with stops_at_once(self.trainer):
            self.trainer.validate(ckpt_path=self._checkpoint(), verbose=False, **kwargs)
        fitness = self.trainer.callback_metrics["champion/validation_fitness"]
        print(f"champion     validation fitness {fitness:.4f} ({self.datamodule.fitness_labels['unit']})")

    def test(self, **kwargs: Any) -> None:
        """Test a checkpoint's champion, print the result and add it to the report."""
        root, path = Path(self.trainer.default_root_dir), self._checkpoint()
        checks, seeds = (self._get(self.config, name) for name in ("checks", "seeds"))
        require_range("--seeds", seeds, least=1, most=MOST_SEEDS)
        if (checks or seeds > 1) and self.datamodule.workload != "market":
            raise UserError(f"--checks and --seeds are of the workload market, not {self.datamodule.workload}")
        self.model.test_checks = checks
        with locked_folder(root), stops_at_once(self.trainer):
            if seeds > 1:
                self.model.other_champions = train_seeds(Path(path or ""), seeds, self._resources())
            self.model.generations_run = generations_of(path)
            self.trainer.test(ckpt_path=path, verbose=False, **kwargs)
        assert self.model.test_result is not None
        print(self.model.test_result.text)
        if (root / "metrics.csv").is_file():
            self._write_report(root)

    def _checkpoint(self) -> str | None:
        root, path = Path(self.trainer.default_root_dir), self._get(self.config, "ckpt_path")
        return find_checkpoint(root, path or "best", or_start=False)  # null in the configuration of a fit

    def _resources(self) -> dict[str, Any]:
        """Return accelerator, devices, memory budget and prices of this command, as groups of a configuration."""
        trainer, budget, data = (self._get(self.config, name) for name in ("trainer", "budget", "data"))
        devices = listed_gpus(vars(trainer))[:1] or 1
        used = {"accelerator": trainer["accelerator"], "devices": devices}
        return {"trainer": used, "budget": vars(budget), "data": {"path": data.get("path")}}

    def _write_report(self, root: Path) -> None:
        """Write the run's report, if it is asked for, and print where."""
        if not self._get(self.config, "report") or not self.trainer.is_global_zero:
            return
        from eigen2.report.page import write_report_or_warn  # imported after training, which needs the memory

        if report := write_report_or_warn(root):
            print(f"report       {report}")


def warn_of_busy_cores(threads: int) -> None:
    """Log a warning if fewer cores are idle than threads will compute: all of them wait for the slowest."""
    if os.environ.get("LOCAL_RANK", "0") != "0":  # the first process of the machine is at work already
        return
    used = psutil.cpu_percent(IDLE_SECONDS, percpu=True)
    idle = len(used) - sum(used) / 100
    if round(idle) < threads:
        text = "num_threads is %d, but only %.1f of %d cores are idle: threads that share a core slow all the others; "
        log.warning(text + "lower it, or stop other programs", threads, idle, len(used))


def add_run_arguments(parser: LightningArgumentParser) -> None:
    """Add workload, threads, precision of products, report, memory budget and stop conditions."""
    parser.add_argument(
        "--workload",
        type=Literal[tuple(WORKLOADS)],
        default="market",
        help="The task, which decides the keys of `model` and `data`: trade daily prices (market), act in a Gymnasium "
        "environment with continuous actions (control) or place fuel breaks against wildfire (fire).",
    )
    threads = "CPU threads of torch (1 or more). Results are bit-identical only for the same number."
    parser.add_argument("--num_threads", type=int, default=1, help=threads)
    precision = (
        "What torch.set_float32_matmul_precision is given. With medium, processors with AMX round the factors of "
        "float32 products to bfloat16 and GPUs to TensorFloat32, which is faster for wide layers; sums and weights "
        "stay float32. A device that has neither computes as with highest."
    )
    levels = Literal["highest", "high", "medium"]
    parser.add_argument("--matmul_precision", type=levels, default="highest", help=precision)
    report = "Write report.html into the run's folder after fit and test."
    parser.add_argument("--report", type=bool, default=True, help=report)
    parser.add_lightning_class_args(MemoryBudget, "budget")
    parser.add_lightning_class_args(GracefulStop, "stop")


def add_test_arguments(parser: LightningArgumentParser) -> None:
    """Add the options of `test` alone."""
    checks = (
        "Also test at commissions of 0, 10 and 30 basis points and with decisions a day late, and look for decisions "
        "that change with later prices."
    )
    parser.add_argument("--checks", action="store_true", help=checks)
    seeds = (
        "Trainings, each with another seed, of which the test tells what they earned on average, and their ensemble (1 "
        "to 1000). Those that the run's folder lacks in `seeds` are made first, one after the other."
    )
    parser.add_argument("--seeds", type=int, default=1, help=seeds)


def run(args: Sequence[str]) -> None:
    """Run a training command; raises UserError for bad input, RunStopped or StoppedBySignal if the run ends early."""
    hide_library_messages()
    args = _files_first(args)
    commands = args[:1] if args[0] in HELP else [*HELP]
    if args[0] in ("validate", "test"):
        args = with_settings_of_fit(args, TRAINER_DEFAULTS["default_root_dir"])
    _cli(
        args,
        commands=commands,
        parser_kwargs=PARSER | {name: {"description": HELP[name]} for name in commands},
        save_config_callback=RunFolder,
        save_config_kwargs={"overwrite": True},
    )


def _files_first(args: Sequence[str]) -> list[str]:
    """Put configuration files before options, which override them wherever they stand."""
    files, options, rest = [], list[str](), iter(args[1:])
    for arg in rest:
        if arg in ("--config", "-c"):
            files += [arg, next(rest, "")]
        elif arg.startswith("--config="):
            files.append(arg)
        else:
            options.append(arg)
    return [args[0], *files, *options]


def reopened(folder: Path) -> tuple[GenerationModule[Any], LightningDataModule]:
    """Return module and data module with the settings of a run's champion; raises UserError as `run` does."""
    args = with_settings_of_fit(["test", f"--{ROOT}={folder}"], str(folder))
    shown = ["--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"]
    hide_library_messages()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        with isolate_rng():
            cli = _cli([*args[1:], *shown], run=False, save_config_callback=None)
    finally:  # the process is the caller's
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
    return cli.model, cli.datamodule


def _cli(args: Sequence[str], **settings: Any) -> EigenCLI:
    try:
        return EigenCLI(
            *classes(_workload(args)),
            parser_class=TrainingParser,
            seed_everything_default=42,
            trainer_defaults=TRAINER_DEFAULTS,
            auto_configure_optimizers=False,
            args=list(args),
            **settings,
        )
    except MemoryBudgetExceeded as error:
        raise RunStopped(str(error), OUT_OF_MEMORY) from error
    except MisconfigurationException as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        if not is_union_error(error):
            raise
        raise UserError(explain(str(error), error)) from error  # raised by a class about its settings
    except RuntimeError as error:
        if not str(error).startswith("Early stopping conditioned on metric"):
            raise
        raise UserError(str(error)) from error  # which names the metrics that there are


def _workload(args: Sequence[str]) -> str:
    """Return the workload, which decides the keys."""
    workload = given(args, "workload") or "market"
    if not isinstance(workload, str) or workload not in WORKLOADS:
        raise UserError(f"workload is {workload}; it must be {' or '.join(WORKLOADS)}")
    return workload


def classes(workload: str) -> tuple[type[GenerationModule[Any]], type[LightningDataModule]]:
    """Return module and data module of a workload; raises UserError if a package that it needs is missing."""
    try:
        module, data = (getattr(import_module(path), name) for path, name in WORKLOADS[workload])
    except ModuleNotFoundError as error:
        raise UserError(f"workload {workload} needs {error.name}: {install_hint(workload)}") from error
    return module, data


def _has(callbacks: Sequence[object], kind: type) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]
