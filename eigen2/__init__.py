"""eigen2: evolutionary reinforcement learning of trading agents on PyTorch Lightning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eigen2.registration import register

if TYPE_CHECKING:
    from eigen2.control.datamodule import ControlDataModule
    from eigen2.control.environment import ControlEnvironment
    from eigen2.core.datamodule import RolloutDataModule
    from eigen2.dqn.module import DQNModule
    from eigen2.erl.evolution import Operator
    from eigen2.erl.learners import DDPG, TD3, Learner
    from eigen2.erl.module import ERLModule
    from eigen2.market.data.panel import MarketPanel
    from eigen2.market.datamodule import MarketDataModule
    from eigen2.market.simulation.environment import TradingEnvironment, TradingRules
    from eigen2.market.synthetic.generator import SyntheticMarket
    from eigen2.runtime.checkpoint import ChampionCheckpoint, DurableCheckpointIO, GenerationCheckpoint
    from eigen2.runtime.console import GenerationReport
    from eigen2.runtime.logger import RunLogger
    from eigen2.runtime.uploader import CheckpointUploader

__all__ = [
    "DDPG",
    "TD3",
    "ChampionCheckpoint",
    "CheckpointUploader",
    "ControlDataModule",
    "ControlEnvironment",
    "DQNModule",
    "DurableCheckpointIO",
    "ERLModule",
    "GenerationCheckpoint",
    "GenerationReport",
    "Learner",
    "MarketDataModule",
    "MarketPanel",
    "Operator",
    "RolloutDataModule",
    "RunLogger",
    "SyntheticMarket",
    "TradingEnvironment",
    "TradingRules",
]

# imported on first use: torch and Lightning take seconds, and reading a price file needs neither
_HOMES = {
    "ChampionCheckpoint": "eigen2.runtime.checkpoint",
    "CheckpointUploader": "eigen2.runtime.uploader",
    "ControlDataModule": "eigen2.control.datamodule",
    "ControlEnvironment": "eigen2.control.environment",
    "DurableCheckpointIO": "eigen2.runtime.checkpoint",
    "DQNModule": "eigen2.dqn.module",
    "ERLModule": "eigen2.erl.module",
    "DDPG": "eigen2.erl.learners",
    "Learner": "eigen2.erl.learners",
    "Operator": "eigen2.erl.evolution",
    "GenerationCheckpoint": "eigen2.runtime.checkpoint",
    "GenerationReport": "eigen2.runtime.console",
    "MarketPanel": "eigen2.market.data.panel",
    "MarketDataModule": "eigen2.market.datamodule",
    "RolloutDataModule": "eigen2.core.datamodule",
    "RunLogger": "eigen2.runtime.logger",
    "SyntheticMarket": "eigen2.market.synthetic.generator",
    "TD3": "eigen2.erl.learners",
    "TradingEnvironment": "eigen2.market.simulation.environment",
    "TradingRules": "eigen2.market.simulation.environment",
}

register()  # gymnasium.make("eigen2/Trading-v0")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
