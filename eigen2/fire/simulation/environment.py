"""Fuel breaks as a Gymnasium environment: one cell a step, until the budget is spent."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import UInt8
from numpy.typing import NDArray

from eigen2.errors import UserError, require_range
from eigen2.fire.landscapes.landscape import Landscape, synthetic
from eigen2.fire.simulation.spread import FireModel, Fires, Weather

RATES = slice(0, 4)
"""Planes of the rates: how many cells fire crosses within its duration towards north, east, south and west."""
BREAKS, BURNS, BUDGET, DOWNSTREAM = 4, 5, 6, 7
"""Planes, in this order: the breaks so far (255, elsewhere 0); how many fires burn a cell; the breaks left over the
budget (255 at the start, 0 at the end, equal in all cells); how many cells burn through a cell. Where cells have
values, burning ones count by theirs over the largest in the landscape."""
PLANES = 8
LARGEST_LOG_RATE = 9.0  # log(1 + cells crossed) at 255 in the rate planes; e**9 are 8,100 cells, beyond any fire here
FINEST = 256  # resolution of the downstream plane: 1 / FINEST of a cell per fire differs from none
REWARD_UNIT = 30.0  # `relative_reward` of a break that leaves 1/e of what burned; breaks earn about 1 each


def breaks_of(budget: float, cells: int) -> int:
    """Return how many breaks a budget, a share of all cells, allows: one at least."""
    return max(int(budget * cells + 1e-9), 1)  # 0.29 x 100 is below 29 by rounding


class Scene(NamedTuple):
    """A landscape ready to burn, with its rate planes."""

    landscape: Landscape
    model: FireModel
    planes: UInt8[np.ndarray, "4 rows columns"]


class FuelBreakEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Place fuel breaks so that fires burn as little as possible.

    An episode has one landscape and one set of ignitions, each of which starts a separate fire. A step turns one cell
    into a break, which never burns. The episode terminates when the budget is spent, or every cell that burns is a
    break.

    Observation: uint8 (planes, rows, columns); the module's constants name the planes. Rates are
    `log(1 + rate * duration / cell_size)`, scaled so that 255 is `LARGEST_LOG_RATE`, at least 1 where a cell burns and
    0 elsewhere. The burn plane is the root of the share of fires that burn a cell. The downstream plane is
    `log(1 + FINEST * cells)` over its largest possible value, for the cells that burn through a cell in a mean fire.

    Action: the cell's number, `row * columns + column`. A cell that does not burn or is already a break is refused.

    Reward: 100 times the drop in the burned share, which is the share of all cells that a fire burns, the mean over the
    ignitions.

    Info: `action_mask`, bool (cells,), the actions allowed; `burned`, the burned share; `reduction`, the part of the
    initial burned share that is saved, `1 - burned / start`; `landscape`, its number.

    `reset` draws the landscape and the ignitions from the environment's generator, which its `seed` seeds. Its options
    fix them: `{"landscape": number}`, `{"ignitions": count}`, where None ignites every cell that burns.

    Settings are those of `FuelBreakDataModule`, but duration and wind are one number for all landscapes, or one for
    each; `landscapes`, all of one shape, replace the `num_landscapes` synthetic ones of `seed`. Raises UserError if a
    setting is out of range, or nothing burns in a landscape.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        grid_size: int = 32,
        budget: float = 0.05,
        fire_simulation_max_duration: float | Sequence[float] = 240.0,
        ignitions: int | None = 256,
        wind_speed: float | Sequence[float] = 15.0,
        wind_from: float | Sequence[float] = 270.0,
        num_landscapes: int = 32,
        seed: int = 0,
        landscapes: Sequence[Landscape] | None = None,
    ) -> None:
        require_range("budget", budget, above=0, most=1)
        require_range("ignitions", 1 if ignitions is None else ignitions, least=1, whole=True)
        if landscapes is None:
            require_range("num_landscapes", num_landscapes, least=1, whole=True)
            require_range("seed", seed, least=0, whole=True)
            landscapes = [synthetic(grid_size, seed, number, "environment") for number in range(num_landscapes)]
        if len(shapes := {landscape.shape for landscape in landscapes}) != 1:
            raise UserError(f"landscapes have shapes {sorted(shapes)}; give one or more of one shape")
        settings = fire_simulation_max_duration, wind_speed, wind_from
        if wrong := [np.size(each) for each in settings if np.ndim(each) and np.size(each) != len(landscapes)]:
            many = f"duration or wind has {wrong[0]} values for {len(landscapes)} landscapes"
            raise UserError(f"{many}; give one number, or one for each")
        fires = zip(*(np.broadcast_to(each, len(landscapes)).tolist() for each in settings), strict=True)
        self.scenes = [
            _scene(each, Weather(speed, direction), duration)
            for each, (duration, speed, direction) in zip(landscapes, fires, strict=True)
        ]
        for number, scene in enumerate(self.scenes):
            if not scene.model.burnable.any():
                raise UserError(f"nothing burns in landscape {number}; leave it out, or look at its fuel")
        self.shape: tuple[int, int] = shapes.pop()
        cells = self.shape[0] * self.shape[1]
        self.budget = breaks_of(budget, cells)
        self.observation_space = spaces.Box(0, 255, (PLANES, *self.shape), np.uint8)
        self.action_space = spaces.Discrete(cells)
        self.fires: Fires | None = None  # the episode's fires, which only `step` may change
        self.placed: list[int] = []  # the episode's breaks, in their order
        self.start = 0.0  # burned share without breaks
        self._ignitions, self._burned, self._landscape = ignitions, 0.0, 0

    def twin(self) -> "FuelBreakEnv":
        """Return another environment that shares the landscapes; call it before the first `reset` of this one."""
        return copy.copy(self)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode; `seed` None continues the generator. Raises UserError for an option that is not valid."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self.scenes)))
        chosen = {"landscape": drawn, "ignitions": self._ignitions, **(options or {})}
        if unknown := chosen.keys() - {"landscape", "ignitions"}:
            raise UserError(f"reset's option {sorted(unknown)[0]} is unknown; use landscape or ignitions")
        ignitions, self._landscape = chosen["ignitions"], chosen["landscape"]
        require_range("ignitions", 1 if ignitions is None else ignitions, least=1, whole=True)
        require_range("landscape", self._landscape, least=0, most=len(self.scenes) - 1, whole=True)
        model = self.scenes[self._landscape].model
        cells = None if ignitions is None else model.draw(ignitions, self.np_random)
        self.fires, self.placed = model.start(cells, trees=True), []
        self.start = self._burned = self.fires.burned
        return self._observation(self.fires), self._info(self.fires)

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Turn a cell into a break; raise ValueError if it cannot be one, or the episode is over."""
        if self.fires is None or len(self.placed) == self.budget:
            raise ValueError("the budget is spent; reset first")
        self.fires.add_break(int(action))
        self.placed.append(int(action))
        before, self._burned = self._burned, self.fires.burned
        info = self._info(self.fires)
        done = len(self.placed) == self.budget or not info["action_mask"].any()
        return self._observation(self.fires), 100.0 * (before - self._burned), done, False, info

    def _observation(self, fires: Fires) -> NDArray[np.uint8]:
        left = (self.budget - len(self.placed)) / self.budget
        return observe(self.scenes[self._landscape].planes, left, [fires])

    def _info(self, fires: Fires) -> dict[str, Any]:
        return {
            "action_mask": fires.model.burnable & ~fires.breaks,
            "burned": self._burned,
            "reduction": 1 - self._burned / self.start,
            "landscape": self._landscape,
        }


