"""A shared representation: heads on one trunk against plain networks, and what a run makes of them."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from eigen2.control.networks import MLPActor
from eigen2.core.networks import Inputs, Linear, Sizes, StackedNetwork
from eigen2.distributed.communicator import Communicator
from eigen2.erl.evolution import Elitism, Injection, MagnitudeMutation
from eigen2.erl.heads import Heads, head_bytes
from eigen2.erl.learners import TD3
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Population
from eigen2.erl.settings import check_settings
from eigen2.errors import UserError
from tests.erl.evolution.builders import evolution
from tests.erl.interrupted import check_resume
from tests.erl.probe import AIM, ProbeActor, ProbeCritic, fit
from tests.erl.recorder import Recorder, same
from tests.erl.reference import with_weights

AGENTS, BATCH, COLUMNS = 4, 5, 3
OPERATORS: dict[str, Any] = {"representation": "shared", "evolution": evolution(0.25, inject_every=1)}
SETTINGS = {name: argument.default for name, argument in inspect.signature(ERLModule.__init__).parameters.items()}
PHASES = ("evaluate", "train", "evolve", "validate")
NO_HEAD = (
    r"^model\.representation is shared, but no weights of Linear are those of a head \(head_parameters is \(\), "
    r"weights are weight, bias\); name some in Linear\.head_parameters, or set own$"
)


class Trunk(nn.Module):
    """A trunk that reads what all agents share, and one that reads what each has of its own; a head of two layers."""

    over_agents = "broadcast"
    head_parameters = ("own.bias", "last")

    def __init__(self) -> None:
        super().__init__()
        self.day, self.own, self.last = Linear(3, 6), Linear(2, 6), nn.ModuleList([Linear(6, 4), Linear(4, 2)])

    def forward(self, inputs: Inputs) -> Tensor:
        hidden = torch.relu(self.own(inputs["own"], self.day(inputs["day"])))
        first, second = self.last
        return torch.tanh(second(torch.relu(first(hidden))))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def trunk_inputs(agents: int = AGENTS) -> Inputs:
    return {"day": normal(1, BATCH, COLUMNS, 3), "own": normal(agents, BATCH, COLUMNS, 2, seed=1)}


def own_part(inputs: Inputs, agent: int) -> Inputs:
    return {name: value[agent if len(value) > 1 else 0] for name, value in inputs.items()}


@pytest.mark.parametrize("over_agents", ["broadcast", "vmap", "loop"])
def test_heads_on_a_trunk_are_plain_networks_with_the_same_trunk(over_agents: Any) -> None:
    network = StackedNetwork(Trunk())
    network.network.over_agents = over_agents
    shared = normal(1, network.num_weights, seed=2)
    heads = Heads(network, shared)
    assert (heads.num_weights, head_bytes(Trunk(), shared=True)) == (6 + 28 + 10, 4 * 44)
    assert heads.sizes == [6, 24, 4, 8, 2]
    rows, inputs = normal(AGENTS, heads.num_weights, seed=3), trunk_inputs()
    actions = heads(rows, inputs)
    whole = heads.join(rows)
    assert torch.equal(heads.cut(whole), rows)
    for agent in range(AGENTS):
        plain = with_weights(Trunk(), whole[agent])
        assert torch.equal(plain.day.weight.flatten(), shared[0, :18])
        assert torch.equal(plain.own.bias, rows[agent, :6])
        torch.testing.assert_close(plain(own_part(inputs, agent)), actions[agent])
    assert len(torch.unique(actions.flatten(1), dim=0)) == AGENTS
    shared.add_(1)  # what the learner learns, all act by
    assert not torch.isclose(heads(rows, inputs), actions).all(-1).all(-1).all(-1).any()


@pytest.mark.parametrize("over_agents", ["broadcast", "vmap"])
def test_an_agent_has_the_same_bits_beside_any_others(over_agents: Any) -> None:
    network = StackedNetwork(Trunk())
    network.network.over_agents = over_agents
    heads = Heads(network, normal(1, network.num_weights, seed=2))
    rows, inputs = normal(AGENTS, heads.num_weights, seed=3), trunk_inputs()
    whole = heads(rows, inputs)
    for agents in (slice(0, 1), slice(1, 3), slice(3, 4)):
        some = {"day": inputs["day"], "own": inputs["own"][agents]}
        assert torch.equal(heads(rows[agents], some), whole[agents])


def test_a_trunk_computes_what_depends_on_the_day_once_for_all() -> None:
    network = StackedNetwork(Trunk())
    heads, seen = Heads(network, normal(1, network.num_weights)), []
    network.network.day.register_forward_hook(lambda module, given, out: seen.append(len(out)))
    heads(normal(AGENTS, heads.num_weights), trunk_inputs())
    assert seen == [1]


def test_a_network_without_a_head_is_refused_in_one_line() -> None:
    network = StackedNetwork(nn.Linear(2, 1))
    with pytest.raises(UserError, match=NO_HEAD):
        Heads(network, torch.zeros(1, 3))
    with pytest.raises(UserError, match=r"^model.representation is 'both'; set own or shared$"):
        check_settings({**SETTINGS, "representation": "both"})


@pytest.mark.parametrize(
    ("setting", "warned"), [({"representation": "shared"}, True), ({"learners": 1}, True), ({}, False)]
)
@pytest.mark.parametrize("injected", [False, True])
def test_a_fit_warns_of_evolution_without_what_is_learned(
    setting: dict[str, Any], warned: bool, injected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    operators = [Elitism(), *([Injection()] if injected else []), MagnitudeMutation()]
    fit(AIM, **setting, evolution=operators)
    messages = [record.getMessage() for record in caplog.records if "Injection" in record.getMessage()]
    assert [message.partition(":")[0] for message in messages] == (
        ["only the first agent learns, and the others never get its actor"] * (warned and not injected)
        + ["model.evolution leaves no agent to Injection of 4 that evolve"] * (injected and not warned)
    )


@pytest.mark.parametrize(("hidden", "head", "trunk"), [((8, 4), 4 * 2 + 2, 3 * 8 + 8 + 8 * 4 + 4), ((), 3 * 2 + 2, 0)])
def test_the_head_of_a_perceptron_is_its_last_layer(hidden: tuple[int, ...], head: int, trunk: int) -> None:
    sizes = Sizes({"state": (3,)}, (2,))
    network = StackedNetwork(MLPActor(sizes, hidden))
    heads = Heads(network, normal(1, network.num_weights))
    assert (heads.num_weights, network.num_weights) == (head, head + trunk)
    rows, states = normal(AGENTS, head, seed=1), normal(AGENTS, BATCH, 3, seed=2)
    for agent, actions in enumerate(heads(rows, {"state": states})):
        plain = with_weights(MLPActor(sizes, hidden), heads.join(rows)[agent])
        torch.testing.assert_close(plain({"state": states[agent]}), actions)


def trunks(module: ERLModule) -> Tensor:
    """Return the trunk of every agent, as its handle has it."""
    rows = module.population.whole_actors(module.population.rows()["actor"])
    assert module.population.heads is not None
    return rows[:, ~module.population.heads.chosen]


class Watch(Callback):
    """Checks at the end of every phase that all agents have the learner's trunk, and keeps it."""

    def __init__(self) -> None:
        self.trunks: list[Tensor] = []
        self.learned: list[Tensor] = []

    def on_phase_end(self, trainer: Trainer, module: LightningModule, phase: str) -> None:
        assert isinstance(module, ERLModule)
        every = trunks(module)
        assert same(every, every[:1].expand_as(every))
        self.trunks.append(every[0])
        if phase in ("evolve", "validate"):  # at its start the learner's head is its agent's
            assert module.population.heads is not None
            learned = module.population.heads.cut(module.population.actor.detach())
            assert same(module.population.actor_of(0), module.population.actor.detach())
            self.learned.append(learned[0])


