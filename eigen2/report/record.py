"""What a run's folder says: files as tables, None for what was not written."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from eigen2.errors import UserError


@dataclass(frozen=True)
class RunRecord:
    """A run, read from its folder.

    Attributes:
        folder: of the run.
        facts: versions, machine, settings and the memory's verdict, of run.json.
        config: of config.yaml, as text.
        metrics: a row a generation, of metrics.csv.
        memory: a row a generation and phase, of memory.csv.
        validation: daily equity of the champion in each validation window.
        trades: the champion's, in the test if there was one, else in validation.
        test: summary of the test.
        equity: daily equity of all policies in the test, by date.
    """

    folder: Path
    facts: dict[str, Any]
    config: str
    metrics: pd.DataFrame
    memory: pd.DataFrame | None
    validation: pd.DataFrame | None
    trades: pd.DataFrame | None
    test: dict[str, Any] | None
    equity: pd.DataFrame | None


def load(folder: Path) -> RunRecord:
    """Read a run's folder.

    Raises:
        UserError: there is no run in it, or a file in it cannot be read.
    """
    if not (folder / "metrics.csv").is_file():
        raise UserError(f"{folder} has no metrics.csv: name the folder of a run (trainer.default_root_dir)")
    tested = (folder / "test" / "summary.json").is_file()
    try:
        return RunRecord(
            folder=folder,
            facts=_json(folder / "run.json") or {},
            config=(folder / "config.yaml").read_text() if (folder / "config.yaml").is_file() else "",
            metrics=pd.read_csv(folder / "metrics.csv"),
            memory=_table(folder / "memory.csv"),
            validation=_table(folder / "champion" / "equity.csv", dates=["date"]),
            trades=_table(
                folder / ("test" if tested else "champion") / "trades.csv", dates=["entry_date", "exit_date"]
            ),
            test=_json(folder / "test" / "summary.json"),
            equity=_table(folder / "test" / "equity.csv", dates=["date"]) if tested else None,
        )
    except (OSError, ValueError, yaml.YAMLError) as error:  # pandas' and json's errors are ValueErrors
        raise UserError(f"the run in {folder} cannot be read: {error}") from error


def _json(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


def _table(path: Path, dates: list[str] | None = None) -> pd.DataFrame | None:
    return pd.read_csv(path, parse_dates=dates or []) if path.is_file() else None
