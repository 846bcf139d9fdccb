"""Who becomes champion, what fitness and validation are, and what a checkpoint brings back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel
from torch import Tensor

from eigen2.core.datamodule import TestResult, TrainedPolicies
from eigen2.core.environment import Observation
from eigen2.erl.module import ERLModule
from eigen2.erl.rollout import beats
from eigen2.errors import UserError
from eigen2.runtime.checkpoint import DurableCheckpointIO
from tests.erl.conftest import SEED
from tests.erl.evolution.builders import evolution
from tests.erl.interrupted import check_resume
from tests.erl.probe import AIM, ProbeActor, ProbeEnvironment, ProbeRollouts, fit, make_trainer
from tests.erl.recorder import ROWS, Recorder, same
from tests.erl.reference import with_weights

NAN = float("nan")


class ScriptedEnvironment(ProbeEnvironment):
    """Pays agent a in generation g the reward script[g][a], and `luck` more or less, by turns of agents and windows."""

    def __init__(self, agents: int, windows: int, script: list[list[float]], luck: float = 0.0) -> None:
        super().__init__(AIM, agents, windows)
        self.script, self.played = torch.tensor(script, dtype=torch.float64), -1
        self.luck = luck * (1 - 2 * ((torch.arange(agents)[:, None] + torch.arange(windows)) % 2))

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.played += self.steps == 0
        observation, _, *ends = super().step(action)
        return observation, self.script[self.played][:, None] + self.luck, *ends


class ScriptedRollouts(ProbeRollouts):
    """Fitness and validation as the scripts say."""

    def __init__(
        self,
        fitness: list[list[float]],
        validation: list[list[float]],
        means: Sequence[float] | None = None,
        champions: Mapping[int, float] = {},
        luck: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(AIM, **settings)
        self.luck = luck  # of the fitness windows, in which it cancels
        means = [NAN] * len(validation) if means is None else means
        plays: list[list[float]] = []
        for generation, (agents, mean) in enumerate(zip(validation, means, strict=True)):
            plays.append([*agents, mean])
            if generation in champions:  # a new champion plays once more, alone
                plays.append([champions[generation]] * (len(agents) + 1))
        self.scripts = fitness, plays

    def build(self, agents: int, device: torch.device) -> None:
        windows = self.windows_per_generation + self.exploration_windows
        self.eval_env = ScriptedEnvironment(agents, windows, self.scripts[0], self.luck)
        self.val_env = ScriptedEnvironment(agents + 1, len(self.probe.contexts), self.scripts[1])


def test_the_better_of_the_fittest_and_the_mean_of_elites_becomes_champion_if_it_is_better_than_before() -> None:
    fitness = [
        [0.0, 1.0, 2.0, 3.0],
        [0.0, 1.0, 3.0, 2.0],
        [3.0, 2.0, 1.0, 0.0],
        [NAN, 0.0, 3.0, 1.0],
        [3.0, 0.0, 0.0, 0.0],
        [0.0, 3.0, 0.0, 0.0],
        [0.0, 3.0, 0.0, 0.0],
        [0.0, 0.0, 3.0, 0.0],
    ]
    validation = [
        [NAN, NAN, NAN, NAN],
        [1.0, 2.0, 3.0, 0.0],
        [3.0, 3.0, 9.0, 3.0],  # row 2 validates best, but row 0 is the candidate
        [NAN, 4.0, 5.0, 6.0],
        [NAN, NAN, NAN, NAN],
        [-1.0, 4.9, 0.0, 0.0],
        [0.0, 5.0 + 1e-9, 0.0, 0.0],
        [0.0, 0.0, 6.0, 0.0],
    ]
    means = [NAN, -1.0, 2.0, 4.9, 5.0, 0.0, 1.0, 7.0]
    recorder = Recorder()
    # the fitness of a new champion is that of its play alone, in which it may round differently
    data = ScriptedRollouts(fitness, validation, means, {1: 3.0, 3: 5.0, 6: 5.0 + 2e-9, 7: 7.0})
    module = ERLModule(population_size=4, gradient_steps=2, accumulate=1, evolution=evolution())
    make_trainer(recorder, epochs=8).fit(module, datamodule=data)
    found: list[tuple[int | None, int, float]] = [(0, -1, -torch.inf), (2, 1, 3.0), (2, 1, 3.0), *[(2, 3, 5.0)] * 3]
    found += [(1, 6, 5.0 + 2e-9), (None, 7, 7.0)]
    for generation, (row, since, best) in enumerate(found):
        state = recorder.states[generation, "validate"]
        assert (int(state["champion_generation"]), float(state["champion_fitness"])) == (since, best)
        if since >= 0:
            then = recorder.states[since, "evolve"]
            assert same(state["champion_actor"][0], then["mean_actor"][0] if row is None else then["actor"][row])
        assert recorder.metrics[generation]["validation/elite_mean"] == pytest.approx(means[generation], nan_ok=True)
        told = [recorder.metrics[generation][f"champion/{name}"] for name in ("generation", "validation_fitness")]
        assert told == pytest.approx([since, best] if since >= 0 else [np.nan, np.nan], nan_ok=True)


@pytest.mark.parametrize("luck", [0.0, 0.5, 2.0])
def test_the_fittest_is_no_candidate_where_windows_disagree_on_who_is_fit(luck: float) -> None:
    fitness, validation = [[0.0, 1.0, 2.0, 3.0]], [[0.0, 0.0, 0.0, 9.0]]
    best = 9.0 if luck < 2 else 1.0
    data = ScriptedRollouts(fitness, validation, [1.0], {0: best}, luck)
    module = ERLModule(population_size=4, gradient_steps=2, accumulate=1, evolution=evolution())
    make_trainer(epochs=1).fit(module, datamodule=data)
    # agents' means vary by 5/3; the rest, of two alternating values +-luck, by 4/3 luck^2 over 4 windows
    reliability = 1 - (16 * luck**2 / 9) / 4 / (5 / 3)
    assert module.metrics["fitness/reliability"] == pytest.approx(reliability)
    assert (reliability >= 0.8) == (best == 9.0)
    assert float(module.population.champion_fitness) == best


@pytest.mark.parametrize(
    ("candidate", "champion", "better"),
    [
        ([3.0], [2.0], True),  # a single window has no standard error
        ([2.0], [2.0], False),
        ([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], True),  # each better by 1
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], False),
        # differences of mean 1 and standard error 1/2, then more and less
        ([1.0, 0.0, 1.0, 2.0 + 1e-6], [0.0, 0.0, 0.0, 0.0], True),
        ([0.5, 0.0, 1.5, 2.0], [0.0, 0.0, 0.0, 0.0], True),
        ([0.0, 0.0, 1.5, 2.5], [0.0, 0.0, 0.0, 0.0], False),
        ([NAN, 5.0], [0.0, 0.0], False),
        ([-9.0, 5.0], [-np.inf, -np.inf], True),
        ([NAN, 5.0], [-np.inf, -np.inf], False),
    ],
)
def test_a_champion_is_beaten_by_two_standard_errors_over_windows(
    candidate: list[float], champion: list[float], better: bool
) -> None:
    found = beats(*(torch.tensor(each, dtype=torch.float64) for each in (candidate, champion)))
    assert found == better
    known = np.isfinite(candidate).all() and np.isfinite(champion).all() and len(candidate) > 1
    if known and np.ptp(np.subtract(candidate, champion)) > 0:
        assert found == (ttest_rel(candidate, champion).statistic > 2), "the paired t statistic"


def test_a_checkpoint_of_other_windows_loads(trained: tuple[ERLModule, str]) -> None:
    population = trained[0].population
    saved = {name: values.clone() for name, values in population.state_dict().items()}
    for state in ({**saved, "champion_windows": saved["champion_windows"][:2]}, saved):
        population.load_state_dict(state)
        assert same(population.champion_windows, state["champion_windows"])


def test_fitness_and_validation_are_mean_returns_of_the_right_windows_and_rows() -> None:
    recorder = Recorder()
    module = fit(AIM, recorder, epochs=2, evolution=evolution(), noise=0.9)
    for generation in range(2):
        for phase, told, count in (
            ("evaluate", recorder.fitness, module.data.windows_per_generation),
            ("evolve", recorder.validation, 3),
        ):
            drawn = module.data.training_options(generation, SEED)["contexts"]
            contexts = drawn if phase == "evaluate" else [-1, 0, 1]
            x = torch.tensor(contexts[:count], dtype=torch.float32)[:, None]
            state = recorder.states[generation, phase]
            for agent in range(4):
                actor = with_weights(ProbeActor(), state["actor"][agent])
                expected = -((actor({"x": x}) - 0.5) ** 2).mean().detach()
                assert float(told[generation][agent]) == pytest.approx(float(expected), rel=1e-5)
        metrics, found = recorder.metrics[generation], recorder.fitness[generation].numpy()
        expected = dict(
            zip(("min", "q25", "q50", "q75", "max"), np.quantile(found, (0, 0.25, 0.5, 0.75, 1)), strict=True)
        )
        for name, value in {**expected, "mean": found.mean(), "std": found.std()}.items():
            assert metrics[f"fitness/{name}"] == pytest.approx(value, rel=1e-4)
        assert metrics["validation/mean"] == pytest.approx(float(recorder.validation[generation].mean()))
        assert metrics["validation/max"] == pytest.approx(float(recorder.validation[generation].max()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[ERLModule, str]:
    """A fitted module and its checkpoint."""
    path = str(tmp_path_factory.mktemp("trained") / "run.ckpt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", str(SEED))
        module = fit(AIM, epochs=2, evolution=evolution())
    module.trainer.save_checkpoint(path)
    return module, path


def test_validating_plays_the_champion_of_the_fit_or_of_a_checkpoint(trained: tuple[ERLModule, str]) -> None:
    module, path = trained
    champion = float(module.population.champion_fitness)
    fresh = ERLModule(population_size=4, evolution=evolution())
    for each, ckpt_path in ((fresh, path), (module, None)):
        (found,) = make_trainer().validate(each, ProbeRollouts(AIM), ckpt_path=ckpt_path, verbose=False)
        assert found["champion/validation_fitness"] == pytest.approx(champion)
        assert float(each.population.champion_fitness) == champion


def test_fitting_again_goes_on_and_after_a_reset_starts_over_in_the_same_memory() -> None:
    data, module = ProbeRollouts(AIM, replay_capacity=50_000), ERLModule(4, gradient_steps=2)  # many whole pages
    recorders = Recorder(), Recorder(), Recorder()
    names = [*ROWS, "champion_actor", "champion_fitness", "champion_generation"]
    for recorder, generations in zip(recorders, (2, 4, 2), strict=True):
        make_trainer(recorder, epochs=2).fit(module, datamodule=data)
        assert module.generations_run == generations, "agents tried, by which luck is judged"
        if recorder is recorders[1]:
            assert module.cleanup_memory() >= module.population.actor.nbytes
            module.reset_memory()
    first, second, third = (recorder.states for recorder in recorders)
    assert [name for name in names if not same(first[1, "validate"][name], second[0, "evaluate"][name])] == []
    assert [
        name for name in first[1, "validate"] if not same(first[1, "validate"][name], third[1, "validate"][name])
    ] == []
    assert recorders[0].pointers[-1] == recorders[2].pointers[-1]


def test_a_further_fit_draws_other_random_numbers_and_judges_the_champion_on_its_own_data() -> None:
    numbers: list[int] = []

    class Numbered(ProbeRollouts):
        def training_options(self, generation: int, seed: int) -> dict[str, Any]:
            numbers.append(generation)
            return super().training_options(generation, seed)

    dearer = replace(AIM, reward=lambda x, action, step: AIM.reward(x, action, step) - 3)
    module, recorders = ERLModule(4, gradient_steps=1), (Recorder(), Recorder())
    for recorder, probe in zip(recorders, (AIM, dearer), strict=True):
        numbers.clear()
        make_trainer(recorder, epochs=2).fit(module, datamodule=Numbered(probe))
    assert numbers[-2:] == [2, 3]
    first, second = (recorder.states for recorder in recorders)
    champion = [float(states["champion_fitness"]) for states in (first[1, "validate"], second[0, "evaluate"])]
    assert champion[1] == pytest.approx(champion[0] - 3)


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        ({"population_size": 5}, {}, "model.population_size 4, now 5; resume"),
        ({"actor": lambda sizes: ProbeActor(3)}, {}, "model.actor null, now "),
        ({}, {"critic_hidden": 5}, "critic"),
        ({}, {"replay_capacity": 512}, "data.replay_capacity 2048, now 512; resume"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_in_one_line(
    trained: tuple[ERLModule, str], model: dict[str, Any], data: dict[str, Any], words: str
) -> None:
    settings = {name: value for name, value in trained[0].hparams.items() if name not in ("evolution", "learner")}
    module = ERLModule(**{**settings, "learner": trained[0].learner, "evolution": evolution(), **model})
    with pytest.raises(UserError, match=rf"^.*{words}.*$"):
        make_trainer(epochs=3).fit(module, datamodule=ProbeRollouts(AIM, **data), ckpt_path=trained[1])


def test_a_checkpoint_of_an_earlier_version_is_named(trained: tuple[ERLModule, str]) -> None:
    with pytest.raises(UserError, match=r"^the checkpoint is by an earlier version of eigen2, .*; fit again$"):
        trained[0].check_shapes({"state_dict": {"population.mean_critic": torch.zeros(1, 1)}})


def test_a_checkpoint_of_another_representation_is_named(trained: tuple[ERLModule, str]) -> None:
    with pytest.raises(
        UserError, match=r"^the checkpoint's run had another model\.learners or model\.representation; use"
    ):
        trained[0].check_shapes({"state_dict": {"population.head": torch.zeros(1, 1)}})


def test_a_checkpoint_loads_without_pickle_and_holds_the_whole_state(trained: tuple[ERLModule, str]) -> None:
    module, path = trained
    checkpoint = torch.load(path, weights_only=True)
    assert same(checkpoint["state_dict"]["population.champion_actor"], module.population.champion_actor)
    assert checkpoint["ProbeRollouts"]["replay"]["size"] == 128
    spec = checkpoint["eigen2"].pop("inference")
    settings = checkpoint["eigen2"].pop("settings")
    config = checkpoint["eigen2"].pop("config")
    assert (config["seed_everything"], config["model"]["population_size"]) == (SEED, 4)
    assert checkpoint["eigen2"] == {"seed": SEED, "data_used": {}, "generations": 2}
    assert spec["actor"] == {"class_path": "tests.erl.probe.ProbeActor", "init_args": {"hidden": 8}}
    assert spec["sizes"] == {"inputs": {"x": [1]}, "action": [1], "context": 1}
    assert settings["model.population_size"] == 4
    assert set(checkpoint["state_dict"]) == {f"population.{name}" for name in module.population.state_dict()}


@pytest.mark.parametrize("interrupted", [1, 3])
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(
    interrupted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in warm-up, where the optimizer has no state yet, and later; the checkpoint's seed counts."""
    check_resume(tmp_path, interrupted, seed=SEED + 1, monkeypatch=monkeypatch)


