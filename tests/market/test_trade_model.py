"""The orders that a critic judges are those that the environment opens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.core.replay import loaded_action, stored_action
from eigen2.market.data.panel import build_panel
from eigen2.market.features.encoding import AverageEncoder
from eigen2.market.networks.columns import DRAWS, TradeModel
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.base import EpisodeSettings
from eigen2.market.simulation.environment import TradingEnvironment
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.simulation.windows import window_options
from eigen2.market.synthetic.generator import SyntheticMarket

pytestmark = pytest.mark.usefixtures("unchecked")

COLUMNS, AGENTS, WINDOWS = 7, 3, 2


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    orders=st.integers(1, 3),
    short=st.booleans(),
    early_close=st.booleans(),
    share=st.sampled_from([0.05, 0.2, 1.0]),
    steps=st.sampled_from([1.0, 0.25, 1e-5]),
    min_order=st.sampled_from([1e-4, 0.01]),
)
def test_the_critic_judges_what_opens_and_closes(
    seed: int, orders: int, short: bool, early_close: bool, share: float, steps: float, min_order: float
) -> None:
    market = SyntheticMarket(days=80, columns=COLUMNS, seed=seed % 1000)
    panel = build_panel(market.generate(), validation_days=10, holdout_days=0)
    prices = panel.prices.copy()
    rng = np.random.default_rng(seed)
    prices[rng.random(prices.shape[:2]) < 0.2] = np.nan  # days without a price
    panel.prices[...] = prices
    rules = TradingRules(max_opens_per_day=orders, allow_short=short, early_close=early_close, max_holding_days=4)
    account = AccountRules(unit_share=share, min_order=min_order)
    episode = EpisodeSettings(rules, account, trading_days=20, settlement_days=5)
    env = TradingEnvironment(prices, rules, AGENTS, WINDOWS, account=account)
    encoder = AverageEncoder(panel, list(range(COLUMNS)), 8, episode)
    observation, _ = env.reset(options=window_options([10, 40], 20, 25))
    model, opened, closed = TradeModel(rules, account), 0, 0
    for _ in range(24):
        # coarse actions have ties, some beyond the least size, some at the bound
        unit = torch.from_numpy(rng.uniform(-1, 1, (AGENTS, WINDOWS, COLUMNS, 2)).astype(np.float32) / steps)
        unit = (unit.round() * steps).clamp(-1, 1)
        inputs = encoder(observation)
        portfolio, draws = inputs["portfolio"], inputs[DRAWS]
        stored = loaded_action(stored_action(unit))
        coefficient = model.coefficient(stored)
        judged = model.ordered(coefficient, portfolio[..., 0] > 0, draws).flatten().nonzero()[:, 0]
        stakes = model.weights(stored, portfolio, draws)[0].flatten() * (rules.max_coefficient * share * orders)
        exits = model.closed(coefficient, portfolio, draws).flatten().nonzero()[:, 0]
        observation, _, _, _, info = env.step(env.native_action(unit))
        order = np.argsort(info["ordered"])
        filled = order[info["stakes"][order] > 0]
        assert judged.tolist() == info["ordered"][filled].tolist()
        np.testing.assert_allclose(stakes[judged], info["stakes"][filled], rtol=2e-3)
        assert not early_close or exits.tolist() == info["exits"].tolist()
        opened, closed = opened + len(judged), closed + len(info["exits"])
    assert opened > 0
    assert (closed > 0) == early_close
