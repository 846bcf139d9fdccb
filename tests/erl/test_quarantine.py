"""One agent's numbers go wrong: who notices, who does not, and what becomes of it."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from eigen2.core.networks import Inputs
from eigen2.erl import base
from eigen2.erl.learners import Losses
from eigen2.erl.module import ERLModule
from eigen2.erl.population import Agent
from eigen2.erl.state import GenerationState, make_accumulators
from eigen2.errors import ALL_AGENTS_FAILED, RunStopped
from eigen2.runtime.checkpoint import GenerationCheckpoint
from tests.erl.conftest import SEED
from tests.erl.evolution.builders import evolution
from tests.erl.probe import AIM, ProbeRollouts, fit, make_trainer
from tests.erl.recorder import MOMENTS, ROWS, Recorder, same, snapshot

STEPS, ACCUMULATE, WINDOWS = 4, 2, 16
BROKEN, OTHERS = 2, [0, 1, 3]
FITTEST = 3
"""In the first generation."""
LAST = STEPS * ACCUMULATE - 1
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True, scope="module")
def _single_micro_batches() -> Iterator[None]:
    """Compute micro-batches one at a time, so that an agent can break between them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "batches_together", lambda *_: 1)
        yield


@pytest.fixture(autouse=True)
def _faults_between_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BATCHES_PER_TRAINING_STEP", 1)


@dataclass
class Fault(Callback):
    """Writes a number into agent `row`, just before micro-batch `batch` of a generation, or before it is evaluated.

    `part` is a tensor of the population, a moment such as `actor.exp_avg`, `gradient` of the critic, or `loss`: the
    critic's, summed over the step's micro-batches so far, while its gradient stays.
    """

    part: str
    value: float = NAN
    batch: int | None = None
    generation: int = 0
    row: int | slice = BROKEN

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self.batch is None:
            self.plant(trainer, module)

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.batch == batch_idx:
            self.plant(trainer, module)

    def plant(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, ERLModule)
        if trainer.current_epoch != self.generation:
            return
        name, _, moment = self.part.partition(".")
        if self.part == "loss":
            module.state.quarantine.loss[1, self.row] = self.value
        elif self.part == "gradient":
            assert module.population.critic.grad is not None
            module.population.critic.grad[self.row, 1] = self.value
        elif moment:
            trainer.optimizers[0].state[getattr(module.population, name)][moment][self.row, 1] = self.value
        else:
            getattr(module.population, name).detach()[self.row, 1] = self.value

    __hash__ = object.__hash__


class Silent(Callback):
    """Agent `BROKEN` gives no finite action; its weights are sound."""

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, ERLModule)
        act = module.population.policy

        def broken(agent: Agent | None = None, with_mean: bool = False) -> Callable[[Inputs], Tensor]:
            def actions(inputs: Inputs) -> Tensor:
                given = act(agent, with_mean)(inputs).clone()
                if agent is None:
                    given[BROKEN] = torch.nan
                return given

            return actions

        module.population.policy = broken


