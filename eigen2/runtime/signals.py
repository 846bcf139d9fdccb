"""The signals that stop a run cleanly, and the requeueing of a SLURM job."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from eigen2.errors import INTERRUPTED, REQUEUED, TERMINATED, StoppedBySignal

CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGUSR1: REQUEUED}
"""Exit code by signal; SLURM sends SIGUSR1 before a job's time is up (`#SBATCH --signal=USR1@120`)."""

REQUEUE_S = 30.0  # for which SLURM may take to answer


@contextmanager
def handling(handler: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Let a function handle the signals of `CODES` until the block ends."""
    before = {signum: signal.signal(signum, lambda number, frame: handler(signal.Signals(number))) for signum in CODES}
    try:
        yield
    finally:
        for signum, previous in before.items():
            signal.signal(signum, previous)


def stopped_by(
    received: signal.Signals, when: str = "; the same command resumes", again: bool = True
) -> StoppedBySignal:
    """Return the end of a command by a signal; SIGUSR1 also queues its SLURM job again, unless `again` is False."""
    more = f"; {requeue()}" if again and received == signal.SIGUSR1 else ""
    return StoppedBySignal(f"stopped by {received.name}{when}{more}", CODES[received])


@cache
def requeue() -> str:
    """Ask SLURM, once in a process, to queue this job again; return one line about the result."""
    job, array = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_ARRAY_JOB_ID")
    if array is not None:  # which is also the id of one of its jobs, but requeues all of them
        job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    program = shutil.which("scontrol")
    if job is None or program is None:
        return "there is no SLURM job to queue again"
    try:
        subprocess.run([program, "requeue", job], capture_output=True, text=True, check=True, timeout=REQUEUE_S)
    except subprocess.CalledProcessError as error:
        return f"SLURM did not queue job {job}: {error.stderr.strip()}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"SLURM did not queue job {job}: {error}"
    return f"SLURM queued job {job} again"
