"""What a run's folder says: files as tables, None for what was not written."""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import yaml

from eigen2.errors import UserError

METRICS = "metrics.csv"
POLICIES = ("champion", "buy and hold", "momentum")
LOTS = ("random 5 %", "random 95 %")
TRADE = ("coefficient", "entry_price", "exit_price", "gain_pct", "profit")
FACTS = {
    "settings": dict,
    "versions": dict,
    "memory": list,
    "commit": (str, NoneType),
    "fitness": {"unit": str, "over": str},
}
"""Keys of run.json, of which any may be missing, and their types."""
SUMMARY = {
    "days": {"first": str, "last": str, "count": Real},
    "champion_generation": Real,
    "measures": {policy: {"total return": Real} for policy in POLICIES},
    "luck": {"p_value": Real, "policies": Real},
    "selection": dict.fromkeys(("deflated_sharpe", "overfitting"), (Real, NoneType)),
    "random_returns": list,
}
"""Keys of test/summary.json that the page shows, and their types."""
SCORES = {"champion_generation": Real, "unit": str, "cases": str, "scores": {"champion": list}}
"""Keys of test/scores.json that the page shows, and their types."""
PNG = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
"""First and last bytes of a picture."""


@dataclass(frozen=True)
class RunRecord:
    """A run, read from its folder.

    Attributes:
        folder: of the run.
        facts: versions, machine, settings and the memory's verdict, of run.json.
        config: of config.yaml, as text.
        prices: where they came from, by config.yaml; None without it, and for a workload without prices.
        metrics: a row a generation, of metrics.csv.
        memory: a row a generation and phase, of memory.csv.
        validation: daily equity of the champion in each validation window.
        trades: the champion's, in the test if there was one, else in validation.
        test: summary of the test.
        equity: daily equity of all policies in the test, by date.
        scores: of a test on cases, what champion and baselines reached in each.
        pictures: PNGs of the champion, by name.
    """

    folder: Path
    facts: dict[str, Any]
    config: str
    prices: str | None
    metrics: pd.DataFrame
    memory: pd.DataFrame | None
    validation: pd.DataFrame | None
    trades: pd.DataFrame | None
    test: dict[str, Any] | None
    equity: pd.DataFrame | None
    scores: dict[str, Any] | None
    pictures: dict[str, bytes]