class Steps(Callback):
    """Keeps every agent's state after each micro-batch, and by generation what is stored and how agents scored."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []
        self.stored: list[dict[str, Tensor]] = []
        self.fitness: list[Tensor] = []

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        assert isinstance(module, ERLModule)
        state = snapshot(module)
        none = {name: torch.zeros_like(state[name.partition(".")[0]]) for name in MOMENTS}
        self.states.append({name: (none | state)[name] for name in (*ROWS, *MOMENTS)})

    def on_phase_end(self, trainer: Trainer, module: ERLModule, phase: str) -> None:
        if phase == "evaluate":
            self.stored.append(module.data.buffer.gather(torch.arange(len(module.data.buffer))))
            self.fitness.append(module.state.fitness.clone())


def run(*callbacks: Callback, **settings: Any) -> tuple[Steps, ERLModule]:
    steps = Steps()
    module = fit(AIM, *callbacks, steps, **{"gradient_steps": STEPS, "accumulate": ACCUMULATE, **settings})
    return steps, module


def different(left: dict[str, Tensor], right: dict[str, Tensor], rows: list[int]) -> list[str]:
    """Names of what is not the same in these rows, bit for bit."""
    return [name for name in left if not same(left[name][rows], right[name][rows])]


@pytest.fixture(scope="module")
def healthy() -> Steps:
    """Two generations without evolution or faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", str(SEED))
        return run(epochs=2)[0]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("actor", NAN), ("critic", -INF), ("gradient", NAN), ("loss", -INF)),
    ],
)
def test_a_broken_agent_sits_the_step_out_and_the_others_are_the_same_to_the_bit(
    part: str, value: float, healthy: Steps
) -> None:
    """What happens in training leaves this generation's replay buffer alone: nothing of the others may change."""
    faulty, _ = run(Fault(part, value, LAST), epochs=2)
    assert different(healthy.states[LAST], faulty.states[LAST], OTHERS) == []
    before, after = faulty.states[LAST - 1], faulty.states[LAST]
    if part in after:  # but for what was planted
        assert same(after[part][BROKEN, 1], torch.tensor(value))
        after[part][BROKEN, 1] = before[part][BROKEN, 1]
    assert different(before, after, [BROKEN]) == []
    assert different(before, after, [0]) == [name for name in (*ROWS, *MOMENTS) if name != "noise"]
    # in the next evaluation the others play, store and score what they would have
    assert same(healthy.fitness[1][OTHERS], faulty.fitness[1][OTHERS])
    played = 4 * WINDOWS
    for name, values in faulty.stored[1].items():
        own = len(values) - played - 3 * WINDOWS  # the broken agent's, if it could act
        rest = torch.cat([values[played : played + 2 * WINDOWS], values[played + 2 * WINDOWS + own :]])
        expected = healthy.stored[1][name][played:].unflatten(0, (4, WINDOWS))[OTHERS].flatten(0, 1)
        assert same(rest, expected), name


@pytest.mark.parametrize(
    ("part", "value"),
    [("actor.exp_avg", NAN), ("critic.exp_avg_sq", INF), ("actor_target", INF), ("critic_target", NAN)],
)
def test_what_shows_in_no_loss_is_found_at_the_end_and_the_others_are_the_same_to_the_bit(
    part: str, value: float, healthy: Steps
) -> None:
    recorder = Recorder()
    faulty, _ = run(Fault(part, value, LAST), recorder)
    assert different(healthy.states[LAST], faulty.states[LAST], OTHERS) == []
    metrics = recorder.metrics[0]
    assert (metrics["population/quarantined"], metrics["population/failed"]) == (1, 1)


def test_over_generations_the_others_miss_the_broken_agents_transitions_and_nothing_else() -> None:
    """Whatever silences an agent, the others learn from the same experience, and come out the same to the bit."""
    first, other = (
        run(*faults, epochs=3)[0]
        for faults in ([Fault("actor")], [Silent(), Fault("critic", INF, 3), Fault("gradient", NAN, 1, 1)])
    )
    for left, right in zip(first.states, other.states, strict=True):
        assert different(left, right, OTHERS) == []
    for left, right in zip(first.stored, other.stored, strict=True):
        assert [name for name in left if not same(left[name], right[name])] == []
    assert all(same(left[OTHERS], right[OTHERS]) for left, right in zip(first.fitness, other.fitness, strict=True))
    assert len(first.stored[2]["action"]) == 3 * 3 * WINDOWS
    assert all(torch.isnan(fitness[BROKEN]) for fitness in first.fitness)


def test_the_first_step_leaves_no_moments_to_an_agent_that_sits_it_out() -> None:
    state = run(Fault("loss", INF, 1))[0].states[1]
    assert [state[name].any(1).tolist() for name in MOMENTS] == [[True, True, False, True]] * 4


