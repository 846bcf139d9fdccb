"""Tells Gymnasium of the market; importing this module is enough, and costs neither torch nor Lightning.

Gymnasium 1 looks for no plugins of installed packages: a program imports this module before `gymnasium.make`, or names
it in the id, `gymnasium.make("eigen2.registration:eigen2/Trading-v0")`.
"""

from gymnasium.envs import registration

ENV_ID = "eigen2/Trading-v0"
"""Id for `gymnasium.make` and `gymnasium.make_vec`."""


def register() -> None:
    """Enter `ENV_ID` into Gymnasium's registry; does nothing where it is already there.

    May also be called by a loader that has entered the namespace "eigen2": the id is the same.
    """
    if ENV_ID not in registration.registry:
        registration.register(
            id=ENV_ID,
            entry_point="eigen2.market.gym:TradingEnv",
            vector_entry_point="eigen2.market.gym:TradingVectorEnv",
        )


register()
