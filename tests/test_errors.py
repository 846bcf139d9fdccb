"""Checks of settings that the command line makes itself, and calls do not."""

import copy

import pytest

from eigen2.errors import RunStopped, StoppedBySignal, UserError, require_choices
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.simulation.rules import TradingRules


def test_a_value_that_is_no_choice_is_refused_with_its_key_and_the_choices() -> None:
    given = vars(TradingRules())
    require_choices("data.rules", TradingRules, given)
    with pytest.raises(UserError, match=r"^data\.rules\.execution is 'open'; it must be next_open or close$"):
        require_choices("data.rules", TradingRules, {**given, "execution": "open"})
    given = vars(MarketDataModule())
    with pytest.raises(UserError, match=r"^data\.credit is 'Order'; it must be order or close$"):
        require_choices("data", MarketDataModule.__init__, {**given, "credit": "Order"})


@pytest.mark.parametrize("kind", [RunStopped, StoppedBySignal])
def test_the_end_of_a_run_passes_between_processes(kind: type[RunStopped | StoppedBySignal]) -> None:
    """A pool copies it by the same protocol."""
    end = copy.copy(kind("no memory left", 3))
    assert (type(end), str(end), end.code) == (kind, "no memory left", 3)
    assert isinstance(end, Exception) == (kind is RunStopped)
