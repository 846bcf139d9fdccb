"""What the README and docs/ tell a reader to do, done."""

import csv
import json
import re
import runpy
import shlex
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from eigen2.cli.main import main
from eigen2.cli.training import WORKLOADS
from eigen2.market.data.cleaning.policy import CleaningPolicy, Limits
from eigen2.market.data.sample import sample_path
from eigen2.market.data.source import read_prices
from eigen2.runtime.yaml_files import read_yaml
from tests.command import ROOT, eigen2

KINDS = ("fit", "validate", "test", "report", "predict", "export", "data", "sweep")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKET, FIRE = "configs/erl.yaml", "configs/dqn_fuel_breaks.yaml"
SHORT = {"trainer.max_epochs": 1, "model.gradient_steps": 1, "model.population_size": 2}
SMALL = {  # overrides by configuration, so that a command takes seconds
    MARKET: {
        **SHORT,
        **{"data.windows_per_generation": 1, "data.exploration_windows": 1, "data.context_days": 64},
        "data.holdout_days": 60,
    },
    FIRE: {
        **{"trainer.max_epochs": 2, "num_threads": 1},  # two threads wait for each other on busy cores
        **{"data.grid_size": 10, "data.num_landscapes": 2, "data.eval_landscapes": 1, "data.test_landscapes": 1},
        **{"data.ignitions": 16, "data.replay_min_size": 8, "data.batch_size": 8},
        **{"model.width": 4, "model.validate_every": 1},
    },
    "configs/full_scale.yaml": {
        **SHORT,
        **{"data.synthetic.days": 1200, "data.synthetic.columns": 30, "data.investable.top": 10},
    },
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(kind: str) -> list[str]:
    """Lines of README and docs/ that run eigen2, of one subcommand."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if line.startswith(f"python -m eigen2.cli {kind}")))


def small(config: str) -> list[str]:
    return [f"--{key}={value}" for key, value in SMALL.get(config, SHORT).items()]


def run_all(lines: list[str], *words: object, cwd: Path = ROOT) -> None:
    """Run commands with more options; all must succeed."""
    assert lines
    for line in lines:
        done = eigen2(*shlex.split(line)[3:], *words, cwd=cwd)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def market_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("market")
    fit = f"python -m eigen2.cli fit --config {MARKET}"
    assert fit in commands("fit")
    run_all([fit], *small(MARKET), "--trainer.max_epochs=2", "--trainer.default_root_dir", folder)
    assert (folder / "report.html").exists()
    return folder


@pytest.fixture(scope="module")
def fire_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fire")
    run_all([f"python -m eigen2.cli fit --config {FIRE}"], *small(FIRE), "--trainer.default_root_dir", folder)
    assert (folder / "report.html").exists()
    return folder


TRAINING = [*commands("fit"), *commands("validate")]
QUICK = [f"python -m eigen2.cli fit --config {config}" for config in (MARKET, FIRE, "configs/control.yaml")]


@pytest.mark.parametrize("command", TRAINING)
def test_training_commands_are_read(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()[3:]
    with pytest.raises(SystemExit) as left:
        main([*words, *small(words[words.index("--config") + 1]), "--print_config"])
    assert left.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["max_epochs"] in (1, 2)


@pytest.mark.parametrize(
    "command", [pytest.param(line, marks=() if line in QUICK else pytest.mark.slow) for line in TRAINING]
)
def test_training_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    words = re.sub(r"(prices|clean)\.parquet", str(sample_path()), command).split()[3:]
    config = words[words.index("--config") + 1]
    monkeypatch.chdir(ROOT)
    plain = words == ["fit", "--config", config]  # the others are of the same configurations
    length = ["--trainer.max_epochs=2"] if plain else ["--trainer.max_epochs=1", "--report=false"]
    if plain and config in (MARKET, FIRE):
        folder: Path = request.getfixturevalue("market_run" if config == MARKET else "fire_run")
    else:
        folder = tmp_path
        main([*words, *small(config), *length, f"--trainer.default_root_dir={tmp_path}"])
    assert (folder / "checkpoints" / "last.ckpt").exists()
    assert (folder / "report.html").exists() == plain


def test_a_champion_is_tested_and_reported(market_run: Path, tmp_path: Path) -> None:
    folder = ["--trainer.default_root_dir", market_run]
    tests = [re.sub(r"--seeds \d+", "--seeds 2", line) for line in commands("test") if "fuel_breaks" not in line]
    run_all(tests, *folder, "--report=false")
    reports = [line for line in commands("report") if "fuel_breaks" not in line]
    run_all([line.replace("lightning_logs", str(market_run)) for line in reports])
    assert (market_run / "report.html").stat().st_size < 5_000_000
    # the sample goes on after the days of the fit: its holdout
    used = [line.replace("new.parquet", str(sample_path())) for line in (*commands("export"), *commands("predict"))]
    if shutil.which("ssh-keygen") is None:
        used = [line for line in used if "sign" not in line]
    else:
        key = tmp_path / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        (tmp_path / "signers").write_text(f"alice@example.com {key.with_suffix('.pub').read_text()}")
        used = [line.replace("~/.ssh/id_ed25519", str(key)) for line in used]
    run_all(used, *folder, cwd=tmp_path)
    assert (tmp_path / "champion-export" / "actor.onnx").exists()
    # the last day of validation, whose orders fill on the next, and those after it
    assert pd.read_csv(tmp_path / "orders.csv")["date"].nunique() == 61


def test_fuel_breaks_are_tested_and_reported(fire_run: Path) -> None:
    tests = [line for line in commands("test") if "fuel_breaks" in line]
    run_all([line.replace("lightning_logs/fuel_breaks", str(fire_run)) for line in tests], "--report=false")
    reports = [line for line in commands("report") if "fuel_breaks" in line]
    run_all([line.replace("lightning_logs/fuel_breaks", str(fire_run)) for line in reports])
    assert (fire_run / "report.html").stat().st_size < 5_000_000
    told = re.findall(r"^\| `((?:champion|test)/[^`]*)` \|", (ROOT / "docs" / "fire.md").read_text(), re.MULTILINE)
    assert told
    assert all(list(fire_run.glob(name)) for name in told)


def test_every_curve_is_explained(market_run: Path, fire_run: Path) -> None:
    """Each scalar of a run stands in docs/curves.md or is of a group of which one does; and none that no run has."""
    files = [folder / "metrics.csv" for folder in (market_run, fire_run)]
    logged = {name for file in files for name in file.read_text().splitlines()[0].split(",")} - {"generation"}
    page = (ROOT / "docs" / "curves.md").read_text()
    told = {
        name for cell in re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE) for name in re.findall(r"`([\w/]+)`", cell)
    }
    assert told - {"trading/turnover", "memory/gpu_peak_gb"} <= logged  # in mode weights, and on a GPU alone
    groups = ("operators/", "memory/owner/")
    assert {name for name in logged if not any(group in name for group in groups)} <= told


def test_python_example_trains_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    monkeypatch.chdir(tmp_path)
    for generations in (1, 2):
        short = example.replace("population_size=16", "population_size=2")
        Path("example.py").write_text(short.replace("max_epochs=25", f"max_epochs={generations}"))
        runpy.run_path("example.py")
    rows = Path("lightning_logs/python/metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["generation", "0", "1"]
    assert "resumes" in capsys.readouterr().out


def test_the_gymnasium_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks(ROOT / "docs" / "data.md", "python")
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(example, made)
    assert made["env"].reset(seed=1)[0].shape == made["env"].observation_space.shape


@pytest.mark.parametrize("language", ["python", "yaml"])
def test_the_networks_of_the_page_train(language: str, tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "networks.md", language)
    (tmp_path / f"mine.{language.replace('thon', '')}").write_text(text)
    words = ["--model.actor", "mine.TinyActor", "--model.critic", "mine.TinyCritic"]
    words = words if language == "python" else ["--config", "mine.yaml"]
    line = f"python -m eigen2.cli fit --config {ROOT}/tests/small.yaml --data.replay_min_size 3 --trainer.max_epochs 1"
    run_all([line], *words, cwd=tmp_path)
    (row,) = csv.DictReader((tmp_path / "lightning_logs" / "metrics.csv").read_text().splitlines())
    assert float(row["train/critic_loss"]) > 0


@pytest.mark.parametrize("command", commands("data"))
def test_data_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(re.sub(r"prices\.(csv|parquet)", str(sample_path()), command))[3:]
    if words[1] == "learnability":  # which reads what prepare has written
        prices = read_prices(sample_path())
        prices[prices["date"] >= prices["date"].max() - pd.Timedelta(days=900)].to_parquet("few.parquet")
        words[-1] = "few.parquet"
        monkeypatch.setattr("eigen2.market.evaluation.learnability.SHUFFLES", 29)
    if words[1] == "synthesize":
        words += ["--market.days", "400", "--market.columns", "6"]
    main(words)
    assert {word for word in words if word.endswith(".parquet")} <= {path.name for path in tmp_path.iterdir()}
    said = {"synthesize": "Ceiling of", "learnability": "Rank IC"}.get(words[1], "usable rows")
    assert said in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_runs(tmp_path: Path) -> None:
    space = yaml.safe_load((ROOT / "configs" / "sweeps" / "erl.yaml").read_text())
    settings = {key: value for key, value in SMALL[MARKET].items() if key not in space}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run_all(commands("sweep"), *words, "--trials", 1, "--folder", tmp_path)
    with (tmp_path / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert [(trial["state"], trial["generations"]) for trial in trials] == [("complete", "1")]
    assert set(space) <= set(trials[0])
    (page,) = blocks(ROOT / "docs" / "sweeps.md", "yaml")
    assert yaml.safe_load(page).items() <= space.items()


def test_every_command_and_config_of_the_docs_is_run_by_a_test() -> None:
    assert len(commands("")) == sum(len(commands(kind)) for kind in KINDS)
    assert {*QUICK} <= {*TRAINING}
    told = {word for command in commands("fit") for word in command.split() if word.startswith("configs/")}
    assert told == {f"configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")}


def test_commands_that_are_only_shown_have_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Those in `bash` blocks, which need rasters, a bucket or several processes."""
    helps: dict[tuple[str, ...], str] = {}
    text = "".join(block for page in PAGES for block in blocks(page, "bash")).replace("\\\n", " ")
    lines = [line.partition("-m eigen2.cli ")[2] for line in text.splitlines() if "-m eigen2.cli " in line]
    assert len(lines) > 10
    for line in lines:
        words = shlex.split(line, comments=True)
        config = words[words.index("--config") + 1] if "--config" in words else MARKET
        workload = read_yaml(ROOT / config).get("workload", "market") if (ROOT / config).exists() else "market"
        if any("fuel_breaks" in word or "region" in word for word in words):
            workload = "fire"
        command = (*words[: 2 if words[0] in ("data", "fire") else 1],)
        command += ("--workload", workload) if command[0] in ("fit", "validate", "test") else ()
        if command not in helps:
            with pytest.raises(SystemExit) as left:
                main([*command, "--help"])
            assert left.value.code == 0
            helps[command] = capsys.readouterr().out
        for word in words:
            name = word.partition("=")[0].rstrip("+")
            group = name.rpartition(".")[0] or name  # a group that may be null has no keys of its own in the help
            text = helps[command].replace(f"{group}.help", "")
            known = _option(name, text) or (_option(group, text) and f"{group}." not in text)
            assert not name.startswith("--") or known, (line, name)
    assert not _option("--data.no_such", helps["fit", "--workload", "market"])


def _option(name: str, text: str) -> bool:
    return re.search(rf"(?<!\S){re.escape(name)}(?![\w.])", text) is not None


def test_tables_of_the_docs_are_what_the_code_says() -> None:
    """Every defect and limit with its default in docs/data.md; what was measured with fire models in docs/fire.md."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \| (.*)\|$", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE)
    assert {name: action for name, action, _ in rows} == asdict(CleaningPolicy())
    limits = dict(pair for *_, text in rows for pair in re.findall(r"`(\w+)` ([\d.]+)", text))
    assert {name: float(value) for name, value in limits.items()} == asdict(Limits())
    figures = json.loads((ROOT / "docs" / "figures" / "fire-validate.json").read_text())
    cell = r" [\d.]+(?: ± [\d.]+)? \|"
    rows = re.findall(rf"^\| (\w+) \|((?:{cell}){{4}})$", (ROOT / "docs" / "fire.md").read_text(), re.MULTILINE)
    shown = {name: [float(part) for part in re.findall(r"[\d.]+", cells)] for name, cells in rows}
    parts = [figures[key] for key in ("reduction", "standard_error") if key in figures]
    by = ("travel_time", "same_fires", "surface", "crown")
    assert shown == {name: [round(100 * part[name][key], 1) for key in by for part in parts] for name in parts[0]}


def anchors(page: Path) -> set[str]:
    """Return what links to headings of a page are, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_targets_links_and_settings_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Make targets and files that any page names exist, and so do its settings in the help of its workload."""
    makefile, known = (ROOT / "Makefile").read_text(), {}
    for workload in WORKLOADS:
        with pytest.raises(SystemExit):
            main(["fit", "--workload", workload, "--help"])
        known[workload] = capsys.readouterr().out
    for page in PAGES:
        text = page.read_text()
        commands = [*blocks(page, "sh"), *re.findall(r"`(make [^`]+)`", text)]
        for target in re.findall(r"^make ([a-z-]+)", "\n".join(commands), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} speaks of make {target}"
        for link, _, heading in (each.partition("#") for each in re.findall(r"\]\((?!http)([^)]+)", text)):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not heading or heading in anchors(target), f"{page.name} links to #{heading} of {target.name}"
        own = [page.stem] if page.stem in WORKLOADS else ["market", "fire"] if page.stem == "curves" else ["market"]
        helps = "".join(known[each] for each in own)
        keys = re.findall(r"`--?((?:data|model|trainer)\.[\w.]+)|`((?:data|model)\.\w+(?:\.\w+)?)`", text)
        for key in ("".join(pair) for pair in keys):
            assert re.search(rf"--{re.escape(key)}(?![\w])", helps), f"{page.name} speaks of {key}"
