"""Where only the first agents learn: the scheme of Khadka and Tumer, "Evolution-guided policy gradient", 2018."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigen2.erl.evolution.selection import Evolution, plan
from eigen2.errors import UserError
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


def test_without_injection_learners_and_the_evolved_are_strangers() -> None:
    recorder = Recorder()
    evolution = Evolution(inject_every=10)
    fit(AIM, recorder, epochs=3, population_size=6, learners=2, evolution=evolution)
    for generation in range(3):
        before, after = recorder.states[generation, "train"], recorder.states[generation, "evolve"]
        for name in ("actor", "critic", "actor.exp_avg", "critic.exp_avg_sq"):
            assert same(before[name][:2], after[name][:2]), name
        assert not same(before["actor"][2:], after["actor"][2:])
        assert not after["actor.exp_avg"][2:].any(), "what does not learn has no momentum"


def test_the_fittest_learners_actor_replaces_the_least_fit_every_kth_generation() -> None:
    recorder = Recorder()
    fit(AIM, recorder, epochs=4, population_size=6, learners=2, evolution=Evolution(inject_every=2))
    for generation in range(4):
        before, after = recorder.states[generation, "train"], recorder.states[generation, "evolve"]
        fitness = recorder.fitness[generation]
        learner, worst = int(fitness[:2].argmax()), 2 + int(fitness[2:].argmin())
        assert same(after["actor"][worst], before["actor"][learner]) == (generation % 2 == 1)
        assert not after["actor.exp_avg"][2:].any()


@given(
    st.lists(st.one_of(st.floats(-5, 5), st.just(float("nan"))), min_size=3, max_size=20),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 1000),
)
def test_plans_keep_to_their_side(fitness: list[float], learners: int, inject: bool, seed: int) -> None:
    values = np.array(fitness)
    learners = min(learners, len(values) - 1)
    evolved = range(learners, len(values))
    if not np.isfinite(values[learners:]).any():
        with pytest.raises(ValueError, match="no parent"):
            plan(values, Evolution(), np.random.default_rng(seed), learners, inject)
        return
    children = plan(values, Evolution(), np.random.default_rng(seed), learners, inject)
    injected = [child for child in children if child.kind == "injected"]
    assert len(injected) <= inject
    for child in children:
        if child.kind == "injected":
            finite = values[:learners][np.isfinite(values[:learners])]
            assert values[child.parents[0]] == finite.max()
            assert child.row in evolved
        else:
            assert set(child.parents) <= set(evolved)
            assert np.isfinite(values[list(child.parents)]).all()
            assert child.row in evolved or not np.isfinite(values[child.row])
    replaced = [child.row for child in children]
    assert len(set(replaced)) == len(replaced)
    assert {row for row in range(len(values)) if not np.isfinite(values[row])} <= set(replaced)
    best = max(evolved, key=lambda row: (np.isfinite(values[row]), values[row]))
    assert best not in replaced


def test_the_best_action_is_found() -> None:
    probe = Probe(lambda x, action, step: -((action - 0.5 * x) ** 2), contexts=(-1.0, 1.0))
    settings = {"actor_lr": 3e-3, "data": {"critic_hidden": 32}, "evolution": Evolution(inject_every=2)}
    module = fit(probe, epochs=10, gradient_steps=60, population_size=5, learners=1, **settings)
    assert float(module.population.champion_fitness) > -0.01


def test_learners_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.learners is 5; it must be at least 1 and at most 4"):
        fit(AIM, learners=5)
    with pytest.raises(UserError, match=r"windows_per_generation is 0"):
        fit(AIM, learners=1, data={"windows_per_generation": 0})
