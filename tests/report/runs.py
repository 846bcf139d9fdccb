"""Synthetic run folders of any size, with the files that the report reads."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

PHASES = ("baseline", "evaluate", "train", "evolve", "validate", "generation")
OWNERS = ("optimizer", "population", "replay", "environments", "panel", "encoder", "profiler", "logger")
WINDOW = 20  # days


def write_run(folder: Path, generations: int = 2, days: int = 40, windows: int = 3, tested: bool = True) -> Path:
    """Write a run's files; return its folder."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("data:\n  path: prices/stocks.parquet\n")
    (folder / "run.json").write_text(json.dumps({"seed": 1, "settings": {"data.prices": 16 * "0a1b"}}))
    _metrics(folder, generations, rng)
    dates = pd.bdate_range("2004-09-20", periods=days)
    _validation(folder / "champion", dates, windows, rng)
    if tested:
        _test(folder / "test", dates, rng)
    return folder


def _metrics(folder: Path, generations: int, rng: np.random.Generator) -> None:
    names = [f"fitness/{part}" for part in ("mean", "min", "max", "q25", "q75")] + ["champion/validation_fitness"]
    names += [f"time/{phase}_s" for phase in PHASES[1:5]]
    metrics = pd.DataFrame(rng.uniform(1, 2, (generations, len(names))), columns=names)
    metrics.insert(0, "generation", range(generations))
    metrics.to_csv(folder / "metrics.csv", index=False)
    memory = pd.DataFrame({"generation": np.repeat(range(generations), len(PHASES)), "phase": [*PHASES] * generations})
    memory["rss_bytes"] = rng.integers(10**8, 2 * 10**8, len(memory))
    for owner in OWNERS:
        memory[f"owner_{owner}_bytes"] = rng.integers(10**6, 10**7, len(memory))
    memory.to_csv(folder / "memory.csv", index=False)
    (folder / "memory").mkdir(exist_ok=True)
    (folder / "memory" / "verdict.json").write_text(json.dumps({"leak": None, "lines": ["verdict: healthy"]}))


def _validation(folder: Path, dates: pd.DatetimeIndex, windows: int, rng: np.random.Generator) -> None:
    folder.mkdir(exist_ok=True)
    spans = [dates[first : first + WINDOW] for first in range(windows)]
    equity = pd.concat([pd.DataFrame({"date": span, "window": window}) for window, span in enumerate(spans)])
    equity["equity"] = rng.uniform(90, 110, len(equity))
    equity.to_csv(folder / "equity.csv", index=False)
    trades = pd.concat([_trades(span).assign(window=window) for window, span in enumerate(spans)])
    trades.to_csv(folder / "trades.csv", index=False)


def _trades(dates: pd.DatetimeIndex) -> pd.DataFrame:
    columns = {"ticker": ["AAPL", "NA"], "entry_date": dates[0], "exit_date": dates[:11][-1], "reason": "holding"}
    prices = {"entry_price": [69.6, 1204.5], "exit_price": [78.97, 1204.5]}
    gains = {"size": [4.9999, 1.5], "gain_pct": [13.463, -0.0012], "profit": [3364.0, -0.0012]}
    return pd.DataFrame({**columns, **prices, **gains})


def _test(folder: Path, dates: pd.DatetimeIndex, rng: np.random.Generator) -> None:
    folder.mkdir(exist_ok=True)
    names = ["champion", "buy and hold", "momentum", "random 5 %", "random 95 %"]
    equity = pd.DataFrame(rng.uniform(9e4, 11e4, (len(dates), len(names))), columns=names)
    equity.insert(0, "date", dates)
    equity["champion exposure"] = equity["champion"] * rng.uniform(0, 1, len(dates))
    equity.to_csv(folder / "equity.csv", index=False)
    _trades(dates).assign(window=0).to_csv(folder / "trades.csv", index=False)
    rankings = {"champion": rng.uniform(-1, 1, len(dates)), "ridge": rng.uniform(-1, 1, len(dates))}
    daily = pd.DataFrame({f"{name} {days}": ic for name, ic in rankings.items() for days in (1, 5)}, index=dates)
    daily.iloc[-5:] = np.nan
    daily.to_csv(folder / "rank_ic.csv", index_label="date")
    found = {"mean": 0.0123, "icir": None, "t": -1.5, "p": 0.25, "coverage": 1.0, "days": 9, "years": {"2004": 0.5}}
    summary = {
        "information": {name: {"1": found, "5": {**found, "years": {}}} for name in rankings},
        "days": {"first": str(dates[1])[:10], "last": str(dates[-1])[:10], "count": len(dates) - 1},
        "champion_generation": 1,
        "measures": {name: {"trades": 2.0, "total return": -0.0001, "Sharpe": None} for name in names[:3]},
        "luck": {"p_value": 0.5, "policies": 100},
        "selection": {"deflated_sharpe": None, "overfitting": 0.4},
        "random_returns": rng.uniform(-0.2, 0.2, 100).tolist(),
        "checks": {
            "costs": {name: {"0": 0.05, "10": 0.04, "30": -0.012} for name in names[:3]},
            "lagged": dict.fromkeys(names[:3], 0.033),
            "leak": {"days": ["2004-10-01"], "decision": None, "text": "no decision changes"},
        },
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def write_cases(folder: Path, generations: int = 12, cases: int = 5) -> Path:
    """Write a run with baselines, a test on cases, and pictures of its champion; return its folder."""
    from matplotlib.image import imsave

    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    fitness = {"unit": "percent of the burned area saved", "over": "episodes"}
    (folder / "run.json").write_text(json.dumps({"seed": 1, "settings": {"data.size": 8}, "fitness": fitness}))
    names = [f"fitness/{part}" for part in ("mean", "min", "max", "q25", "q75")]
    names += ["champion/validation_fitness", "validation/mean", "baseline/random", "baseline/by_rule"]
    names += ["time/train_s", "time/validate_s"]
    metrics = pd.DataFrame(rng.uniform(10, 60, (generations, len(names))), columns=names)
    metrics.loc[:1, ["champion/validation_fitness", "validation/mean"]] = np.nan
    metrics.insert(0, "generation", range(generations))
    metrics.to_csv(folder / "metrics.csv", index=False)
    (folder / "test").mkdir(exist_ok=True)
    scores = {name: rng.uniform(10, 60, cases).round(4).tolist() for name in ("champion", "random", "by_rule")}
    summary = {"champion_generation": 7, "unit": fitness["unit"], "cases": "landscapes", "scores": scores}
    (folder / "test" / "scores.json").write_text(json.dumps({**summary, "settings": {"data.size": 8}}))
    (folder / "champion").mkdir(exist_ok=True)
    for name in ("breaks-1-champion", "breaks-0-no-breaks"):
        imsave(folder / "champion" / f"{name}.png", rng.integers(0, 255, (40, 72, 3), np.uint8))
    return folder
