"""What came of an epoch and of a test, in numbers and words."""

from typing import TYPE_CHECKING

import numpy as np

from eigen2.core.datamodule import TestResult
from eigen2.errors import UserError
from eigen2.fire.evaluation.records import keep_test
from eigen2.fire.simulation.baselines import PLACEMENTS

if TYPE_CHECKING:
    from eigen2.fire.module import DQNModule

LOSSES = ("loss", "q_mean", "td_error")


def epoch_metrics(module: "DQNModule") -> dict[str, float]:
    """Scalars of the epoch that just validated, by full name; NaN for what has no value yet.

    Units: fitness, validation and baselines in percent of the burned area that is saved, fitness over the episodes that
    were played to learn from, the others over the validation landscapes; time in seconds; replay in transitions.
    """
    data, buffer = module.data, module.data.buffer
    fitness, validation = 100 * data.collector.reduction, module.validation
    epoch = int(module.champion_generation)
    losses = (module.sums / module.updates).tolist() if module.updates else [np.nan] * len(LOSSES)
    return {
        "fitness/mean": float(fitness.mean()),
        "fitness/max": float(fitness.max()),
        "fitness/min": float(fitness.min()),
        **{f"fitness/q{share}": float(np.percentile(fitness, share)) for share in (25, 50, 75)},
        "fitness/std": float(fitness.std()),
        "champion/validation_fitness": float(module.champion_fitness) if epoch >= 0 else np.nan,
        "champion/generation": epoch if epoch >= 0 else np.nan,
        "validation/mean": float(validation.mean()),
        "validation/max": float(validation.max()),
        **{f"baseline/{name}": 100 * data.score(name, "validation").mean() for name in module.hparams["baselines"]},
        **{f"train/{name}": value for name, value in zip(LOSSES, losses, strict=True)},
        "train/gradient_steps": float(module.updates),
        "train/epsilon": module.epsilon,
        "replay/size": float(len(buffer)),
        "replay/utilization": len(buffer) / buffer.capacity,
        "replay/added": float(buffer.added),
        **{f"time/{phase}_s": module.clock.seconds[phase] for phase in (*module.clock.phases, "generation")},
    }


def test_findings(module: "DQNModule") -> TestResult:
    """What the champion saves on landscapes that no fit has looked at, beside placements that learn nothing.

    Raises:
        UserError: there is no champion, or what was found cannot be written.
    """
    epoch, data = require_champion(module), module.data
    found = {"champion": data.play(module.greedy(module.champion), "test")}
    found |= {name: data.score(name, "test") for name in PLACEMENTS}
    keep_test(module, found)
    lines = [
        f"champion     of epoch {epoch}, on {len(found['champion'])} landscapes that fit has not seen",
        "saved of the burned area, percent: mean, standard error, least, most",
        *(f"{name:<20}{_words(saved)}" for name, saved in found.items()),
    ]
    metrics = {f"test/{name}": float(100 * saved.mean()) for name, saved in found.items()}
    return TestResult(metrics, "\n".join(lines))


def require_champion(module: "DQNModule") -> int:
    """The epoch the champion is of.

    Raises:
        UserError: there is no champion.
    """
    epoch = int(module.champion_generation)
    if epoch < 0:
        raise UserError("the checkpoint has no champion: none was validated before it was written")
    return epoch


def _words(saved: np.ndarray) -> str:
    error = saved.std(ddof=1) / np.sqrt(len(saved)) if len(saved) > 1 else np.nan
    return "".join(f"{100 * value:>8.1f}" for value in (saved.mean(), error, saved.min(), saved.max()))
