"""Fuel breaks as a Gymnasium environment: one cell a step, until the budget is spent."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

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
"""Planes of the fuel breaks so far (255, elsewhere 0); how many of the fires burn a cell; the breaks left over the
budget (255 at the start, 0 at the end, the same in all cells); and, with `downstream_plane`, how many cells burn
through a cell."""
LARGEST_LOG_RATE = 9.0  # log(1 + cells crossed) at 255 in the rate planes; e**9 are 8,100 cells, beyond any fire here
FINEST = 256  # resolution of the downstream plane: 1 / FINEST of a cell per fire differs from none
REWARD_UNIT = 30.0  # `relative_reward` of a break that leaves 1/e of what burned; breaks earn about 1 each
Planes = TypeVar("Planes", bound=Any)


class Scene(NamedTuple):
    """A landscape as episodes use it: its fire model and its rate planes."""

    model: FireModel
    planes: UInt8[np.ndarray, "4 rows columns"]


class FuelBreakEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Place fuel breaks so that fires burn as little as possible.

    An episode has one landscape and one set of ignitions, each the start of a fire of its own. A step turns one cell
    into a break, in which nothing burns any more. The episode terminates when the budget is spent, or every cell that
    burns is a break.

    Observation: uint8 (planes, rows, columns); the module's constants name the planes. Rates are
    `log(1 + rate * duration / cell_size)`, where 255 is `LARGEST_LOG_RATE`, and at least 1 where a cell burns, 0 where
    not: `action_mask` rests on it. The burn plane is the root of the share of fires that burn a cell. The downstream
    plane is `log(1 + FINEST * cells)` over its largest possible value, for the cells that burn through a cell in an
    average fire (`Fires.downstream`).

    Action: the cell's number, `row * columns + column`. One that does not burn or is a break already is refused.

    Reward: 100 times the drop in the burned share, which is the share of all cells that a fire burns, the mean over the
    ignitions. An episode's rewards sum to `100 * (burned at the start - burned at the end)`, the percentage points of
    the landscape that all its breaks save.

    Info: `action_mask`, bool (cells,), the actions allowed; `burned`, the burned share; `reduction`, the part of the
    initial burned share that is saved, `1 - burned / start`; `landscape`, its number.

    `reset` draws the landscape and the ignitions from the environment's generator, which its `seed` seeds. Its options
    choose instead: `{"landscape": number}`, `{"ignitions": how many}`, of which None means every cell that burns.

    Args:
        grid_size: rows, and columns, of synthetic landscapes (4 or more); given ones have their own.
        budget: share of all cells that become breaks (above 0, at most 1), rounded down, but 1 at least.
        fire_simulation_max_duration: of a fire, in minutes (above 0).
        ignitions: fires in an episode (1 or more); None takes every cell that burns. Below 256 it pays to put breaks on
            the ignitions.
        wind_speed: 10 m above the vegetation, in km/h (0 to 200).
        wind_from: where the wind comes from, in degrees clockwise from north (0 to 360).
        num_landscapes: synthetic landscapes (1 or more), each made when first used, and then kept.
        seed: of the synthetic landscapes (0 or more); it and a landscape's number determine the landscape.
        downstream_plane: add the downstream plane to the observation.
        landscapes: given ones, all of one shape, in place of synthetic ones.

    Raises:
        UserError: a setting is outside its range, given landscapes differ in shape, or nothing burns in one.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        grid_size: int = 32,
        budget: float = 0.05,
        fire_simulation_max_duration: float = 240.0,
        ignitions: int | None = 256,
        wind_speed: float = 15.0,
        wind_from: float = 270.0,
        num_landscapes: int = 32,
        seed: int = 0,
        downstream_plane: bool = True,
        landscapes: Sequence[Landscape] | None = None,
    ) -> None:
        require_range("budget", budget, above=0, most=1)
        require_range("grid_size", grid_size, least=4)
        require_range("num_landscapes", num_landscapes, least=1)
        require_range("seed", seed, least=0)
        require_range("ignitions", 1 if ignitions is None else ignitions, least=1)
        self._ignitions, self._seed, self._trees = ignitions, seed, downstream_plane
        self._duration, self._weather = fire_simulation_max_duration, Weather(wind_speed, wind_from)
        self._given = None if landscapes is None else list(landscapes)
        self.shape: tuple[int, int] = (grid_size, grid_size) if self._given is None else _common_shape(self._given)
        self.num_landscapes = num_landscapes if self._given is None else len(self._given)
        self._scenes: list[Scene | None] = [None] * self.num_landscapes
        cells = self.shape[0] * self.shape[1]
        self.budget = max(int(budget * cells), 1)
        self.observation_space = spaces.Box(0, 255, (8 if downstream_plane else 7, *self.shape), np.uint8)
        self.action_space = spaces.Discrete(cells)
        self._fires: Fires | None = None
        self._left, self._start, self._burned, self._landscape = 0, 0.0, 0.0, 0
        self.placed: list[int] = []  # the episode's breaks, in their order

    @property
    def fires(self) -> Fires:
        """Return the fires of the episode, which only `step` may change."""
        assert self._fires is not None, "reset first"
        return self._fires

    def landscape(self, number: int) -> Landscape:
        """Return one of the landscapes (0 to num_landscapes - 1); a synthetic one is made anew by every call."""
        if not 0 <= number < len(self._scenes):
            raise UserError(f"landscape {number} does not exist; use 0 to {len(self._scenes) - 1}")
        if self._given is not None:
            return self._given[number]
        return synthetic(self.shape[0], self._seed, number)

    def scene(self, number: int) -> Scene:
        """Return one of the landscapes ready to burn, made on the first call and then kept."""
        kept = self._scenes[number] if 0 <= number < len(self._scenes) else None
        if kept is None:
            model = FireModel.of(self.landscape(number), self._weather, self._duration)
            if not model.burnable.any():
                raise UserError(f"nothing burns in landscape {number}; leave it out, or look at its fuel and moistures")
            kept = self._scenes[number] = Scene(model, _rate_planes(model))
        return kept

    def twin(self) -> "FuelBreakEnv":
        """Return another environment that shares the landscapes; call it before the first `reset` of this one."""
        return copy.copy(self)

    def free_fires(self) -> None:
        """Free the fires' memory until the next `reset`."""
        self._fires = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode; `seed` None continues the generator.

        Raises:
            UserError: an option is unknown or out of range.
        """
        super().reset(seed=seed)
        chosen = dict(options or {})
        if unknown := chosen.keys() - {"landscape", "ignitions"}:
            raise UserError(f"reset's option {sorted(unknown)[0]} is unknown; use landscape or ignitions")
        ignitions = chosen.get("ignitions", self._ignitions)
        require_range("ignitions", 1 if ignitions is None else ignitions, least=1)
        drawn = int(self.np_random.integers(len(self._scenes)))
        self._landscape = int(chosen.get("landscape", drawn))
        model = self.scene(self._landscape).model
        cells = None if ignitions is None else model.draw(ignitions, self.np_random)
        self._fires = model.start(cells, trees=self._trees)
        self._left, self.placed = self.budget, []
        self._start = self._burned = self._fires.burned
        return self._observation(), self._info()

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Turn a cell into a break.

        Raises:
            ValueError: the cell does not burn or is a break already, or the episode is over.
        """
        if self._left == 0:
            raise ValueError("the budget is spent; reset first")
        self.fires.add_break(int(action))
        self.placed.append(int(action))
        self._left -= 1
        before, self._burned = self._burned, self.fires.burned
        info = self._info()
        done = self._left == 0 or not info["action_mask"].any()
        return self._observation(), 100.0 * (before - self._burned), done, False, info

    def _observation(self) -> NDArray[np.uint8]:
        fires = self.fires
        planes = np.empty((8 if self._trees else 7, *self.shape), np.uint8)
        planes[RATES] = self.scene(self._landscape).planes
        planes[BREAKS] = 255 * fires.breaks.reshape(self.shape)
        planes[BURNS] = np.rint(255 * np.sqrt(fires.frequency)).reshape(self.shape)
        planes[BUDGET] = round(255 * self._left / self.budget)
        if self._trees:
            through = np.log1p(FINEST / fires.ignitions.size * fires.downstream)
            planes[DOWNSTREAM] = np.rint(255 / np.log1p(FINEST * fires.model.cells) * through).reshape(self.shape)
        return planes

    def _info(self) -> dict[str, Any]:
        fires = self.fires
        return {
            "action_mask": fires.model.burnable & ~fires.breaks,
            "burned": self._burned,
            "reduction": 1 - self._burned / self._start,
            "landscape": self._landscape,
        }


