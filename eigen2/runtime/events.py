"""TensorBoard's event files, written record by record without a thread.

TensorBoard's own writer writes in a thread of its own, dies of the first error of the disk and leaves a torn record
behind, at which every reader stops.
"""

import io
import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams, scalar
from torch.utils.tensorboard.writer import FileWriter

from eigen2.memory.csvfile import AppendFile

_PREFIX = "events.out.tfevents."
_BEGAN = re.compile(re.escape(_PREFIX) + r"(\d+(?:\.\d+)?)\.")
_numbers = itertools.count()


class EventFile:
    """An event file with the methods of TensorBoard's `EventFileWriter`.

    Args:
        folder: made if it does not exist.
        complain: hears of errors of the disk; the event is lost then.
    """

    def __init__(self, folder: Path, complain: Callable[[OSError], None]) -> None:
        self._folder, self._complain = folder, complain
        self._file: AppendFile | None = None

    def get_logdir(self) -> str:
        """The folder."""
        return str(self._folder)

    def add_event(self, event: Event) -> None:
        """Write an event, or complain."""
        try:
            self.write(event)
        except OSError as error:
            self._complain(error)

    def write(self, event: Event) -> None:
        """Write an event.

        Raises:
            OSError: it is not in the file.
        """
        if self._file is None or not self._file.path.exists():
            self._begin()
        assert self._file is not None
        self._file.append(_record(event))

    def flush(self) -> None:
        """Nothing: there is no buffer."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def reopen(self) -> None:
        """Nothing: the next event opens what is needed."""

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        began = max(time.time(), _latest(self._folder) + 1)
        name = f"{_PREFIX}{began:017.6f}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        file = AppendFile(self._folder / name)
        file.append(_record(Event(wall_time=began, file_version="brain.Event:2")))
        self._file = file


class _Files(FileWriter):
    """Torch's front of an event file."""

    def __init__(self, event_file: EventFile) -> None:
        self.event_writer = event_file


class EventWriter(SummaryWriter):
    """Torch's `SummaryWriter` over an `EventFile`.

    Args:
        folder: of the event file.
        complain: hears of errors of the disk.
        purge_step: events of this step and later, of files written before, are dropped.
    """

    def __init__(self, folder: Path, complain: Callable[[OSError], None], purge_step: int) -> None:
        self.events = EventFile(folder, complain)
        super().__init__(str(folder), purge_step=purge_step)

    def _get_file_writer(self) -> Any:
        writer: Any = self.file_writer
        if writer is None:
            writer = self.file_writer = _Files(self.events)  # type: ignore[assignment]
            self.all_writers = {self.log_dir: writer}  # type: ignore[assignment]
            writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)), step=self.purge_step)
        return writer

    def write_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Write the scalars of a step in one event: all of them or none.

        Raises:
            OSError: they are not in the file.
        """
        values = [value for name, number in scalars.items() for value in scalar(name, number).value]  # type: ignore[no-untyped-call]
        self.events.write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def write_settings(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Write what TensorBoard's hparams page compares runs by.

        Args:
            settings: by full key; what is neither number nor text is written as text.
            metrics: names of the scalars shown beside them.

        Raises:
            OSError: they are not in the file.
        """
        plain = {
            name: value if isinstance(value, bool | int | float) else str(value) for name, value in settings.items()
        }
        for summary in hparams(plain, dict.fromkeys(metrics, 0.0))[:2]:  # type: ignore[no-untyped-call]
            self.events.write(Event(wall_time=time.time(), summary=summary))


def _latest(folder: Path) -> float:
    """When the last of the folder's files began; readers take them in that order, wherever the clock went since."""
    found = [_BEGAN.match(path.name) for path in folder.iterdir()]
    return max((float(match[1]) for match in found if match), default=0.0)


def _record(event: Event) -> bytes:
    piece = io.BytesIO()
    RecordWriter(piece).write(event.SerializeToString())
    return piece.getvalue()
