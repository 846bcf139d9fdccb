"""Gymnasium ids of the market and of fuel breaks; importing this module registers them.

It imports neither torch nor Lightning. Gymnasium 1 no longer discovers plugins of installed packages: import this
module before `gymnasium.make`, or name it in the id, `gymnasium.make("eigen2.registration:eigen2/Trading-v0")`.
"""

from gymnasium.envs import registration

ENV_ID = "eigen2/Trading-v0"  # for `gymnasium.make` and `gymnasium.make_vec`
FIRE_ID = "eigen2/FuelBreaks-v0"  # needs the extra `fire`
ENTRY_POINTS = {
    ENV_ID: "eigen2.market.serving.gym:TradingEnv",
    FIRE_ID: "eigen2.fire.simulation.environment:FuelBreakEnv",
}


def register() -> None:
    """Register `ENV_ID` and `FIRE_ID` with Gymnasium, unless they are registered already."""
    for env_id, entry_point in ENTRY_POINTS.items():
        if env_id not in registration.registry:
            registration.register(id=env_id, entry_point=entry_point)


register()
