"""Logger of a run: TensorBoard events and metrics.csv, one row a generation, intact after kills and full disks."""

import logging
import math
import os
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers.logger import DummyLogger, Logger
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

from eigen2 import compat
from eigen2.files import AppendFile, Folder
from eigen2.memory.csvfile import MAX_PENDING, ResumableCsv

log = logging.getLogger(__name__)

_BEGAN = re.compile(r"events\.out\.tfevents\.(\d+(?:\.\d+)?)\.")


class EventFile:
    """An event file with the methods of TensorBoard's `EventFileWriter`, written record by record.

    TensorBoard's own writer runs in a thread, dies on the first disk error and leaves a torn record, at which every
    reader stops. Here a disk error is passed to `warn`, and the event is lost. Readers ignore events of `purge_step`
    and later in earlier files.
    """

    def __init__(self, folder: Folder, warn: Callable[[OSError], None], purge_step: int) -> None:
        self._folder, self._warn = folder, warn
        self._first = [Event(session_log=SessionLog(status=SessionLog.START), step=purge_step)]
        self._file: AppendFile | None = None

    def get_logdir(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def add_event(self, event: Event) -> None:
        """Write an event; warn if the disk refuses it."""
        try:
            self.write(event)
        except OSError as error:
            self._warn(error)

    def write(self, event: Event) -> None:
        """Write an event; raise OSError if it is not in the file."""
        if self._file is None or not self._file.path.exists():
            self.close()  # that of a folder which was deleted
            # readers sort files by this time, so it must grow even if the clock was set back
            matches = [_BEGAN.match(path.name) for path in self._folder.make().iterdir()]
            began = max(time.time(), max((float(match[1]) for match in matches if match), default=0.0) + 1)
            name = f"events.out.tfevents.{began:017.6f}.{socket.gethostname()}.{os.getpid()}"
            self._file = self._folder.append(name)
        writer = RecordWriter(SimpleNamespace(write=self._file.append))
        if not self._file.size:
            writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        while self._first:
            writer.write(self._first[0].SerializeToString())
            self._first.pop()
        writer.write(event.SerializeToString())

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class RunLogger(Logger):
    """Writes TensorBoard events and metrics.csv to the run's folder, `save_dir`, with the generation as the step.

    What the module and callbacks log for one generation becomes one row, written by `save` before the generation's
    checkpoint. The run resumes at the first generation that is logged: what an interrupted process wrote of that
    generation and later is dropped from both files.
    """

    name = version = ""  # files lie directly in the run's folder, which holds one run

    def __init__(self, save_dir: str) -> None:
        super().__init__()
        self._folder = Folder(os.path.expanduser(save_dir))
        self._csv = ResumableCsv(self._folder.path / "metrics.csv")
        self._events: EventFile | None = None
        self._writer: Any = DummyLogger().experiment
        self._row: dict[str, float] = {}
        self._generation: int | None = None
        self._begun: int | None = None
        self._told = False  # by `begin`
        self._warned: int | None = None
        self._pending: deque[tuple[int, Summary]] = deque(maxlen=MAX_PENDING)

    def memory_owners(self) -> dict[str, object]:
        """Return the bytes of the row that is not written yet; no history is kept."""
        return {"logger": sys.getsizeof(self._row) + sum(sys.getsizeof(number) for number in self._row.values())}

    @property
    def save_dir(self) -> str:
        """Return the run's folder."""
        return str(self._folder)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """Return a SummaryWriter, which writes nothing before the first generation is logged."""
        return self._writer

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: all settings lie in config.yaml."""

    def begin(self, generation: int | None) -> None:
        """Take the scalars of this generation alone, or none, from now on: Lightning's monitors count batches."""
        self._begun, self._told = generation, True

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float | torch.Tensor], step: int | None = None) -> None:
        """Log scalars of generation `step`, which must not decrease; NaN stands for no value and draws no point.

        What Lightning itself logs, of `validate`, `test` and calls of `self.log`, is left out: it has the key `epoch`,
        and its steps are batches. So are those of its monitors, before the generation's scalars `begin`.
        """
        if "epoch" in metrics or (self._told and (self._begun is None or step != self._begun)):
            return
        if step is None or (self._generation is not None and step < self._generation):
            raise ValueError(f"metrics of generation {step} cannot follow generation {self._generation}")
        if self._events is None:
            self._csv.start(step)
            self._pending = deque((event for event in self._pending if event[0] < step), MAX_PENDING)
            self._events = EventFile(self._folder / "tensorboard", self._warn, purge_step=step)
            self._writer = compat.summary_writer(self._events)
        elif step != self._generation:
            self.save()
        self._generation = step
        self._row |= {name: float(value) for name, value in metrics.items()}

    @rank_zero_only
    def save(self) -> None:
        """Write the generation's row to both files; rows that the disk refuses are retried with the next one."""
        if not self._row or self._generation is None or self._events is None:
            return
        if not self._csv.append({"generation": self._generation, **self._row}) and self._csv.error is not None:
            self._warn(self._csv.error)
        # one event, so that all scalars of a generation are in the file or none
        values = [scalar(name, value).value[0] for name, value in self._row.items() if not math.isnan(value)]  # type: ignore[no-untyped-call]
        self._pending.append((self._generation, Summary(value=values)))
        self._row = {}
        try:
            while self._pending:
                generation, summary = self._pending[0]
                self._events.write(Event(wall_time=time.time(), step=generation, summary=summary))
                self._pending.popleft()
        except OSError as error:
            self._warn(error)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close both files; an unfinished generation leaves no row. A further fit resumes them."""
        self._row, self._generation, self._begun, self._told = {}, None, None, False
        self._csv.close()
        if self._events is not None:
            self._events.close()
            self._events, self._writer = None, DummyLogger().experiment

    def _warn(self, error: OSError) -> None:
        if self._warned != self._generation:  # once a generation
            self._warned = self._generation
            log.warning("generation %s: cannot write curves and metrics.csv, will retry: %s", self._generation, error)
