"""The champion's test as a quantstats tear sheet, for those who are used to it."""

import logging
import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from eigen2.errors import UserError
from eigen2.report.record import load
from eigen2.runtime.files import replacing

REMOVED = re.compile(r'<link[^>]*href="https?://[^>]*>| onload="save\(\)"')
"""Parts of quantstats' page that fetch something, or call a function that it does not define."""


def write_tearsheet(folder: Path) -> Path:
    """Write the tear sheet of the champion's test against buy and hold to `tearsheet.html` in a run's folder.

    Raises:
        UserError: quantstats is not installed, or the run's champion was not tested.
        OSError: the file cannot be written.
    """
    if find_spec("quantstats") is None:
        raise UserError("a tear sheet needs quantstats: pip install 'eigen2[report]'")
    run = load(folder)
    if run.equity is None:
        raise UserError(f"{folder} has no test to make a tear sheet of; run test with --ckpt_path best first")
    curves = run.equity.set_index(pd.DatetimeIndex(run.equity["date"]))
    champion, market = (curves[name].pct_change().dropna() for name in ("champion", "buy and hold"))
    target = folder / "tearsheet.html"
    with replacing(target) as draft:
        _write(champion, market, draft)
        draft.write_text(REMOVED.sub("", draft.read_text()))
    return target


def _write(champion: pd.Series, market: pd.Series, file: Path) -> None:
    """Let quantstats write its page, without its and matplotlib's warnings."""
    import quantstats  # takes seconds to import

    fonts = logging.getLogger("matplotlib.font_manager")
    level = fonts.level
    try:
        fonts.setLevel(logging.ERROR)  # it misses a font that few systems have, once a text
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantstats.reports.html(  # type: ignore[no-untyped-call]
                champion, benchmark=market, rf=0.0, title="eigen2 champion", output=str(file), match_dates=False
            )
    finally:
        fonts.setLevel(level)
