"""Base of ERLModule, all but the algorithm: set-up, optimizer, champion, metrics, checkpoint, memory."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eigen2.core.config import class_config
from eigen2.core.datamodule import RolloutDataModule, TestResult
from eigen2.core.environment import Policy
from eigen2.core.export import ExportedChampion, call_of, describe, format_factory
from eigen2.core.module import GenerationModule
from eigen2.core.networks import NetworkFactory, weight_bytes
from eigen2.core.randomness import Role, generator, torch_seed
from eigen2.distributed.communicator import Communicator
from eigen2.erl import metrics
from eigen2.erl.checkpoint_rows import join_checkpoint, split_checkpoint
from eigen2.erl.estimate import batches_together, require_fit, workspace_bytes
from eigen2.erl.evolution import EvolutionContext, Operator
from eigen2.erl.evolution.statistics import SAMPLED_INPUTS, diversity_metrics
from eigen2.erl.graphs import StepRunner, step_runner_for
from eigen2.erl.heads import head_bytes
from eigen2.erl.learners import Learner
from eigen2.erl.learners.gradients import clear_gradients
from eigen2.erl.population import ACTING_AT_ONCE, Population
from eigen2.erl.rollout import Rollout
from eigen2.erl.row_adam import RowAdam
from eigen2.erl.settings import require_trained_actor, warn_of_idle_operators
from eigen2.erl.state import GenerationState, make_accumulators, sample_inputs
from eigen2.errors import UserError
from eigen2.memory.estimate import checkpoint_bytes
from eigen2.runtime.checkpoint import listed_parts, part_files

# of Lightning's, where a batch is quick: of one learner, or on a GPU. It adds half a millisecond to each
BATCHES_PER_TRAINING_STEP = 32


class PopulationModule(GenerationModule[RolloutDataModule]):
    """Module that trains a population of agents."""

    data_class = RolloutDataModule
    make_step_runner: Callable[[torch.device, bool], StepRunner] = staticmethod(step_runner_for)
    remedy = "lower data.replay_capacity, data.batch_size, model.population_size, model.gradient_steps or windows"
    one_learner: bool  # whether the first agent alone learns by gradients
    shared: bool  # whether the others are heads on its trunk
    learner: Learner
    operators: Sequence[Operator]
    micro_batches_at_once: int = 1  # computed together, while their tensors fit into the processor's caches
    batches_per_optimizer_step: int = 1
    batches_per_training_step: int = 1  # Lightning's, see `BATCHES_PER_TRAINING_STEP`
    batches_per_fetch: int = 1  # whose transitions come from other processes at once
    make_networks: tuple[NetworkFactory | None, NetworkFactory | None]  # of actor and critic; None for the workload's
    communicator: Communicator  # made by `build`
    population: Population  # this process's agents
    state: GenerationState  # of the generation in progress
    accumulators: Tensor  # of its losses, in the same memory in every generation
    step_runner: StepRunner = StepRunner()  # of the steps of training

    @property
    def rollout(self) -> Rollout:
        """Return the rollout that plays the population in the data module's environments."""
        return Rollout(self.population, self.data, self.precision, self.communicator)

    @property
    def gamma(self) -> float:
        """Return the discount per step, the workload's unless it is set."""
        gamma: float | None = self.hparams["gamma"]
        return self.data.discount if gamma is None else gamma

    def precision(self) -> AbstractContextManager[None]:
        """Return the context in which networks run."""
        return self.trainer.precision_plugin.forward_context()

    def optimizer_steps(self, transitions: int) -> int:
        """Return the optimizer steps of each learner in a generation that adds `transitions` to the replay buffer."""
        steps: int = self.hparams["gradient_steps"]
        return steps if steps >= 0 else transitions // (1 if self.one_learner else self.population_size)

    def build(self, stage: str) -> None:
        """Build environments, population and replay buffer, each after a check that it fits into memory."""
        data, device = self.data, self.trainer.strategy.root_device
        self.communicator = Communicator(self.population_size, self.trainer.global_rank, self.trainer.world_size)
        agents = self.communicator.rows
        self.memory.require(data.needed_bytes(len(agents)))
        data.build(len(agents), device)
        makers = self.network_makers(data)
        with torch_seed(self.seed, Role.WEIGHTS, agent=0):
            actor, critic = (weight_bytes(make()) for make in makers)
            head = head_bytes(makers[0](), self.shared) if self.one_learner else None
        if stage == "fit":
            self._build_training(makers, actor, critic, head)
        if "population" not in self._modules:  # fitting or validating again continues with this population
            self.population = Population(
                *(self.communicator, *makers, self.seed, self.hparams["noise"], data.val_env.windows),
                one_learner=self.one_learner,
                shared=self.shared,
            )
        elif actor + critic != 4 * self.population.weights_per_agent or (
            stage == "fit" and data.val_env.windows != len(self.population.champion_windows)
        ):
            raise UserError("this module was fitted to data of other sizes; make a new ERLModule for these")

    def _build_training(
        self,
        makers: tuple[Callable[[], nn.Module], Callable[[], nn.Module]],
        actor: int,
        critic: int,
        head: int | None,
    ) -> None:
        """Choose the sizes of batches, check that training fits into memory, and allocate the replay buffer.

        `actor`, `critic` and `head` are bytes per agent.
        """
        data, device, communicator = self.data, self.trainer.strategy.root_device, self.communicator
        agents = len(communicator.rows)
        acting, learning = workspace_bytes(data, self.learner, device, *makers, self.precision)
        accumulate: int = self.hparams["accumulate"]
        learners = 1 if self.one_learner else self.population_size
        at_once = self.micro_batches_at_once = batches_together(accumulate, learners * max(acting, learning))
        self.batches_per_optimizer_step = accumulate // at_once
        is_quick = learners == 1 or device.type == "cuda"
        self.batches_per_training_step = BATCHES_PER_TRAINING_STEP if is_quick else 1
        adapts = self.hparams["gradient_steps"] < 0
        most_transitions = self.population_size * data.eval_env.windows * data.longest_episode if adapts else 0
        most_steps = self.optimizer_steps(most_transitions)
        require_trained_actor(self.learner, most_steps)
        micro_batches = accumulate * most_steps
        data.training_steps = max(1, math.ceil(micro_batches / at_once / self.batches_per_training_step))
        most_learners = min(learners, math.ceil(self.population_size / communicator.world))
        require_fit(
            *(self.memory, data, communicator),
            actor=actor,
            critic=critic,
            head=head,
            learners=most_learners,
            micro_batches=micro_batches,
            together=at_once,
            again="population" in self._modules,
        )
        temporary = max(min(agents, ACTING_AT_ONCE) * acting, most_learners * at_once * learning)
        resumed = checkpoint_bytes(self.trainer)
        if resumed and (communicator.world > 1 or listed_parts(Path(self.trainer.ckpt_path or ""))):
            resumed += 4 * (actor + critic) * agents  # this process's rows beside those of the population
        self.memory.require_temporary(temporary, resumed)
        data.allocate_replay(device, communicator)
        self.accumulators = make_accumulators(agents, device)
        self.step_runner = self.make_step_runner(device, self.hparams["compile"])
        self.batches_per_fetch = data.buffer.batches_at_once(most_learners * at_once * data.batch_size)

    def on_train_start(self) -> None:
        """Allocate gradients, which Lightning has freed, if steps are recorded: these know their address."""
        super().on_train_start()
        if self.step_runner.recording:
            clear_gradients(self.population)
        if self.trainer.is_global_zero:
            warn_of_idle_operators(self.operators, self.population_size, self.evolution_context)

    def begin_generation(self) -> None:
        """Start the generation; the moving average of the elites starts from the mean of the initial agents."""
        super().begin_generation()
        agents, none = self.population_size, bool(self.population.mean_actor.isnan().all())
        if none and agents > 1 and any(operator.kept(agents) for operator in self.operators):
            self.population.average(range(agents), self.communicator)

    def on_validation_model_zero_grad(self) -> None:
        """Free the gradients before validation, or zero them if recorded steps write there."""
        if self.step_runner.recording:
            clear_gradients(self.population)
        else:
            super().on_validation_model_zero_grad()

    def network_makers(self, data: RolloutDataModule) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        """Return factories of one agent's actor and critic: the configured networks, else the workload's."""
        actor, critic = self.make_networks
        make_critic = partial(critic, data.sizes) if critic else data.make_critic
        return partial(actor, data.sizes) if actor else data.make_actor, self.learner.critic_factory(make_critic)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return one Adam for the whole population; its moments have one row per agent."""
        on_gpu = self.trainer.strategy.root_device.type == "cuda"
        networks = {"actor_lr": self.population.actor, "critic_lr": self.population.critic}
        groups = [{"params": [rows], "lr": self.hparams[name]} for name, rows in networks.items()]
        # the compiler does not know the fused kernel
        return RowAdam(groups, fused=on_gpu or not self.hparams["compile"])

    @property
    def adam(self) -> RowAdam:
        """Return the optimizer without Lightning's wrapper, which counts steps and calls hooks."""
        adam = self.optimizers(use_pl_optimizer=False)
        assert isinstance(adam, RowAdam)
        return adam

    @property
    def evolution_context(self) -> EvolutionContext:
        """Return the state of the run that operators may depend on."""
        return EvolutionContext(self.seed, self.generation, int(self.one_learner), self.population.acting_network)

    @property
    def actor_class(self) -> str | None:
        """Return the class of the actors that it was given, whose code runs in this process; None without one."""
        given = call_of(self.make_networks[0]) or {}
        return given.get("class_path")

    def validate_champion(self) -> float:
        """Return the champion's validation fitness, played and recorded once more."""
        fitness = self.rollout.play_champion()
        self.data.save_champion_record(int(self.population.champion_generation))
        return fitness

    def play_champion_again(self) -> None:
        """Set the champion's fitness to that in the validation windows of now, and record its account there."""
        if (found := int(self.population.champion_generation)) >= 0:
            self.rollout.record_champion()
            self.data.save_champion_record(found)

    def test_champion(self) -> TestResult:
        """Play the champion on data that no fit has used; raise a UserError without one."""
        policies = self.rollout.trained_policies(self.generations_run * self.population_size, self.seed)
        others = [self._policy_of(champion) for champion in self.other_champions]
        return self.data.test(replace(policies, others=others, checks=self.test_checks))

    def _policy_of(self, champion: ExportedChampion) -> Policy:
        """Return the champion of a training with another seed; raise a UserError if its actor is of another class."""
        actor = champion.actor(self.actor_class).to(self.device)
        return self.rollout.as_policy(lambda inputs: actor({name: part[0] for name, part in inputs.items()})[None])

    def generation_metrics(self) -> dict[str, float]:
        """Return the scalars of the generation that was just validated, by full name."""
        data, population, communicator = self.data, self.population, self.communicator
        summary = data.eval_env.get_episode_summary(data.fitness_windows)
        scalars, episodes = metrics.generation_metrics(self.state, population, summary, communicator)
        rng = generator(self.seed, Role.PROBE, self.generation)
        inputs = sample_inputs(data, self.device, rng, SAMPLED_INPUTS)
        scalars |= diversity_metrics(population.acting_network, population.rows()["actor"], inputs, communicator)
        scalars |= data.episode_metrics(episodes, self.state.fitness) | data.buffer.metrics()
        if communicator.world > 1:
            exchanged = communicator.received_bytes / 1e6, communicator.seconds
            scalars["exchange/received_mb"], scalars["time/exchange_s"] = exchanged
        return scalars

    def model_settings(self) -> dict[str, Any]:
        """Return the algorithm's settings, networks included, as plain values."""
        return {**self.hparams, **dict(zip(("actor", "critic"), map(format_factory, self.make_networks), strict=True))}

    def model_config(self) -> dict[str, Any]:
        """Return the arguments it was made with; a network made by a function has none, only the function's name."""
        networks = {
            name: call_of(factory) or format_factory(factory)
            for name, factory in zip(("actor", "critic"), self.make_networks, strict=True)
        }
        operators = [class_config(operator) for operator in self.operators]
        return {
            **super().model_config(),
            **{"learner": class_config(self.learner), "evolution": operators or None, **networks},
        }

    def inference_spec(self) -> dict[str, Any]:
        """Return what the champion's weights need to act, as plain values."""
        network = describe(self.population.actor_network, self.make_networks[0], self.data.sizes)
        return network | super().inference_spec()

    def check_shapes(self, checkpoint: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of another population size or other networks, by a UserError with both sizes."""
        agents = self.population_size
        if "population.mean_critic" in checkpoint["state_dict"]:
            raise UserError("the checkpoint is by an earlier version of eigen2, which saved other weights; fit again")
        if ("population.head" in checkpoint["state_dict"]) != self.one_learner:
            raise UserError(
                "the checkpoint's run had another model.learners or model.representation; use the settings of the run "
                "that wrote it (config.yaml in its folder)"
            )
        one_learner = {"head": agents, "actor": 1, "critic": 1}
        expected = one_learner if self.one_learner else {"actor": agents, "critic": agents}
        for name, rows in expected.items():
            size = getattr(self.population, name).shape[1]
            saved = tuple(checkpoint["state_dict"].get(f"population.{name}", torch.empty(0, 0)).shape)
            if saved != (rows, size):
                raise UserError(
                    f"the checkpoint holds {saved[0]} agents with {saved[1]} {name} weights, this configuration "
                    f"makes {rows} with {size}; use the settings of the run that wrote it "
                    "(config.yaml in its folder)"
                )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what resuming needs; with several processes, part off what this one alone holds."""
        super().on_save_checkpoint(checkpoint)
        if self.communicator.world > 1:
            data, names = type(self.data).__qualname__, self.population.row_names()
            split_checkpoint(checkpoint, names, self.population_size, data, self.data.buffer.capacity)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the checkpoint, and keep the rows of this process."""
        super().on_load_checkpoint(checkpoint)
        files = part_files(Path(self.trainer.ckpt_path or ""), checkpoint)
        if files or self.communicator.world > 1:
            data, names = type(self.data).__qualname__, self.population.row_names()
            join_checkpoint(checkpoint, names, self.communicator, data, files)

    def memory_owners(self) -> dict[str, object]:
        """Return the objects that hold memory, by owner name, for a memory profiler."""
        gradients = [parameter.grad for parameter in self.parameters()]
        # the optimizer first: the population holds the gradients too
        return {"optimizer": (gradients, self.optimizer.state), "population": self.population}

    def reset_memory(self) -> None:
        """Start over in the same memory: initial agents, no champion, no replay; else a further fit continues."""
        self.population.reset_parameters(*self.network_makers(self.data), self.seed, self.hparams["noise"])
        self.data.buffer.reset_memory()
        self.generations_run = 0

    def cleanup_memory(self) -> int:
        """Free gradients and the pages of empty replay slots until the next fit, and return their bytes."""
        self.step_runner.clear()  # they would write to the gradients
        return self.population.cleanup_memory() + self.data.buffer.cleanup_memory()

    def describe(self) -> dict[str, str]:
        """Return names and values to show to the user at the start of a run."""
        weights = f"{self.population.weights_per_agent:,} parameters"
        if (heads := self.population.heads) is None:
            agents = f"{weights} each"
        else:
            agents = f"each {heads.num_weights:,} parameters that evolve; the learner has {weights}"
        return {
            "population": f"{self.population_size} agents, {agents}",
            "replay": f"{self.data.buffer}; training starts at {self.data.replay_min_size:,}",
            "memory": str(self.memory),
            **self.communicator.describe(),
        }
