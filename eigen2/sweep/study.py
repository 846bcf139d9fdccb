"""A sweep: trials of an Optuna study, run side by side, and resumed after a kill."""

import csv
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, Trial, TrialState
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from eigen2.errors import UserError
from eigen2.runtime.files import replacing
from eigen2.runtime.signals import CODES
from eigen2.sweep.space import Space, suggest, word
from eigen2.sweep.trial import METRIC, fitness, follow, last_words, locked, start

NAME = "sweep"
"""Of the study in its database."""
FAILURES = 5
"""Trials that may fail in a row before a sweep gives up."""
ASKED_TO_STOP = {*CODES.values(), *(-each for each in CODES)}
"""Exit codes of a fit that ended by a signal and can be resumed; negative before it has taken the signals over."""
POLL_S = 1.0
"""Seconds between two looks at a trial."""
DONE = (TrialState.COMPLETE, TrialState.PRUNED)


class Sweep:
    """Trials in a folder, of which several processes may run some each.

    Optuna's database says which trials there are; locks on files in their folders say which of them a process is
    working on. Locks go with their process, so a trial that the database calls running and nobody has locked was
    left by a kill, and is resumed.

    Args:
        folder: of the sweep: study.db, trials.csv and a folder a trial.
        words: options of fit that all trials share.
        space: what is chosen for each.
        made_of: settings that must not change while the sweep goes on, by the option that they come from.
        seed: of the choices; with one worker they depend on nothing else.
        prune_after: complete trials, and generations, before a trial may be pruned.

    Raises:
        UserError: the folder cannot be used, or holds another sweep.
    """

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        space: Space,
        made_of: dict[str, Any],
        seed: int,
        prune_after: tuple[int, int],
    ) -> None:
        self.folder, self.words, self.space, self.seed = folder, list(words), space, seed
        self.stops = 0
        self._console, self._failed, self._trials = Console(highlight=False), 0, 0
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=prune_after[0], n_warmup_steps=prune_after[1])
        with self._alone():
            self.study = _open(folder / "study.db", pruner)
            known = self.study.user_attrs.get("made_of")
            if known is None:
                self.study.set_user_attr("made_of", made_of)
        for option in made_of:
            if known is not None and known.get(option) != made_of[option]:
                raise UserError(
                    f"{folder} holds a sweep of another {option}; give that one, or choose another --folder"
                )

    def done(self) -> int:
        """How many trials count: complete and pruned ones."""
        return sum(trial.state in DONE for trial in self.trials)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All that there are, in order."""
        return self.study.get_trials(deepcopy=False)

    def run(self, trials: int, workers: int) -> None:
        """Work until so many trials are done, by whatever process, or the sweep is asked to stop.

        Args:
            trials: complete and pruned ones together.
            workers: trials at a time in this process.

        Raises:
            UserError: too many trials failed in a row.
        """
        self._trials = trials
        with ThreadPoolExecutor(workers) as pool:
            for worker in as_completed([pool.submit(self._work) for _ in range(workers)]):
                try:
                    worker.result()
                except (SQLAlchemyError, optuna.exceptions.OptunaError, OSError) as error:
                    self.stops += 1
                    reason = " ".join(str(error.__cause__ or error).split())[:200]
                    raise UserError(
                        f"the sweep stops: {reason}; once that is mended the same command goes on"
                    ) from error
                except BaseException:
                    self.stops += 1
                    raise
        if self._failed >= FAILURES:
            reasons = [trial.user_attrs["reason"] for trial in self.trials if trial.state == TrialState.FAIL]
            raise UserError(f"{FAILURES} trials failed in a row, the last with: {reasons[-1]}")

    def _work(self) -> None:
        while (claimed := self._claim()) is not None:
            with claimed[1]:
                self._try(claimed[0])

    def _claim(self) -> tuple[Trial, IO[str]] | None:
        """Take a trial to work on, with its lock: one that a kill has left, or a new one; None if enough are done."""
        while not self.stops and self._failed < FAILURES:
            with self._alone():
                trials = self.trials
                left = [trial for trial in trials if trial.state == TrialState.RUNNING]
                for trial in left:
                    if lock := locked(self._place(trial) / ".worker"):
                        # Optuna opens a trial again by this number alone, which it has no public name for
                        return self._choose(Trial(self.study, trial._trial_id)), lock
                done = self.done()
                if done + len(left) < self._trials:
                    new = self._choose(self.study.ask())
                    taken = locked(self._place(new) / ".worker", wait=True)
                    assert taken is not None
                    return new, taken
                if done >= self._trials:
                    return None
            time.sleep(POLL_S)  # another worker's trial may fail, or be left by a kill
        return None

    def _choose(self, trial: Trial) -> Trial:
        """Settle all of a trial's settings; those that it has stay.

        The chance in it depends on seed and number alone, so no sampler's state has to survive a kill.
        """
        seed = np.random.SeedSequence([self.seed, trial.number]).generate_state(1)[0]
        self.study.sampler = optuna.samplers.TPESampler(seed=int(seed))
        suggest(trial, self.space)
        return trial

    def _try(self, trial: Trial) -> None:
        """Run a trial to its end, unless the sweep is asked to stop."""
        place = self._place(trial)
        reported = set(self.trials[trial.number].intermediate_values)
        pruned = bool(reported) and bool(trial.should_prune())

        def seen() -> bool:
            nonlocal pruned
            for generation, value in fitness(place).items():
                if generation not in reported and not pruned:
                    reported.add(generation)
                    trial.report(value, generation)
                    pruned = bool(trial.should_prune())  # NumPy's
            return pruned

        code = 0
        if not pruned:
            running = self._turn(place)
            if running is None:
                return
            with running:
                words = [*self.words, *(f"--{key}={word(trial.params[key])}" for key in self.space)]
                process = start(place, words, running)
            code = follow(process, seen, lambda: self.stops, POLL_S)
        if pruned or code not in ASKED_TO_STOP:
            self._finish(trial, code, pruned)

    def _turn(self, place: Path) -> IO[str] | None:
        """The lock that a trial's fit holds, once one that has outlived its sweep is through; None if asked to stop."""
        while (running := locked(place / ".running")) is None and not self.stops:
            time.sleep(POLL_S)
        return running

    def _finish(self, trial: Trial, code: int, pruned: bool) -> None:
        place = self._place(trial)
        values = fitness(place)
        with self._alone():
            if pruned:
                self.study.tell(trial, state=TrialState.PRUNED)
            elif code == 0 and values:
                self.study.tell(trial, values[max(values)])
            else:
                reason = last_words(place) if code else f"it has no {METRIC}"
                trial.set_user_attr("reason", f"exit code {code}: {reason}" if code != 2 else reason)
                self.study.tell(trial, state=TrialState.FAIL)
            trials = self.trials
            self._write(trials)
        ended = trials[trial.number]
        self._failed = self._failed + 1 if ended.state == TrialState.FAIL else 0
        value = ended.user_attrs.get("reason") if ended.value is None else f"{ended.value:g}"
        said = f"trial {ended.number}: {ended.state.name.lower()}, {value} ({self.done()} of {self._trials} done)"
        self._console.print(said, soft_wrap=True, markup=False)

    def _write(self, trials: list[FrozenTrial]) -> None:
        with replacing(self.folder / "trials.csv") as draft, draft.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["trial", "state", "value", "generations", "reason", *self.space])
            for one in trials:
                value = "" if one.value is None else one.value
                told = [one.number, one.state.name.lower(), value, len(one.intermediate_values)]
                chosen = [word(one.params[key]) if key in one.params else "" for key in self.space]
                table.writerow([*told, one.user_attrs.get("reason", ""), *chosen])

    def _place(self, trial: Trial | FrozenTrial) -> Path:
        return self.folder / "trials" / str(trial.number)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time of all workers of all processes, so that none takes a trial that another takes."""
        try:
            lock = locked(self.folder / ".lock", wait=True)
        except OSError as error:
            raise UserError(f"cannot write to --folder {self.folder}: {error.strerror}; choose another") from error
        assert lock is not None
        with lock:
            yield


def _open(path: Path, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    try:
        # workers wait for each other's writes
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}})
        return optuna.create_study(
            study_name=NAME, storage=storage, pruner=pruner, direction="maximize", load_if_exists=True
        )
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:120]
        raise UserError(f"{path} cannot be used: {reason}; move it away, or choose another --folder") from error
