import gymnasium
import numpy as np

from eigen2.registration import FIRE_ID


def test_gymnasium_makes_fuel_breaks_by_name() -> None:
    env = gymnasium.make(FIRE_ID, grid_size=8, num_landscapes=2, ignitions=4)
    observation, info = env.reset(seed=3)
    assert observation.shape == (8, 8, 8)
    _, reward, *_ = env.step(np.flatnonzero(info["action_mask"])[0])
    assert reward >= 0
