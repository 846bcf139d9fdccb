"""The command line end to end: runs, errors of one line, and help."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningCLI

from eigen2.cli.main import main
from eigen2.market.data.sample import sample_path
from tests.command import ROOT, eigen2
from tests.runs import contents

SMALL = ["--config", "tests/small.yaml"]


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def refusal(capsys: pytest.CaptureFixture[str], *options: object, command: str = "fit") -> str:
    """Run a command that must exit with code 2; return its error, which must be one line."""
    with pytest.raises(SystemExit) as error:
        main([command, *SMALL, *map(str, options)])
    captured = capsys.readouterr()
    assert error.value.code == 2
    lines = [line for line in captured.err.splitlines() if line.strip() and not line.startswith("Seed set")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model.population_size 0", "model.population_size is 0; it must be at least 1"),
        ("--model.population_size three", "model.population_size is three; it must be int"),
        ("--model.populatio_size 3", "unknown key model.populatio_size: did you mean model.population_size?"),
        ("--data.no_such_key 3", "unknown key data.no_such_key: --help lists the keys"),
        ("--model.populat 3", "unknown key model.populat: did you mean model.population_size?"),
        ("--data.min_target 1", "unknown key data.min_target: did you mean data.rules.min_target?"),
        ("--cost_bps 1", "unknown key cost_bps: did you mean data.rules.cost_bps?"),
        ("--trainer.max_epochs 0", "trainer.max_epochs is 0; give at least 1 generation, or -1 for no end"),
        (f"--model.noise {10**400}", "a setting is a whole number beyond 1e308; write a smaller one"),
        (f"--trainer.num_nodes {10**12}", "trainer.devices x num_nodes is 1000000000000; it must be at most"),
        ("--trainer.devices foo", "trainer.devices is 'foo': give a number, a list of numbers, or auto"),
        ("--model.learner 3", "model.learner is 3; it must be Learner"),
        ("--model.actor mine.Actor", "model.actor names a class that cannot be used: No module named 'mine'"),
        ("--model.learner eigen2.TD3 --model.learner.policy_delay 0", "policy_delay is 0; it must be"),
        ("--model.gamma 1.5", "model.gamma is 1.5; it must be at least 0 and at most 1"),
        ("--data.rules.cost_bps -3", "data.rules.cost_bps is -3.0; it must be at least 0"),
        ("--data.rules.cost_bps abc", "data.rules.cost_bps is abc; it must be float"),
        ("--data.replay_min_size 501", "more than data.replay_capacity 500"),
        ("--data.replay_capacity 900000000000", "GB available; lower data.replay_capacity"),
        ("--data.context_days 200", "260 days leave 200 to train on before 30 validation and 30 holdout days"),
        ("--data.synthetic null --data.path missing.parquet", "no price file at 'missing.parquet'"),
        ("--data.synthetic null --data.path tests", "no price file at 'tests': it is a directory"),
        ("--data.path a.csv", "data.path a.csv and data.synthetic are both given"),
        ("--trainer.precision 16-mixed", "trainer.precision 16-mixed needs a loss scaler"),
        ("--trainer.max_time 00:00:01:00", "trainer.max_time would stop in the middle of a generation"),
        ('--trainer.max_time={"hours":1}', "trainer.max_time is "),
        ("--trainer.accumulate_grad_batches 2", "use model.accumulate"),
        ("--trainer.gradient_clip_val 1", "use model.max_grad_norm"),
        ("--trainer.barebones true", "trainer.barebones is True; leave it out"),
        ("--trainer.limit_test_batches 0", "trainer.limit_test_batches is 0; leave it out"),
        ("--trainer.fast_dev_run 1 --ckpt_path best", "there is no checkpoint at "),
        ("--config", "--config needs a file: see --help"),
        ("--trainer.accelerator tpu", "trainer: Requirement 'torch_xla"),
        ("--trainer.callbacks+=callbacks.Nope", "module 'callbacks' has no attribute 'Nope'"),
        ("--trainer.default_root_dir /proc/nowhere", "cannot write to trainer.default_root_dir /proc/nowhere"),
        ("--ckpt_path nope.ckpt", "there is no checkpoint at nope.ckpt"),
        ("--ckpt_path tests", "there is no checkpoint at tests"),
        ("--config nope.yaml", "--config nope.yaml cannot be read: No such file or directory; name another file"),
        ("prices.csv", "prices.csv belongs to no option: see --help"),
        ("mine.yaml", "mine.yaml belongs to no option: did you mean --config mine.yaml?"),
        ("--seed_everything -1", "seed_everything is -1; it must be at least 0"),
        ("--num_threads 0", "num_threads is 0; it must be at least 1"),
        ("--matmul_precision low", "matmul_precision is low; it must be highest or high or medium"),
    ],
)
def test_bad_input_is_one_line(options: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert message in refusal(capsys, "--trainer.default_root_dir", tmp_path, *options.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n  population_sise: 3\n", "unknown key model.population_sise: did you mean model.population_size?"),
        ("trainer:\n  callbacks:\n    - class_path: callbacks.MemoryProfiler\n      init_args: {wach: []}\n", "wach"),
        ("data: [1, 2\n", "wrong.yaml line 2, column 1 is not YAML: expected ',' or ']'"),
        ("\tmodel:\n", "wrong.yaml line 1, column 1 is not YAML: found character"),
        ("data:\n  rules:\n    execution: noon\n", "data.rules.execution is noon; it must be next_open or close"),
        ("model:\n  noise: null\n", "model.noise is null; it must be float"),
        ('model:\n  population_size: "\\e[31mred"\n', "model.population_size is \\x1b[31mred; it must be int"),
        ("just text\n", "has no settings: write keys and values as --print_config does"),
        ("", "has no settings"),
    ],
)
def test_bad_yaml_is_one_line(text: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "wrong.yaml"
    config.write_text(text)
    line = refusal(capsys, "--config", config, "--trainer.default_root_dir", tmp_path)
    assert message in line
    assert line.startswith((f"{config}: ", f"--config {config} ")) or "wach" in line  # of a class in a list


def test_an_option_is_no_error_of_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "right.yaml"
    config.write_text("model:\n  population_size: 3\n")
    line = refusal(capsys, "--config", config, "--model.population_size", "many")
    assert line.startswith("model.population_size is many; it must be int")


@pytest.mark.parametrize("name", ["callbacks.py", "callbacks/__init__.py"])
def test_callbacks_of_the_working_folder_are_not_taken_for_eigen2s(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.touch()
    for module in [module for module in sys.modules if module.partition(".")[0] == "callbacks"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal(capsys).startswith(f"{own} would be imported in place of eigen2's callbacks; rename it, or run")


def test_options_override_files_wherever_they_stand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "right.yaml"
    config.write_text("model:\n  population_size: 3\n")
    for words in (["--config", str(config)], [f"--config={config}"]):
        with pytest.raises(SystemExit):
            main(["fit", "--model.population_size", "5", *words, "--print_config"])
        assert "population_size: 5" in capsys.readouterr().out


def test_a_configuration_that_is_written_out_gives_the_workload(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["fit", "--config={workload: control, data: {env_id: Pendulum-v1}}", "--print_config"])
    assert error.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["env_id"] == "Pendulum-v1"


def test_bad_files_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torn, prices, damaged, foreign = (tmp_path / name for name in ("a.parquet", "b.csv", "c.ckpt", "d.ckpt"))
    torn.write_bytes(b"PAR1" + bytes(2000))
    dates = pd.bdate_range("2020-01-01", periods=60)
    frame = pd.DataFrame({"date": dates, "ticker": "A", **dict.fromkeys(["open", "high", "low", "volume"], 1.0)})
    frame.to_csv(prices, index=False)
    damaged.write_bytes(b"PK\x03\x04 not a checkpoint")
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.6"}, foreign)
    options = ["--trainer.default_root_dir", tmp_path / "run", "--data.synthetic", "null", "--data.path"]
    assert "a.parquet' cannot be read as Parquet" in refusal(capsys, *options, torn)
    assert "lacks the columns close" in refusal(capsys, *options, prices)
    frame.assign(close=1.0).to_csv(prices, index=False)
    assert "60 days" in refusal(capsys, *options, prices, "--data.context_days", 50)
    for path, message in ((damaged, f"checkpoint {damaged} cannot be read"), (foreign, "or eigen2 did not write it")):
        assert message in refusal(capsys, *options[:2], "--ckpt_path", path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run, in its own process because live objects are counted."""
    root = tmp_path_factory.mktemp("run")
    result = eigen2("fit", *SMALL, "--trainer.default_root_dir", root)
    assert result.returncode == 0, result.stderr
    return root


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_validate_reproduces_the_fit_and_keeps_its_curves(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = (run / "metrics.csv").read_text()
    best = max(float(row["champion/validation_fitness"]) for row in table(run / "metrics.csv"))
    folder = ["--trainer.default_root_dir", str(run)]
    for path in (["--ckpt_path", "best"], []):  # which is the default
        main(["validate", *SMALL, *folder, *path])
        shown = f"champion     validation fitness {best:.4f} (log return, % a window)"
        assert shown in capsys.readouterr().out.splitlines()
        assert (run / "metrics.csv").read_text() == curves


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--trainer.max_epochs 3 --ckpt_path last",
            "the run has had 4 generations: raise trainer.max_epochs, now 3, to",
        ),
        (
            "--trainer.max_epochs 5 --trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor nope",
            "`nope` which is not available",
        ),
    ],
)
def test_what_a_resumed_run_cannot_take_is_one_line(
    options: str, message: str, run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    assert message in refusal(
        capsys, "--trainer.default_root_dir", tmp_path / "run", "--ckpt_path", "last", *options.split()
    )


def test_a_run_may_lie_in_the_home_folder(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "run")
    monkeypatch.setenv("HOME", str(tmp_path))
    main(["fit", *SMALL, "--trainer.default_root_dir=~/run", "--trainer.max_epochs=5", "--ckpt_path=last"])
    assert len(table(tmp_path / "run" / "metrics.csv")) == 5
    capsys.readouterr()
    for path in ("best", "~/run/checkpoints/best.ckpt"):
        main(["validate", "--trainer.default_root_dir=~/run", f"--ckpt_path={path}"])
    assert capsys.readouterr().out.count("validation fitness") == 2
    assert not (ROOT / "~").exists()


def test_a_seed_of_the_environment_that_is_no_number_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "abc")
    line = refusal(capsys, "--trainer.default_root_dir", tmp_path, "--seed_everything", "false")
    assert line == "the environment variable PL_GLOBAL_SEED is 'abc'; unset it, or give a whole number"


