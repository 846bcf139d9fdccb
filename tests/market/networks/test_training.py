"""Networks that read windows, trained by the whole loop in place of the default ones."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eigen2.erl.module import ERLModule
from eigen2.errors import UserError
from eigen2.market.data.universe import Universe
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.networks.columns import ColumnActor, MarketSizes, TradeModel
from eigen2.market.networks.windows import CnnLstmActor, CnnLstmCritic, ConvolutionCritic
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket
from tests.erl.probe import make_trainer


def market(**changes: Any) -> MarketDataModule:
    columns = {"synthetic": SyntheticMarket(days=200, columns=4), "investable": Universe(tickers=["S0001", "S0003"])}
    days = {"context_days": 20, "trading_days": 6, "settlement_days": 2, "validation_days": 20, "holdout_days": 10}
    windows = {"windows_per_generation": 1, "exploration_windows": 1, "validation_windows": 1}
    replay = {"replay_capacity": 200, "replay_min_size": 4, "batch_size": 2}
    settings: dict[str, Any] = {**columns, **days, **windows, **replay, "encoding": "windows"}
    return MarketDataModule(**{**settings, **changes})


def fit(tmp_path: Path, data: MarketDataModule, **networks: Any) -> ERLModule:
    module = ERLModule(population_size=3, gradient_steps=2, accumulate=2, **networks)
    make_trainer(default_root_dir=tmp_path).fit(module, datamodule=data)
    return module


def small_lstm(network: type[nn.Module]) -> Any:
    return partial(network, hidden=16, filters=8, heads=2)


@pytest.mark.parametrize(
    ("networks", "over_agents"),
    [
        ({}, "vmap"),
        ({"actor": small_lstm(CnnLstmActor), "critic": small_lstm(CnnLstmCritic)}, "loop"),
    ],
    ids=["convolution", "CNN-LSTM"],
)
def test_a_generation_trains_them(tmp_path: Path, networks: dict[str, Any], over_agents: str) -> None:
    module = fit(tmp_path, market(), **networks)
    population = module.population
    assert population.actor_network.over_agents == population.critic_network.over_agents == over_agents
    # two training steps: micro-batches are small enough to be computed together
    assert module.state.loss_counts.tolist() == [[2.0] * module.population_size] * 4
    assert torch.isfinite(module.state.loss_sums).all()
    optimizer = module.optimizer
    moments = [optimizer.state[rows]["exp_avg"] for rows in (population.actor, population.critic)]
    # every agent learned, and no weight is out of the gradient's reach
    assert all(moment.any(1).all() for moment in moments)


def test_a_network_of_the_other_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^ColumnActor reads averages: set data\.encoding to averages$"):
        fit(tmp_path, market(), actor=ColumnActor)


def test_sizes_say_what_networks_are_built_for() -> None:
    data = market()
    data.setup("fit")
    data.build(3, torch.device("cpu"))
    shapes = {"day": (), "panel": (4, 9), "investable": (2,), "portfolio": (2, 8), "draws": (2,), "market": (1,)}
    assert data.sizes == MarketSizes(
        shapes, action=(2, 2), context=20, trade_model=TradeModel(data.rules, data.account)
    )


def test_a_critic_that_is_named_judges_by_the_rules_of_the_run(tmp_path: Path) -> None:
    data = market(rules=TradingRules(max_holding_days=3), account=AccountRules(unit_share=0.05))
    module = fit(tmp_path, data, critic=partial(ConvolutionCritic, hidden=4))
    critic = module.network_makers(data)[1]()
    assert critic.trade_model == TradeModel(data.rules, data.account)
    assert data.needed_bytes(3)["encoder"] == data.encoder.nbytes == 200 * 2 * 2  # the draws
