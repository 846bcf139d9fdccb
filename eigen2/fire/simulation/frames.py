"""Observations as the replay buffer stores them: the planes that change, without those fixed by the landscape."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped, UInt8
from torch import Tensor, nn

from eigen2.core.replay import Field
from eigen2.dqn.collector import Info, ObservationCodec
from eigen2.dqn.losses import Batch
from eigen2.fire.simulation.environment import BREAKS, BUDGET, BURNS, DOWNSTREAM, PLANES, RATES, action_mask

CHANGING = [BREAKS, BURNS, DOWNSTREAM]


def turn(maps: Shaped[Tensor, "... height width"], quarters: int, mirrored: bool) -> Shaped[Tensor, "... rows columns"]:
    """Return maps turned counterclockwise by quarters of a circle, and then mirrored, west for east."""
    turned = maps.rot90(quarters, (-2, -1))
    return turned.flip(-1) if mirrored else turned


def turn_observation(
    planes: UInt8[Tensor, "batch planes height width"], quarters: int, mirrored: bool
) -> UInt8[Tensor, "batch planes rows columns"]:
    """Return what is observed on landscapes turned so: rates towards the east, say, become those towards the north."""
    north, east, south, west = ((direction + quarters) % 4 for direction in range(4))
    order = [north, west, south, east] if mirrored else [north, east, south, west]
    rates, rest = planes[:, RATES][:, order], planes[:, RATES.stop :]
    return turn(torch.cat([rates, rest], 1), quarters, mirrored)


def symmetric_values(
    network: Callable[[Tensor], Tensor], planes: UInt8[Tensor, "batch planes height width"]
) -> Float[Tensor, "batch cells"]:
    """Return a network's values of all cells in row-major order, each the mean over eight turned and mirrored maps.

    Fire spreads on a turned landscape as on the landscape, so what differs is error, of which the mean has less.
    """
    total = torch.zeros(len(planes), *planes.shape[2:], device=planes.device)
    for quarters, mirrored in product(range(4), (False, True)):
        seen = turn_observation(planes, quarters, mirrored)
        values = network(seen).float().view(-1, *seen.shape[2:])
        total += (values.flip(-1) if mirrored else values).rot90(-quarters, (-2, -1))
    return total.flatten(1) / 8


class Frames(ObservationCodec):
    """Packs observations of `FuelBreakEnv` and restores them bit for bit; `rates` are every landscape's rate planes."""

    def __init__(
        self, rates: Sequence[UInt8[np.ndarray, "4 rows columns"]], device: torch.device | str = "cpu"
    ) -> None:
        self.rates = torch.from_numpy(np.stack(rates)).to(device)
        self.fields = {
            "planes": Field((len(CHANGING), *self.rates.shape[2:]), torch.uint8),
            "budget": Field((), torch.uint8),
            "landscape": Field((), torch.int32),
        }

    def pack(self, observation: UInt8[np.ndarray, "batch planes rows columns"], info: Info) -> dict[str, Tensor]:
        """Return the fields to store for observations of `FuelBreakEnv`s and their info."""
        landscape = np.asarray(info["landscape"]).astype(np.int32)
        stored = observation[:, CHANGING], observation[:, BUDGET, 0, 0].copy(), landscape
        return dict(zip(self.fields, map(torch.from_numpy, stored), strict=True))

    def unpack(self, stored: Mapping[str, Tensor]) -> UInt8[Tensor, "batch planes rows columns"]:
        """Restore the observations from their stored fields."""
        changing = stored["planes"]
        observation = changing.new_empty(len(changing), PLANES, *changing.shape[2:])
        observation[:, RATES] = self.rates[stored["landscape"].long()]
        observation[:, CHANGING] = changing
        observation[:, BUDGET] = stored["budget"][:, None, None]
        return observation

    def allowed(self, observation: UInt8[Tensor, "batch planes rows columns"]) -> Bool[Tensor, "batch cells"]:
        """Return the cells that may become breaks."""
        return action_mask(observation)

    def values(
        self, network: nn.Module, observation: UInt8[Tensor, "batch planes rows columns"]
    ) -> Float[Tensor, "batch cells"]:
        """Return the `symmetric_values` of a network."""
        return symmetric_values(network, observation)

    def augment(self, batch: Batch, rng: np.random.Generator) -> Batch:
        """Turn and mirror all maps in the same random way: fire spreads on a turned landscape as on the landscape."""
        rows, columns = batch.observation.shape[-2:]
        how = int(rng.integers(4)) if rows == columns else 2 * int(rng.integers(2)), bool(rng.integers(2))
        cells = turn(torch.arange(rows * columns).view(rows, columns), *how).flatten()  # the former number of each cell
        return batch._replace(
            observation=turn_observation(batch.observation, *how),
            action=cells.argsort().to(batch.action.device)[batch.action],
            next_observation=turn_observation(batch.next_observation, *how),
            next_allowed=batch.next_allowed[:, cells.to(batch.action.device)],
        )
