"""Measures of a track as people write them."""

PERCENT = ("total return", "annual return", "max drawdown", "alpha", "exposure", "hit rate")
WHOLE = ("longest drawdown", "trades")


def measure_word(measure: str, value: float | None) -> str:
    """A measure's value with its unit; a dash for one that does not exist.

    Args:
        measure: its name, see `backtest.MEASURES`.
        value: a share for those in `PERCENT`.
    """
    if value is None:
        return "-"
    digits = 1 if measure in PERCENT else 0 if measure in WHOLE else 2
    shown = round(100 * value if measure in PERCENT else value, digits) + 0.0  # no minus zero
    return f"{shown:,.{digits}f}{' %' * (measure in PERCENT)}"
