"""Stands in for `fit` where tests are about sweeps: a process of milliseconds whose fitness follows from its settings.

The fitness after generation g of 4 is 10 g - |model.noise|; a generation takes `model.noise_decay` seconds. It writes,
resumes, stops and refuses as fit does, and fails if another process is writing to its folder.
"""

import fcntl
import signal
import sys
import time
from pathlib import Path

KNOWN = ("config", "model.noise", "model.noise_decay", "model.gamma", "model.actor", "trainer.default_root_dir")
GENERATIONS = 4

words = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
for key in words:
    if key not in (*KNOWN, "ckpt_path", "report", "print_config"):
        sys.exit(f"error: unknown key {key}: --help lists the keys")
if "print_config" in words:
    sys.exit(0)

root = Path(words["trainer.default_root_dir"])
own = (root / ".fit").open("a")
fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
with (root / "starts").open("a") as starts:
    starts.write("start\n")
if float(words.get("model.gamma", 0)) > 1:
    sys.stderr.write(f"error: model.gamma is {words['model.gamma']}; it must be at most 1\n")
    sys.exit(2)
asked = []
signal.signal(signal.SIGTERM, lambda *args: asked.append(args))
metrics = root / "metrics.csv"
if not metrics.exists():
    metrics.write_text("generation,champion/validation_fitness\n")
for generation in range(len(metrics.read_text().splitlines()) - 1, GENERATIONS):
    time.sleep(float(words.get("model.noise_decay", 0.02)))
    with metrics.open("a") as file:
        file.write(f"{generation},{10 * generation - abs(float(words['model.noise']))}\n")
    if asked and generation + 1 < GENERATIONS:
        sys.exit(143)
