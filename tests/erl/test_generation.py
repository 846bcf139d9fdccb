"""A generation on the real Trainer: what is learned, warm-up, exploration, and what a run depends on."""

from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from eigen2.core.replay import loaded_action
from eigen2.erl import base
from eigen2.erl.learners import TD3
from eigen2.errors import UserError
from tests.erl.conftest import SEED
from tests.erl.evolution.builders import evolution
from tests.erl.probe import AIM, Probe, ProbeActor, ProbeCritic, ProbeEnvironment, ProbeRollouts, fit, make_trainer
from tests.erl.recorder import ROWS, Recorder, same
from tests.erl.reference import OneAgent, with_weights

WALK = Probe(lambda x, action, step: x - (action - 0.3) ** 2, steps=3, contexts=(-1.0, 0.5), walks=True)
PHASES = ["evaluate", "train", "evolve", "validate"]


@pytest.mark.parametrize(("accumulate", "together", "truncated"), [(1, 1, False), (3, 1, True), (6, 3, True)])
def test_learning_is_that_of_separate_agents_on_whole_batches(
    accumulate: int, together: int, truncated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches of 12 / `accumulate` through the module against one batch of their union through plain modules."""
    monkeypatch.setattr(base, "batches_together", lambda *_: together)
    recorder, max_norm, parts = Recorder(), 0.7, accumulate // together
    probe = Probe(WALK.reward, steps=3, truncated=truncated, contexts=WALK.contexts, walks=True)
    data, steps = {"batch_size": 12 // accumulate}, {"gradient_steps": 5, "accumulate": accumulate}
    own: dict[str, Any] = {"gamma": 0.9, "tau": 0.3, "actor_lr": 0.01, "critic_lr": 0.03, "reward_scale": 0.5}
    fit(probe, recorder, epochs=2, data=data, **steps, **own, max_grad_norm=max_norm)
    start = recorder.states[0, "evaluate"]
    losses: list[list[float]] = [[], []]
    for agent in range(4):
        networks = (
            with_weights(ProbeActor(), start["actor"][agent]),
            with_weights(ProbeCritic(), start["critic"][agent]),
        )
        alone = OneAgent(*networks, (0.01, 0.03), gamma=0.9, tau=0.3, max_norm=max_norm)
        for generation in range(2):
            drawn = {name: value[:, agent] for name, value in recorder.drawn[generation].items()}
            for step in range(5):
                union = {n: v[step * parts : (step + 1) * parts].flatten(0, 1) for n, v in drawn.items()}
                action, rewards, ends = loaded_action(union["action"]), 0.5 * union["reward"], union["terminated"]
                found = alone.step({"x": union["x"]}, {"x": union["next_x"]}, action, rewards, ends)
                losses[generation].append(found["critic_loss"])
            trained = recorder.states[generation, "train"]
            for name, row in alone.rows().items():
                torch.testing.assert_close(trained[name][agent], row, atol=1e-5, rtol=0)
    assert recorder.drawn[0]["reward"].shape == (5 * parts, 4, 12 // parts)
    assert len({tuple(recorder.drawn[0]["reward"][:, agent].flatten().tolist()) for agent in range(4)}) == 4
    for generation in range(2):
        told = recorder.metrics[generation]["train/critic_loss"]
        assert told == pytest.approx(float(np.mean(losses[generation])), rel=1e-4)
    assert recorder.drawn[1]["truncated"].any() == truncated
    assert recorder.drawn[1]["terminated"].any() != truncated


def test_a_lone_learner_trains_alike_however_many_batches_a_step_of_lightning_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it is the whole population or not; seven batches are no multiple of four."""
    for agents in (1, 3):
        trained = []
        for batches, tokens in ((1, 7), (4, 2)):
            monkeypatch.setattr(base, "BATCHES_PER_TRAINING_STEP", batches)
            recorder = Recorder()
            module = fit(WALK, recorder, population_size=agents, learners=1, gradient_steps=7, learner=TD3())
            assert len(module.data.train_dataloader()) == tokens
            trained.append(recorder)
        one, four = (recorder.states[0, "train"] for recorder in trained)
        assert all(same(one[name], four[name]) for name in ROWS)
        assert not same(one["actor_target"], trained[0].states[0, "evaluate"]["actor_target"])


@pytest.mark.parametrize(("learners", "accumulate"), [(None, 2), (1, 1)])
def test_gradient_steps_may_follow_the_transitions_of_a_generation(learners: int | None, accumulate: int) -> None:
    """Agents that all learn share them; episodes here have a known length, so that the number can be set, too."""
    settings, trained = {"learners": learners, "accumulate": accumulate, "population_size": 3}, []
    for steps in (0, -1, None):
        if steps is None:
            added = trained[0].data.buffer.added
            steps = added // (1 if learners else 3)
            assert steps > 3
        trained.append(fit(WALK, **settings, gradient_steps=steps))
    idle, follows, known = (module.population for module in trained)
    assert torch.equal(follows.actor, known.actor)
    assert torch.equal(follows.critic, known.critic)
    assert not torch.equal(follows.critic, idle.critic)
    assert len(trained[1].state.slots) == len(trained[2].state.slots)


def test_episodes_of_unknown_length_need_a_number_of_gradient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ProbeRollouts, "longest_episode")
    with pytest.raises(UserError, match="does not define longest_episode: define it, or train in one process with"):
        fit(AIM, gradient_steps=-1)


