"""The Q-network of fuel breaks: its shape, its prior, and a gap that the policy must find."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from eigen2.dqn.losses import Batch, epsilon_greedy, loss
from eigen2.errors import UserError
from eigen2.fire.landscapes.landscape import Landscape
from eigen2.fire.networks import QMap, downstream_share, load_champion
from eigen2.fire.simulation.environment import DOWNSTREAM, FuelBreakEnv
from eigen2.runtime.checkpoint import save_archive
from tests.fire.conftest import flat


def maps(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def seeded(width: int, prior: bool = False) -> QMap:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return QMap(width, prior)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (7, 50)])
def test_any_size_of_map_gets_a_value_a_cell(height: int, width: int) -> None:
    network = seeded(8)
    values = network(maps(2, 8, height, width))
    assert values.shape == (2, height * width)
    assert torch.isfinite(values).all()
    values.sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_the_mean_of_a_map_of_values_is_the_value_of_the_state() -> None:
    network = seeded(8)
    seen = maps(4, 8, 9, 9)
    state_values: list[Tensor] = []
    network.value.register_forward_hook(lambda _module, _inputs, out: state_values.append(out))
    values = network(seen)
    assert torch.allclose(values.mean(1, keepdim=True), state_values[0], atol=1e-5)
    with torch.no_grad():
        network.advantage.bias.add_(7.0)  # of all cells alike: no advantage
    assert torch.allclose(network(seen), values, atol=1e-5)


@pytest.mark.parametrize("width", [0, 10**6])
def test_sizes_that_cannot_be_are_refused(width: int) -> None:
    with pytest.raises(UserError, match=f"width is {width}"):
        QMap(width)


def test_the_downstream_share_is_that_of_the_fires() -> None:
    env = FuelBreakEnv(grid_size=16, num_landscapes=1, seed=3)
    env.reset(seed=0)
    fires = env.fires
    assert fires is not None
    for cell in np.flatnonzero(fires.model.burnable)[40:44]:
        observation = env.step(cell)[0]
    exact = fires.downstream / fires.burns.sum()
    share = downstream_share(torch.from_numpy(observation[None]))[0].flatten().numpy()
    assert share == pytest.approx(exact, rel=0.06, abs=0.001)


def test_an_untrained_network_with_the_prior_follows_the_downstream_value() -> None:
    env = FuelBreakEnv(grid_size=16, num_landscapes=1, seed=3)
    observation, info = env.reset(seed=0)
    network = seeded(8, prior=True)
    values = network(torch.from_numpy(observation[None]))
    chosen = epsilon_greedy(values, info["action_mask"][None], 0.0, np.random.default_rng(0))
    plane = observation[DOWNSTREAM].reshape(-1)
    assert plane[chosen[0]] == plane.max()
    values.sum().backward()
    assert network.advantage.weight.grad is not None


def test_the_prior_of_a_map_on_which_nothing_burns_is_nothing() -> None:
    values = seeded(8, prior=True)(torch.zeros(2, 8, 5, 7, dtype=torch.uint8))
    assert torch.isfinite(values).all()
    assert values.unique().numel() == 1


def walled(gap: int) -> Landscape:
    """Grass, and a wall from north to south with a gap in one row."""
    fuel = np.full((9, 9), 104)
    fuel[:, 4] = 98
    fuel[gap, 4] = 104
    return flat((9, 9), fuel)


def gap_batch(env: FuelBreakEnv, gaps: list[int], count: int, generator: np.random.Generator) -> Batch:
    """Transitions of random breaks; each ends its episode."""
    seen, chosen, rewards = [], [], []
    for _ in range(count):
        observation, info = env.reset(options={"landscape": int(generator.choice(gaps))})
        chosen.append(int(generator.choice(np.flatnonzero(info["action_mask"]))))
        seen.append(observation)
        rewards.append(env.step(chosen[-1])[1])
    observations = torch.from_numpy(np.stack(seen))
    return Batch(
        observation=observations,
        action=torch.tensor(chosen),
        reward=torch.tensor(rewards, dtype=torch.float32) / 10,
        next_observation=observations,
        next_allowed=torch.ones(count, 81, dtype=torch.bool),
        terminated=torch.ones(count, dtype=torch.bool),
    )


def test_the_policy_closes_gaps_in_a_wall_where_it_has_never_seen_them() -> None:
    env = FuelBreakEnv(landscapes=[walled(gap) for gap in range(9)], budget=1 / 81, ignitions=None)
    generator = np.random.default_rng(0)
    seen = gap_batch(env, [0, 1, 2, 4, 6, 7, 8], 400, generator)
    online = seeded(16)
    optimizer = torch.optim.Adam(online.parameters(), 3e-3)
    for _ in range(150):
        drawn = torch.from_numpy(generator.integers(0, 400, 32))
        optimizer.zero_grad()
        loss(online, online, Batch(*(field[drawn] for field in seen)), 0.0).loss.backward()
        optimizer.step()
    for gap in (3, 5):
        observation, info = env.reset(options={"landscape": gap})
        values = online(torch.from_numpy(observation[None]))
        cell = epsilon_greedy(values, info["action_mask"][None], 0.0, generator)[0]
        # the cells before and behind the gap close it as well
        assert cell // 9 == gap
        assert abs(cell % 9 - 4) <= 1
        assert env.step(int(cell))[4]["reduction"] > 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.networks": 10**9}, "model.networks is 1000000000; it must be at least 1 and at most 100"),
        (None, "is by an earlier version of eigen2, which saved other networks; fit again"),
    ],
)
def test_champions_of_another_number_of_networks_are_refused(
    change: dict[str, int] | None, said: str, tmp_path: Path
) -> None:
    settings = {"model.width": 8, "model.prior": True, **(change or {})}
    saved = {"version": 1, "settings": settings, "inference": {"workload": "fire"}}
    content = {"eigen2": saved, "state_dict": {"champion_generation": torch.tensor(3)}}
    save_archive(content, file := tmp_path / "best.ckpt", 3)
    with pytest.raises(UserError, match=said):
        load_champion(file)
