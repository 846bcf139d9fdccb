"""eigen2: evolutionary reinforcement learning of trading agents on PyTorch Lightning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eigen2.registration import register

if TYPE_CHECKING:
    from callbacks import MemoryProfiler as MemoryProfiler
    from eigen2.control.datamodule import ControlDataModule as ControlDataModule
    from eigen2.control.environment import ControlEnvironment as ControlEnvironment
    from eigen2.core.datamodule import RolloutDataModule as RolloutDataModule
    from eigen2.core.replay import ReplayBuffer as ReplayBuffer
    from eigen2.dqn.module import DQNModule as DQNModule
    from eigen2.erl.evolution import Operator as Operator
    from eigen2.erl.learners import DDPG as DDPG
    from eigen2.erl.learners import TD3 as TD3
    from eigen2.erl.learners import Learner as Learner
    from eigen2.erl.module import ERLModule as ERLModule
    from eigen2.erl.population import DDPGAgent as DDPGAgent
    from eigen2.market.data.panel import MarketPanel as MarketPanel
    from eigen2.market.datamodule import MarketDataModule as MarketDataModule
    from eigen2.market.simulation.environment import TradingEnvironment as TradingEnvironment
    from eigen2.market.simulation.environment import TradingRules as TradingRules
    from eigen2.market.synthetic.generator import SyntheticMarket as SyntheticMarket
    from eigen2.runtime.checkpoint import ChampionCheckpoint as ChampionCheckpoint
    from eigen2.runtime.checkpoint import DurableCheckpointIO as DurableCheckpointIO
    from eigen2.runtime.checkpoint import GenerationCheckpoint as GenerationCheckpoint
    from eigen2.runtime.console import GenerationReport as GenerationReport
    from eigen2.runtime.logger import RunLogger as RunLogger
    from eigen2.runtime.uploader import CheckpointUploader as CheckpointUploader

# imported on first use: torch and Lightning take seconds, and reading a price file needs neither
_NAMES = {
    "callbacks": ("MemoryProfiler",),
    "eigen2.control.datamodule": ("ControlDataModule",),
    "eigen2.control.environment": ("ControlEnvironment",),
    "eigen2.core.datamodule": ("RolloutDataModule",),
    "eigen2.core.replay": ("ReplayBuffer",),
    "eigen2.erl.evolution": ("Operator",),
    "eigen2.erl.learners": ("DDPG", "Learner", "TD3"),
    "eigen2.erl.module": ("ERLModule",),
    "eigen2.erl.population": ("DDPGAgent",),
    "eigen2.dqn.module": ("DQNModule",),
    "eigen2.market.data.panel": ("MarketPanel",),
    "eigen2.market.datamodule": ("MarketDataModule",),
    "eigen2.market.simulation.environment": ("TradingEnvironment", "TradingRules"),
    "eigen2.market.synthetic.generator": ("SyntheticMarket",),
    "eigen2.runtime.checkpoint": ("ChampionCheckpoint", "DurableCheckpointIO", "GenerationCheckpoint"),
    "eigen2.runtime.console": ("GenerationReport",),
    "eigen2.runtime.logger": ("RunLogger",),
    "eigen2.runtime.uploader": ("CheckpointUploader",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

register()  # gymnasium.make("eigen2/Trading-v0")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
