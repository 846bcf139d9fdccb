import callbacks

from .api import Result as Result
from .api import fit as fit
from .api import predict as predict
from .api import test as test
from .control.datamodule import ControlDataModule as ControlDataModule
from .control.environment import ControlEnvironment as ControlEnvironment
from .core.datamodule import RolloutDataModule as RolloutDataModule
from .core.replay import ReplayBuffer as ReplayBuffer
from .dqn.module import DQNModule as DQNModule
from .erl.evolution import Operator as Operator
from .erl.learners import DDPG as DDPG
from .erl.learners import TD3 as TD3
from .erl.learners import Learner as Learner
from .erl.module import ERLModule as ERLModule
from .market.data.panel import MarketPanel as MarketPanel
from .market.data.universe import Universe as Universe
from .market.datamodule import MarketDataModule as MarketDataModule
from .market.simulation.account import AccountRules as AccountRules
from .market.simulation.environment import TradingEnvironment as TradingEnvironment
from .market.simulation.rules import TradingRules as TradingRules
from .market.synthetic.generator import SyntheticMarket as SyntheticMarket
from .runtime.checkpoint import ChampionCheckpoint as ChampionCheckpoint
from .runtime.checkpoint import DurableCheckpointIO as DurableCheckpointIO
from .runtime.checkpoint import GenerationCheckpoint as GenerationCheckpoint
from .runtime.console import GenerationReport as GenerationReport
from .runtime.logger import RunLogger as RunLogger
from .runtime.uploader import CheckpointUploader as CheckpointUploader

MemoryProfiler = callbacks.MemoryProfiler
