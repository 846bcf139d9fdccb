"""Fuel breaks on landscapes that no fit has seen, over seeds: `python -m benchmarks.learning.fire --out FILE.json`.

Each run is `fit --config configs/dqn_fuel_breaks.yaml` in a process of its own, timed from its start to its end, and
then `test`, on landscapes of its own seed that neither training nor the choice of the champion has looked at. Variants
leave out what the agent is given beside the map.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from benchmarks.machine import ROOT, describe_machine
from benchmarks.pages import fill_in, table
from benchmarks.scale.scaling import rows_of

CONFIG = "configs/dqn_fuel_breaks.yaml"
PAGE = ROOT / "docs" / "fire.md"
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "three times as long": {"trainer.max_epochs": 3},
    "no prior": {"model.prior": "false"},
    "no prior, no downstream plane": {"model.prior": "false", "data.downstream_plane": "false"},
}
"""Settings beside the configuration's; of `trainer.max_epochs`, how many times as many."""
SEEDS = (1, 2, 3, 4, 5)


def fit(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fit.

    Args:
        folder: of the run.
        settings: by their keys.

    Returns:
        `fit_s`, seconds of the process; `validation`, the champion's, by epoch; `rss_mb`, by epoch; `steps` of the
        environments and `gradient_steps`.
    """
    begun = time.perf_counter()
    _eigen2("fit", folder, settings)
    seconds = time.perf_counter() - begun
    rows = rows_of(folder / "metrics.csv")
    ends = [row for row in rows_of(folder / "memory.csv") if row["phase"] == "generation"]
    champion = [row["champion/validation_fitness"] for row in rows]
    return {
        "fit_s": round(seconds, 1),
        "validation": [None if value in ("", "nan") else round(float(value), 2) for value in champion],
        "rss_mb": [round(int(row["rss_bytes"]) / 1e6, 1) for row in ends],
        "steps": int(float(rows[-1]["replay/added"])),
        "gradient_steps": sum(int(float(row["train/gradient_steps"])) for row in rows),
    }


def test(folder: Path, settings: Mapping[str, Any]) -> dict[str, list[float]]:
    """Percent of the burned area saved on each landscape of the test, of the champion and of each baseline."""
    _eigen2("test", folder, {**settings, "num_threads": 1}, "--ckpt_path", "best")
    scores: dict[str, list[float]] = json.loads((folder / "test" / "scores.json").read_text())["scores"]
    return scores


def _eigen2(command: str, folder: Path, settings: Mapping[str, Any], *words: str) -> None:
    given = [f"--{key}={value}" for key, value in {"trainer.default_root_dir": folder, **settings}.items()]
    asked = [sys.executable, "-m", "eigen2.cli", command, "--config", CONFIG, *given, *words]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr[-2000:]}")


def results_table(found: Mapping[str, Any]) -> str:
    """Percent of the burned area saved, a row a variant and, of the first variant's landscapes, a baseline."""
    rows = []
    for name, runs in found["runs"].items():
        means = [statistics.fmean(each["scores"]["champion"]) for each in runs.values()]
        seconds = statistics.median(each["fit_s"] for each in runs.values())
        each = ", ".join(f"{value:.1f}" for value in means)
        rows.append([f"agent, {name}", f"{statistics.fmean(means):.1f}", each, f"{seconds:.0f}"])
    runs = next(iter(found["runs"].values()))
    for name in (key for key in next(iter(runs.values()))["scores"] if key != "champion"):
        means = [statistics.fmean(each["scores"][name]) for each in runs.values()]
        each = ", ".join(f"{value:.1f}" for value in means)
        rows.append([name, f"{statistics.fmean(means):.1f}", each, ""])
    return table(["", "saved, %", "each seed", "fit, s"], rows)


def memory_words(found: Mapping[str, Any]) -> str:
    """How resident memory went, over all runs of the first variant."""
    runs = next(iter(found["runs"].values())).values()
    half = [each["rss_mb"][len(each["rss_mb"]) // 2 :] for each in runs]
    least, most = min(map(min, half)), max(map(max, half))
    machine = found["machine"]
    return (
        f"{machine['machine']}, {machine['cores']} cores, torch {machine['torch']}, commit {machine['commit'][:7]}. "
        f"Resident memory in the second half of the fits lay between {least:.0f} and {most:.0f} MB."
    )


def fill_page(measured: Path, page: Path = PAGE) -> None:
    """Put the figures into their places."""
    found = json.loads(measured.read_text())
    page.write_text(fill_in(page.read_text(), {"agents": results_table(found), "agents_machine": memory_words(found)}))


def main(words: Sequence[str] | None = None) -> None:
    """Measure and write, or put what was measured into its page.

    Args:
        words: of the command line; None takes the process's.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write; runs it has are not done again")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="measure this one alone; may be repeated")
    parser.add_argument("--epochs", type=int, default=None, help="of a run; default the configuration's")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default 2)")
    parser.add_argument("--folder", type=Path, default=Path("lightning_logs/fire-seeds"), help="takes the runs")
    parser.add_argument("--page", type=Path, help="JSON file to put into docs/fire.md")
    asked = parser.parse_args(words)
    if asked.page is not None:
        fill_page(asked.page)
        return
    if asked.out is None:
        parser.error("name a file: --out or --page")
    found = json.loads(asked.out.read_text()) if asked.out.exists() else {"runs": {}}
    found["machine"] = {**describe_machine(), "threads": asked.threads}
    for variant in asked.variant or VARIANTS:
        done = found["runs"].setdefault(variant, {})
        planned = {}
        for seed in (seed for seed in SEEDS if "scores" not in done.get(str(seed), {})):
            settings = {"seed_everything": seed, "data.landscape_seed": seed, "num_threads": asked.threads}
            settings |= VARIANTS[variant]
            if "trainer.max_epochs" in settings or asked.epochs:
                settings["trainer.max_epochs"] = _epochs(asked.epochs) * settings.get("trainer.max_epochs", 1)
            folder = asked.folder.resolve() / f"{variant.replace(' ', '-').replace(',', '')}-{seed}"
            done[str(seed)] = fit(folder, settings)
            print(f"{variant}, seed {seed}: fit in {done[str(seed)]['fit_s']} s", flush=True)
            planned[str(seed)] = (folder, settings)
        with ThreadPoolExecutor(2) as pool:  # greedy search takes long, and is not timed
            tests = {seed: pool.submit(test, *arguments) for seed, arguments in planned.items()}
        for seed, each in tests.items():
            done[seed]["scores"] = each.result()
            print(f"{variant}, seed {seed}: {statistics.fmean(done[seed]['scores']['champion']):.1f} %", flush=True)
        # written after each variant, so that a long measurement that is cut keeps what it has
        asked.out.write_text(json.dumps(found) + "\n")


def _epochs(asked: int | None) -> int:
    return asked or int(yaml.safe_load((ROOT / CONFIG).read_text())["trainer"]["max_epochs"])


if __name__ == "__main__":
    main()