def test_the_mean_of_the_elites_is_of_a_population_and_starts_once() -> None:
    alone = fit(AIM, population_size=1, evolution=evolution())
    assert alone.population.mean_actor.isnan().all(), "one agent does not evolve"
    assert np.isnan(alone.metrics["validation/elite_mean"])
    module = fit(AIM, evolution=evolution())
    kept, mean = module.population.mean_actor.clone(), list[Tensor]()

    class Further(Recorder):
        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            mean.append(module.population.mean_actor.clone())

    make_trainer(Further()).fit(module, datamodule=module.data)
    assert same(mean[0], kept)


def test_a_further_fit_on_other_validation_windows_is_refused() -> None:
    module = fit(AIM)
    other = Probe(AIM.reward, contexts=(0.0, 1.0))
    with pytest.raises(UserError, match="was fitted to data of other sizes; make a new ERLModule"):
        make_trainer().fit(module, datamodule=ProbeRollouts(other))


@pytest.mark.parametrize(("epochs", "spread"), [(1, 3**-0.5), (2, 0.0)])
def test_random_warmup_plays_uniform_actions_until_training_starts(epochs: int, spread: float) -> None:
    """In exploration windows, all of which have the same x; without noise actions are the same from then on."""
    idle = Probe(lambda x, action, step: x, steps=40)
    data = {"exploration_windows": 5}
    module = fit(idle, epochs=epochs, random_warmup=True, noise=0.0, gradient_steps=0, data=data)
    played, counted = torch.stack(module.data.eval_env.actions), module.data.windows_per_generation
    assert float(played[:, :, :counted].std(0).max()) == 0
    assert float(played[:, :, counted:].std(0).mean()) == pytest.approx(spread, abs=0.03)


def test_without_gradient_steps_only_evolution_changes_rows() -> None:
    recorder = Recorder()
    fit(AIM, recorder, epochs=2, gradient_steps=0, evolution=evolution())
    assert recorder.order == [(generation, phase) for generation in range(2) for phase in PHASES]
    for generation in range(2):
        before, after = recorder.states[generation, "evaluate"], recorder.states[generation, "train"]
        assert all(same(before[name], after[name]) for name in ROWS)
    assert not same(recorder.states[0, "train"]["actor"], recorder.states[0, "evolve"]["actor"])
    assert "actor.exp_avg" not in recorder.states[1, "validate"]


@pytest.mark.parametrize("every", [1, 2])
def test_champions_are_found_in_the_generations_that_validate(every: int) -> None:
    recorder = Recorder()
    module = fit(AIM, recorder, epochs=5, validate_every=every, actor_lr=3e-3)
    validates = [generation for generation in range(5) if (generation + 1) % every == 0]
    for generation in range(5):
        assert recorder.validation[generation].isfinite().all() == (generation in validates)
        assert np.isnan(recorder.metrics[generation]["validation/max"]) == (generation not in validates)
    assert int(module.population.champion_generation) in validates
    best = max(float(recorder.validation[one][recorder.fitness[one].argmax()]) for one in validates)
    assert recorder.metrics[4]["champion/validation_fitness"] == pytest.approx(best)


