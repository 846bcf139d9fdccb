"""The panel of 3,781 days x 669 columns: seconds from a Parquet file, and from its cache."""

import resource
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import Row, seconds_of
from eigen2.market.data.cache import load_panel
from eigen2.market.synthetic.generator import SyntheticMarket

DAYS, COLUMNS = 3781, 669
BUILD_BOUND_S, LOAD_BOUND_S = 20.0, 0.5


def rows() -> list[Row]:
    """Seconds to build and to load the panel, each against the bound it must keep."""
    figures = panel_seconds()
    build, load = figures["panel_build_s"], figures["panel_load_s"]
    size = f"{figures['panel_rows'] / 1e6:.1f} million rows"
    return [
        Row("panel_build", f"panel of {size} from Parquet, s", build, BUILD_BOUND_S, BUILD_BOUND_S / build),
        Row("panel_load", f"panel of {size} from its cache, s", load, LOAD_BOUND_S, LOAD_BOUND_S / load),
    ]


def panel_seconds(days: int = DAYS, columns: int = COLUMNS, loads: int = 5) -> dict[str, float]:
    """Build the panel of a made-up market once and load it `loads` times.

    Args:
        days: days of the market; at least 505.
        columns: tickers of the market.
        loads: loads of the cache.

    Returns:
        `panel_rows` of the file, `panel_build_s` seconds of the first call, which reads the file and writes the cache,
        `panel_load_s` of the fastest later one, since other processes only add to it, and `panel_peak_mb`, what
        building added to the highest resident memory so far.
    """
    with tempfile.TemporaryDirectory(prefix="eigen2-bench-") as folder:
        path = Path(folder) / "prices.parquet"
        prices = SyntheticMarket(days=days, columns=columns).generate()
        prices.to_parquet(path)
        count = len(prices)
        del prices

        def load() -> None:
            load_panel(path, cache_dir=Path(folder) / "cache")

        before = peak_mb()
        build = seconds_of(load)
        return {
            "panel_rows": count,
            "panel_build_s": build,
            "panel_load_s": min(seconds_of(load) for _ in range(loads)),
            "panel_peak_mb": peak_mb() - before,
        }


def peak_mb() -> float:
    """Highest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    for key, value in panel_seconds().items():
        print(f"{key:<16}{value:>12,.2f}")
