"""Replaces `fit` in tests of sweeps: a process of milliseconds whose fitness is a function of its settings.

The fitness after generation g of 4 is 10 g - |model.noise|; a generation takes `model.noise_decay` seconds. Metrics,
resume, signals and errors are those of fit; it fails if another process uses its folder.
"""

import fcntl
import signal
import sys
import time
from pathlib import Path

KNOWN = ("config", "model.noise", "model.noise_decay", "model.gamma", "model.actor", "trainer.default_root_dir")
GENERATIONS = 4

options = dict(arg.removeprefix("--").partition("=")[::2] for arg in sys.argv[1:])
for key in options:
    if key not in (*KNOWN, "ckpt_path", "report", "print_config"):
        sys.exit(f"error: unknown key {key}: --help lists the keys")
if "print_config" in options:
    sys.exit(0)

root = Path(options["trainer.default_root_dir"])
lock = (root / ".fit").open("a")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
with (root / "starts").open("a") as starts:
    configs = [arg.removeprefix("--config=") for arg in sys.argv if arg.startswith("--config=")]
    starts.write(f"start {'; '.join(configs)}\n")
if float(options.get("model.gamma", 0)) > 1:
    sys.stderr.write(f"error: model.gamma is {options['model.gamma']}; it must be at most 1\n")
    sys.exit(2)
received = []
signal.signal(signal.SIGTERM, lambda *args: received.append(args))
metrics = root / "metrics.csv"
if not metrics.exists():
    metrics.write_text("generation,champion/validation_fitness\n")
for generation in range(len(metrics.read_text().splitlines()) - 1, GENERATIONS):
    time.sleep(float(options.get("model.noise_decay", 0.02)))
    with metrics.open("a") as file:
        file.write(f"{generation},{10 * generation - abs(float(options['model.noise']))}\n")
    if received and generation + 1 < GENERATIONS:
        sys.exit(143)
