"""The files in a run's folder as tables and values."""

import csv
import io
import json
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd

from eigen2.errors import UserError, one_line
from eigen2.files import object_schema

METRICS = "metrics.csv"
_date = partial(pd.to_datetime, format="ISO8601")
log = logging.getLogger(__name__)
POLICIES = ("champion", "buy and hold", "momentum")
RANDOM = ("random 5 %", "random 95 %")  # columns of the test's equity: quantiles of the random baseline
TRADE = ("size", "entry_price", "exit_price", "gain_pct", "profit")


TEXT, OBJECT = {"type": "string"}, {"type": "object"}
NUMBER = {"type": "number", "minimum": -1e15, "maximum": 1e15}  # charts round to 9 digits
OPTIONAL, NAME = {"type": ["number", "null"]}, {"type": ["string", "null"]}
CASES = {"type": "array", "items": NUMBER, "minItems": 1}
_mapping = partial(object_schema, others=True)
PROVENANCE = _mapping(
    {},
    {
        **{"settings": OBJECT, "versions": OBJECT, "data": OBJECT},
        **{"commit": NAME, "dirty": {"type": ["boolean", "null"]}, "fitness": _mapping({"unit": TEXT, "over": TEXT})},
    },
)
"""Schema of run.json; every key is optional."""
VERDICT = _mapping({"lines": {"type": "array", "items": TEXT}})
"""Schema of memory/verdict.json, as far as the page shows it."""
RANK_IC = _mapping(
    {
        **dict.fromkeys(("mean", "icir", "t", "p"), OPTIONAL),
        **{"coverage": NUMBER, "years": object_schema({}, others=NUMBER)},
    }
)
ANNUAL = object_schema({}, others=OPTIONAL)
CHECKS = _mapping(
    {"costs": object_schema({}, others=ANNUAL), "lagged": ANNUAL, "leak": _mapping({"text": TEXT, "decision": NAME})}
)
SUMMARY = _mapping(
    {
        "days": _mapping({"first": TEXT, "last": TEXT, "count": NUMBER}),
        "champion_generation": NUMBER,
        "measures": _mapping(dict.fromkeys(POLICIES, _mapping({"total return": NUMBER}, others=OPTIONAL))),
        "luck": _mapping({"p_value": NUMBER, "policies": NUMBER}),
        "selection": _mapping({"deflated_sharpe": OPTIONAL, "overfitting": OPTIONAL}),
        "random_returns": CASES,
    },
    {
        "verdict": TEXT,
        "settings": OBJECT,
        "information": object_schema({}, others=object_schema({}, others=RANK_IC)),
        "checks": {"anyOf": [{"type": "null"}, CHECKS]},
    },
)
"""Schema of test/summary.json, as far as the page shows it."""
SCORES = _mapping(
    {"champion_generation": NUMBER, "unit": TEXT, "cases": TEXT, "scores": _mapping({"champion": CASES}, others=CASES)},
    {"settings": OBJECT},
)
"""Schema of test/scores.json, as far as the page shows it."""


@dataclass(frozen=True)
class RunRecord:
    """A run read from its folder; files that were not written are None."""

    folder: Path
    provenance: dict[str, Any]  # content of run.json
    config: str
    metrics: pd.DataFrame
    memory: pd.DataFrame | None
    memory_verdict: list[str]  # lines of the verdict on memory
    validation: pd.DataFrame | None
    trades: pd.DataFrame | None
    test: dict[str, Any] | None
    equity: pd.DataFrame | None
    rank_ic: pd.DataFrame | None
    scores: dict[str, Any] | None
    pictures: dict[str, bytes]
    unit: str  # of fitness


