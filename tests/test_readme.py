"""What the README and docs/ tell a reader to do, done."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from eigen2.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_python_example_trains_and_resumes(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    for generations in (1, 2):
        script = tmp_path / "example.py"
        script.write_text(example.replace("max_epochs=25", f"max_epochs={generations}"))
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    rows = (tmp_path / "lightning_logs" / "python" / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["generation", "0", "1"]
    assert "resumes" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        line
        for page in PAGES
        for block in blocks(page, "sh")
        for line in block.splitlines()
        if line.startswith("python -m eigen2.cli")
    ],
)
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    words = [word for word in command.split() if word != "prices.parquet" or "--data.path" not in command]
    if "--data.path" in words:
        words.insert(words.index("--data.path") + 1, "eigen2/market/sample/stocks.parquet")
    short = ["--trainer.max_epochs", "1", "--model.gradient_steps", "1", "--trainer.default_root_dir", str(tmp_path)]
    main([*words[3:], *short])
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "sh")), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} speaks of make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    known = capsys.readouterr().out
    for key in re.findall(r"`--?((?:data|model|trainer)\.[\w.]+)", page.read_text()):
        assert f"--{key}" in known, f"{page.name} speaks of {key}"
    for key in re.findall(r"`((?:data|model)\.\w+(?:\.\w+)?)`", page.read_text()):
        assert f"--{key}" in known, f"{page.name} speaks of {key}"