def observe(
    rates: UInt8[np.ndarray, "4 rows columns"], left: float, fires: Sequence[Fires], weights: Sequence[float] = (1.0,)
) -> UInt8[np.ndarray, "planes rows columns"]:
    """Return the planes for a share of the budget left (0 to 1), from fires in one wind or, by their weights, several.

    The weights sum to 1; the fires differ only in the rates of their models.
    """
    model, shape, weighted = fires[0].model, rates.shape[1:], [*zip(weights, fires, strict=True)]
    unit = max(int(model.values.max()), 1)
    planes = np.empty((PLANES, *shape), np.uint8)
    planes[RATES] = rates
    planes[BREAKS] = 255 * fires[0].breaks.reshape(shape)
    burned = sum(weight * each.frequency for weight, each in weighted) * (model.values / unit)
    planes[BURNS] = np.rint(255 * np.sqrt(burned)).reshape(shape)
    planes[BUDGET] = round(255 * left)
    through = sum(weight / (each.ignitions.size * unit) * each.downstream for weight, each in weighted)
    scale = 255 / np.log1p(FINEST * model.cells)
    planes[DOWNSTREAM] = np.rint(scale * np.log1p(FINEST * through)).reshape(shape)
    return planes


def rate_planes(models: Sequence[FireModel], weights: Sequence[float] = (1.0,)) -> UInt8[np.ndarray, "4 rows columns"]:
    """Return the rate planes of a model, or of the mean rates of several by their weights, which sum to 1."""
    model = models[0]
    rates = sum(weight * each.rates.astype(float) for weight, each in zip(weights, models, strict=True))
    crossed = np.log1p(rates * (model.duration / model.cell_size))
    planes = np.clip(np.rint(255 / LARGEST_LOG_RATE * crossed), 1, 255)
    return np.where(model.burnable.reshape(model.shape), planes, 0).astype(np.uint8)


def action_mask(observation: Any) -> Any:
    """Return the `action_mask`, bool (..., cells), of observations, an array or tensor (..., planes, rows, columns)."""
    allowed = (observation[..., RATES, :, :] != 0).any(-3) & (observation[..., BREAKS, :, :] == 0)
    return allowed.reshape(*allowed.shape[:-2], -1)


def relative_reward(before: float, after: float, cells: int) -> float:
    """Return REWARD_UNIT times the logarithm of the burned share before a break over that after it.

    These rewards keep one scale throughout an episode. A burned share below one cell per fire, 1 / `cells`, counts as
    one cell.
    """
    return REWARD_UNIT * math.log(max(before, 1 / cells) / max(after, 1 / cells))


def _scene(landscape: Landscape, weather: Weather, duration: float) -> Scene:
    model = FireModel.of(landscape, weather, duration)
    return Scene(landscape, model, rate_planes([model]))
