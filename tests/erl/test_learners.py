"""Where only the first agents learn: the scheme of Khadka and Tumer, "Evolution-guided policy gradient", 2018."""

import pytest

from eigen2.errors import UserError
from tests.erl.evolution.builders import evolution
from tests.erl.probe import Probe, ProbeEnvironment, fit
from tests.erl.recorder import Recorder, same

AIM = Probe(lambda x, action, step: -((action - 0.5) ** 2), contexts=(-1.0, 1.0))


def test_gradients_move_the_learners_alone() -> None:
    recorder = Recorder()
    fit(AIM, recorder, population_size=5, learners=2)
    before, after = recorder.states[0, "evaluate"], recorder.states[0, "train"]
    for name in ("actor", "critic"):
        assert same(before[name][2:], after[name][2:])
        assert not (before[name][:2] == after[name][:2]).all(1).any()
        for moment in ("exp_avg", "exp_avg_sq"):
            assert after[f"{name}.{moment}"][:2].any(1).all()
            assert not after[f"{name}.{moment}"][2:].any()


def test_only_learners_explore() -> None:
    recorder = Recorder()
    module = fit(
        AIM, recorder, population_size=5, learners=1, data={"windows_per_generation": 2, "exploration_windows": 3}
    )
    assert isinstance(module.data.eval_env, ProbeEnvironment)
    assert module.data.buffer.added == 5 * 2 + 1 * 3


def test_the_best_action_is_found() -> None:
    probe = Probe(lambda x, action, step: -((action - 0.5 * x) ** 2), contexts=(-1.0, 1.0))
    settings = {"actor_lr": 3e-3, "data": {"critic_hidden": 32}, "evolution": evolution(inject_every=2)}
    module = fit(probe, epochs=10, gradient_steps=60, population_size=5, learners=1, **settings)
    assert float(module.population.champion_fitness) > -0.01


def test_learners_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.learners is 5; it must be at least 1 and at most 4"):
        fit(AIM, learners=5)
    with pytest.raises(UserError, match=r"windows_per_generation is 0"):
        fit(AIM, learners=1, data={"windows_per_generation": 0})
