"""What the README and docs/ tell a reader to do, done."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import yaml

from eigen2.cli.main import main
from eigen2.cli.training import WORKLOADS
from eigen2.market.data.cleaning.policy import Limits, Policy
from eigen2.market.data.sample import sample_path
from tests.command import ROOT, eigen2

KINDS = ("fit", "validate", "test", "report", "predict", "export", "data", "sweep")
FIRE = "configs/dqn_fuel_breaks.yaml"
SMALL_FIRE = {
    **{"data.grid_size": 10, "data.num_landscapes": 2, "data.eval_landscapes": 1, "data.test_landscapes": 2},
    **{"data.ignitions": 16, "data.warmup": 8, "data.batch_size": 8, "model.width": 4, "model.validate_every": 1},
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def python(folder: Path, *words: str) -> str:
    """What Python prints in a folder of a user's, where eigen2 is installed; it must succeed."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_example_trains_and_resumes(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    for generations in (1, 2):
        script = tmp_path / "example.py"
        short = example.replace("population_size=16", "population_size=2")
        script.write_text(short.replace("max_epochs=25", f"max_epochs={generations}"))
        printed = python(tmp_path, str(script))
    rows = (tmp_path / "lightning_logs" / "python" / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["generation", "0", "1"]
    assert "resumes" in printed


def test_the_gymnasium_example_runs(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "docs" / "data.md", "python")
    check = "print(env.reset(seed=1)[0].shape, envs.reset(seed=1)[0].shape)"
    printed = python(tmp_path, "-c", example + check)
    assert re.fullmatch(r"\((\d+),\) \(64, \1\)\n", printed)


@pytest.mark.parametrize("language", ["python", "yaml"])
def test_the_networks_of_the_page_train(language: str, tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "networks.md", language)
    if language == "python":
        (tmp_path / "mine.py").write_text(text)
        words = ["--model.actor", "mine.TinyActor", "--model.critic", "mine.TinyCritic"]
    else:
        (tmp_path / "mine.yaml").write_text(text)
        words = ["--config", "mine.yaml"]
    small = ["--config", str(ROOT / "tests" / "small.yaml"), "--data.replay_min_size", "3", "--trainer.max_epochs", "1"]
    done = eigen2("fit", *small, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = csv.DictReader((tmp_path / "lightning_logs" / "metrics.csv").read_text().splitlines())
    assert float(row["train/critic_loss"]) > 0


def commands(kind: str) -> list[str]:
    """Lines of README and docs/ that run eigen2, of one subcommand."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if line.startswith(f"python -m eigen2.cli {kind}")))


@pytest.mark.parametrize("command", [*commands("fit"), *commands("validate")])
def test_training_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = [word for word in command.split() if word != "prices.parquet" or "--data.path" not in command]
    if "--data.path" in words:
        words.insert(words.index("--data.path") + 1, str(sample_path()))
    short = {"data.windows_per_generation": 1, "data.exploration_windows": 1, "data.replay_min_size": 2000}
    shorter = {"model.gradient_steps": 1, "model.population_size": 2}
    if FIRE in words:
        short, shorter = SMALL_FIRE, {}
    shorter |= {"trainer.max_epochs": 1, "trainer.default_root_dir": tmp_path, "report": False}
    main([*words[3:], *(f"--{key}={value}" for key, value in (short | shorter).items())])
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()


def run_all(lines: list[str], *words: object, cwd: Path = ROOT) -> None:
    """Run commands with more options; all must succeed."""
    assert lines
    for line in lines:
        done = eigen2(*line.split()[3:], *words, cwd=cwd)
        assert done.returncode == 0, done.stderr


def test_a_champion_is_tested_and_reported(tmp_path: Path) -> None:
    """The commands of the pages on one short run of the configuration that they name."""
    folder = ["--trainer.default_root_dir", tmp_path]
    small = ["--model.gradient_steps=1", "--model.population_size=2", *folder]
    assert eigen2("fit", "--config", "configs/erl.yaml", "--trainer.max_epochs=1", *small).returncode == 0
    run_all([line for line in commands("test") if FIRE not in line], *small)
    run_all([line.replace("lightning_logs", str(tmp_path)) for line in commands("report") if "fuel_breaks" not in line])
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    # the sample goes on after the days of the fit: its holdout
    shutil.copy(sample_path(), tmp_path / "new.parquet")
    run_all([*commands("predict"), *commands("export")], *folder, cwd=tmp_path)
    assert (tmp_path / "champion-export" / "actor.onnx").exists()
    # the last day of validation, whose orders fill on the next, and those after it
    assert pd.read_csv(tmp_path / "orders.csv")["date"].nunique() == 253


def test_fuel_breaks_are_tested_and_reported(tmp_path: Path) -> None:
    """The same of docs/fire.md."""
    small = [f"--{key}={value}" for key, value in SMALL_FIRE.items()]
    small += ["--trainer.max_epochs=1", f"--trainer.default_root_dir={tmp_path}"]
    assert eigen2("fit", "--config", FIRE, *small).returncode == 0
    run_all([line for line in commands("test") if FIRE in line], *small)
    reports = [line for line in commands("report") if "fuel_breaks" in line]
    run_all([line.replace("lightning_logs/fuel_breaks", str(tmp_path)) for line in reports])
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    told = re.findall(r"^\| `((?:champion|test)/[^`]*)` \|", (ROOT / "docs" / "fire.md").read_text(), re.MULTILINE)
    assert len(told) == 4
    assert all(list(tmp_path.glob(name)) for name in told)


def test_the_table_of_fire_models_is_what_was_measured() -> None:
    found = json.loads((ROOT / "docs" / "figures" / "fire-validate.json").read_text())["reduction"]
    rows = re.findall(r"^\| (\w+) \|((?: [\d.]+ \|){4})$", (ROOT / "docs" / "fire.md").read_text(), re.MULTILINE)
    shown = {name: [float(cell) for cell in cells.split("|")[:-1]] for name, cells in rows}
    by = ("travel_time", "same_fires", "surface", "crown")
    assert shown == {name: [round(100 * each[key], 1) for key in by] for name, each in found.items()}


def test_every_config_is_in_the_docs() -> None:
    """And so run, by the test above."""
    told = {word for command in commands("fit") for word in command.split() if word.startswith("configs/")}
    assert told == {f"configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")}


@pytest.mark.parametrize("command", commands("data"))
def test_data_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(sample_path(), "prices.parquet")
    words = shlex.split(command)[3:]
    main(words)
    written = {word for word in words if word.endswith(".parquet")}
    assert written <= {path.name for path in tmp_path.iterdir()}
    assert ("usable rows" if words[1] != "synthesize" else "Ceiling of") in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_runs(tmp_path: Path) -> None:
    (command,) = commands("sweep")
    short = {"data.windows_per_generation": 1, "trainer.max_epochs": 1, "model.population_size": 2}
    words = [word for key, value in short.items() for word in ("--set", f"{key}={value}")]
    done = eigen2(*command.split()[3:], *words, "--trials", 1, "--folder", tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    space = yaml.safe_load((ROOT / "configs" / "sweeps" / "erl.yaml").read_text())
    assert [(trial["state"], trial["generations"]) for trial in trials] == [("complete", "1")]
    assert set(space) <= set(trials[0])
    (page,) = blocks(ROOT / "docs" / "sweeps.md", "yaml")
    assert yaml.safe_load(page).items() <= space.items()


def test_every_command_of_the_docs_is_run_by_a_test() -> None:
    assert len(commands("")) == sum(len(commands(kind)) for kind in KINDS)


def test_the_table_of_defects_is_the_policy() -> None:
    """Every defect with its default, and every limit with its default, stand in docs/data.md."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \| (.*)\|$", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE)
    assert {name: action for name, action, _ in rows} == asdict(Policy())
    limits = dict(pair for *_, text in rows for pair in re.findall(r"`(\w+)` ([\d.]+)", text))
    assert {name: float(value) for name, value in limits.items()} == asdict(Limits())


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "sh")), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} speaks of make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_curve_is_explained(tmp_path: Path) -> None:
    """Each scalar of a run stands in docs/curves.md or is of a group of which one does; and none that no run has."""
    fire = [f"--{key}={value}" for key, value in SMALL_FIRE.items()]
    logged = set()
    for config, words in (("tests/small.yaml", []), (FIRE, ["--trainer.max_epochs=2", "--report=false", *fire])):
        root = tmp_path / Path(config).stem
        done = eigen2("fit", "--config", config, "--trainer.default_root_dir", root, *words)
        assert done.returncode == 0, done.stderr
        logged |= set((root / "metrics.csv").read_text().splitlines()[0].split(",")) - {"generation"}
    page = (ROOT / "docs" / "curves.md").read_text()
    told = set(re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE))
    told = {name for cell in told for name in re.findall(r"`([\w/]+)`", cell)}
    assert told <= logged
    groups = ("operators/offspring_", "memory/owner/", "memory/objects/", "_delta_mb")
    shown = {name for name in logged if any(group in name for group in groups)}
    shown |= {name for name in logged if name.startswith("operators/")}  # of the other kinds
    assert logged - shown <= told


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "configuration.md"], ids=lambda page: page.name
)
def test_settings_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [page.stem] if page.stem in WORKLOADS else ["market", "fire"] if page.stem == "curves" else ["market"]
    for workload in own:
        with pytest.raises(SystemExit):
            main(["fit", "--workload", workload, "--help"])
    known = capsys.readouterr().out
    for key in re.findall(r"`--?((?:data|model|trainer)\.[\w.]+)", page.read_text()):
        assert f"--{key}" in known, f"{page.name} speaks of {key}"
    for key in re.findall(r"`((?:data|model)\.\w+(?:\.\w+)?)`", page.read_text()):
        assert f"--{key}" in known, f"{page.name} speaks of {key}"