def load(folder: Path) -> RunRecord:
    """Read a run's folder.

    Raises:
        UserError: there is no run in it, or a file in it cannot be read.
    """
    metrics = _table(folder / METRICS, ["generation"])
    if metrics is None:
        raise UserError(f"{folder} has no {METRICS}: name the folder of a run (trainer.default_root_dir)")
    test = _summary(folder / "test" / "summary.json")
    dates = ["entry_date", "exit_date"]
    words = ["ticker", "reason"]
    if test is None:
        trades = _table(folder / "champion" / "trades.csv", ["window", *TRADE], words, dates)
    else:
        trades = _table(folder / "test" / "trades.csv", TRADE, words, dates)
    facts = _facts(folder / "run.json")
    return RunRecord(
        folder=folder,
        facts=facts,
        config=_text(folder / "config.yaml"),
        prices=_prices(folder / "config.yaml") if "data.prices" in facts.get("settings", {}) else None,
        metrics=metrics,
        memory=_table(folder / "memory.csv", ["generation", "rss_bytes"], ["phase"]),
        validation=_table(folder / "champion" / "equity.csv", ["window", "equity"], dates=["date"]),
        trades=trades,
        test=test,
        equity=None if test is None else _equity(folder / "test" / "equity.csv", test["days"]["last"]),
        scores=_scores(folder / "test" / "scores.json"),
        pictures={path.stem: _picture(path) for path in sorted((folder / "champion").glob("*.png"))},
    )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name a file that cannot be read, what is wrong with it, and what to do."""
    try:
        yield
    except (OSError, ValueError, yaml.YAMLError) as error:  # pandas' and json's errors are ValueErrors
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:160]
        other = "name the folder of another run" if path.name == METRICS else "move it away for a report without it"
        raise UserError(f"{path} cannot be read: {reason}; restore it, or {other}") from error


def _text(path: Path) -> str:
    with _reading(path):
        return path.read_text() if path.is_file() else ""


def _prices(path: Path) -> str | None:
    with _reading(path):
        found = yaml.safe_load(path.read_text()) if path.is_file() else None
    if not isinstance(found, dict) or not isinstance(found.get("data"), dict):
        return None
    data = found["data"]
    return "synthetic market" if data.get("synthetic") else str(data.get("path") or "sample shipped with eigen2")


def _object(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    found = json.loads(path.read_text(), parse_constant=_no_number)
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"it holds {word}, which is no number")


def _facts(path: Path) -> dict[str, Any]:
    with _reading(path):
        found = _object(path) or {}
        _require({key: kind for key, kind in FACTS.items() if key in found}, found)
    return found


def _summary(path: Path) -> dict[str, Any] | None:
    with _reading(path):
        found = _object(path)
        if found is not None:
            _require(SUMMARY, found)
            measures = dict.fromkeys(found["measures"]["champion"], (Real, NoneType))
            _require(dict.fromkeys(found["measures"], measures), found["measures"], "measures")
            _require(dict.fromkeys(range(len(found["random_returns"])), Real), dict(enumerate(found["random_returns"])))
    return found


def _scores(path: Path) -> dict[str, Any] | None:
    with _reading(path):
        found = _object(path)
        if found is not None:
            _require(SCORES, found)
            for name, values in found["scores"].items():
                if not isinstance(values, list) or len(values) != len(found["scores"]["champion"]) or not values:
                    raise ValueError(f"{name!r} has not a number for each case")
                _require(dict.fromkeys(range(len(values)), Real), dict(enumerate(values)), repr(name))
    return found


def _picture(path: Path) -> bytes:
    with _reading(path):
        found = path.read_bytes()
        if not found.startswith(PNG[0]) or not found.endswith(PNG[1]):
            raise ValueError("it holds no whole PNG")
    return found


def _require(kinds: dict[Any, Any], found: Any, name: str = "it") -> None:
    """Refuse an object without these keys, or with a value of another type; an object's kinds are a dict again."""
    for key, kind in kinds.items():
        if not isinstance(found, dict) or key not in found:
            raise ValueError(f"{name} has no {key!r}")
        if isinstance(kind, dict):
            _require(kind, found[key], repr(key))
        elif not isinstance(found[key], kind):
            raise ValueError(f"{key!r} is {found[key]!r}")


def _equity(path: Path, last: str) -> pd.DataFrame | None:
    table = _table(path, [*POLICIES, *LOTS], dates=["date"])
    with _reading(path):
        if table is not None and table.empty:
            raise ValueError("it has no rows")
        if table is not None and (end := str(table["date"].iloc[-1])[:10]) != last:
            raise ValueError(f"it ends on {end}, but the test on {last}")
    return table


def _table(
    path: Path, numbers: Collection[str], words: Collection[str] = (), dates: Collection[str] = ()
) -> pd.DataFrame | None:
    """A table that has these columns, without a last row that was torn; None if it was not written.

    Args:
        path: of a CSV file.
        numbers: columns that must be there; all that are not `words` or `dates` must hold numbers.
        words: columns of text.
        dates: columns of days.
    """
    if not path.is_file():
        return None
    with _reading(path):
        # pandas would take the ticker NA for a gap
        table = pd.read_csv(path, dtype=dict.fromkeys(words, str), keep_default_na=False, na_values=[""])
        needed = [*numbers, *words, *dates]
        if lacking := [name for name in needed if name not in table]:
            raise ValueError(f"it has no column {lacking[0]!r}")
        for name in [name for name in table if name not in words]:
            table[name] = _parsed(table[name], name in dates)
        gaps = table[needed].isna()
        if len(table) and gaps.iloc[-1].any():  # a run that was killed, or that goes on, may leave half a line
            table, gaps = table[:-1], gaps[:-1]
        if gaps.any(axis=None):
            raise ValueError(f"the column {gaps.any().idxmax()!r} has a gap")
    return table


def _parsed(column: pd.Series, date: bool) -> pd.Series:
    try:
        if date:
            return pd.to_datetime(column, format="ISO8601")
        return pd.to_numeric(column).replace([np.inf, -np.inf], np.nan)  # what JSON has no word for
    except ValueError:
        raise ValueError(f"the column {column.name!r} holds what is no {'date' if date else 'number'}") from None
