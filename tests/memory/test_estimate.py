"""Memory is counted before it is allocated, and the counts are what is then allocated."""

import pytest
import torch
from lightning.pytorch import Trainer

from callbacks.budget import MemoryBudget, budget_of
from eigen2 import SyntheticMarket
from eigen2.errors import UserError
from eigen2.market.datamodule import MarketDataModule
from eigen2.memory import estimate as ram
from eigen2.memory.estimate import LivePeak, PeakEstimate
from eigen2.memory.limits import Limit, available_bytes, limits


def estimate(monkeypatch: pytest.MonkeyPatch, available: int, process: int = 0, before: int = 0) -> PeakEstimate:
    """Return an estimate for a process that holds `process` bytes and held `before` at its peak."""
    monkeypatch.setattr(ram, "available_bytes", lambda budget, processes: min(available, budget or available))
    monkeypatch.setattr(ram, "rss_bytes", lambda: process)
    monkeypatch.setattr(ram, "peak_rss_bytes", lambda: max(process, before))
    monkeypatch.setattr(ram, "OVERHEAD_BYTES", 1_000_000)
    return PeakEstimate("lower x", torch.device("cpu"))


def test_an_estimate_adds_up_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    run = estimate(monkeypatch, available=10_000_000)
    run.require({"a": 6_000_000})
    with pytest.raises(
        UserError, match=r"a 6\.0 \+ b 5\.0 \+ overhead 1\.0 = 12\.0 MB of RAM .* 0\.01 GB available; lower x"
    ):
        run.require({"b": 5_000_000})
    with pytest.raises(UserError, match=r"c 1\.50 \+ a 0\.01 \+ b 0\.01 \+ overhead 0\.00 = 1\.51 GB"):
        run.require({"c": 1_500_000_000})


def test_the_peak_is_the_process_and_all_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = estimate(monkeypatch, available=10**9, process=400_000_000)
    assert run.peak_bytes == 401_000_000
    run.require({"replay": 50_000_000})
    run.require_temporary(100_000_000, checkpoint=120_000_000)
    assert run.peak_bytes == 401_000_000 + 50_000_000 + 170_000_000
    assert "work space 170.0" in str(run)
    run.require_temporary(100_000_000, checkpoint=190_000_000)
    assert "work space 190.0" in str(run)
    # reading prices may have taken more memory than the run ever will
    run = estimate(monkeypatch, available=10**9, process=400_000_000, before=900_000_000)
    assert run.peak_bytes == 900_000_000
    assert "at most 0.90 GB" in str(run)


def test_processes_share_what_the_machine_has_and_not_their_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {limit.name: limit.shared for limit in limits(10**12)}
    assert (shared["the memory budget"], shared["the machine's memory"]) == (False, True)
    both = [Limit("the machine", 40, 100, shared=True), Limit("the budget", 10, 40)]
    monkeypatch.setattr("eigen2.memory.limits.limits", lambda budget: both)
    assert [available_bytes(None, processes) for processes in (1, 2, 3)] == [30, 30, 20]


def test_a_budget_of_the_trainer_counts() -> None:
    trainer = Trainer(accelerator="cpu", logger=False, callbacks=[MemoryBudget(), MemoryBudget(0.5)])
    assert budget_of(trainer) == 500_000_000
    assert budget_of(Trainer(accelerator="cpu", logger=False)) is None


def test_counted_bytes_are_the_allocated_ones() -> None:
    market = SyntheticMarket(days=300, columns=7)
    data = MarketDataModule(synthetic=market, context_days=20, trading_days=30, settlement_days=5)
    data.validation_days, data.holdout_days = 50, 30
    data.setup("fit")
    data.build(3, torch.device("cpu"))
    needed = data.needed_bytes(3)
    assert data.eval_env.nbytes + data.val_env.nbytes == needed["environments"]
    assert needed["encoder"] == data.encoder.nbytes


def test_live_tensors_are_counted_until_they_die() -> None:
    with LivePeak() as tensors:
        first = torch.ones(1000)  # 4,000 bytes
        view = first[:10]
        first.add_(1)
        second = first * 2
        assert tensors.live == 8000
        del first
        assert tensors.live == 8000  # the view keeps the storage
        del view
        assert tensors.live == 4000
        third = second.double()
    assert (tensors.live, tensors.peak) == (12_000, 12_000)
    del second, third
    assert tensors.live == 0


def test_what_a_graph_keeps_counts_until_its_backward_pass() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with LivePeak() as tensors:
        loss = weight.exp().exp().sum()  # the graph keeps both results
        assert tensors.live == 8000 + 4
        loss.backward()
        assert tensors.peak >= 8000 + 4 + 4000
    del loss
    assert tensors.live == 4000  # the gradient
    assert weight.grad is not None
