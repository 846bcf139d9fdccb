"""Judge by its metrics whether a run's fitness told agents apart. Imports neither torch nor Lightning."""

import math
from collections.abc import Iterable, Mapping
from statistics import stdev
from typing import Any

RECENT = 10  # generations whose evolution is summarised
RELIABLE = 0.25  # mean reliability above which the differences in fitness are not those of chance
MIN_T_STATISTIC = 2.0  # standard errors by which elites must stay elites more often than by chance
SURVIVAL = "operators/elite_survival"  # share of the elites that stay elites
SELECTION = ("fitness/reliability", SURVIVAL, "operators/elite_share")


def selection_verdict(generations: Iterable[Mapping[Any, float]]) -> str | None:
    """Return in a sentence whether fitness told agents apart in the last generations; None if it is not known."""
    rows = [[metrics.get(name, math.nan) for name in SELECTION] for metrics in generations]
    known = [row for row in rows if not any(map(math.isnan, row))][-RECENT:]
    if not known:
        return None
    reliability, survival, chance = (sum(values) / len(known) for values in zip(*known, strict=True))
    if reliability <= RELIABLE:
        verdict = "does not tell agents apart: selection is chance"
    else:
        differences = [lived - by_chance for _, lived, by_chance in known]
        error = stdev(differences) / math.sqrt(len(known)) if len(known) > 1 else 0.0
        lasts = survival - chance > MIN_T_STATISTIC * error
        verdict = "tells agents apart" if lasts else "tells agents apart within a generation, not from one to the next"
    elites = f"{survival:.0%} of elites stay elites, {chance:.0%} by chance"
    return f"fitness {verdict} (reliability {max(reliability, 0):.2f}; {elites})"
