"""Checks of settings that the command line makes itself, and calls do not."""

import copy

import jaxtyping
import pytest

from eigen2.errors import RunStopped, StoppedBySignal, UserError, require_choices
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules


def test_a_value_that_is_no_choice_is_refused_with_its_key_and_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would refuse them first
    given = vars(TradingRules())
    require_choices("data.rules", TradingRules, given)
    with pytest.raises(UserError, match=r"^data\.rules\.execution is 'open'; it must be next_open or close$"):
        require_choices("data.rules", TradingRules, {**given, "execution": "open"})
    with pytest.raises(UserError, match=r"^data\.rules\.allow_short is 'false'; it must be true or false$"):
        TradingRules(**{**given, "allow_short": "false"})
    with pytest.raises(UserError, match=r"^data\.account\.whole_shares is 0; it must be true or false$"):
        AccountRules(**{**vars(AccountRules()), "whole_shares": 0})
    given = vars(MarketDataModule())
    with pytest.raises(UserError, match=r"^data\.encoding is 'Windows'; it must be averages or windows$"):
        require_choices("data", MarketDataModule.__init__, {**given, "encoding": "Windows"})


@pytest.mark.parametrize("kind", [RunStopped, StoppedBySignal])
def test_the_end_of_a_run_passes_between_processes(kind: type[RunStopped | StoppedBySignal]) -> None:
    """A pool copies it by the same protocol."""
    end = copy.copy(kind("no memory left", 3))
    assert (type(end), str(end), end.code) == (kind, "no memory left", 3)
    assert isinstance(end, Exception) == (kind is RunStopped)