def test_a_buffer_smaller_than_one_step_of_all_agents_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^data\.replay_capacity is 48, .*$"):
        fit(AIM, data={"replay_capacity": 48})  # 4 agents x 16 windows


class TestedRollouts(ProbeRollouts):
    """Keeps the policies of a test."""

    __test__ = False

    def data_used(self) -> dict[str, Any]:
        return {"aim": 1}

    def require_unused(self, used: Mapping[str, Any]) -> None:
        assert used == {"aim": 1}

    def test(self, policies: TrainedPolicies) -> TestResult:
        self.policies = policies
        return TestResult({"test/answer": 42.0}, "told")


def test_a_test_gets_the_champion_and_the_population(tmp_path: Path) -> None:
    trainer, path = make_trainer(epochs=2), tmp_path / "run.ckpt"
    trainer.fit(ERLModule(population_size=4, gradient_steps=2, accumulate=1), datamodule=TestedRollouts(AIM))
    trainer.save_checkpoint(path)
    module, data = ERLModule(population_size=4, gradient_steps=2, accumulate=1), TestedRollouts(AIM)
    assert make_trainer().test(module, data, ckpt_path=path, verbose=False) == [{"test/answer": 42.0}]
    assert module.test_result == TestResult({"test/answer": 42.0}, "told")
    found, population = data.policies, module.population
    assert (found.tried, found.seed, found.generation) == (8, SEED, int(population.champion_generation))
    seen, _ = data.val_env.reset(options=data.validation_options())
    inputs = data.network_inputs(seen)
    for row, act in enumerate(found.agents):
        torch.testing.assert_close(act(seen)[0], population.act(inputs)[row])
    torch.testing.assert_close(found.champion(seen), population.policy("champion")(inputs))


def test_a_test_of_nothing_is_refused(tmp_path: Path) -> None:
    trainer, path = make_trainer(), tmp_path / "run.ckpt"
    trainer.fit(ERLModule(population_size=2, gradient_steps=0, validate_every=9), datamodule=TestedRollouts(AIM))
    trainer.save_checkpoint(path)
    with pytest.raises(UserError, match="no champion"):
        make_trainer().test(ERLModule(2, gradient_steps=0), TestedRollouts(AIM), ckpt_path=path, verbose=False)
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["eigen2"]["data_used"]
    DurableCheckpointIO().save_checkpoint(checkpoint, path)
    data = ProbeRollouts(AIM)
    with pytest.raises(UserError, match="an earlier version"):
        make_trainer().test(ERLModule(2, gradient_steps=0), data, ckpt_path=path, verbose=False)
    with pytest.raises(UserError, match="ProbeRollouts has no data to test on"):
        data.test(TrainedPolicies(lambda seen: seen["x"], [], 0, 0, 0))
