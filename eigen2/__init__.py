"""eigen2: evolutionary reinforcement learning of trading agents on PyTorch Lightning."""

from eigen2.erl.evolution import Evolution
from eigen2.erl.module import ERLModule
from eigen2.market.environment import TradingEnvironment, TradingRules
from eigen2.market.panel import MarketPanel
from eigen2.market.rollouts import RolloutDataModule
from eigen2.market.synthetic import SyntheticMarket
from eigen2.runtime.checkpoint import ChampionCheckpoint, GenerationCheckpoint
from eigen2.runtime.console import GenerationReport
from eigen2.runtime.logger import RunLogger

__all__ = [
    "ChampionCheckpoint",
    "ERLModule",
    "Evolution",
    "GenerationCheckpoint",
    "GenerationReport",
    "MarketPanel",
    "RolloutDataModule",
    "RunLogger",
    "SyntheticMarket",
    "TradingEnvironment",
    "TradingRules",
]
