"""The generation table fits a terminal of 80 columns and shows what it must."""

import contextlib
import math
import os
import re
import termios
import threading
from pathlib import Path

import pytest

from eigen2.erl.module import ERLModule
from eigen2.market.datamodule import MarketDataModule
from eigen2.runtime.console import GenerationReport, table
from eigen2.runtime.reliability import selection_verdict
from tests.command import Started, eigen2
from tests.erl.probe import AIM, ProbeRollouts, make_trainer

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
    sizes = {"training_starts": 10_000, "rss": 123_456_000_000, "growth": 98_700_000}
    header, rows = table(24, METRICS, left_s=3725.0, extra=MarketDataModule.table_columns, **sizes)
    assert [len(line) for line in rows] == [len(line) for line in header]
    assert max(map(len, header)) <= 80
    assert rows[0].split() == ["24", "1234.6", "9876.5", "-9876.5", "4321.0", "-1234.5", "125.0", "54.3"]
    assert rows[1].split() == ["-12.345", "123.456", "50,000", *["99.99"] * 4, "123.456", "+98.7", "1:02:05"]
    # before training, for a workload without additional columns
    warming = METRICS | {"train/actor_loss": math.nan, "train/critic_loss": math.nan}
    first, second = table(0, warming, left_s=59.6, **sizes)
    assert [len(line) for line in second] == [len(line) for line in first]
    assert (second[0].split()[-1], second[1].split()[:4]) == ("-1234.5", ["training", "starts", "at", "10,000"])
    assert first[1].split()[:4] == header[1].split()[:4]
    assert second[1].endswith("1:00")
    assert table(0, warming, left_s=math.inf, **sizes)[1][1].endswith("       -")


def test_a_run_without_an_end_shows_none(tmp_path: Path) -> None:
    timer = ("--trainer.callbacks+=lightning.pytorch.callbacks.Timer", "--trainer.callbacks.interval=epoch")
    words = ("fit", "--config", "tests/small.yaml", "--trainer.enable_progress_bar=true", "--trainer.max_epochs=-1")
    duration = "--trainer.callbacks.duration={seconds: 1}"
    done = eigen2(*words, *timer, duration, "--trainer.default_root_dir", tmp_path)
    assert done.returncode == 0, done.stderr
    (row, *_) = re.findall(r"left\n.*\n(.*)", done.stdout)
    assert row.endswith("  -")
    output = in_terminal(*words, *timer, duration, "--trainer.default_root_dir", str(tmp_path / "b"))
    assert b"generation 1, evaluate" in output
    assert b"/-1" not in output


def test_the_verdict_on_selection_is_of_the_last_generations() -> None:
    def generation(reliability: float, survival: float) -> dict[str, float]:
        return {
            "fitness/reliability": reliability,
            "operators/elite_survival": survival,
            "operators/elite_share": 0.5,
        }

    noise = [generation(-0.1, 0.5), generation(0.3, 0.46)]
    verdict = (
        "does not tell agents apart: selection is chance (reliability 0.10; 48% of elites stay elites, 50% by chance)"
    )
    assert selection_verdict([generation(math.nan, math.nan), *noise]) == f"fitness {verdict}"
    skill = selection_verdict([*noise, *[generation(0.8, 0.75)] * 10])
    assert skill == "fitness tells agents apart (reliability 0.80; 75% of elites stay elites, 50% by chance)"
    mixed = selection_verdict([generation(0.8, 0.3), generation(0.8, 0.75)] * 5)
    assert mixed is not None
    assert "within a generation, not from one to the next (reliability 0.80; 52%" in mixed, "by less than two errors"
    luck = selection_verdict([generation(0.4, 0.45)] * 2)
    assert luck is not None
    assert "within a generation, not from one to the next (reliability 0.40; 45%" in luck
    assert selection_verdict([METRICS]) is None
    header, _ = table(0, noise[0], training_starts=1, rss=1, growth=0, left_s=0.0)
    assert "elites %" in header[0]


def test_a_second_fit_has_a_table_and_a_verdict_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    report, module = GenerationReport(), ERLModule(4, gradient_steps=1)
    for _ in range(2):
        make_trainer(report, epochs=1, enable_progress_bar=True).fit(module, datamodule=ProbeRollouts(AIM))
        assert capsys.readouterr().out.count("fitness mean") == 1
        assert len(report._generations) == 1


COLOUR = re.compile(rb"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|9[0-7]|[34]8;)[0-9;]*m")


def in_terminal(*words: str, **environment: str) -> bytes:
    """Return what a command writes to a terminal."""
    controller, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    output = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the terminal closes with the process
            while part := os.read(controller, 4096):
                output.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    done = Started(words, env={**os.environ, **environment}, outputs=[os.ttyname(terminal)] * 2).ended()
    os.close(terminal)
    reader.join()
    os.close(controller)
    assert done.returncode == 0, output
    return bytes(output)


def test_colours_and_bars_are_for_terminals(tmp_path: Path) -> None:
    words = *("fit", "--config", "tests/small.yaml"), "--trainer.enable_progress_bar=true", "--trainer.max_epochs=1"
    assert COLOUR.search(b"\x1b[31mred")
    assert COLOUR.search(b"\x1b[1;38;5;9mred")
    output = in_terminal(*words, "--trainer.default_root_dir", str(tmp_path / "a"), TERM="xterm-256color", NO_COLOR="1")
    assert b"\x1b[1m" in output  # headings are bold
    shown = re.findall(rb"generation 1/1, (\w+)(?: (\d+)%)?", output)
    assert list(dict.fromkeys(phase for phase, _ in shown)) == [
        b"evaluate",
        b"train",
        b"evolve",
        b"validate",
        b"checkpoint",
    ]
    evaluated, trained = (
        [int(done) for phase, done in shown if phase == name and done] for name in (b"evaluate", b"train")
    )
    assert evaluated == [5 * step for step in range(1, 20)]  # a window of 20 days has 19 steps
    assert trained == sorted(trained)
    assert not COLOUR.search(output)
    done = eigen2(*words, "--trainer.default_root_dir", tmp_path / "b")
    assert "champion" in done.stdout
    for text in (done.stdout, done.stderr):
        assert "\x1b" not in text
        assert "\r" not in text
