"""Record what short runs compute, as digests: `python -m tests.golden.record digests.json [CASE ...]`."""

import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.golden.cases import CHAMPION, FITS, RENAMED

UNTIMED = ("time/", "memory/", "ram/", "exchange/", "gc/", "process/")
"""First letters of metrics that differ from run to run."""


def command(*words: object) -> str:
    """Run `python -m eigen2.cli` on one thread; return its output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    line = [sys.executable, "-m", "eigen2.cli", *map(str, words)]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(line)} ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    return ended.stdout


def digest(value: Tensor | bytes | str) -> str:
    """Return the first 16 hexadecimal digits of a value's SHA-256; of a tensor with its shape and type."""
    content = value.encode() if isinstance(value, str) else value
    if isinstance(content, Tensor):
        plain = content.detach().cpu().contiguous()
        head = f"{tuple(plain.shape)} {plain.dtype} ".encode()
        content = (
            head + plain.flatten().view(torch.uint8).numpy().tobytes()
            if plain.dim()
            else head + repr(plain.item()).encode()
        )
    return hashlib.sha256(content).hexdigest()[:16]


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of nested dictionaries and lists, by its path."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors(part, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from tensors(part, f"{name}/{number}")


def fit_digests(folder: Path) -> dict[str, str]:
    """Digest a run's checkpoint (weights, moments, champion, replay buffer) and its metrics without times.

    Of several processes it holds what they share; the rest lies in parts, and shows in metrics and the champion.
    """
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    parts = {"weights": checkpoint["state_dict"], "moments": checkpoint["optimizer_states"]}
    data = [value for value in checkpoint.values() if isinstance(value, dict) and "replay" in value]
    held = tensors({**parts, "replay": data[0]["replay"]})
    found = {name: digest(value) for name, value in held if not value.is_meta}
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in rows[0]:
        if not name.startswith(UNTIMED):
            found[f"metrics/{name}"] = digest("\n".join(row[name] for row in rows))
    return {RENAMED.get(name, name): value for name, value in found.items()} | folder_digests(folder / "champion")


def folder_digests(folder: Path) -> dict[str, str]:
    """Digest the files of a folder; of JSON files their numbers alone, which no rename changes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = digest(json.dumps(list(numbers(json.loads(path.read_text())))))
        elif path.suffix == ".safetensors":
            found |= {f"{name}/{key}": digest(value) for key, value in load_file(path).items()}
        elif path.suffix in (".csv", ".npz"):
            content = path.read_bytes()
            found[name] = digest(content if path.suffix == ".csv" else np.load(path)["arr_0"].tobytes())
    return found


def numbers(value: Any) -> Iterator[float | int]:
    """Yield every number of a nested plain value."""
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, (int, float)):
        yield value


def record(chosen: list[str]) -> dict[str, dict[str, str]]:
    """Run the chosen cases, all if none is named, and return their digests by case."""
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        wanted = [case for case in (*FITS, *CHAMPION, "data", "predict", "export") if not chosen or case in chosen]
        for case in wanted:
            if case in FITS:
                command(*FITS[case], "--trainer.default_root_dir", root / case)
                found[case] = fit_digests(root / case)
            else:
                found[case] = other(case, root)
            sys.stderr.write(f"{case}: {len(found[case])} digests\n")
    return found


def other(case: str, root: Path) -> dict[str, str]:
    """Run a case that is no fit; the fit it needs first, if it was not run yet."""
    fit = case.removesuffix("_test") if case.endswith("_test") else "market"
    if case != "data" and not (root / fit).exists():
        command(*FITS[fit], "--trainer.default_root_dir", root / fit)
    last, out = root / fit / "checkpoints" / "last.ckpt", root / f"{case}-out"
    if case in CHAMPION:
        printed = command(*CHAMPION[case], "--trainer.default_root_dir", root / fit, "--ckpt_path", last)
        fractions = digest(" ".join(re.findall(r"-?\d+\.\d+", printed)))
        return {"printed": fractions, **folder_digests(root / fit / "test")}
    out.mkdir()
    prices = out / "prices.parquet"
    command("data", "synthesize", prices, "--market.days", 260, "--market.columns", 6, "--ceiling", "false")
    if case == "export":
        command("export", "--ckpt_path", last, "--output", out / "champion")
    elif case == "predict":
        command("predict", "--ckpt_path", last, "--data.path", prices, "--output", out / "orders.csv")
    else:
        spoiled(pd.read_parquet(prices)).to_csv(out / "dirty.csv", index=False)
        command("data", "prepare", out / "dirty.csv", out / "clean.parquet")
        pd.read_parquet(out / "clean.parquet").to_csv(out / "clean.csv")
    return folder_digests(out)


def spoiled(prices: pd.DataFrame) -> pd.DataFrame:
    """Return prices with a split, a bad tick, a high below its low, a missing day and a duplicate in one ticker."""
    names = ["open", "high", "low", "close"]
    own = prices.index[prices["ticker"] == prices["ticker"].min()]
    prices.loc[own[:100], names] *= 2
    prices.loc[own[150], names] *= 10
    prices.loc[own[180], ["high", "low"]] = prices.loc[own[180], ["low", "high"]].to_numpy()
    return pd.concat([prices.drop(own[200]), prices.loc[own[30:31]]])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(sys.argv[2:]), indent=1))