def test_an_agent_that_is_lost_gives_way_to_an_elites_mutant_though_it_is_the_fittest() -> None:
    healthy = Recorder()
    settings: dict[str, Any] = {"population_size": 8, "evolution": evolution(0.25, 0.5), "epochs": 2}
    run(healthy, **settings)
    ranking = healthy.fitness[0].argsort(descending=True).tolist()
    best = ranking[0]
    recorder = Recorder()
    _, module = run(Fault("actor", INF, LAST, row=best), recorder, **settings)
    before, after = recorder.states[0, "train"], recorder.states[0, "evolve"]
    for name in (*ROWS, *MOMENTS):  # a parent of a NaN would have handed it on
        assert after[name].isfinite().all(), name
    elites = ranking[1:3]
    assert all(same(before["actor"][row], after["actor"][row]) for row in elites)
    parents = [row for row in range(8) if same(before["critic"][row], after["critic"][best])]
    assert len(parents) == 1
    assert parents[0] in elites
    changed = (after["actor"][best] != before["actor"][parents[0]]).sum()
    assert 0 < int(changed) < len(after["actor"][best])
    told = [
        [metrics[f"population/{name}"] for name in ("quarantined", "failed")] for metrics in recorder.metrics.values()
    ]
    assert told == [[1, 1], [0, 0]]
    assert recorder.metrics[0]["fitness/max"] == pytest.approx(float(healthy.fitness[0][ranking[1]]))
    assert int(module.population.champion_generation) >= 0


@pytest.mark.parametrize(
    ("gradient_steps", "skipped", "replaced"),
    [(4, [0, 1, 2], False), (4, [1, 3], False), (4, [2, 3], True), (1, [0], True)],
)
def test_an_agent_is_replaced_if_it_is_still_out_at_the_end(
    gradient_steps: int, skipped: list[int], replaced: bool
) -> None:
    """The last two steps, or the only one; the fittest of the generation is an elite otherwise, and stays."""
    recorder = Recorder()
    faults = [Fault("gradient", NAN, ACCUMULATE * step + 1, row=FITTEST) for step in skipped]
    run(*faults, recorder, evolution=evolution(), gradient_steps=gradient_steps)
    assert int(recorder.fitness[0].argmax()) == FITTEST
    before, after = recorder.states[0, "train"]["critic"], recorder.states[0, "evolve"]["critic"]
    assert same(before[FITTEST], after[FITTEST]) is not replaced
    metrics = recorder.metrics[0]
    assert (metrics["population/quarantined"], metrics["population/failed"]) == (1, float(replaced))


def test_without_evolution_a_lost_agent_stays_out_and_the_others_go_on() -> None:
    recorder = Recorder()
    steps, module = run(Fault("critic", NAN, 2), recorder, epochs=3)
    assert [recorder.metrics[generation]["population/failed"] for generation in range(3)] == [1, 1, 1]
    assert module.state.quarantine.skipped.tolist() == [0, 0, STEPS, 0]
    assert same(steps.states[3]["actor"][BROKEN], steps.states[-1]["actor"][BROKEN])
    assert not same(steps.states[-2]["actor"][OTHERS], steps.states[-1]["actor"][OTHERS])


@pytest.mark.parametrize("epochs", [2, 1])
def test_a_learner_that_failed_goes_on_from_the_champion(epochs: int) -> None:
    """Before the first champion it goes on from its initial weights."""
    recorder, last = Recorder(), epochs - 1
    run(
        Fault("critic", NAN, LAST, generation=last, row=0), recorder, epochs=epochs, learners=1,
        evolution=evolution(inject_every=1), data={"replay_min_size": 16, "batch_size": 16},
    )  # fmt: skip
    assert recorder.metrics[last]["population/failed"] == 1
    before, after = recorder.states[last, "train"], recorder.states[last, "evolve"]
    for name in ("actor", "critic"):
        assert same(after[name], before[f"champion_{name}"])
        assert same(after[f"{name}_target"], before[f"champion_{name}"])
        assert not after[f"{name}.exp_avg"].any()
        assert same(after[f"{name}.exp_avg_sq"], before[f"{name}.exp_avg_sq"])
        assert after[f"{name}.exp_avg_sq"].any()
    found = recorder.states[0, "train" if last else "evaluate"]  # the champion comes with the learner's critic of then
    assert same(after["critic"], found["critic"])