def test_all_agents_have_the_trunk_that_the_first_learns_and_heads_of_their_own() -> None:
    watch, recorder = Watch(), Recorder()
    module = fit(AIM, watch, recorder, epochs=4, population_size=8, **OPERATORS)
    population = module.population
    assert [len(rows) for rows in (population.actor, population.critic, population.actor_target)] == [1, 1, 1]
    assert all(len(module.optimizer.state[rows]["exp_avg"]) == 1 for rows in (population.actor, population.critic))
    moved = [not same(one, two) for one, two in zip(watch.trunks, watch.trunks[1:], strict=False)]
    assert moved == [phase == "train" for _ in range(4) for phase in PHASES][1:], "by gradients alone"
    assert len(torch.unique(population.head, dim=0)) >= 4
    assert module.data.buffer.added == 4 * (8 * 4 + 12), "the learner alone explores"
    for generation in range(4):
        before, after = recorder.states[generation, "train"], recorder.states[generation, "evolve"]
        # the least fit agent is injected the head that was learned
        worst = 1 + int(recorder.fitness[generation][1:].argmin())
        learned = Heads(population.actor_network, before["actor"]).cut(before["actor"])
        assert same(after["head"][worst], learned[0])
        assert same(after["head"][0], learned[0])
        assert not same(before["head"][0], learned[0])
        assert same(after["actor"], before["actor"]), "evolution changes heads alone"


