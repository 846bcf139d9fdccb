"""Q-network of fuel breaks: a small fully convolutional network that values a break in every cell of a map."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional

from eigen2.core.export import read_checkpoint
from eigen2.core.networks import MOST_MEMBERS, Ensemble, require_width
from eigen2.core.saved_run import altered_as_user_error, require_champion, saved_part, saved_run
from eigen2.errors import UserError, require_range
from eigen2.fire.simulation.environment import BURNS, DOWNSTREAM, FINEST, PLANES, REWARD_UNIT

DILATIONS = (1, 2, 4)  # of the residual convolutions, in cells of the halved map; a cell sees 32 x 32 cells in all
SHARPER = 20.0  # factor on the downstream share as an input: few cells have a share above a twentieth


def downstream_share(planes: UInt8[Tensor, "batch planes height width"]) -> Float[Tensor, "batch height width"]:
    """Return the share of the burned area that burns through each cell (0 to 1), the most that a break there saves."""
    scaled = planes[:, [BURNS, DOWNSTREAM]].float() / 255
    through = torch.expm1(scaled[:, 1] * math.log1p(FINEST * scaled[0, 1].numel())) / FINEST
    burned = scaled[:, 0].square().sum((1, 2), keepdim=True)
    return (through / burned.clamp(min=1 / FINEST)).clamp(max=1.0)


class QMap(nn.Module):
    """Network that values a break in each cell of a map of any size.

    A 3x3 convolution reads the planes; at half the resolution, residual dilated 3x3 convolutions look farther; both are
    joined, and two 1x1 convolutions give each cell its advantage. A value head reads the average over the map.

    Q(s, a) = V(s) + A(s, a) - mean of A(s, .) over all cells, not only the allowed ones (Wang et al.,
    "Dueling network architectures for deep reinforcement learning", 2016, equation 9): the mean of the values is V.

    With `prior`, the network adds its output, initially 0, to a learned multiple of `downstream_share`: the untrained
    policy picks the cell through which most cells burn, as the baseline `adaptive_downstream` does. The multiple suits
    rewards on the scale of `simulation.environment.relative_reward`.
    """

    def __init__(self, width: int = 32, prior: bool = False) -> None:
        super().__init__()
        require_width("width", width)
        self.stem = nn.Conv2d(PLANES + prior, width, 3, padding=1)
        self.residual = nn.ModuleList(nn.Conv2d(width, width, 3, padding=step, dilation=step) for step in DILATIONS)
        self.near = nn.Conv2d(width, width, 1)
        self.far = nn.Conv2d(width, width, 1, bias=False)
        self.advantage = nn.Conv2d(width, 1, 1)
        self.value = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.prior = nn.Parameter(torch.tensor(0.6)) if prior else None
        if prior:
            nn.init.zeros_(self.advantage.weight)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, planes: UInt8[Tensor, "batch planes height width"]) -> Float[Tensor, "batch cells"]:
        """Return the values of all cells in row-major order, in units of the return; 255 in a plane counts as 1."""
        height, width = planes.shape[-2:]
        scaled = planes.contiguous(memory_format=torch.channels_last).to(self.stem.weight.dtype) / 255
        if self.prior is not None:
            share = downstream_share(planes)
            scaled = torch.cat([scaled, (SHARPER * share[:, None]).clamp(max=4.0)], 1)
        near = functional.relu(self.stem(scaled))
        # at the edge of an odd map the average is over the cells that exist
        far = functional.avg_pool2d(near, 2, ceil_mode=True, count_include_pad=False)
        for layer in self.residual:
            far = far + functional.relu(layer(far))
        # equal to a 1x1 convolution of both maps concatenated, but applied to `far` while it is four times smaller
        upsampled = functional.interpolate(self.far(far), scale_factor=2.0, mode="nearest")[..., :height, :width]
        advantage: Tensor = self.advantage(functional.relu(self.near(near) + upsampled)).flatten(1).float()
        if self.prior is not None:
            advantage = advantage + REWARD_UNIT * self.prior * share.flatten(1)
        value: Tensor = self.value(torch.cat([near.mean((2, 3)), far.mean((2, 3))], 1)).float()
        return value + advantage - advantage.mean(1, keepdim=True)


def load_champion(file: Path) -> tuple[Ensemble, Mapping[str, Any]]:
    """Return the champion of a checkpoint and the settings of its fit by full key; raise UserError if it has none."""
    checkpoint = read_checkpoint(file)
    saved, state = saved_run(checkpoint), checkpoint["state_dict"]
    if (workload := saved_part(saved, "inference").get("workload")) != "fire":
        raise UserError(f"{file} is a checkpoint of the workload {workload}; give one of fire")
    with altered_as_user_error(str(file)):
        require_champion(int(state["champion_generation"]), str(file))
        settings: Mapping[str, Any] = saved["settings"]
        if "model.networks" not in settings or any(name.startswith("champion.networks.") for name in state):
            raise UserError(f"{file} is by an earlier version of eigen2, which saved other networks; fit again")
        require_range("model.networks", count := settings["model.networks"], least=1, most=MOST_MEMBERS)
        network = Ensemble(QMap(settings["model.width"], settings["model.prior"]) for _ in range(count))
        weights = {
            name.removeprefix("champion."): value for name, value in state.items() if name.startswith("champion.")
        }
        network.load_state_dict(weights)
    return network.eval(), settings
