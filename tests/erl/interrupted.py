"""A run that is interrupted and resumed, against the one that was not."""

from pathlib import Path
from typing import Any

import pytest

from eigen2.erl.module import ERLModule
from tests.erl.probe import AIM, ProbeRollouts, make_trainer
from tests.erl.recorder import Recorder, same

GENERATIONS = 6


def check_resume(
    folder: Path, after: int, *, seed: int | None = None, monkeypatch: pytest.MonkeyPatch | None = None, **settings: Any
) -> None:
    """Check that a run interrupted and resumed equals an uninterrupted one bit for bit.

    It stops after `after` generations. The resumed run's environment sets another `seed`, which must have no effect.
    """
    recorders = Recorder(), Recorder()

    def run(recorder: Recorder | None, epochs: int, checkpoint: Path | None = None) -> None:
        module = ERLModule(population_size=8, gradient_steps=2, accumulate=1, **settings)
        callbacks = [] if recorder is None else [recorder]
        trainer = make_trainer(*callbacks, epochs=epochs)
        trainer.fit(module, datamodule=ProbeRollouts(AIM, replay_min_size=256), ckpt_path=checkpoint)
        if recorder is None:
            trainer.save_checkpoint(folder / "part.ckpt")

    run(None, after)
    run(recorders[0], GENERATIONS)
    if monkeypatch is not None:
        monkeypatch.setenv("PL_GLOBAL_SEED", str(seed))
    run(recorders[1], GENERATIONS, folder / "part.ckpt")
    assert [one[0] for one in recorders[1].order] == [n for n in range(after, GENERATIONS) for _ in range(4)]
    for moment, right in recorders[1].states.items():
        left = recorders[0].states[moment]
        assert left.keys() == right.keys()
        assert [name for name in left if not same(left[name], right[name])] == [], moment
    for generation in range(after, GENERATIONS):
        whole, again = (
            {name: repr(value) for name, value in recorder.metrics[generation].items() if not name.startswith("time/")}
            for recorder in recorders
        )
        assert whole == again
