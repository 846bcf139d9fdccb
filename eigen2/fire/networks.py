"""The value of a fuel break in every cell of a map, by one small fully convolutional network."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional

from eigen2.erl.networks import require_width
from eigen2.errors import require_range

DILATIONS = (1, 2, 4)
"""Of the residual convolutions, in cells of the halved map; with pooling and stem, a cell sees 32 x 32 cells."""


class QMap(nn.Module):
    """Action values of a map: one number for a break in each cell.

    A 3x3 convolution reads the planes; at half the resolution residual dilated 3x3 convolutions look farther; both are
    joined, and two 1x1 convolutions give each cell its advantage. A value head reads the average over the map. There is
    no batch normalisation and no dropout, so acting and learning see the same function, and any map size will do.

    With `dueling`, Q(s, a) = V(s) + A(s, a) - mean of A(s, .) over ALL cells (Wang et al., "Dueling network
    architectures for deep reinforcement learning", 2016, equation 9), so the mean of a map of values is V. All cells
    rather than the allowed ones, since then the network needs no mask: the two differ by a number a state, which V can
    learn, and which no choice of a cell depends on.

    Args:
        planes: of the observation, >= 1.
        width: channels of each layer, 1 to 16,384.
        dueling: with a value head; without it, the advantages are the values.
    """

    def __init__(self, planes: int, width: int = 32, dueling: bool = True) -> None:
        super().__init__()
        require_range("planes", planes, least=1)
        require_width("width", width)
        self.stem = nn.Conv2d(planes, width, 3, padding=1)
        self.residual = nn.ModuleList(nn.Conv2d(width, width, 3, padding=step, dilation=step) for step in DILATIONS)
        self.near = nn.Conv2d(width, width, 1)
        self.far = nn.Conv2d(width, width, 1, bias=False)
        self.advantage = nn.Conv2d(width, 1, 1)
        self.value = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1)) if dueling else None
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, planes: UInt8[Tensor, "batch planes height width"]) -> Float[Tensor, "batch cells"]:
        """Values of all cells in row-major order, in units of the return; 255 in a plane counts as 1."""
        height, width = planes.shape[-2:]
        scaled = planes.contiguous(memory_format=torch.channels_last).to(self.stem.weight.dtype) / 255
        near = functional.relu(self.stem(scaled))
        # of an odd number of cells the last half is averaged over the cells there are
        far = functional.avg_pool2d(near, 2, ceil_mode=True, count_include_pad=False)
        for layer in self.residual:
            far = far + functional.relu(layer(far))
        # what a 1x1 convolution makes of both side by side, but of the halved map before it is four times as large
        upsampled = functional.interpolate(self.far(far), scale_factor=2.0, mode="nearest")[..., :height, :width]
        advantage: Tensor = self.advantage(functional.relu(self.near(near) + upsampled)).flatten(1)
        if self.value is None:
            return advantage
        value: Tensor = self.value(torch.cat([near.mean((2, 3)), far.mean((2, 3))], 1))
        return value + advantage - advantage.mean(1, keepdim=True)
