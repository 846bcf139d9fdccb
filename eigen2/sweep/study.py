"""A sweep: trials of an Optuna study, run in parallel and resumed after a kill."""

import sqlite3
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from eigen2.errors import UserError, one_line
from eigen2.files import Folder, writing
from eigen2.runtime.signals import CODES
from eigen2.sweep.space import Space
from eigen2.sweep.trial import METRIC, fitness, last_line, start, to_text

MOST_FAILURES = 5  # failed trials in a row after which a sweep gives up
# exit codes of a fit that a signal stopped and that can be resumed; negative if its handlers were not installed yet
STOPPED = {*CODES.values(), *(-number for number in CODES)}
PRUNED = "pruned"  # what a trial is marked with before it is stopped, so that a killed sweep does not run it again
POLL_S = 1.0  # seconds between checks of a trial
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
ERRORS = (SQLAlchemyError, optuna.exceptions.OptunaError)  # of the database
ALTERED = (RuntimeError, LookupError, ValueError, TypeError, AttributeError, AssertionError)
"""What Optuna raises for a database whose content it did not write."""


class Sweep:
    """Trials in a folder: study.db, trials.csv and a folder for each trial.

    A trial listed as running when a sweep starts was interrupted by a kill, and is resumed under its number.
    (Optuna's heartbeat would repeat it as a new trial, a minute later.)

    All trials share `args`, the command line of fit. `fixed` are settings, by option, that must not change on resume;
    `warmup` the complete trials, and generations of a trial, before it may be pruned. With one worker the samples
    depend on the seed alone. Raises UserError if the folder cannot be used, or holds another sweep, or another process
    uses it.
    """

    def __init__(
        self, folder: Path, args: list[str], space: Space, fixed: dict[str, Any], seed: int, warmup: tuple[int, int]
    ) -> None:
        self.folder, self.args, self.space, self.seed = folder, args, space, seed
        self.stops = 0  # requests to stop; the trials get as many signals
        self._lock, self._failures, self._target = threading.Lock(), 0, 0
        self._interrupted: list[FrozenTrial] = []
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with self._locked():
            self._open(fixed, warmup)

    def _open(self, fixed: dict[str, Any], warmup: tuple[int, int]) -> None:
        folder, path = self.folder, Folder(self.folder).unlinked("study.db")
        # a path in an address would end at a ?, and %20 in it would be a space
        connect = partial(sqlite3.connect, path.absolute(), timeout=60, check_same_thread=False)
        try:
            self._storage = RDBStorage("sqlite:///study.db", engine_kwargs={"creator": connect})
            complete, generations = warmup
            pruner = optuna.pruners.MedianPruner(complete, max(generations - 1, 0))  # the first generation is step 0
            self.study = optuna.create_study(
                study_name="sweep", storage=self._storage, pruner=pruner, direction="maximize", load_if_exists=True
            )
            stored = dict(self.study.user_attrs.get("fixed", fixed))
            self.study.set_user_attr("fixed", stored)
            for option in (option for option in fixed if stored.get(option) != fixed[option]):
                was = stored.get(option)
                held = f"begun with {option} {was}; give" if isinstance(was, int) else f"with another {option}; restore"
                raise UserError(f"{folder} holds a sweep {held} it, or choose another --folder")
            self._check_trials()
            if not self.trials and any(folder.glob("trials/*")):  # which fits with other settings would resume
                raise UserError(f"{folder} has trials that its study.db lacks; move it, or choose another --folder")
        except UserError:
            raise
        except (*ERRORS, *ALTERED) as error:
            remedy = f"move {folder}, or choose another --folder"
            raise UserError(f"{path} cannot be used: {_reason(error)}; {remedy}") from error

    def _check_trials(self) -> None:
        """Raise one of `ALTERED` for trials that no sweep wrote: numbers that jump, another space, no numbers."""
        for number, trial in enumerate(self.trials):
            distributions = {key: self.space.get(key) for key in trial.distributions}
            values = [*(trial.values or ()), *trial.intermediate_values.values()]
            known = trial.number == number and trial.distributions == distributions
            if not known or not all(isinstance(value, float) for value in values):
                raise ValueError(f"trial {trial.number} is of no sweep over this space")

    @property
    def trials(self) -> list[FrozenTrial]:
        """Return all trials by number."""
        return self.study.get_trials(deepcopy=False)

    def finished(self) -> int:
        """Return the number of trials that are complete or pruned."""
        return sum(trial.state in FINISHED for trial in self.trials)

    def run(self, trials: int, workers: int) -> None:
        """Run until `trials` of them are complete or pruned, or the sweep is stopped.

        Raises UserError if too many fail in a row, the folder cannot be written, or another process uses it.
        """
        self._target = trials
        with self._locked(), ThreadPoolExecutor(workers) as pool:
            self._interrupted = [trial for trial in self.trials if trial.state == TrialState.RUNNING]
            for worker in as_completed([pool.submit(self._work) for _ in range(workers)]):
                try:
                    worker.result()
                except BaseException as error:
                    self.stops += 1
                    if not isinstance(error, (*ERRORS, OSError)):
                        raise
                    raise UserError(f"the sweep stops: {_reason(error)}; the same command resumes") from error
        if self._failures >= MOST_FAILURES:
            last = [trial for trial in self.trials if trial.state == TrialState.FAIL][-1]
            reason = last.user_attrs.get("reason", "no reason")
            raise UserError(f"{MOST_FAILURES} trials failed in a row, the last one with: {reason}")

    def _locked(self) -> IO[str]:
        with writing(f"to --folder {self.folder}", "choose another"):
            lock = Folder(self.folder).lock(".lock")
        if lock is None:
            raise UserError(f"another sweep is using {self.folder}; wait for it to end, or choose another --folder")
        return lock

    def _work(self) -> None:
        while not self.stops and self._failures < MOST_FAILURES:
            with self._lock:
                finished, running = self.finished(), sum(trial.state == TrialState.RUNNING for trial in self.trials)
                trial = None
                if self._interrupted:
                    trial = self._reopen(self._interrupted.pop(0).number)
                elif finished + running < self._target:
                    trial = self.study.ask()
                elif finished >= self._target:
                    self._write_table()  # again, as the disk may have refused it before a resume
                if trial is not None:
                    self._sample(trial)
            if trial is not None:
                self._run_trial(trial)
            elif finished >= self._target:
                return
            else:
                time.sleep(POLL_S)  # another worker's trial may fail and need a replacement

    def _reopen(self, number: int) -> Trial:
        study_id = self._storage.get_study_id_from_name(self.study.study_name)
        return Trial(self.study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _sample(self, trial: Trial) -> None:
        """Sample the settings that a trial lacks, each by a seed of its own, so that none depends on those it has."""
        suggest: dict[type, Any] = {IntDistribution: trial.suggest_int, FloatDistribution: trial.suggest_float}
        for place, (key, distribution) in enumerate(self.space.items()):
            seed = np.random.SeedSequence([self.seed, trial.number, place]).generate_state(1)[0]
            self.study.sampler = optuna.samplers.TPESampler(seed=int(seed))
            suggest.get(type(distribution), trial.suggest_categorical)(key, **vars(distribution))

    def _run_trial(self, trial: Trial) -> None:
        """Run a trial to its end, unless the sweep is stopped."""
        folder, code, pruned = self._folder(trial), 0, bool(trial.user_attrs.get(PRUNED))
        if not pruned:
            while (running := folder.lock(".running")) is None:  # its fit outlived the sweep that was killed
                if self.stops:
                    return
                time.sleep(POLL_S)
            with running:
                options = [f"--{key}={to_text(trial.params[key])}" for key in self.space]
                process = start(folder, [*self.args, *options], running)
            code, pruned = self._follow(process, trial)
        if pruned or code not in STOPPED or not self.stops:  # a trial that was stopped by itself failed
            with self._lock:
                self._finish(trial, code, pruned)

    def _follow(self, process: subprocess.Popen[bytes], trial: Trial) -> tuple[int, bool]:
        """Report generations as they end and forward requests to stop; return exit code and whether it was pruned.

        A trial that completes its last generation is not pruned.
        """
        sent, pruned, reported = 0, False, set(self.trials[trial.number].intermediate_values)
        try:
            while True:
                code = process.poll()  # before reading metrics.csv, so that its last row is not missed
                pruned &= code != 0
                for generation, value in fitness(self._folder(trial).path).items():
                    if generation not in reported and not pruned:
                        reported.add(generation)
                        trial.report(value, generation)
                        if pruned := code is None and bool(trial.should_prune()):
                            trial.set_user_attr(PRUNED, True)
                if code is not None:
                    return code, pruned
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)  # before stopping it, as it may end by itself
                for _ in range(sent, max(self.stops, int(pruned))):
                    process.terminate()
                    sent += 1
        except BaseException:  # the process must not outlive the worker that reads its results
            process.terminate()
            raise

    def _finish(self, trial: Trial, code: int, pruned: bool) -> None:
        folder = self._folder(trial).path
        values = fitness(folder)
        if pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
        elif code == 0 and values:
            self.study.tell(trial, values[max(values)])
        else:
            reason = last_line(folder) if code else f"its metrics have no {METRIC}"
            trial.set_user_attr("reason", reason if code == 2 else f"exit code {code}: {reason}")
            self.study.tell(trial, state=TrialState.FAIL)
        self._write_table()
        result = self.trials[trial.number]
        self._failures = self._failures + 1 if result.state == TrialState.FAIL else 0
        value = result.user_attrs.get("reason") if result.value is None else f"{result.value:g}"
        print(f"trial {result.number}: {result.state.name.lower()}, {value} ({self.finished()} of {self._target} done)")

    def _write_table(self) -> None:
        rows = []
        for trial in self.trials:
            value, reason = "" if trial.value is None else str(trial.value), trial.user_attrs.get("reason", "")
            row = {"trial": trial.number, "state": trial.state.name.lower(), "value": value}
            row |= {"generations": len(trial.intermediate_values), "reason": reason}
            rows.append(row | {key: to_text(trial.params[key]) if key in trial.params else "" for key in self.space})
        Folder(self.folder).write("trials.csv", pd.DataFrame(rows).to_csv(index=False))

    def _folder(self, trial: Trial | FrozenTrial) -> Folder:
        return Folder(self.folder) / "trials" / str(trial.number)


def _reason(error: BaseException) -> str:
    return one_line(error.__cause__ or error)