def load(folder: Path) -> RunRecord:
    """Read a run's folder; raises UserError if there is no run in it, or a file in it cannot be read."""
    root = folder.resolve()  # which may be a link; one within would show any file of the reader's
    metrics = _table(root / METRICS, ["generation"])
    if metrics is None:
        raise UserError(f"{folder} has no {METRICS}: name the folder of a run (trainer.default_root_dir)")
    test = _json(root / "test" / "summary.json", SUMMARY)
    source, columns = ("champion", ["window", *TRADE]) if test is None else ("test", TRADE)
    provenance = _json(root / "run.json", PROVENANCE) or {}
    return RunRecord(
        folder=folder,
        provenance=provenance,
        config=_read(root / "config.yaml", Path.read_text) or "",
        metrics=metrics,
        memory=_table(root / "memory.csv", ["generation", "rss_bytes"], ["phase"]),
        memory_verdict=(_json(root / "memory" / "verdict.json", VERDICT) or {"lines": []})["lines"],
        validation=_validation(root / "champion" / "equity.csv"),
        trades=_table(root / source / "trades.csv", columns, ["ticker", "reason"], ["entry_date", "exit_date"]),
        test=test,
        equity=None if test is None else _equity(root / "test" / "equity.csv", test["days"]["last"]),
        rank_ic=None if test is None else _table(root / "test" / "rank_ic.csv", [], dates=["date"]),
        scores=_json(root / "test" / "scores.json", SCORES),
        pictures={
            path.stem: content
            for path in sorted((root / "champion").glob("*.png"))
            if (content := _read(path, Path.read_bytes)) is not None
        },
        unit=provenance.get("fitness", {}).get("unit", "fitness"),
    )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors into a UserError with the file, the problem and the remedy."""
    try:
        yield
    except (OSError, ValueError, jsonschema.ValidationError) as error:  # pandas' are ValueErrors
        reason = str(getattr(error, "strerror", None) or error)
        if isinstance(error, jsonschema.ValidationError):
            reason = f"{error.json_path.removeprefix('$').removeprefix('.') or 'it'}: {error.message}"
        other = "name the folder of another run" if path.name == METRICS else "move it away for a report without it"
        raise UserError(f"{path} cannot be read: {one_line(reason)}; restore it, or {other}") from error


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return `read(path)`, None if there is no file."""
    with _reading(path):
        return read(path) if _is_own(path) else None


def _is_own(path: Path) -> bool:
    """Return whether a resolved path is that of a file; log one that a link leads to, which is left out."""
    if path.is_file() and path.resolve() != path:
        log.warning("%s is left out of the report: a link leads there", path)
        return False
    return path.is_file()


def _json(path: Path, schema: dict[str, Any]) -> dict[str, Any] | None:
    def read(path: Path) -> Any:
        content = json.loads(path.read_text())
        try:
            json.dumps(content, allow_nan=False)
        except ValueError:
            raise ValueError("it holds a number that is not finite") from None
        jsonschema.validate(content, schema)
        return content

    return _read(path, read)


def _validation(path: Path) -> pd.DataFrame | None:
    table = _table(path, ["window", "equity"], dates=["date"])
    with _reading(path):
        if table is not None and table.duplicated(["window", "date"]).any():
            raise ValueError("it has two rows of one window and date")
    return table


def _equity(path: Path, last: str) -> pd.DataFrame | None:
    table = _table(path, [*POLICIES, *RANDOM], dates=["date"])
    with _reading(path):
        if table is not None and (ends := [f"{date:%Y-%m-%d}" for date in table["date"][-1:]]) != [last]:
            raise ValueError(f"it ends on {ends}, but the test on {last}")
    return table


def _table(
    path: Path, numbers: Collection[str], texts: Collection[str] = (), dates: Collection[str] = ()
) -> pd.DataFrame | None:
    """Read a table; None if there is no file. Columns not listed are numeric, an incomplete last row is dropped."""

    def read(path: Path) -> pd.DataFrame:
        """Parse the whole lines, and check columns and values; raises ValueError with what is wrong."""
        # a run that was killed or is in progress may leave half a line
        whole = path.read_text().rpartition("\n")[0]
        lengths = [*map(len, csv.reader(whole.splitlines()[:2]))]
        if lengths != sorted(lengths, reverse=True):  # pandas would name rows by the first of their values
            raise ValueError("its rows have more values than its header has names")
        # pandas would read the ticker NA as a missing value
        table = pd.read_csv(io.StringIO(whole), dtype=dict.fromkeys(texts, str), keep_default_na=False, na_values=[""])
        required = [*numbers, *texts, *dates]
        if missing := [name for name in required if name not in table]:
            raise ValueError(f"it has no column {missing[0]!r}")
        for name in table.columns.difference([*texts]):
            parse, kind = (_date, "date") if name in dates else (pd.to_numeric, "number")
            try:
                table[name] = parse(table[name])
            except ValueError:
                raise ValueError(f"the column {name!r} holds a value that is not a {kind}") from None
        if (gaps := table[required].isna()).any(axis=None):
            raise ValueError(f"the column {gaps.any().idxmax()!r} has a gap")
        return table.replace([np.inf, -np.inf], np.nan)  # JSON has no infinity

    return _read(path, read)