def test_a_refused_run_leaves_the_previous_run_unchanged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    refusal(capsys, "--trainer.default_root_dir", run, "--data.replay_capacity", "900000000000")
    assert contents(run) == before


def test_metrics_of_every_generation(run: Path) -> None:
    rows = table(run / "metrics.csv")
    assert [row["generation"] for row in rows] == ["0", "1", "2", "3"]
    names = [f"fitness/{k}" for k in ("mean", "max", "min", "std")] + ["champion/validation_fitness"]
    names += [f"train/{k}" for k in ("actor_loss", "critic_loss", "q_mean", "action_saturation")]
    names += ["trading/trades", "trading/win_rate", "replay/size", "replay/utilization", "memory/rss_gb"]
    names += [f"time/{k}_s" for k in ("evaluate", "train", "evolve", "validate", "generation")]
    assert set(names) <= rows[0].keys()
    assert rows[0]["train/critic_loss"] == ""  # the buffer was not full enough yet
    assert all(rows[-1][name] != "" for name in names)
    memory = table(run / "memory.csv")
    phases = ["evaluate", "train", "evolve", "validate", "generation"]
    assert [(row["generation"], row["phase"]) for row in memory] == [("0", "baseline")] + [
        (str(g), phase) for g in range(4) for phase in phases
    ]
    last = memory[-1]
    assert int(last["rss_bytes"]) > int(last["owner_replay_bytes"]) > 0


