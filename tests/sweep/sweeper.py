"""`python -m tests.sweep.sweeper ...`: a sweep whose fits are those of `tests.sweep.fake_fit`."""

import sys
from pathlib import Path

from eigen2.cli.main import main
from eigen2.sweep import study, trial

FAKE = (sys.executable, str(Path(__file__).with_name("fake_fit.py")))

if __name__ == "__main__":
    trial.PROGRAM, study.POLL_S = FAKE, 0.02
    main(["sweep", *sys.argv[1:]])
