"""Imports of the server from which `tests.command` forks commands."""

import contextlib
import io

import gcsfs  # noqa: F401 - Lightning imports what cloud libraries there are
import matplotlib.backends.backend_agg  # noqa: F401
import s3fs  # noqa: F401

import tests.docstrings  # noqa: F401
from eigen2.cli.main import main

with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(["fit", "--help"])  # reads all docstrings
