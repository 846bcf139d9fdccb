"""What will be allocated is counted before, and what is counted is what is allocated."""

import pytest
import torch

from eigen2 import SyntheticMarket
from eigen2.errors import UserError
from eigen2.market.rollouts import RolloutDataModule
from eigen2.runtime.ram import RamBudget, arithmetic


def test_arithmetic_is_largest_first_in_a_fitting_unit() -> None:
    assert arithmetic({"a": 1_500_000, "b": 20_000_000}) == "b 20.0 + a 1.5 = 21.5 MB"
    assert arithmetic({"a": 1_500_000_000, "b": 500_000_000}) == "a 1.5 + b 0.5 = 2.0 GB"


def test_budget_adds_up_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen2.runtime.ram.available_bytes", lambda: 10_000_000)
    budget = RamBudget("lower x")
    budget.require({"a": 6_000_000})
    with pytest.raises(UserError, match=r"^this run needs a 6\.0 \+ b 5\.0 = 11\.0 MB of RAM, .* available; lower x$"):
        budget.require({"b": 5_000_000})


def test_counted_bytes_are_the_allocated_ones() -> None:
    market = SyntheticMarket(days=300, columns=7)
    data = RolloutDataModule(synthetic=market, context_days=20, trading_days=30, settlement_days=5)
    data.validation_days, data.holdout_days = 50, 30
    data.setup("fit")
    data.build(3, torch.device("cpu"))
    needed = data.needed_bytes(3)
    assert data.eval_env.nbytes + data.val_env.nbytes == needed["environments"]
    assert needed["encoder"] == data.encoder.market.nbytes
