"""Five American stocks, 2000 to 2013: real prices that ship with the package (README.md says where from)."""

from pathlib import Path


def sample_path() -> Path:
    """Return the path of the sample, a Parquet file for `eigen2.market.data.cache.load_panel`."""
    return Path(__file__).parent / "stocks.parquet"
