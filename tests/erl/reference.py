"""Independent references: one agent's DDPG on plain modules and optimizers, inheritance in NumPy."""

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from eigen2.core.networks import Inputs
from eigen2.erl.evolution.operator import Child


class OneAgent:
    """DDPG for one agent, of plain modules, as a textbook writes it; learning rates are of (actor, critic)."""

    def __init__(
        self, actor: nn.Module, critic: nn.Module, lr: tuple[float, float], gamma: float, tau: float, max_norm: float
    ) -> None:
        self.actor, self.critic = actor, critic
        self.actor_target, self.critic_target = deepcopy(actor), deepcopy(critic)
        self.optimizers = (torch.optim.Adam(actor.parameters(), lr[0]), torch.optim.Adam(critic.parameters(), lr[1]))
        self.gamma, self.tau, self.max_norm = gamma, tau, max_norm

    def step(
        self, inputs: Inputs, next_inputs: Inputs, action: Tensor, reward: Tensor, terminated: Tensor
    ) -> dict[str, float]:
        """One update of both networks, from the same weights, on one batch (batch, ...); losses and critic's norm."""
        with torch.no_grad():
            next_value = self.critic_target(next_inputs, self.actor_target(next_inputs))
            target = reward + self.gamma * (~terminated).float() * next_value
        critic_loss = torch.nn.functional.mse_loss(self.critic(inputs, action), target)
        critic_gradient = torch.autograd.grad(critic_loss, list(self.critic.parameters()))
        actor_loss = -self.critic(inputs, self.actor(inputs)).mean()
        actor_gradient = torch.autograd.grad(actor_loss, list(self.actor.parameters()))
        norm = torch.zeros(())
        for network, gradient, optimizer in (
            (self.actor, actor_gradient, self.optimizers[0]),
            (self.critic, critic_gradient, self.optimizers[1]),
        ):
            for weight, piece in zip(network.parameters(), gradient, strict=True):
                weight.grad = piece
            norm = nn.utils.clip_grad_norm_(network.parameters(), self.max_norm)
            optimizer.step()
        for target_network, network in ((self.actor_target, self.actor), (self.critic_target, self.critic)):
            for old, new in zip(target_network.parameters(), network.parameters(), strict=True):
                old.data = (1 - self.tau) * old.data + self.tau * new.data
        return {"actor_loss": actor_loss.item(), "critic_loss": critic_loss.item(), "critic_norm": norm.item()}

    def rows(self) -> dict[str, Tensor]:
        """Weights as one vector a network."""
        return {
            name: nn.utils.parameters_to_vector(getattr(self, name).parameters()).detach()
            for name in ("actor", "critic", "actor_target", "critic_target")
        }


def with_weights(network: nn.Module, row: Tensor) -> nn.Module:
    """The network with the weights of a row."""
    nn.utils.vector_to_parameters(row.detach().clone(), network.parameters())
    return network


def inherited(rows: np.ndarray, children: list[Child]) -> np.ndarray:
    """What `inherit` should leave, child by child from a copy of the old rows, in float64."""
    old = rows.astype(np.float64)
    new = old.copy()
    for child in children:
        first, second = old[child.parents[0]], old[child.parents[-1]]
        new[child.row] = first if child.blend == 1 else child.blend * first + (1 - child.blend) * second
    return new
