"""What is found in real tables was judged row by row: few finds are false alarms, and none is unjudged."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eigen2.market.data.cleaning.defects import find
from eigen2.market.data.cleaning.policy import Limits
from eigen2.market.data.source import read_prices
from tests.market.data.cleaning.rows import DATA, calendar_of

TABLES = ["dow30", "dow31", "finrl_trade", pytest.param("sp500_5yr", marks=pytest.mark.slow)]
FACTS = {"missing_price", "unknown_volume"}
LABELS = pd.read_csv(Path(__file__).with_name("labels.csv"), comment="#", keep_default_na=False)


def test_at_most_a_tenth_of_all_labels_is_false() -> None:
    assert not LABELS.duplicated(["table", "ticker", "date", "defect"]).any()
    assert set(LABELS["true"]) <= {True, False}
    assert LABELS["why"].str.len().gt(0).all()
    assert (~LABELS["true"]).mean() <= 0.1


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared price files")
@pytest.mark.parametrize("name", TABLES)
def test_every_find_is_labelled_and_at_most_a_tenth_is_false(name: str) -> None:
    block = read_prices(DATA / f"{name}.parquet")
    found = find(block, calendar_of(block), Limits()).rows
    days = block["date"].dt.strftime("%Y-%m-%d")
    finds = {
        (
            "all" if defect == "repeated_row" else block["ticker"][row],
            "all" if defect == "close_basis" else days[row],
            defect,
        )
        for defect, mask in found.items()
        for row in np.flatnonzero(mask)
        if defect not in FACTS
    }
    labels = LABELS[LABELS["table"] == name].set_index(["ticker", "date", "defect"])["true"]
    assert finds == set(labels.index)
    assert (~labels).sum() <= 0.1 * len(labels)
