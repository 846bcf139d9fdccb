"""Updates of the market's networks, recorded and replayed, against the same updates made directly."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.speed.full_scale import FullScale, fit
from eigen2.erl.graphs import StepRunner
from eigen2.erl.module import ERLModule
from tests.erl.recorder import same
from tests.erl.tape import Tape

CONFIG = Path(__file__).parents[1] / "small.yaml"


@pytest.mark.parametrize("words", [(), ("--data.encoding=windows", "--model.learner=eigen2.erl.learners.TD3")])
def test_recorded_updates_have_the_same_bits(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored afterwards: the command line sets it
    torch.set_num_threads(1)

    def trained() -> dict[str, Tensor]:
        run = full.start("--model.gradient_steps=10", "--data.replay_min_size=100", "--trainer.max_epochs=2", *words)
        fit(run)
        return {name: rows.clone() for name, rows in run.model.population.rows().items()}

    with FullScale(CONFIG) as full:
        direct = trained()
        monkeypatch.setattr(ERLModule, "make_step_runner", staticmethod(lambda *_: StepRunner(Tape)))
        Tape.replayed = 0
        recorded = trained()
    assert Tape.replayed > 20
    assert [name for name in direct if not same(direct[name], recorded[name])] == []
