"""The examples for clusters do what they say, as far as that shows without a cluster."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.command import ROOT
from tests.distributed.test_processes import GENERATIONS, RUN, assert_same, fit, folder

SMALL = RUN[1:]  # without the command
SRUN = """#!/bin/bash
# as SLURM starts the tasks of one node
for id in $(seq 0 $((SLURM_NTASKS - 1))); do
  SLURM_PROCID=$id SLURM_LOCALID=$id SLURM_NODEID=0 "$@" &
  tasks="$tasks $!"
done
for task in $tasks; do wait "$task" || exit $?; done
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Programs of this environment first, and an srun."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(SRUN)
    srun.chmod(0o755)
    return f"{srun.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.mark.slow
def test_slurm(path: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / "slurm.sbatch"
    asked = [line.split("=", 1) for line in script.read_text().splitlines() if line.startswith("#SBATCH --")]
    options = {name.removeprefix("#SBATCH --"): (value or [""])[0] for name, *value in asked}
    assert options["nodes"] == "2"
    assert options["ntasks-per-node"] == "4"
    assert options["signal"] == "USR1@120"
    slurm = {"SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "4711"}
    slurm |= {"SLURM_JOB_NAME": options["job-name"], "SLURM_NODELIST": "127.0.0.1", "PATH": path}
    words = ["bash", str(script), *SMALL, *folder(tmp_path / "run")]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **slurm}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_same(fit(1, tmp_path / "whole", ("fit", "--config", "configs/erl.yaml", *SMALL)), tmp_path / "run")


def test_kubernetes_knows_every_word() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    documents = list(yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Service", "PersistentVolumeClaim", "Job"]
    for document in documents:
        validate.validate(document, "1.30", strict=True)
    service, claim, job = documents
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    command = pod["containers"][0]["command"]
    assert f"--nnodes={job['spec']['completions']}" in command
    assert f"--rdzv_endpoint={job['metadata']['name']}-0.{pod['subdomain']}:29500" in command


@pytest.mark.slow
def test_what_the_pods_run(tmp_path: Path) -> None:
    *_, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text())
    command = [
        "--nproc_per_node=1" if word.startswith("--nproc") else word.replace("eigen2-0.eigen2:29500", "127.0.0.1:29511")
        for word in job["spec"]["template"]["spec"]["containers"][0]["command"]
    ]
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    assert torchrun is not None
    words = [torchrun, *command[1:], *SMALL, *folder(tmp_path / "run")]
    pods = [subprocess.Popen(words, cwd=ROOT, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    for pod in pods:
        _, errors = pod.communicate(timeout=300)
        assert pod.returncode == 0, errors
    config = ("fit", "--config", "configs/erl.yaml", *SMALL)
    assert_same(fit(1, tmp_path / "whole", config, GENERATIONS), tmp_path / "run")
