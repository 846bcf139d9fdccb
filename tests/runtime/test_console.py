"""The generation table fits a terminal of 80 columns and shows what it must."""

import contextlib
import math
import os
import pty
import re
import sys
from pathlib import Path

from eigen2.market.datamodule import MarketDataModule
from eigen2.runtime.console import generation_rows, header
from tests.command import ROOT, eigen2

COLUMNS = MarketDataModule.table_columns
METRICS = {
    "fitness/mean": 1234.56,
    "fitness/max": 9876.5,
    "fitness/min": -9876.5,
    "fitness/std": 4321.0,
    "champion/validation_fitness": -1234.5,
    "trading/trades": 125.0,
    "trading/win_rate": 0.5432,
    "train/actor_loss": -12.345,
    "train/critic_loss": 123.456,
    "replay/size": 50_000.0,
    **{f"time/{phase}_s": 99.99 for phase in ("evaluate", "train", "evolve", "validate")},
}


def test_rows_fit_and_align_with_the_header() -> None:
    rows = generation_rows(24, METRICS, 10_000, 123_456_000_000, 98_700_000, 3725.0, COLUMNS)
    assert all(len(line) <= 80 for line in (*header(COLUMNS), *rows))
    assert [len(line) for line in rows] == [len(line) for line in header(COLUMNS)]
    assert rows[0].split() == ["24", "1234.6", "9876.5", "-9876.5", "4321.0", "-1234.5", "125.0", "54.3"]
    assert rows[1].split() == ["-12.345", "123.456", "50,000", *["99.99"] * 4, "123.456", "+98.7", "1:02:05"]


def test_before_training_it_shows_when_training_starts() -> None:
    warming = METRICS | {"train/actor_loss": math.nan, "train/critic_loss": math.nan}
    rows = generation_rows(0, warming, 10_000, 500_000_000, 0, 59.6)
    assert "training starts at 10,000" in rows[1]
    assert rows[1].endswith("1:00")
    assert len(rows[1]) == len(header()[1])


def test_a_workload_without_columns_of_its_own_has_no_empty_ones() -> None:
    first, _ = generation_rows(24, METRICS, 10_000, 0, 0, 0.0)
    assert len(first) == len(header()[0])
    assert first.split()[-1] == "-1234.5"


def in_terminal(*words: str, **environment: str) -> bytes:
    """What a command writes to a terminal."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-m", "eigen2.cli", *words], {**os.environ, **environment})
    output = b""
    with contextlib.suppress(OSError):  # the terminal is gone with the process
        while part := os.read(terminal, 4096):
            output += part
    assert os.waitpid(process, 0)[1] == 0, output
    return output


COLOUR = re.compile(rb"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|9[0-7]|[34]8;)[0-9;]*m")


def test_colours_and_bars_are_for_terminals(tmp_path: Path) -> None:
    words = *("fit", "--config", "tests/small.yaml"), "--trainer.enable_progress_bar=true", "--trainer.max_epochs=1"
    assert COLOUR.search(b"\x1b[31mred")
    assert COLOUR.search(b"\x1b[1;38;5;9mred")
    output = in_terminal(*words, "--trainer.default_root_dir", str(tmp_path / "a"), TERM="xterm-256color", NO_COLOR="1")
    assert b"\x1b[1m" in output  # headings are bold
    assert not COLOUR.search(output)
    done = eigen2(*words, "--trainer.default_root_dir", tmp_path / "b")
    for text in (done.stdout, done.stderr):
        assert "\x1b" not in text
        assert "\r" not in text
