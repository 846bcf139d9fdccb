"""Rebuild the sample from its source: `python -m eigen2.market.data.sample STOCKS_CSV_GZ OUT.parquet`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pandas as pd

from eigen2.market.data.sample import adjust


def main(args: Sequence[str] | None = None) -> None:
    """Read the raw table, adjust it and write it as Parquet."""
    parser = argparse.ArgumentParser(prog="python -m eigen2.market.data.sample", description=__doc__)
    parser.add_argument("stocks_csv_gz", help="stocks.csv.gz of the package bokeh_sampledata")
    parser.add_argument("out", help="Parquet file to write")
    paths = parser.parse_args(args)
    # the default words for empty cells include a possible ticker, NA
    raw = pd.read_csv(paths.stocks_csv_gz, keep_default_na=False)
    adjust(raw).to_parquet(paths.out, index=False, compression="zstd")


if __name__ == "__main__":
    main()
