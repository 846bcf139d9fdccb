"""The base of algorithms that train in generations on the Lightning Trainer."""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn

from callbacks.budget import budget_of
from eigen2.core.config import plain_values, to_config
from eigen2.core.datamodule import TestResult, WorkloadDataModule
from eigen2.core.export import ExportedChampion
from eigen2.core.saved_run import (
    altered_as_user_error,
    flatten,
    log_data_differences,
    require_same_settings,
    saved_part,
    saved_run,
)
from eigen2.distributed.strategy import check_processes
from eigen2.errors import UserError
from eigen2.memory.estimate import PeakEstimate, processes_here
from eigen2.runtime.logger import RunLogger
from eigen2.runtime.phases import PHASES, PhaseClock
from eigen2.runtime.run_folder import describe_script, make_room_for_script
from eigen2.runtime.trainer_checks import check_batches, check_early_stopping, check_trainer

log = logging.getLogger(__name__)
UNBUILT = (
    "a module is built by a Trainer with its data: give ckpt_path to trainer.fit or validate; eigen2.Result.open opens "
    "the run of a folder"
)
Data = TypeVar("Data", bound=WorkloadDataModule)


class GenerationModule(LightningModule, ABC, Generic[Data]):
    """Settings, phases, champion, test, logging and checkpoints of an algorithm whose epoch is a generation."""

    phases: ClassVar[tuple[str, ...]] = PHASES  # phases of a generation, in order
    loss_columns: ClassVar = (("actor", "train/actor_loss"), ("critic", "train/critic_loss"))
    """Heading and metric of the two losses in the terminal's table."""
    config_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults that are Python objects, in the form of a configuration file."""
    remedy: str  # settings to lower if memory does not suffice
    data_class: ClassVar[type[WorkloadDataModule]]  # class of the data module that the algorithm needs
    population_size: int = 1  # most processes, too: each has an agent
    validate_every: int = 1
    memory: PeakEstimate  # peak memory of the run

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.seed = 0  # of the run, set by `setup`
        self.generations_run = 0  # generations begun by this run or by that of the loaded checkpoint
        self.clock = PhaseClock(self, self.phases)  # times phases and announces them to callbacks
        self.metrics: dict[str, float] = {}  # scalars of the last generation, by full name
        self.test_result: TestResult | None = None  # of the last test
        self.test_checks = False  # whether a test also checks what its result depends on
        self.other_champions: Sequence[ExportedChampion] = ()  # of trainings with other seeds, for a test
        self._built = False

    @abstractmethod
    def build(self, stage: str) -> None:
        """Build environments, networks and replay buffer, each after `memory.require` has found room for it."""

    @abstractmethod
    def validate(self) -> None:
        """Validate the generation and choose the champion."""

    @abstractmethod
    def validate_champion(self) -> float:
        """Return the champion's validation fitness, played once more."""

    @abstractmethod
    def play_champion_again(self) -> None:
        """Set the champion's fitness anew, if there is one: a further fit may validate on other data."""

    @abstractmethod
    def test_champion(self) -> TestResult:
        """Play the champion on data that no fit has used; raise a UserError without one."""

    @abstractmethod
    def generation_metrics(self) -> dict[str, float]:
        """Return the scalars of the generation that was just validated, by full name."""

    @abstractmethod
    def check_shapes(self, checkpoint: Mapping[str, Any]) -> None:
        """Refuse, by a UserError that names what differs, a checkpoint whose weights are not of these networks."""

    def model_settings(self) -> dict[str, Any]:
        """Return the algorithm's settings as plain values."""
        return dict(self.hparams)

    def model_config(self) -> dict[str, Any]:
        """Return the arguments it was made with, as the group `model` of a configuration file."""
        return {name: to_config(value) for name, value in self.hparams.items() if not name.startswith("_")}

    def config(self) -> dict[str, Any]:
        """Return the run's settings as a configuration file of the command line, callbacks excepted."""
        trainer = {"max_epochs": self.trainer.max_epochs, "precision": str(self.trainer.precision)}
        return {
            "workload": self.data.workload,
            "seed_everything": self.seed,
            **torch_settings(),
            "trainer": trainer,
            "model": self.model_config(),
            "data": self.data.config(),
        }

    def inference_spec(self) -> dict[str, Any]:
        """Return what a champion's weights need to act, as plain values; `data` holds the data module's part."""
        return {"workload": self.data.workload, "data": self.data.inference_spec()}

    def saved_state(self) -> dict[str, Any]:
        """Return further state of the algorithm to save, as plain values."""
        return {}

    def restore_state(self, saved: Mapping[str, Any]) -> None:
        """Restore what `saved_state` returned."""

    @property
    def data(self) -> Data:
        """Return the data module of the running trainer."""
        data: Data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, self.data_class):
            needed = f"{type(self).__name__} needs a {self.data_class.__name__}"
            raise UserError(f"{needed}: trainer.fit(module, datamodule=...)")
        return data

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the one optimizer, wrapped by Lightning."""
        optimizer = self.optimizers()
        assert isinstance(optimizer, torch.optim.Optimizer)
        return optimizer

    @property
    def generation(self) -> int:
        """Return the number of the generation in progress, from 0 on, over all fits of this module."""
        return self.generations_run - 1

    @property
    def fitting(self) -> bool:
        """Return whether the trainer fits, rather than validates or tests."""
        return bool(self.trainer.state.fn == TrainerFn.FITTING)

    def setup(self, stage: str) -> None:
        """Check the trainer and build everything."""
        if stage == "fit":
            check_trainer(self.trainer)
            check_processes(self.trainer, self.population_size)
        if not (seed := os.environ.get("PL_GLOBAL_SEED", "0")).isdecimal():
            raise UserError(f"the environment variable PL_GLOBAL_SEED is {seed!r}; unset it, or give a whole number")
        self.seed = int(seed)
        device = self.trainer.strategy.root_device
        self.memory = PeakEstimate(self.remedy, device, budget_of(self.trainer), processes_here(self.trainer))
        self.build(stage)
        if stage == "fit":
            check_batches(self.trainer, self.data.training_steps)
            if 0 <= (self.trainer.max_epochs or -1) < self.validate_every:
                log.warning(
                    "trainer.max_epochs is %d, below model.validate_every, %d: nothing is validated, so there will be "
                    "no champion; lower model.validate_every",
                    *(self.trainer.max_epochs, self.validate_every),
                )
        self._built = True

    def begin_generation(self) -> None:
        """Start the generation's clock, and tell the loggers."""
        self.clock.new_generation()
        self._announce_row(None)
        self.generations_run += 1

    def validation_step(self, batch: int, batch_idx: int) -> None:
        """Validate the generation during fit; the champion alone otherwise."""
        if not self.fitting:
            fitness = torch.tensor(self.validate_champion()).float()
            self.log("champion/validation_fitness", fitness, prog_bar=True, batch_size=1)
        elif not self.trainer.sanity_checking:
            if not self.trainer.is_last_batch:
                raise UserError(
                    f"generation {self.current_epoch} was cut in the middle: a callback sets trainer.should_stop "
                    "within it; let it do so in on_train_epoch_end"
                )
            with self.clock.phase("validate"):
                if (self.current_epoch + 1) % self.validate_every == 0:
                    self.validate()

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Play the champion on data that no fit has used."""
        self.test_result = self.test_champion()
        self.log_dict({name: float(value) for name, value in self.test_result.metrics.items()}, batch_size=1)

    def settings(self) -> dict[str, Any]:
        """Return everything that determines results, as plain values by full key, except the seed."""
        run = {**torch_settings(), "trainer": {"precision": str(self.trainer.precision)}}
        return flatten(plain_values({"model": self.model_settings(), "data": self.data.settings(), **run}))

    def on_fit_start(self) -> None:
        """Move an earlier run aside, now that nothing can refuse this one, and a checkpoint to resume is known."""
        make_room_for_script(self.trainer, self)

    def on_train_start(self) -> None:
        """Log the settings."""
        for logger in self.loggers:
            logger.log_hyperparams({"seed": self.seed, **self.settings()})
        self._announce_row(None)
        if self.generations_run and self.trainer.ckpt_path is None:
            self.play_champion_again()
        describe_script(self.trainer, self, self.config())

    def _announce_row(self, generation: int | None) -> None:
        """Tell the loggers whose scalars follow; before, monitors of Lightning log batches as steps."""
        for logger in self.loggers:
            if isinstance(logger, RunLogger):
                logger.begin(generation)

    def on_validation_epoch_end(self) -> None:
        """Hand the generation's metrics to loggers and callbacks, once all of them are known."""
        if self.trainer.sanity_checking or not self.fitting:
            return
        self.clock.seconds["generation"] = self.clock.elapsed("generation")
        times = {f"time/{phase}_s": self.clock.seconds[phase] for phase in (*self.phases, "generation")}
        self.metrics = self.generation_metrics() | times
        self._announce_row(self.current_epoch)
        for logger in self.loggers:
            logger.log_metrics(self.metrics, step=self.current_epoch)
        check_early_stopping(self.trainer, self.metrics)
        # for callbacks such as checkpoints and early stopping; log_dict would take as long as two optimizer steps
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self.metrics.items()})

    def on_train_epoch_end(self) -> None:
        """Let loggers write the generation, now that all callbacks have logged and before the checkpoint is written."""
        for logger in self.loggers:
            logger.save()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add settings, configuration, data used and inference spec; Lightning saves weights, optimizer and data."""
        saved = {
            "seed": self.seed,
            "settings": self.settings(),
            "config": self.config(),
            "data_used": self.data.data_used(),
            "inference": self.inference_spec(),
            "generations": self.generations_run,
            **self.saved_state(),
        }
        # of NumPy's numbers, which scripts may give, no checkpoint could be read again
        checkpoint["eigen2"] = plain_values(saved)
        for name in ("hyper_parameters", "datamodule_hyper_parameters"):
            if name in checkpoint:
                checkpoint[name] = plain_values(checkpoint[name])

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise a UserError: a module needs its data."""
        raise UserError(UNBUILT)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the seed; refuse a checkpoint of another workload or network or, when resuming, other settings."""
        if not self._built:
            raise UserError(UNBUILT)
        with altered_as_user_error():
            self._load(checkpoint)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights; raise a UserError if the checkpoint has others than it says."""
        with altered_as_user_error():
            return super().load_state_dict(*args, **kwargs)

    def _load(self, checkpoint: dict[str, Any]) -> None:
        saved = saved_run(checkpoint)
        spec, workload = saved_part(saved, "inference"), self.data.workload
        if (other := spec.get("workload", workload)) != workload:
            raise UserError(f"the checkpoint is of the workload {other}, not {workload}; give --workload {other}")
        if self.fitting:
            require_same_settings(saved["settings"], self.settings())
            most, done = self.trainer.max_epochs, int(checkpoint["epoch"]) + 1
            if most is not None and 0 <= most < done:
                raise UserError(f"the run has had {done} generations: raise trainer.max_epochs, now {most}, to go on")
        self.check_shapes(checkpoint)
        if not self.fitting:
            self.data.apply_inference_spec(spec["data"])
            if self.trainer.testing:
                self.data.require_unused(saved_part(saved, "data_used"))
            log_data_differences(saved["settings"], self.settings(), "tested" if self.trainer.testing else "validated")
        self.seed, done = int(saved["seed"]), int(saved["generations"])
        self.generations_run = done if self.fitting else max(self.generations_run, done)
        self.restore_state(saved)


def torch_settings() -> dict[str, Any]:
    """Return the settings of torch that results depend on, by the names of their options."""
    return {"num_threads": torch.get_num_threads(), "matmul_precision": torch.get_float32_matmul_precision()}
