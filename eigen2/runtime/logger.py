"""A curve and a CSV column for each scalar of the run, a row a generation, whole after kills and full disks."""

import logging
import math
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from eigen2.memory.csvfile import WAITING, ResumableCsv
from eigen2.runtime.events import EventWriter

log = logging.getLogger(__name__)

COMPARED = ("champion/validation_fitness", "fitness/max", "fitness/mean", "time/generation_s")
"""Scalars shown beside a run's settings where runs are compared."""


class NotStarted:
    """Stands in for TensorBoard's writer before the first generation is logged: accepts every call, writes nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class RunLogger(Logger):
    """Writes TensorBoard events and metrics.csv with the generation as the step.

    What is logged for one generation, by the module and by callbacks, becomes one row, written by `save` before the
    generation's checkpoint. The first generation logged after a start tells where the run resumes: what an
    interrupted process wrote of that generation and later is dropped from both.

    Args:
        save_dir: the run's folder: gets `metrics.csv` and `tensorboard/`.
    """

    def __init__(self, save_dir: str) -> None:
        super().__init__()
        self._folder = Path(save_dir)
        self._csv = ResumableCsv(self._folder / "metrics.csv")
        self._writer: EventWriter | None = None
        self._row: dict[str, float] = {}
        self._generation: int | None = None
        self._complained: int | None = None
        self._settings: dict[str, Any] = {}
        self._begun = False  # whether the settings are in the file
        self._waiting: deque[tuple[int, dict[str, float]]] = deque(maxlen=WAITING)

    def memory_owners(self) -> dict[str, object]:
        """The row that is not written yet, for a memory profiler: it keeps no history."""
        return {"logger": sys.getsizeof(self._row) + sum(sys.getsizeof(number) for number in self._row.values())}

    @property
    def name(self) -> str:
        """Empty: files lie directly in the run's folder."""
        return ""

    @property
    def version(self) -> str:
        """Empty: a folder holds one run."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run's folder."""
        return str(self._folder)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """TensorBoard's writer; before the first generation is logged a stand-in that writes nothing."""
        return self._writer or NotStarted()

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Keep settings by full key for TensorBoard's hparams page; the whole configuration lies in config.yaml."""
        self._settings = dict(vars(params) if isinstance(params, Namespace) else params)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float | torch.Tensor], step: int | None = None) -> None:
        """Log scalars of a generation; NaN, for what has no value yet, draws no point.

        Args:
            metrics: scalar by name.
            step: the generation.

        Raises:
            ValueError: no generation is given, or an earlier one than before.
        """
        if step is None or (self._generation is not None and step < self._generation):
            raise ValueError(f"metrics of generation {step} cannot follow generation {self._generation}")
        if self._writer is None:
            self._csv.start(step)
            self._writer = EventWriter(self._folder / "tensorboard", self._complain, purge_step=step)
            self._begun = False
        elif step != self._generation:
            self.save()
        self._generation = step
        self._row |= {name: float(value) for name, value in metrics.items()}

    @rank_zero_only
    def save(self) -> None:
        """Write the generation's row to both files; harmless without anything new.

        What the disk refuses waits, and is written before the next generation's row.
        """
        if self._row and self._generation is not None and self._writer is not None:
            if not self._csv.append({"generation": self._generation, **self._row}) and self._csv.error is not None:
                self._complain(self._csv.error)
            self._waiting.append((self._generation, self._row))
            self._row = {}
            try:
                if not self._begun:
                    self._writer.write_settings(self._settings, COMPARED)
                    self._begun = True
                while self._waiting:
                    generation, row = self._waiting[0]
                    self._writer.write_scalars({k: v for k, v in row.items() if not math.isnan(v)}, generation)
                    self._waiting.popleft()
            except OSError as error:
                self._complain(error)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close both files; a generation that did not end leaves no row."""
        self._row = {}
        self._csv.close()
        if self._writer is not None:
            self._writer.close()

    def _complain(self, error: OSError) -> None:
        """Once a generation."""
        if self._complained != self._generation:
            self._complained = self._generation
            log.warning("generation %s: cannot write curves and metrics.csv, they wait: %s", self._generation, error)