def test_an_agent_that_failed_is_replaced_where_the_learner_is_injected() -> None:
    recorder = Recorder()
    run(
        Fault("head", NAN, LAST, row=5), recorder, epochs=3, population_size=6, learners=1,
        evolution=evolution(inject_every=1),
    )  # fmt: skip
    assert [recorder.metrics[generation]["population/failed"] for generation in range(3)] == [1, 0, 0]


def test_losses_are_averaged_over_the_agents_that_have_one() -> None:
    losses = torch.tensor([[1.0, 2.0, NAN, 6.0]] * 4), torch.tensor([[3.0, 4.0, 5.0, INF]] * 4)
    state = GenerationState.begin(0, range(4), 4, make_accumulators(4), 4)
    for each in losses:
        state.record_losses(Losses(*each), train_actor=True)
    assert state.loss_sums.tolist() == [[4.0, 6.0, 5.0, 6.0]] * 4
    assert state.loss_counts.tolist() == [[2.0, 2.0, 1.0, 1.0]] * 4


def test_one_warning_a_generation_names_agents_parts_and_steps(caplog: pytest.LogCaptureFixture) -> None:
    faults = Fault("gradient", NAN, 3, row=0), Fault("actor", INF, LAST, generation=1), Silent()
    with caplog.at_level(logging.WARNING, "eigen2"):
        run(*faults, epochs=2, evolution=evolution())
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "generation 0, not finite: agent 0 (critic gradient; 1 of 4 steps skipped), "
        "agent 2 (actions or rewards; 0 of 4 steps skipped, replaced)",
        "generation 1, not finite: agent 2 (actions or rewards, actor loss, actor gradient, actor weights; "
        "1 of 4 steps skipped, replaced)",
    ]


def test_a_warning_stays_short_and_a_healthy_run_has_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "eigen2"):
        run(evolution=evolution())
        assert caplog.records == []
        run(Fault("loss", NAN, 1, row=slice(1, 40)), population_size=40)
    (record,) = caplog.records
    assert record.getMessage().endswith("agent 8 (critic loss; 1 of 4 steps skipped) and 31 more")


def stopped(folder: Path, *callbacks: Callback, **settings: Any) -> RunStopped:
    """How a run ends that checkpoints every generation."""
    module = ERLModule(**{"population_size": 4, "gradient_steps": STEPS, "accumulate": ACCUMULATE, **settings})
    trainer = make_trainer(
        *callbacks, GenerationCheckpoint(), epochs=4, default_root_dir=folder, enable_checkpointing=True
    )
    with pytest.raises(RunStopped) as stop:
        trainer.fit(module, datamodule=ProbeRollouts(AIM))
    return stop.value


@pytest.mark.parametrize("settings", [{"evolution": None}, {"population_size": 1}])
def test_if_all_fail_the_run_stops_with_the_last_checkpoint(settings: dict[str, Any], tmp_path: Path) -> None:
    agents = settings.get("population_size", 4)
    stop = stopped(tmp_path, Fault("critic", NAN, 5, generation=2, row=slice(None)), **settings)
    assert stop.code == ALL_AGENTS_FAILED == 4
    for words in (f"all agents ({agents}) failed in generation 2", "critic weights", "model.critic_lr"):
        assert words in str(stop)
    assert "\n" not in str(stop)
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["epoch"] == 1
    weights = [value for name, value in last["state_dict"].items() if name.endswith(("n.actor", "n.critic"))]
    assert len(weights) == 2
    assert all(value.isfinite().all() for value in weights)


def test_if_all_that_evolve_fail_the_run_stops_though_a_learner_is_sound(tmp_path: Path) -> None:
    stop = stopped(tmp_path, Fault("head", NAN, generation=2, row=1), population_size=2, learners=1)
    assert stop.code == ALL_AGENTS_FAILED
    assert str(stop).startswith("all agents that evolve (1) failed in generation 2, not finite: ")
