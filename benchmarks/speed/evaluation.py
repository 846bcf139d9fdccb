"""The windows of a generation played by the whole population, against agents of a dense system.

Dense agents play one by one, on windows of days that are copied from the panel, normalised and encoded every day.
"""

from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from benchmarks.harness import Row
from benchmarks.speed.full_scale import FullScale
from benchmarks.speed.timing import at_least, at_rate, median_ratio, median_seconds
from eigen2.erl.population import Population
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.features.averages import CLIP, column_groups, spans
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.networks.columns import RIDGE

REFERENCE_DAYS = 10  # days that the reference plays, with one agent
MANY_AGENTS, LEAST_RATE = 256, 300_000  # agents of the environment alone, and agent-days a second


class Window(NamedTuple):
    """A day and its context, as a dense system stores them."""

    day: int  # the last day of the window
    values: Float32[np.ndarray, "context columns 9"]  # standardised within the window
    mean: Float32[np.ndarray, "columns 9"]
    deviation: Float32[np.ndarray, "columns 9"]


class Step(NamedTuple):
    """Transition as a dense system stores it, with both windows."""

    window: Window
    next_window: Window
    action: Tensor
    reward: float


class DenseMarket:
    """Copies windows, and computes from a window alone what `AverageEncoder` computes for its last day."""

    def __init__(self, data: MarketDataModule) -> None:
        assert isinstance(data.encoder, AverageEncoder)
        self.panel, self.investable, self.context_days = data.panel, data.investable_columns, data.context_days
        self.spans = spans(self.context_days)
        self.groups = column_groups(self.panel, self.investable)
        self.validity = self.panel.valid.mean(axis=2, dtype=np.float32)
        row = np.zeros(len(self.investable) + len(self.groups), np.int64)  # investable columns share row 0
        row[len(self.investable) :] = 1 + np.arange(len(self.groups))
        self.mean, self.scale = data.encoder.statistics[:, :, row].astype(np.float32)

    def window(self, day: int) -> Window:
        """Return a standardised copy of the window that ends with `day`; a constant feature becomes 0."""
        values = self.panel.features[day + 1 - self.context_days : day + 1].copy()
        mean = values.mean(axis=0)
        values -= mean
        deviation = np.sqrt(np.einsum("dcf,dcf->cf", values, values) / len(values)).clip(min=1e-6)
        values /= deviation
        return Window(day, values, mean, deviation)

    def encode(self, window: Window) -> tuple[Float32[np.ndarray, "columns width"], Float32[np.ndarray, " described"]]:
        """Return the encoding of each investable column and of the groups, from averages over each span."""
        averages = self._averages(window)
        means = [averages[:, group].mean(axis=1, keepdims=True) for group in self.groups]
        described = np.concatenate([averages[:, self.investable], *means], axis=1)
        encoded = ((described - self.mean) * self.scale).clip(-CLIP, CLIP).swapaxes(0, 1)
        flat = encoded.reshape(len(encoded), -1)
        return flat[: len(self.investable)], flat[len(self.investable) :].reshape(-1)

    def _averages(self, window: Window) -> Float32[np.ndarray, "spans columns channels"]:
        """Return averages of all columns over each span of last days, adding every day once."""
        last = window.day + 1
        total = np.zeros((self.panel.num_columns, self.panel.channels), np.float32)
        averages, added = np.empty((len(self.spans), *total.shape), np.float32), 0
        for average, span in zip(averages, self.spans, strict=True):
            start, stop = self.context_days - span, self.context_days - added
            total[:, :-1] += window.values[start:stop].sum(axis=0)
            total[:, -1] += self.validity[last - span : last - added].sum(axis=0)
            np.divide(total, span, out=average)
            added = span
        averages[..., :-1] *= window.deviation
        averages[..., :-1] += window.mean
        return averages


class DenseAgent:
    """Agent with its own network and environment and the weights of one row, which observes copies of windows."""

    def __init__(self, full: FullScale, population: Population, row: int) -> None:
        self._data, self._device = full.data, full.device
        self.market = DenseMarket(full.data)
        self._env = full.environment(agents=1)
        self._actor: nn.Module = full.data.make_actor().to(full.device)
        nn.utils.vector_to_parameters(population.actor_of(row)[0], self._actor.parameters())

    @torch.no_grad()
    def play(self, generation: int, days: int) -> list[Step]:
        """Play `days` days of a generation's first window; return their transitions."""
        options: dict[str, Any] = self._data.training_options(generation, seed=0)
        observation, _ = self._env.reset(options={**options, "starts": options["starts"][:1]})
        window = self.market.window(int(observation["day"]))
        steps = []
        for _ in range(days):
            action = self._actor(self.inputs(window, observation)).float()
            observation, reward, *_ = self._env.step(self._env.native_action(action[None]))
            next_window = self.market.window(int(observation["day"]))
            steps.append(Step(window, next_window, action[0], float(reward)))
            window = next_window
        return steps

    def inputs(self, window: Window, observation: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the network's inputs as a batch of one."""
        columns, groups = self.market.encode(window)
        encoder = self._data.encoder
        assert isinstance(encoder, AverageEncoder)
        shared, time_left = encoder.shared_inputs(observation)
        market = torch.cat([torch.from_numpy(groups), time_left.flatten().cpu()])
        described = {"columns": torch.from_numpy(columns)[None], "market": market[None]}
        forecasts = {RIDGE: encoder.forecasts(torch.tensor([[window.day]]))}
        return {name: part.to(self._device) for name, part in described.items()} | {
            name: part[0] for name, part in (shared | forecasts).items()
        }


def evaluation(full: FullScale, runs: int) -> list[Row]:
    """Compare the seconds that all agents take to play the windows of a generation into the replay buffer.

    The reference plays a few days of one window with one agent; its seconds are scaled up, as all days cost the same.
    """
    data, population = full.data, full.population()
    agents, windows, days = population.size, data.eval_env.windows, data.window_days - 1
    timed, agent = min(REFERENCE_DAYS, days), DenseAgent(full, population, row=0)
    generations, reference_generations = count(), count()
    ours, reference, ratio = median_ratio(
        lambda: full.play(population, next(generations)), lambda: agent.play(next(reference_generations), timed), runs
    )
    factor = agents * windows * days / timed
    what = f"evaluation, {agents} agents x {windows * data.window_days} days, s (reference: from {timed} agent-days)"
    return [at_least("evaluation", what, ours, factor * reference, factor * ratio, bound=50.0)]


def environment(full: FullScale, runs: int) -> list[Row]:
    """Measure how many agent-days the environment plays in a second, with accounts and random actions."""
    data, env = full.data, full.environment(MANY_AGENTS)
    options, days = data.window_options([data.panel.splits.train[0].start]), data.window_days - 1
    rng = torch.Generator().manual_seed(0)
    units = [2 * torch.rand(MANY_AGENTS, 1, *env.action_shape, generator=rng) - 1 for _ in range(8)]
    actions = [env.native_action(unit) for unit in units]

    def run() -> None:
        env.reset(options=options)
        for day in range(days):
            env.step(actions[day % len(actions)])

    what = f"environment alone, {MANY_AGENTS} agents x {env.num_columns} columns, thousand agent-days/s"
    rate = MANY_AGENTS * days / median_seconds(run, runs)
    return [at_rate("environment", what, rate / 1e3, LEAST_RATE / 1e3)]
