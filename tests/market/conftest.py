"""What tests of the trading workload share."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from eigen2.market.data.source import read_prices
from eigen2.market.synthetic.generator import SyntheticMarket, write_parquet
from tests.command import eigen2

FIT_DAYS, DAYS = 260, 300


class Fitted(NamedTuple):
    """Prices of 260 days, the same with 40 more, and the folder of a small fit on the former."""

    prices: Path
    longer: Path
    run: Path

    @property
    def words(self) -> tuple[object, ...]:
        """Return the options of the fit, for later commands on its run."""
        data = ("--data.synthetic", "null", "--data.path", self.prices, "--data.account.initial_cash", 5000)
        return ("--config", "tests/small.yaml", *data, "--trainer.default_root_dir", self.run)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Use one thread: the tensors here are tiny, and test processes share the machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """Run one small fit for all tests that need its champion; those that change its folder copy it."""
    home = tmp_path_factory.mktemp("fitted")
    fitted = Fitted(home / "prices.parquet", home / "longer.parquet", home / "run")
    write_parquet(SyntheticMarket(days=DAYS, columns=6), fitted.longer)
    longer = read_prices(fitted.longer)
    last = np.sort(longer["date"].unique())[FIT_DAYS - 1]
    longer[longer["date"] <= last].to_parquet(fitted.prices, index=False)
    done = eigen2("fit", *fitted.words)
    assert done.returncode == 0, done.stderr
    return fitted