def test_bf16_mixed_runs_and_differs(run: Path, tmp_path: Path) -> None:
    args = ["fit", *SMALL, "--trainer.max_epochs", "2", "--report", "false", "--trainer.precision", "bf16-mixed"]
    main([*args, "--trainer.default_root_dir", str(tmp_path)])
    full, half = (float(table(folder / "metrics.csv")[1]["train/critic_loss"]) for folder in (run, tmp_path))
    assert full != half
    assert half == pytest.approx(full, rel=0.5)


def test_a_diverging_run_ends_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Steps of 1e30 break every agent in the second generation, the first that trains; the checkpoint stays."""
    with pytest.raises(SystemExit) as error:
        main(["fit", *SMALL, "--trainer.default_root_dir", str(tmp_path), "--model.critic_lr", "1e30"])
    assert error.value.code == 4
    stderr = capsys.readouterr().err
    assert "Traceback" not in stderr
    (line,) = [line for line in stderr.splitlines() if "all agents (4) failed in generation 1" in line]
    assert "critic gradient; start again with a lower" in line
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["epoch"] == 0
    assert last["state_dict"]["population.critic"].abs().max() < 100


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--help", "Test a checkpoint's champion on data not used in its fit, against baselines and luck."),
        ("fit --model.learner.help=eigen2.TD3", "Optimizer steps of the critics for each of the actor"),
        ("fit --data.synthetic.help", "--data.synthetic.columns COLUMNS"),
        ("sweep --help", "--prune_after.generations"),
    ],
)
def test_help(args: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(args.split())
    assert error.value.code == 0
    assert message in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("", "error: a command is missing; choose from fit, validate, test, predict, export, report, data, sweep, "),
        ("exprot", "sweep, fire, and see its options with --help: did you mean export?"),
        ("--config tests/small.yaml fit", "error: --config must follow a command; choose from fit, validate, test, "),
        ("report", "error: folder is missing: see --help"),
        ("sweep", "error: --config is missing: see --help"),
        ("report --outptu x run", "error: unknown key outptu: did you mean output?"),
        ("data synthesize --out x.parquet", "error: out is no option: give its value without --out"),
        ("export --onnx", "error: --onnx needs a value: see --help"),
    ],
)
def test_a_bad_command_or_option_is_one_line(args: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(args.split())
    stderr = capsys.readouterr().err
    assert error.value.code == 2
    assert message in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("data", "error: a command is missing; choose from inspect, prepare, learnability, synthesize: see --help"),
        ("data prepare", "error: prepare needs IN OUT.parquet: see --help"),
        ("data inspect", "error: inspect needs FILE: see --help"),
        ("predict", "error: --data.path is missing: see --help"),
    ],
)
def test_what_is_missing_is_named(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert capsys.readouterr().err.splitlines() == [line]


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m eigen2.cli data inspect {sample_path()} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("load", "options", "said"),
    [
        ([97.0, 45.0], ["--num_threads=2"], "num_threads is 2, but only 0.6 of 2 cores are idle"),
        ([12.0, 30.0], ["--num_threads=2"], ""),
        ([97.0, 45.0], ["--num_threads=1"], ""),
        ([12.0, 30.0], ["--num_threads=3"], "num_threads is 3, but only 1.6 of 2 cores are idle"),
    ],
)
def test_a_fit_tells_that_too_few_cores_are_idle(
    load: list[float],
    options: list[str],
    said: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda *given, **more: load)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    refusal(capsys, *options, "--model.population_size=0")  # once the threads are set
    warnings = [record.getMessage() for record in caplog.records if "num_threads" in record.getMessage()]
    assert len(warnings) == bool(said)
    assert said in "".join(warnings)
    caplog.clear()
    monkeypatch.setenv("LOCAL_RANK", "1")
    refusal(capsys, *options, "--model.population_size=0")
    assert not caplog.records


@pytest.mark.parametrize(
    ("command", "given", "gpus", "devices"),
    [
        ("fit", "[2, 3]", True, [2, 3]),
        ("fit", "2,3", True, [2, 3]),
        ("fit", "2,3", False, 2),
        ("fit", "2", True, 2),
        ("fit", "[3]", True, None),
        ("validate", "[3]", True, [3]),
        ("validate", "[3]", False, 1),
        ("test", "4", True, 1),
    ],
)
def test_gpus_that_are_listed_are_used(
    command: str,
    given: str,
    gpus: bool,
    devices: object,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[dict[str, object]]()

    def make(cli: LightningCLI, **settings: object) -> None:
        made.append(settings)
        raise ValueError("no such device")

    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus)
    monkeypatch.setattr(LightningCLI, "instantiate_trainer", make)
    monkeypatch.setattr("eigen2.cli.training.with_settings_of_fit", lambda args, root: args)
    given_words = "--trainer.accelerator=auto", f"--trainer.devices={given}"
    assert refusal(capsys, *given_words, command=command) == "trainer: no such device"
    assert made[0].get("devices") == devices


def test_a_slurm_job_that_lightning_refuses_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert "`--ntasks-per-node=4`" in refusal(capsys, f"--trainer.default_root_dir={tmp_path}")
