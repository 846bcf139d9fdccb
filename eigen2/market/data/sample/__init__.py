"""Twenty American stocks, 2008 to 2022: real closes that ship with the package (README.md says where from)."""

from pathlib import Path


def sample_path() -> Path:
    """Return the path of the sample, a CSV file for `eigen2.market.data.cache.load_panel`."""
    return Path(__file__).parent / "stocks.csv.gz"