def test_gradients_move_the_learner_alone_and_it_alone_explores() -> None:
    recorder = Recorder()
    data = {"windows_per_generation": 2, "exploration_windows": 13, "replay_min_size": 16, "batch_size": 16}
    module = fit(AIM, recorder, population_size=5, learners=1, data=data)
    assert module.data.buffer.added == 5 * 2 + 13
    before, after = recorder.states[0, "evaluate"], recorder.states[0, "train"]
    assert same(before["head"], after["head"])
    assert same(before["head"][0], before["actor"][0])
    for name in ("actor", "critic"):
        assert after[name].shape == before[name].shape
        assert len(after[name]) == 1
        assert not torch.equal(before[name], after[name])


def test_without_windows_of_fitness_all_agents_explore() -> None:
    data = {"windows_per_generation": 0, "exploration_windows": 3}
    module = fit(Probe(AIM.reward, steps=30), learners=1, noise=0.1, gradient_steps=0, data=data)
    assert module.data.buffer.added == 4 * 3 * 30
    played = torch.stack(module.data.eval_env.actions)
    assert float(played.std(0).min()) > 0.05
    assert module.state.fitness.isfinite().all()


def test_warm_up_plays_evolves_and_validates_but_does_not_train() -> None:
    """64 transitions a generation; training starts with the generation whose rollouts fill the buffer to 128."""
    recorder = Recorder()
    module = fit(AIM, recorder, epochs=3, data={"replay_min_size": 128}, evolution=evolution(), noise_decay=0.9)
    assert recorder.order == [(generation, phase) for generation in range(3) for phase in PHASES]
    evaluated, trained, evolved = (recorder.states[0, phase] for phase in PHASES[:3])
    assert evaluated.keys() == trained.keys() == evolved.keys()
    assert not any(name.endswith(("exp_avg", "step")) for name in evolved)
    assert all(same(evaluated[name], trained[name]) for name in trained)
    assert not same(trained["actor"], evolved["actor"])
    assert float(recorder.states[0, "validate"]["champion_fitness"]) > -torch.inf
    without_value = {
        name for name, value in recorder.metrics[0].items() if np.isnan(value) and not name.startswith("operators/")
    }
    assert without_value == {f"train/{name}" for name in ("actor_loss", "critic_loss", "q_mean", "action_saturation")}
    for generation, steps in ((1, 4), (2, 8)):
        state = recorder.states[generation, "train"]
        assert int(state["actor.step"]) == int(state["critic.step"]) == steps
        assert not np.isnan(recorder.metrics[generation]["train/critic_loss"])
    assert [recorder.metrics[generation]["replay/size"] for generation in range(3)] == [64, 128, 192]
    assert module.trainer.global_step == 8


def test_exploration_windows_alone_are_noisy() -> None:
    recorder = Recorder()
    probe = Probe(WALK.reward, steps=40, contexts=(0.0,))
    module = fit(probe, recorder, noise=0.2, gradient_steps=0, data={"exploration_windows": 5})
    counted = module.data.windows_per_generation
    env = module.data.eval_env
    assert isinstance(env, ProbeEnvironment)
    played = torch.stack(env.actions)  # (steps, agents, windows, 1)
    assert played.shape == (40, 4, counted + 5, 1)
    for agent in range(4):
        policy = with_weights(ProbeActor(), recorder.states[0, "evaluate"]["actor"][agent])({"x": torch.zeros(1, 1)})
        quiet, loud = played[:, agent, :counted], played[:, agent, counted:]
        torch.testing.assert_close(quiet, policy.detach().expand_as(quiet))
        change = loud - policy.detach()
        assert len(torch.unique(change)) > 20
        assert float(change.std()) == pytest.approx(0.2, abs=0.04)
    assert len(module.data.buffer) == 40 * 4 * (counted + 5)


def test_callbacks_hear_of_every_environment_step_of_the_evaluation() -> None:
    class Steps(Callback):
        heard = 0

        def on_environment_step(self, trainer: Trainer, module: LightningModule) -> None:
            self.heard += 1

    steps = Steps()
    fit(WALK, steps, epochs=3)
    assert steps.heard == 3 * WALK.steps


def weights_after(**settings: Any) -> Tensor:
    return fit(AIM, epochs=2, evolution=evolution(), **settings).population.actor.detach()


def test_a_run_depends_on_its_seed_and_not_on_the_global_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    first = weights_after()
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert same(weights_after(), first)
    assert torch.equal(torch.get_rng_state(), state), "a run drew from the global generator"
    monkeypatch.setenv("PL_GLOBAL_SEED", str(SEED + 1))
    assert not same(weights_after(), first)
