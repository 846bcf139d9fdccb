"""Checks of settings that the command line makes itself, and calls do not."""

import pytest

from eigen2.errors import UserError, require_choices
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
