"""The trading workload: prices, features, environment, networks."""

from eigen2.market.environment import TradingEnvironment, TradingRules
from eigen2.market.panel import MarketPanel
from eigen2.market.rollouts import RolloutDataModule
from eigen2.market.synthetic import SyntheticMarket

__all__ = ["MarketPanel", "RolloutDataModule", "SyntheticMarket", "TradingEnvironment", "TradingRules"]
