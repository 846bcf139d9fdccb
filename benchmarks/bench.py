"""`make bench`: figures against references kept here or against bounds, each pair measured in one process."""

import argparse
import json
import os
import platform

import torch

from benchmarks import environment, panel, replay, training
from benchmarks.timing import Row


def main() -> None:
    """Print the table, or JSON with `--json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures with machine and threads, for machines")
    parser.add_argument("--runs", type=int, default=30, help="alternating runs of each pair (default 30)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[Row] = [
        *training.rows(arguments.runs),
        *environment.rows(arguments.runs),
        *panel.rows(),
        *replay.rows(),
    ]
    if arguments.json:
        machine = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "threads": arguments.threads,
        }
        print(json.dumps({**machine, "rows": [row._asdict() for row in rows]}, indent=2))
        return
    print(f"{'what':<52}{'eigen2':>12}{'reference':>14}{'ratio':>9}")
    for row in rows:
        print(f"{row.what:<52}{_number(row.ours):>12}{_number(row.reference):>14}{row.ratio:>9,.1f}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


if __name__ == "__main__":
    main()
