"""Who becomes champion, what fitness and validation are, and what a checkpoint brings back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eigen2.core.datamodule import TestResult, TrainedPolicies
from eigen2.core.environment import Observation
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError
from tests.erl.conftest import SEED
from tests.erl.evolution.builders import evolution
from tests.erl.probe import Probe, ProbeActor, ProbeEnvironment, ProbeRollouts, fit, make_trainer
from tests.erl.recorder import ROWS, Recorder, same
from tests.erl.reference import with_weights

WALK = Probe(lambda x, action, step: x - (action - 0.3) ** 2, steps=3, contexts=(-1.0, 0.5), walks=True)
AIM = Probe(lambda x, action, step: -((action - 0.5) ** 2), contexts=(-1.0, 0.0, 1.0))
PHASES = ["evaluate", "train", "evolve", "validate"]


class ScriptedEnvironment(ProbeEnvironment):
    """Pays agent a in generation g the reward script[g][a]."""

    def __init__(self, probe: Probe, agents: int, windows: int, script: list[list[float]]) -> None:
        super().__init__(probe, agents, windows)
        self.script, self.played = torch.tensor(script, dtype=torch.float64), -1

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.played += self.steps == 0
        observation, reward, terminated, truncated, info = super().step(action)
        reward = self.script[self.played][:, None].expand(reward.shape)
        return observation, reward, terminated, truncated, info


class ScriptedRollouts(ProbeRollouts):
    """Fitness and validation as the scripts say."""

    def __init__(self, fitness: list[list[float]], validation: list[list[float]], **settings: Any) -> None:
        super().__init__(AIM, **settings)
        self.scripts = fitness, validation

    def build(self, agents: int, device: torch.device) -> None:
        windows = self.windows_per_generation + self.exploration_windows
        self.eval_env = ScriptedEnvironment(self.probe, agents, windows, self.scripts[0])
        self.val_env = ScriptedEnvironment(self.probe, agents, len(self.probe.contexts), self.scripts[1])


NAN = float("nan")


def test_the_fittest_becomes_champion_only_if_it_validates_better() -> None:
    fitness = [
        [0.0, 1.0, 2.0, 3.0],
        [0.0, 1.0, 3.0, 2.0],
        [3.0, 2.0, 1.0, 0.0],
        [NAN, 0.0, 3.0, 1.0],
        [3.0, 0.0, 0.0, 0.0],
        [0.0, 3.0, 0.0, 0.0],
        [0.0, 3.0, 0.0, 0.0],
    ]
    validation = [
        [NAN, NAN, NAN, NAN],
        [1.0, 2.0, 3.0, 0.0],
        [3.0, 3.0, 9.0, 3.0],  # row 2 validates best, but row 0 is the candidate
        [NAN, 4.0, 5.0, 6.0],
        [NAN, NAN, NAN, NAN],
        [-1.0, 4.9, 0.0, 0.0],
        [0.0, 5.0 + 1e-9, 0.0, 0.0],
    ]
    recorder = Recorder()
    data = ScriptedRollouts(fitness, validation)
    module = ERLModule(population_size=4, gradient_steps=2, accumulate=1, evolution=evolution())
    make_trainer(recorder, epochs=7).fit(module, datamodule=data)
    found = [(0, -1, -torch.inf), (2, 1, 3.0), (2, 1, 3.0), (2, 3, 5.0), (2, 3, 5.0), (2, 3, 5.0), (1, 6, 5.0 + 1e-9)]
    for generation, (row, since, best) in enumerate(found):
        state = recorder.states[generation, "validate"]
        assert (int(state["champion_generation"]), float(state["champion_fitness"])) == (since, best)
        if since >= 0:
            then = recorder.states[since, "evolve"]
            assert same(state["champion_actor"][0], then["actor"][row])
            assert same(state["champion_critic"][0], then["critic"][row])
        assert recorder.metrics[generation]["champion/generation"] == since
        assert recorder.metrics[generation]["champion/validation_fitness"] == pytest.approx(best)


def test_an_agent_without_a_fitness_is_replaced() -> None:
    recorder = Recorder()
    data = ScriptedRollouts([[NAN, 1.0, 2.0, NAN]], [[0.0] * 4])
    module = ERLModule(population_size=4, gradient_steps=0, evolution=evolution())
    make_trainer(recorder).fit(module, datamodule=data)
    before, after = recorder.states[0, "train"]["critic"], recorder.states[0, "evolve"]["critic"]
    assert [same(before[row], after[row]) for row in range(4)] == [False, True, True, False]


def test_fitness_and_validation_are_mean_returns_of_the_right_windows_and_rows() -> None:
    recorder = Recorder()
    module = fit(AIM, recorder, epochs=2, evolution=evolution(), noise=0.9)
    for generation in range(2):
        for phase, told, count in (
            ("evaluate", recorder.fitness, module.data.windows_per_generation),
            ("evolve", recorder.validation, 3),
        ):
            options = (
                module.data.training_options(generation, SEED) if phase == "evaluate" else {"contexts": [-1, 0, 1]}
            )
            x = torch.tensor(options["contexts"][:count], dtype=torch.float32)[:, None]
            state = recorder.states[generation, phase]
            for agent in range(4):
                actor = with_weights(ProbeActor(), state["actor"][agent])
                expected = -((actor({"x": x}) - 0.5) ** 2).mean().detach()
                assert float(told[generation][agent]) == pytest.approx(float(expected), rel=1e-5)
        metrics, fitness = recorder.metrics[generation], recorder.fitness[generation]
        assert metrics["fitness/mean"] == pytest.approx(float(fitness.mean()))
        assert metrics["fitness/max"] == pytest.approx(float(fitness.max()))
        assert metrics["fitness/min"] == pytest.approx(float(fitness.min()))
        quartiles = np.quantile(fitness.numpy(), (0.25, 0.5, 0.75))
        assert [metrics[f"fitness/q{share}"] for share in (25, 50, 75)] == pytest.approx(quartiles)
        assert metrics["fitness/std"] == pytest.approx(float(np.std(fitness.numpy())), rel=1e-4)
        assert metrics["validation/mean"] == pytest.approx(float(recorder.validation[generation].mean()))
        assert metrics["validation/max"] == pytest.approx(float(recorder.validation[generation].max()))


@pytest.fixture
def trained(tmp_path: Path) -> tuple[ERLModule, str]:
    """A fitted module and its checkpoint."""
    module = fit(AIM, epochs=2, evolution=evolution())
    module.trainer.save_checkpoint(tmp_path / "run.ckpt")
    return module, str(tmp_path / "run.ckpt")


def validated(module: ERLModule, **options: Any) -> float:
    return float(make_trainer().validate(module, verbose=False, **options)[0]["champion/validation_fitness"])


def test_validating_a_checkpoint_plays_its_champion(trained: tuple[ERLModule, str]) -> None:
    module, path = trained
    champion = float(module.population.champion_fitness)
    fresh = ERLModule(population_size=4, evolution=evolution())
    assert validated(fresh, datamodule=ProbeRollouts(AIM), ckpt_path=path) == pytest.approx(champion)
    assert float(fresh.population.champion_fitness) == champion


def test_validating_after_fit_plays_the_champion_that_was_found(trained: tuple[ERLModule, str]) -> None:
    module, _ = trained
    champion = float(module.population.champion_fitness)
    assert validated(module, datamodule=ProbeRollouts(AIM)) == pytest.approx(champion)
    assert float(module.population.champion_fitness) == champion


def test_fitting_again_after_a_reset_starts_over_in_the_same_memory() -> None:
    data, module = ProbeRollouts(AIM), ERLModule(4, gradient_steps=2)
    ends: list[dict[str, Tensor]] = []
    held: list[list[int]] = []
    for _ in range(2):
        recorder = Recorder()
        make_trainer(recorder, epochs=2).fit(module, datamodule=data)
        ends.append(recorder.states[1, "evolve"] | data.buffer.gather(torch.arange(len(data.buffer))))
        held.append([*recorder.pointers[-1]])
        assert module.cleanup_memory() >= module.population.actor.nbytes
        module.reset_memory()
    assert all(same(value, ends[1][name]) for name, value in ends[0].items())
    assert held[0] == held[1]


def test_fitting_again_goes_on_from_the_rows_of_the_last_fit() -> None:
    recorders = Recorder(), Recorder()
    module, data = ERLModule(population_size=4, gradient_steps=4), ProbeRollouts(AIM)
    for recorder in recorders:
        make_trainer(recorder, epochs=2).fit(module, datamodule=data)
    last, first = recorders[0].states[1, "validate"], recorders[1].states[0, "evaluate"]
    names = [*ROWS, "champion_actor", "champion_critic", "champion_fitness", "champion_generation"]
    assert [name for name in names if not same(last[name], first[name])] == []


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        ({"population_size": 5}, {}, ["model.population_size 4, now 5; resume"]),
        ({"actor": lambda sizes: ProbeActor(3)}, {}, ["model.actor none, now "]),
        ({}, {"critic_hidden": 5}, ["critic"]),
        ({}, {"replay_capacity": 512}, ["data.replay_capacity 2048, now 512; resume"]),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_in_one_line(
    trained: tuple[ERLModule, str], model: dict[str, Any], data: dict[str, Any], words: list[str]
) -> None:
    settings = {name: value for name, value in trained[0].hparams.items() if name not in ("evolution", "learner")}
    module = ERLModule(**{**settings, "evolution": evolution(), **model})
    with pytest.raises(UserError) as error:
        make_trainer(epochs=3).fit(module, datamodule=ProbeRollouts(AIM, **data), ckpt_path=trained[1])
    assert "\n" not in str(error.value)
    assert [word for word in words if word not in str(error.value)] == [], error.value


def test_a_checkpoint_loads_without_pickle_and_holds_the_whole_state(trained: tuple[ERLModule, str]) -> None:
    module, path = trained
    checkpoint = torch.load(path, weights_only=True)
    assert same(checkpoint["state_dict"]["population.champion_actor"], module.population.champion_actor)
    assert checkpoint["ProbeRollouts"]["replay"]["size"] == 128
    expected = {"seed": SEED, "settings": trained[0].settings(), "data_used": {}, "generations": 2}
    acting = checkpoint["eigen2"].pop("inference")
    assert checkpoint["eigen2"] == expected
    assert acting["actor"] == {"class_path": "tests.erl.probe.ProbeActor", "init_args": {}}
    assert acting["sizes"] == {"inputs": {"x": [1]}, "action": [1], "context": 1}
    assert checkpoint["eigen2"]["settings"]["model.population_size"] == 4
    assert set(checkpoint["state_dict"]) == {f"population.{name}" for name in module.population.state_dict()}


@pytest.mark.parametrize("interrupted", [1, 3])
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(
    interrupted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in warm-up, where the optimizer has no state yet, and later; the checkpoint's seed counts."""
    recorders = Recorder(), Recorder()
    first, whole, again = (ERLModule(population_size=4, gradient_steps=4, accumulate=2) for _ in range(3))
    part = make_trainer(epochs=interrupted)
    part.fit(first, datamodule=ProbeRollouts(AIM, replay_min_size=128))
    part.save_checkpoint(tmp_path / "part.ckpt")
    make_trainer(recorders[0], epochs=5).fit(whole, datamodule=ProbeRollouts(AIM, replay_min_size=128))
    monkeypatch.setenv("PL_GLOBAL_SEED", str(SEED + 1))
    make_trainer(recorders[1], epochs=5).fit(
        again, datamodule=ProbeRollouts(AIM, replay_min_size=128), ckpt_path=tmp_path / "part.ckpt"
    )
    for moment in [(generation, phase) for generation in range(interrupted, 5) for phase in PHASES]:
        left, right = (recorder.states[moment] for recorder in recorders)
        assert left.keys() == right.keys()
        assert [name for name in left if not same(left[name], right[name])] == [], moment