def action_mask(observation: Planes) -> Planes:
    """Return `info["action_mask"]`, bool (..., cells), from an array or tensor (..., planes, rows, columns)."""
    allowed: Any = (observation[..., RATES, :, :] != 0).any(-3) & (observation[..., BREAKS, :, :] == 0)
    mask: Planes = allowed.reshape(*allowed.shape[:-2], -1)
    return mask


def relative_reward(before: float, after: float, cells: int) -> float:
    """Return REWARD_UNIT times the logarithm of the burned share before a break over that after it.

    The percentage points saved shrink with every break, as there is less left to save; these rewards stay of one size
    through an episode, and still sum to a number that depends on the first and the last burned share alone. One burned
    cell a fire, of `cells` of the map, is the least that counts.
    """
    return REWARD_UNIT * math.log(max(before, 1 / cells) / max(after, 1 / cells))


def _rate_planes(model: FireModel) -> UInt8[np.ndarray, "4 rows columns"]:
    crossed = np.log1p(model.rates.astype(float) * (model.duration / model.cell_size))
    planes = np.clip(np.rint(255 / LARGEST_LOG_RATE * crossed), 1, 255)
    return np.where(model.burnable.reshape(model.shape), planes, 0).astype(np.uint8)


def _common_shape(landscapes: list[Landscape]) -> tuple[int, int]:
    shapes = {landscape.shape for landscape in landscapes}
    if len(shapes) != 1:
        raise UserError(f"landscapes have shapes {sorted(shapes)}; give one or more of one shape")
    return shapes.pop()