def test_a_champion_is_whole_and_acts_as_its_agent() -> None:
    module = fit(AIM, epochs=3, population_size=8, **OPERATORS)
    population, inputs = module.population, {"x": normal(1, BATCH, 1)}
    actions = population.act(inputs)
    for row in range(8):
        plain = with_weights(ProbeActor(), population.actor_of(row)[0])
        torch.testing.assert_close(plain({"x": inputs["x"][0]}), actions[row])
        torch.testing.assert_close(population.policy(row)(inputs)[0], actions[row])
    with_mean = population.policy(with_mean=True)(inputs)
    torch.testing.assert_close(with_mean[:-1], actions)
    torch.testing.assert_close(with_mean[-1:], population.policy("mean")(inputs))
    population.set_champion(3, population.champion_windows, 1, Communicator(8))
    assert same(population.champion_actor, population.actor_of(3))
    assert same(population.champion_critic, population.critic.detach())


@pytest.mark.parametrize("shared", [True, False])
def test_agents_act_in_parts_as_all_at_once(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    population = Population(Communicator(5), ProbeActor, ProbeCritic, seed=5, noise=0.3, shared=shared)
    population.average([0, 1], Communicator(5))
    own, common = {"x": normal(5, BATCH, 1)}, {"x": normal(1, BATCH, 1)}
    monkeypatch.setattr("eigen2.erl.population.ACTING_AT_ONCE", 2)
    for inputs in (own, common):
        assert same(population.policy()(inputs), population.act(inputs))
    assert same(population.policy(with_mean=True)(common)[:5], population.act(common))


def test_the_mean_of_elites_is_of_their_heads_on_the_trunk() -> None:
    population = Population(Communicator(4), ProbeActor, ProbeCritic, seed=5, noise=0.3, shared=True)
    first = torch.stack([population.actor_of(row)[0] for row in (1, 3)]).mean(0)
    population.average([3, 1], Communicator(4))
    torch.testing.assert_close(population.mean_actor[0], first)
    with torch.no_grad():
        population.actor.add_(1.2)
    population.average([0], Communicator(4))
    torch.testing.assert_close(population.mean_actor[0], first.lerp(population.actor_of(0)[0], 1 / 12))


def test_the_learner_trains_as_it_would_beside_whole_actors() -> None:
    """With agents of equal trunks, it learns the same whether the others' trunks are copies or its own."""

    class SameTrunk(Callback):
        def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
            assert isinstance(module, ERLModule)
            rows = module.population.head
            chosen = Heads(module.population.actor_network, rows[:1]).chosen
            rows[1:, ~chosen] = rows[0, ~chosen]

    settings: dict[str, Any] = {"population_size": 4, "gradient_steps": 6, "learner": TD3(saturation_penalty=0.0)}
    settings["data"] = {"replay_min_size": 16, "batch_size": 16}
    own, shared = Recorder(), Recorder()
    fit(AIM, SameTrunk(), own, learners=1, **settings)
    fit(AIM, shared, representation="shared", **settings)
    assert torch.equal(own.fitness[0], shared.fitness[0])
    before, alone, learner = own.states[0, "evaluate"], own.states[0, "train"], shared.states[0, "train"]
    for name in ("actor", "critic", "actor_target", "critic_target", "actor.exp_avg", "critic.exp_avg_sq"):
        torch.testing.assert_close(learner[name], alone[name])
        assert name not in before or not torch.isclose(learner[name], before[name]).all()


def test_one_agent_has_nothing_to_share() -> None:
    recorders = [Recorder(), Recorder()]
    for recorder, representation in zip(recorders, ("own", "shared"), strict=True):
        fit(AIM, recorder, epochs=3, population_size=1, representation=representation)
    own, shared = (recorder.states for recorder in recorders)
    assert all(same(own[moment][name], shared[moment][name]) for moment in own for name in own[moment])
    assert recorders[0].validation[2].tolist() == recorders[1].validation[2].tolist()


@pytest.mark.parametrize("learner", [{}, {"learner": TD3()}])
def test_a_shared_run_is_resumed_bit_for_bit(learner: dict[str, Any], tmp_path: Path) -> None:
    operators = evolution(0.25, 0.25, inject_every=1)
    check_resume(tmp_path, 3, representation="shared", evolution=operators, **learner)


NAN = float("nan")


class Spoil(Callback):
    """Writes NaN into a tensor of the population before the first batch of the second generation."""

    def __init__(self, part: str, row: int) -> None:
        self.part, self.row = part, row

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert isinstance(module, ERLModule)
        if trainer.current_epoch == 1 and batch_idx == 0:
            getattr(module.population, self.part).detach()[self.row, 1] = NAN

    __hash__ = object.__hash__


@pytest.mark.parametrize(("part", "row"), [("head", 3), ("actor", 0), ("critic", 0), ("critic_target", 0)])
def test_numbers_that_are_not_finite_stay_with_their_agent(
    part: str, row: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The learner goes on from the champion; all others keep their fitness, and in the next generation none fails."""
    recorder = Recorder()
    module = fit(AIM, Spoil(part, row), recorder, epochs=3, population_size=6, **OPERATORS)
    failed = [recorder.metrics[generation]["population/failed"] for generation in range(3)]
    assert failed == [0, 1, 0]
    assert f"agent {row} (" in caplog.text
    assert recorder.fitness[1].isfinite().all()
    assert all(rows.isfinite().all() for rows in module.population.rows().values())
    state = {name: rows for name, rows in recorder.states[2, "train"].items() if name != "parents_fitness"}
    assert all(rows.isfinite().all() for rows in state.values() if rows.is_floating_point())
    after, before = recorder.states[1, "evolve"], recorder.states[1, "train"]
    if part == "head":
        assert not same(after["head"][row], before["head"][row])
        assert same(after["actor"], before["actor"])
    else:
        for name in ("actor", "critic"):
            assert same(after[name], before[f"champion_{name}"])
            assert same(after[f"{name}_target"], before[f"champion_{name}"])
            assert not after[f"{name}.exp_avg"].any()


def test_without_injection_nothing_that_is_learned_reaches_the_others() -> None:
    recorder, copies = Recorder(), evolution(0.25, 0.0, mutation=MagnitudeMutation(scale=0.0))
    fit(AIM, recorder, epochs=3, population_size=6, representation="shared", evolution=copies)
    for generation in range(3):
        before, after = (recorder.states[generation, phase]["head"] for phase in ("train", "evolve"))
        for head in after[1:]:
            assert any(same(head, old) for old in before[1:])
            assert not same(head, after[0])
