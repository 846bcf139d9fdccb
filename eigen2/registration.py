"""Tells Gymnasium of the market and of fuel breaks; importing this is enough.

It costs neither torch nor Lightning.

Gymnasium 1 looks for no plugins of installed packages: a program imports this module before `gymnasium.make`, or names
it in the id, `gymnasium.make("eigen2.registration:eigen2/Trading-v0")`.
"""

from gymnasium.envs import registration

ENV_ID = "eigen2/Trading-v0"
"""Id for `gymnasium.make` and `gymnasium.make_vec`."""
FIRE_ID = "eigen2/FuelBreaks-v0"
"""Id of the fuel breaks, which need `pip install 'eigen2[fire]'`."""


def register() -> None:
    """Enter `ENV_ID` and `FIRE_ID` into Gymnasium's registry; does nothing where they are already there.

    May also be called by a loader that has entered the namespace "eigen2": the ids are the same.
    """
    if ENV_ID not in registration.registry:
        registration.register(
            id=ENV_ID,
            entry_point="eigen2.market.serving.gym:TradingEnv",
            vector_entry_point="eigen2.market.serving.gym:TradingVectorEnv",
        )
    if FIRE_ID not in registration.registry:
        registration.register(id=FIRE_ID, entry_point="eigen2.fire.simulation.environment:FuelBreakEnv")


register()