def test_a_buffer_smaller_than_one_step_of_all_agents_is_refused_in_one_line() -> None:
    with pytest.raises(UserError) as error:
        fit(AIM, data={"replay_capacity": 48})  # 4 agents x 16 windows
    assert "data.replay_capacity" in str(error.value)
    assert "48" in str(error.value)


class SeenRollouts(ProbeRollouts):
    """Keeps what a test was told, and what a champion does at 0."""

    def data_used(self) -> dict[str, Any]:
        return {"aim": 1}

    def require_unused(self, seen: Mapping[str, Any]) -> None:
        if seen != {"aim": 1}:
            raise UserError(f"seen is {seen}")

    def test(self, told: TrainedPolicies) -> TestResult:
        self.told = told
        return TestResult({"test/answer": 42.0}, "told")


def test_a_test_is_told_what_the_run_has_come_to(tmp_path: Path) -> None:
    data = SeenRollouts(AIM)
    module = ERLModule(population_size=4, gradient_steps=2, accumulate=1)
    trainer = make_trainer(epochs=2)
    trainer.fit(module, datamodule=data)
    path = tmp_path / "run.ckpt"
    trainer.save_checkpoint(path)
    module = ERLModule(population_size=4, gradient_steps=2, accumulate=1)
    again = SeenRollouts(AIM)
    assert make_trainer().test(module, again, ckpt_path=path, verbose=False) == [{"test/answer": 42.0}]
    assert module.test_result == TestResult({"test/answer": 42.0}, "told")
    told = again.told
    assert (told.candidates, told.seed, told.generation) == (8, SEED, int(module.population.champion_generation))
    seen, _ = again.val_env.reset(options=again.validation_options())
    inputs = again.network_inputs(seen)
    whole = module.population.act(inputs)
    for row, act in enumerate(told.agents):
        torch.testing.assert_close(act(seen)[0], whole[row])
    torch.testing.assert_close(told.champion(seen), module.population.policy(module.population.champion)(inputs))


def test_a_test_of_nothing_is_refused(tmp_path: Path) -> None:
    module = ERLModule(population_size=2, gradient_steps=0, validate_every=9)
    trainer, path = make_trainer(), tmp_path / "run.ckpt"
    trainer.fit(module, datamodule=SeenRollouts(AIM))
    trainer.save_checkpoint(path)
    for data, said in ((SeenRollouts(AIM), "no champion"), (ProbeRollouts(AIM), "an earlier version")):
        fresh = ERLModule(population_size=2, gradient_steps=0)
        if said != "no champion":
            checkpoint = torch.load(path, weights_only=True)
            del checkpoint["eigen2"]["data_used"]
            torch.save(checkpoint, path)
        with pytest.raises(UserError, match=said):
            make_trainer().test(fresh, data, ckpt_path=path, verbose=False)
    fitted = ERLModule(population_size=2, gradient_steps=0)
    trainer.fit(fitted, datamodule=(data := ProbeRollouts(AIM)))
    with pytest.raises(UserError, match="ProbeRollouts has nothing to test on"):
        data.test(TrainedPolicies(lambda seen: seen["x"], [], 0, 0, 0))
