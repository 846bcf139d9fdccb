"""A sweep: trials of an Optuna study, run side by side, and resumed after a kill."""

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from eigen2.errors import UserError
from eigen2.runtime.files import lock, replacing
from eigen2.runtime.signals import CODES
from eigen2.sweep.space import Space
from eigen2.sweep.trial import METRIC, fitness, last_line, start, to_text

MOST_FAILURES = 5  # trials that may fail in a row before a sweep gives up
# exit codes of a fit that a signal ended and that can be resumed; negative before it has installed its handlers
STOPPED = {*CODES.values(), *(-each for each in CODES)}
POLL_S = 1.0  # seconds between two looks at a trial
DONE = (TrialState.COMPLETE, TrialState.PRUNED)
ERRORS = (SQLAlchemyError, optuna.exceptions.OptunaError)  # of the database


class Sweep:
    """Trials in a folder: study.db, trials.csv and a folder for each trial.

    A trial that is running by Optuna's database when a sweep begins was left by a kill, and is resumed in its place.
    (Optuna's heartbeat would repeat it as another trial, a minute later.)

    All trials share the options `words` of fit. `fixed` are settings, by option, that may not change when the sweep is
    resumed, `prune` the complete trials, and generations, before a trial may be pruned. With one worker the choices
    depend on the seed alone. Raises UserError if the folder cannot be used, or holds another sweep.
    """

    def __init__(
        self, folder: Path, words: list[str], space: Space, fixed: dict[str, Any], seed: int, prune: tuple[int, int]
    ) -> None:
        self.folder, self.words, self.space, self.seed = folder, words, space, seed
        self.stops = 0  # how often the sweep was asked to stop; each is passed on to the trials
        self._claims, self._failed, self._wanted = threading.Lock(), 0, 0
        self._left: list[FrozenTrial] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to --folder {folder}: {error.strerror}; choose another") from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = folder / "study.db"
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}})
            pruner = optuna.pruners.MedianPruner(*prune)
            self.study = optuna.create_study(
                study_name="sweep", storage=storage, pruner=pruner, direction="maximize", load_if_exists=True
            )
        except (*ERRORS, RuntimeError) as error:
            raise UserError(f"{path} cannot be used: {_reason(error)}; move it, or choose another --folder") from error
        known = self.study.user_attrs.get("fixed", fixed)
        self.study.set_user_attr("fixed", known)
        for option in (option for option in fixed if known.get(option) != fixed[option]):
            raise UserError(f"{folder} holds a sweep of another {option}; give that one, or choose another --folder")

    @property
    def trials(self) -> list[FrozenTrial]:
        """Return all trials, in order."""
        return self.study.get_trials(deepcopy=False)

    def done(self) -> int:
        """Return how many trials are complete or pruned."""
        return sum(trial.state in DONE for trial in self.trials)

    def run(self, trials: int, workers: int) -> None:
        """Work until so many trials are complete or pruned, or the sweep is asked to stop.

        Raises UserError if too many failed in a row, the folder cannot be written, or another process works in it.
        """
        if (held := lock(self.folder / ".lock")) is None:
            raise UserError(f"another sweep is working on {self.folder}; wait for it, or choose another --folder")
        self._wanted, self._left = trials, [each for each in self.trials if each.state == TrialState.RUNNING]
        with held, ThreadPoolExecutor(workers) as pool:
            for worker in as_completed([pool.submit(self._work) for _ in range(workers)]):
                try:
                    worker.result()
                except BaseException as error:
                    self.stops += 1
                    if not isinstance(error, (*ERRORS, OSError)):
                        raise
                    raise UserError(f"the sweep stops: {_reason(error)}; the same command resumes") from error
        if self._failed >= MOST_FAILURES:
            reasons = [trial.user_attrs["reason"] for trial in self.trials if trial.state == TrialState.FAIL]
            raise UserError(f"{MOST_FAILURES} trials failed in a row, the last with: {reasons[-1]}")

    def _work(self) -> None:
        while not self.stops and self._failed < MOST_FAILURES:
            with self._claims:
                done, running = self.done(), sum(trial.state == TrialState.RUNNING for trial in self.trials)
                trial = None
                if self._left:
                    trial = Trial(self.study, self._left.pop(0)._trial_id)  # no public way to resume one
                elif done + running < self._wanted:
                    trial = self.study.ask()
                if trial is not None:
                    self._choose(trial)
            if trial is not None:
                self._run_trial(trial)
            elif done >= self._wanted:
                return
            else:
                time.sleep(POLL_S)  # another worker's trial may fail

    def _choose(self, trial: Trial) -> None:
        """Choose the settings that a trial does not have yet.

        Randomness depends on seed and number only, so that no sampler's state has to survive a kill.
        """
        seed = np.random.SeedSequence([self.seed, trial.number]).generate_state(1)[0]
        self.study.sampler = optuna.samplers.TPESampler(seed=int(seed))
        for key, distribution in self.space.items():
            trial._suggest(key, distribution)  # as study.ask does; suggest_float and the like tell the types apart

    def _run_trial(self, trial: Trial) -> None:
        """Run a trial to its end, unless the sweep is asked to stop."""
        folder, code = self._folder(trial), 0
        reported = set(self.trials[trial.number].intermediate_values)
        pruned = bool(reported) and bool(trial.should_prune())
        if not pruned:
            while (running := lock(folder / ".running")) is None:  # a fit that outlived its sweep
                if self.stops:
                    return
                time.sleep(POLL_S)
            with running:
                options = [f"--{key}={to_text(trial.params[key])}" for key in self.space]
                process = start(folder, [*self.words, *options], running)
            code, pruned = self._follow(process, trial, reported)
        if pruned or code not in STOPPED:
            with self._claims:
                self._finish(trial, code, pruned)

    def _follow(self, process: subprocess.Popen[bytes], trial: Trial, reported: set[int]) -> tuple[int, bool]:
        """Report generations as they end, pass on requests to stop; return the exit code and whether it was pruned."""
        sent, pruned = 0, False
        try:
            while True:
                code = process.poll()  # before the look, so that the last row is seen
                for generation, value in fitness(self._folder(trial)).items():
                    if generation not in reported and not pruned:
                        reported.add(generation)
                        trial.report(value, generation)
                        pruned = bool(trial.should_prune())
                if code is not None:
                    return code, pruned
                for _ in range(sent, max(self.stops, int(pruned))):
                    process.terminate()
                    sent += 1
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        except BaseException:  # nobody would follow it any more
            process.terminate()
            raise

    def _finish(self, trial: Trial, code: int, pruned: bool) -> None:
        folder = self._folder(trial)
        values = fitness(folder)
        if pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
        elif code == 0 and values:
            self.study.tell(trial, values[max(values)])
        else:
            reason = last_line(folder) if code else f"it has no {METRIC}"
            trial.set_user_attr("reason", reason if code == 2 else f"exit code {code}: {reason}")
            self.study.tell(trial, state=TrialState.FAIL)
        self._write()
        ended = self.trials[trial.number]
        self._failed = self._failed + 1 if ended.state == TrialState.FAIL else 0
        value = ended.user_attrs.get("reason") if ended.value is None else f"{ended.value:g}"
        print(f"trial {ended.number}: {ended.state.name.lower()}, {value} ({self.done()} of {self._wanted} done)")

    def _write(self) -> None:
        rows = []
        for one in self.trials:
            value, reason = "" if one.value is None else str(one.value), one.user_attrs.get("reason", "")
            row = {"trial": one.number, "state": one.state.name.lower(), "value": value}
            row |= {"generations": len(one.intermediate_values), "reason": reason}
            rows.append(row | {key: to_text(one.params[key]) if key in one.params else "" for key in self.space})
        with replacing(self.folder / "trials.csv") as draft:
            pd.DataFrame(rows).to_csv(draft, index=False)

    def _folder(self, trial: Trial | FrozenTrial) -> Path:
        return self.folder / "trials" / str(trial.number)


def _reason(error: BaseException) -> str:
    return " ".join(str(error.__cause__ or error).split())[:200]
