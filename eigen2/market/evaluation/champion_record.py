"""The champion's account in the validation windows, as files in the run's folder."""

import logging

import numpy as np
import pandas as pd

from eigen2.files import Folder
from eigen2.market.data.panel import MarketPanel
from eigen2.market.spreadsheets import without_formulas

log = logging.getLogger(__name__)


def named_trades(trades: pd.DataFrame, panel: MarketPanel, investable: list[int]) -> pd.DataFrame:
    """Return trades with tickers in place of columns and dates in place of days."""
    dates, tickers = panel.dates, np.array(panel.tickers, dtype=object)[investable]
    days = {"entry_day": dates[trades["entry_day"]], "exit_day": dates[trades["exit_day"]]}
    named = trades.assign(column=tickers[trades["column"]], **days)
    dated = {"entry_day": "entry_date", "exit_day": "exit_date"}
    return named.rename(columns={"column": "ticker", "coefficient": "size", **dated})


def write_champion(equity: pd.DataFrame, trades: pd.DataFrame | None, generation: int, folder: Folder) -> None:
    """Write the champion's daily equity, `equity.csv`, and its trades if not None, `trades.csv`; warn if impossible."""
    tables = {"equity": equity.reset_index()} | ({} if trades is None else {"trades": trades})
    for table in tables.values():
        table.insert(0, "generation", generation)
    try:
        for name, table in tables.items():
            folder.write(f"{name}.csv", without_formulas(table).to_csv(index=False))
    except OSError as error:
        # not worth stopping the run: the next champion overwrites the record
        log.warning("cannot write the champion's record to %s: %s", folder, error.strerror or error)
