"""Imports of the server from which `tests.command` forks commands."""

import contextlib
import gc
import io
import os
from pathlib import Path

import fsspec.implementations.local  # noqa: F401
import gcsfs  # noqa: F401 - Lightning imports what cloud libraries there are
import lightgbm  # noqa: F401
import matplotlib.backends.backend_agg  # noqa: F401
import PIL.Image
import pytest  # noqa: F401 - of the functions that are called in forks
import s3fs  # noqa: F401
import sklearn.covariance  # noqa: F401
import torch.profiler  # noqa: F401

import eigen2.report.page  # noqa: F401
import tests.parsers  # noqa: F401
from callbacks.plots import draw_lines
from eigen2.cli.main import main
from tests.disk import not_synced

for config in ("small.yaml", "fire/small.yaml"):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(["fit", "--config", str(Path(__file__).parent / config), "--print_config"])  # reads docstrings, signatures
os.fsync = not_synced
PIL.Image.init()
draw_lines(range(2), {"fitness": [0.0, 1.0]})  # looks for fonts
gc.collect()
gc.freeze()  # a collection in a fork would copy every page of what is imported
