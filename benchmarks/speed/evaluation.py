"""Windows played by the whole population, against agents that play one by one on copied windows of days."""

from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import median_ratio
from benchmarks.speed.comparison import Comparison
from benchmarks.speed.dense import CLIP, DenseMarket, Window
from benchmarks.speed.full_scale import FullScale
from eigen2.erl.population import Population
from eigen2.market.simulation.environment import LEVELS

REFERENCE_DAYS = 10  # days that the reference plays with one agent


class Step(NamedTuple):
    """Transition as a dense system keeps it, with both windows."""

    window: Window
    next_window: Window
    observation: dict[str, Tensor]
    action: Tensor
    reward: float


def evaluation(full: FullScale, runs: int) -> list[Comparison]:
    """Compare seconds in which all agents play a generation's windows and fill the replay buffer.

    The reference plays a few days of one window with one agent; its seconds are multiplied, as all days cost the same.
    """
    data, population = full.data, full.population()
    agents, windows, days = population.size, data.eval_env.windows, data.window_days - 1
    timed, agent = min(REFERENCE_DAYS, days), DenseAgent(full, population, row=0)
    generations, dense_generations = count(), count()
    ours, reference, ratio = median_ratio(
        lambda: full.play(population, next(generations)), lambda: agent.play(next(dense_generations), timed), runs
    )
    factor = agents * windows * days / timed
    what = f"evaluation, {agents} agents x {windows * data.window_days} days, s (reference: from {timed} agent-days)"
    return [Comparison("evaluation", what, ours, factor * reference, factor * ratio, bound=50.0)]


class DenseAgent:
    """Agent with a network and an environment of its own, and the weights of one row, which sees copies of windows."""

    def __init__(self, full: FullScale, population: Population, row: int) -> None:
        data = full.data
        self._data, self._device = data, full.device
        self.market = DenseMarket(data.panel, data.investable_columns, data.context_days)
        self._env = full.environment(agents=1)
        self._actor: nn.Module = data.make_actor().to(full.device)
        self._actor.load_state_dict(dict(population.agents[row].actor_weights()))

    @torch.no_grad()
    def play(self, generation: int, days: int) -> list[Step]:
        """Play `days` days of a generation's first window; return their transitions."""
        asked: dict[str, Any] = self._data.training_options(generation, seed=0)
        observation, _ = self._env.reset(options={name: bounds[:1] for name, bounds in asked.items()})
        window = self.market.window(int(observation["day"]))
        steps = []
        for _ in range(days):
            action = self._actor(self.inputs(window, observation)).float()
            following, reward, *_ = self._env.step(self._env.native_action(action[None]))
            next_window = self.market.window(int(following["day"]))
            steps.append(Step(window, next_window, observation, action[0], float(reward)))
            window, observation = next_window, following
        return steps

    def inputs(self, window: Window, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the network's inputs in a batch of one."""
        rules = self._data.rules
        columns, groups = self.market.encode(window)
        held_days, gain, target, coefficient = (
            observation[name][0, 0].float() for name in ("held_days", "gain", "target", "coefficient")
        )
        position = [
            (held_days > 0).float(),
            held_days / rules.max_holding_days,
            (gain * 10).clamp(-CLIP, CLIP),
            target / LEVELS,
            coefficient / torch.iinfo(observation["coefficient"].dtype).max,
        ]
        left = np.float32(int(observation["days_left"]) / self._data.window_days)
        return {
            "columns": torch.from_numpy(columns)[None].to(self._device),
            "portfolio": torch.stack(position, dim=-1)[None],
            "market": torch.from_numpy(np.append(groups, left))[None].to(self._device),
        }
