"""Hyper-parameters of each agent's own: what they act on, how they are inherited and change, and their bounds."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eigen2.erl.evolution.hyperparameters import (
    NAMES,
    Hyperparameters,
    Name,
    discount,
    exploration_noise,
    perturb,
    rate_factors,
)
from hypothesis import given
from hypothesis import strategies as st

from eigen2.core.randomness import Role, generator
from eigen2.erl.evolution.selection import Evolution, plan
from eigen2.erl.learners import ddpg
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Population
from eigen2.errors import UserError
from tests.erl.conftest import SEED
from tests.erl.interrupted import resumed
from tests.erl.probe import Probe, ProbeActor, ProbeCritic, ProbeEnvironment, ProbeRollouts, fit, make_trainer
from tests.erl.recorder import ROWS, Recorder, same
from tests.erl.reference import OneAgent, with_weights
from tests.erl.test_ddpg import AGENTS, probe_batch, probe_population

AIM = Probe(lambda x, action, step: -((action - 0.5) ** 2), contexts=(-1.0, 0.0, 1.0))


def population_with(*factors: tuple[float, float, float, float], noise: float = 0.3) -> Population:
    population = Population(len(factors), ProbeActor, ProbeCritic, SEED, noise, own_hyperparameters=True)
    assert population.hyperparameters is not None
    population.hyperparameters.copy_(torch.tensor(factors, dtype=torch.float64).log())
    return population


def test_values_are_those_configured_times_the_factors() -> None:
    population = population_with((1, 1, 1, 1), (2, 0.5, 3, 10), (1, 1, 1, 0.01))
    actor, critic = rate_factors(population)
    assert actor.tolist() == pytest.approx([1, 2, 1])
    assert critic.tolist() == pytest.approx([1, 0.5, 1])
    assert exploration_noise(population).tolist() == pytest.approx([0.3, 0.9, 0.3])
    gamma = discount(population, 0.95)
    assert isinstance(gamma, torch.Tensor)
    # horizons of 20 and 200 steps; one of 0.2 would be a negative gamma
    assert gamma.tolist() == [pytest.approx([0.95]), pytest.approx([0.995]), [0.0]]
    for end in (0.0, 1.0):
        same_for_all = discount(population_with((1, 1, 1, 1), (1, 1, 1, 0.5)), end)
        assert torch.as_tensor(same_for_all).tolist() == [[end], [end]], "an end of the range stays"


def test_without_the_option_values_are_the_configured_ones() -> None:
    population = Population(2, ProbeActor, ProbeCritic, SEED, 0.3)
    assert discount(population, 0.95) == 0.95
    assert exploration_noise(population) is population.noise
    assert "hyperparameters" not in population.state_dict()
    assert len(population.rows()) == 5


@given(
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    st.sets(st.sampled_from(NAMES)),
    st.floats(0, 5),
    st.floats(1, 100),
    st.integers(0, 1000),
)
def test_mutants_stay_in_bounds_and_what_does_not_evolve_stays(
    start: list[float], names: set[Name], scale: float, reach: float, seed: int
) -> None:
    logarithms = torch.tensor(start, dtype=torch.float64)
    before, bound = logarithms.clone(), math.log(reach)
    settings = Hyperparameters(sorted(names), scale, reach)
    perturb(logarithms, settings, np.random.default_rng(seed))
    for name, old, new in zip(NAMES, before.tolist(), logarithms.tolist(), strict=True):
        assert abs(new) <= bound + 1e-12 if name in names else new == old
    again = before.clone()
    perturb(again, settings, np.random.default_rng(seed))
    assert torch.equal(again, logarithms)


def test_factors_of_mutants_are_log_normal() -> None:
    drawn = torch.zeros(4000, 4, dtype=torch.float64)
    chance, settings = np.random.default_rng(3), Hyperparameters(scale=0.4, reach=1e6)
    for row in drawn:
        perturb(row, settings, chance)
    bound = 5 / math.sqrt(len(drawn))
    assert ((drawn.mean(0) / 0.4).abs() < bound).all()
    assert ((drawn.std(0) / 0.4 - 1).abs() < bound).all()
    assert (torch.corrcoef(drawn.T).triu(1).abs() < bound).all(), "each has a number of its own"


def test_each_agents_target_has_its_own_discount() -> None:
    population, batch = probe_population(), probe_batch(0)
    own = torch.linspace(0, 0.9, AGENTS)[:, None]
    together = ddpg.td_target(population, batch, own)
    for agent in range(AGENTS):
        assert torch.equal(together[agent], ddpg.td_target(population, batch, float(own[agent]))[agent])


def test_agents_learn_and_explore_with_values_of_their_own() -> None:
    """Through the module, from the second generation on: each agent against one with its rates and discount alone."""
    recorder = Recorder()
    settings: dict[str, Any] = {"gamma": 0.9, "tau": 0.3, "actor_lr": 0.01, "critic_lr": 0.03, "max_grad_norm": 0.7}
    probe = Probe(lambda x, action, step: x - (action - 0.3) ** 2, steps=30, contexts=(-0.5, 0.2))
    evolution = Evolution(0.5, 0.0, hyperparameters=Hyperparameters(scale=0.5))
    module = fit(probe, recorder, epochs=2, evolution=evolution, population_size=6, noise=0.05, **settings)
    start = recorder.states[1, "evaluate"]
    factors = start["hyperparameters"].exp()
    assert (factors != 1).all(1).sum() == 3, "the mutants of the first generation"
    for agent in range(6):
        alone = OneAgent(
            with_weights(ProbeActor(), start["actor"][agent]),
            with_weights(ProbeCritic(), start["critic"][agent]),
            (0.01 * float(factors[agent, 0]), 0.03 * float(factors[agent, 1])),
            gamma=1 - 0.1 / float(factors[agent, 3]),
            tau=0.3,
            max_norm=0.7,
        )
        for name in ("actor", "critic"):
            target = getattr(alone, f"{name}_target")
            with_weights(target, start[f"{name}_target"][agent])
            optimizer = alone.optimizers[name == "critic"]
            place = 0
            for weight in getattr(alone, name).parameters():
                pieces = {
                    moment: start[f"{name}.{moment}"][agent, place : place + weight.numel()].reshape(weight.shape)
                    for moment in ("exp_avg", "exp_avg_sq")
                }
                optimizer.state[weight] = {"step": start[f"{name}.step"].clone(), **pieces}
                place += weight.numel()
        drawn = {name: value[:, agent] for name, value in recorder.drawn[1].items()}
        for step in range(4):
            one = {name: value[step] for name, value in drawn.items()}
            seen, following = {"x": one["x"]}, {"x": one["next_x"]}
            alone.step(seen, following, one["action"].float(), one["reward"], one["terminated"])
        for name, row in alone.rows().items():
            torch.testing.assert_close(recorder.states[1, "train"][name][agent], row, atol=1e-5, rtol=0)
    env, counted = module.data.eval_env, module.data.windows_per_generation
    assert isinstance(env, ProbeEnvironment)
    played = torch.stack(env.actions)[:, :, counted:]
    for agent in range(6):
        policy = with_weights(ProbeActor(), start["actor"][agent])
        change = played[:, agent] - policy({"x": env.context[counted:, None]}).detach()
        assert float(change.std()) == pytest.approx(0.05 * float(factors[agent, 2]), rel=0.2)


def test_children_inherit_the_geometric_mean_and_mutants_change() -> None:
    recorder = Recorder()
    settings = Hyperparameters(scale=0.3)
    evolution = Evolution(0.25, 0.5, hyperparameters=settings)
    fit(AIM, recorder, epochs=6, population_size=8, gradient_steps=1, evolution=evolution)
    bred = 0
    for generation in range(6):
        fitness = recorder.fitness[generation].numpy()
        children = plan(fitness, evolution, generator(SEED, Role.SELECTION, generation))
        before = recorder.states[generation, "train"]["hyperparameters"].exp()
        after = recorder.states[generation, "evolve"]["hyperparameters"]
        kept = sorted(set(range(8)) - {child.row for child in children})
        assert torch.equal(after[kept].exp(), before[kept])
        for child in children:
            first, second = (before[parent] for parent in child.parents)
            expected = (first**child.blend * second ** (1 - child.blend)).log()
            if child.kind == "mutant":
                perturb(expected, settings, generator(SEED, Role.HYPERPARAMETERS, generation, child.row))
            torch.testing.assert_close(after[child.row], expected)
            bred += child.kind == "offspring" and not torch.equal(first, second)
    assert bred > 3, "offspring of parents that differ"


def test_of_scale_zero_a_run_is_the_one_without_the_option() -> None:
    plain, own = Recorder(), Recorder()
    fit(AIM, plain, epochs=3, population_size=6, evolution=Evolution())
    fit(AIM, own, epochs=3, population_size=6, evolution=Evolution(hyperparameters=Hyperparameters(scale=0)))
    last = plain.states[2, "validate"], own.states[2, "validate"]
    for name in ROWS:
        torch.testing.assert_close(last[0][name], last[1][name], rtol=1e-4, atol=1e-6)
    assert set(last[1]) - set(last[0]) == {"hyperparameters", "champion_hyperparameters"}
    assert not any(name.startswith("hyperparameters/") for name in plain.metrics[2])


@pytest.mark.parametrize("after", [1, 4])
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(after: int, tmp_path: Path) -> None:
    recorder = resumed(tmp_path, after, evolution=Evolution(hyperparameters=Hyperparameters(scale=0.5)))
    assert len(recorder.states[5, "validate"]["hyperparameters"].unique(dim=0)) > 2


def test_other_learning_rates_after_a_resume_move_those_of_all_agents(tmp_path: Path) -> None:
    evolution = Evolution(hyperparameters=Hyperparameters(scale=0.5))
    module = fit(AIM, epochs=3, evolution=evolution)
    module.trainer.save_checkpoint(tmp_path / "part.ckpt")
    settings = {name: value for name, value in module.hparams.items() if name not in ("evolution", "actor_lr")}
    again, recorder = ERLModule(**settings, evolution=evolution, actor_lr=0.5), Recorder()
    again_trainer = make_trainer(recorder, epochs=4)
    again_trainer.fit(again, datamodule=ProbeRollouts(AIM), ckpt_path=tmp_path / "part.ckpt")
    factors = recorder.states[3, "validate"]["hyperparameters"][:, 0].exp()
    assert recorder.metrics[3]["hyperparameters/actor_lr"] == pytest.approx(float(0.5 * factors.mean()))


def test_a_run_tells_mean_least_and_most() -> None:
    recorder = Recorder()
    evolution = Evolution(0.5, 0.0, hyperparameters=Hyperparameters(["actor_lr", "gamma"], scale=0.5))
    module = fit(AIM, recorder, epochs=3, evolution=evolution, actor_lr=0.01, critic_lr=0.02, gamma=0.9, noise=0.4)
    factors = recorder.states[2, "validate"]["hyperparameters"].exp()
    metrics = recorder.metrics[2]
    for name, values in (
        ("actor_lr", 0.01 * factors[:, 0]),
        ("critic_lr", torch.full((4,), 0.02)),
        ("noise", torch.full((4,), 0.4)),
        ("gamma", 1 - 0.1 / factors[:, 3]),
    ):
        for suffix, value in (("", values.mean()), ("_min", values.min()), ("_max", values.max())):
            assert metrics[f"hyperparameters/{name}{suffix}"] == pytest.approx(float(value), rel=1e-5)
    assert metrics["hyperparameters/actor_lr_min"] < metrics["hyperparameters/actor_lr_max"]
    assert [group["lr"] for group in module.trainer.optimizers[0].param_groups] == [0.01, 0.02]


def test_the_champion_keeps_its_own_and_a_reset_forgets_all() -> None:
    population = population_with((1, 1, 1, 1), (2, 3, 4, 5))
    own, champion = population.hyperparameters, population.champion_hyperparameters
    assert own is not None
    assert champion is not None
    population.crown(1, 0.0, 0)
    assert same(champion[0], own[1])
    population.reset_memory(ProbeActor, ProbeCritic, SEED, 0.3)
    assert not own.any()
    assert not champion.any()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("scale", -0.1), ("scale", math.nan), ("scale", math.inf), ("reach", 0.9), ("reach", 2e6), ("reach", math.nan)],
)
def test_settings_out_of_range_are_named_with_their_value(setting: str, value: float) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UserError, match=rf"^model\.evolution\.hyperparameters\.{setting} is {value};"):
        Hyperparameters(**settings)
