"""Tables and the picture of MuJoCo tasks in docs/control.md."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.harness import Figures, Row
from benchmarks.learning.intervals import interquartile_over_seeds
from benchmarks.learning.mujoco import BENCHMARKS
from benchmarks.pages import table
from eigen2.market.evaluation.intervals import Interval

PUBLISHED = {"HalfCheetah-v5": 10_201.0, "Hopper-v5": 3_472.0, "Walker2d-v5": 3_982.0}
"""Returns of TD3 after a million steps on older versions of the tasks: tianshou f240205, ten seeds."""
PARITY = {"HalfCheetah-v5": (9_600, 10_200), "Hopper-v5": (3_100, 3_600), "Walker2d-v5": (3_900, 4_700)}
"""Where the published returns of five implementations of TD3 lie."""
PARITY_STEPS, PARITY_TASKS = 1_000_000, 2  # steps after which TD3 alone is compared with them, and tasks that suffice
GOAL = 300.0  # validation fitness on Swimmer
DRAWS = 1000  # bootstrap samples of a point of the picture
PICTURE = "![Returns over environment steps](images/control-mujoco.png)\n\n"

Runs = dict[str, dict[str, list[Row]]]


def by_arm(figures: Figures) -> Runs:
    """Return the rows by arm and task."""
    runs: Runs = {}
    for case, rows in figures["runs"].items():
        arm, env_id = case.split(": ")
        runs.setdefault(arm, {})[env_id] = rows
    return runs


def last_returns(rows: list[Row]) -> np.ndarray:
    """Return the last return of every seed."""
    return np.array([row["fittest"][-1] for row in rows])


def interquartile(values: np.ndarray) -> Interval:
    """Return the interquartile mean of (tasks, seeds) with its interval, of fixed draws."""
    return interquartile_over_seeds(values, np.random.default_rng(0))


def mujoco_table(figures: Figures) -> str:
    """Return interquartile means of the last returns of every task, and of all in units of published ones."""
    runs = by_arm(figures)
    columns = {"": "{task}", "published TD3": "{published:,.0f}", "parity": "{parity}"}
    columns |= {arm: f"{{found[{arm}]}}" for arm in runs}
    lines = []
    for env_id, published in PUBLISHED.items():
        means = {arm: interquartile(last_returns(tasks[env_id])[None]) for arm, tasks in runs.items()}
        parity = "{:,} to {:,}".format(*PARITY[env_id]) if env_id in PARITY else None
        found = {arm: shown(mean, ",.0f", len(runs[arm][env_id])) for arm, mean in means.items()}
        lines.append({"task": env_id, "published": published, "parity": parity, "found": found})
    scores = {arm: interquartile(normalised(tasks)) for arm, tasks in runs.items()}
    seeds = {arm: min(map(len, tasks.values())) for arm, tasks in runs.items()}
    found = {arm: shown(score, ".2f", seeds[arm]) for arm, score in scores.items()}
    lines.append({"task": "all, of published TD3", "published": 1.0, "parity": None, "found": found})
    return f"{PICTURE}{table(columns, lines)}\n\n{parity_text(runs['TD3 alone'])}"


def shown(interval: Interval, form: str, seeds: int) -> str:
    """Return a mean with its interval; the mean alone of a single seed, which has none."""
    mean, low, high = (format(value, form) for value in interval)
    return f"{mean} ({low} to {high})" if seeds > 1 else mean


def normalised(tasks: dict[str, list[Row]]) -> np.ndarray:
    """Return the last returns of an arm in units of the published ones, (tasks, seeds)."""
    return np.array([last_returns(tasks[env_id]) / published for env_id, published in PUBLISHED.items()])


def parity_text(tasks: dict[str, list[Row]]) -> str:
    """Return whether TD3 alone has reached parity with published returns, once it has trained for as many steps."""
    steps = min(row["env_steps"][-1] for rows in tasks.values() for row in rows)
    seeds = min(len(rows) for rows in tasks.values())
    measured = f"After {steps:,} environment steps, {seeds} seed{'s' * (seeds > 1)}"
    if steps < PARITY_STEPS:
        return f"{measured}; parity is judged after {PARITY_STEPS:,}."
    means = {env_id: interquartile(last_returns(tasks[env_id])[None]).mean for env_id in PARITY}
    within = [env_id for env_id, (low, high) in PARITY.items() if low <= means[env_id] <= high]
    verdict = "parity" if len(within) >= PARITY_TASKS else "no parity"
    return f"{measured}: TD3 alone lies in the interval of {len(within)} of {len(PARITY)} tasks, {verdict}."


def swimmer_table(figures: Figures) -> str:
    """Return each seed's final champion, and the environment steps until it reached the goal."""
    columns = {"": "{arm}", "seed": "{seed}", "champion's validation fitness at the end": "{champion}"}
    columns |= {"environment steps": "{env_steps:,.0f}", f"{GOAL:.0f} reached after": "{reached:,.0f}"}
    lines = []
    benchmark = BENCHMARKS["swimmer"]
    for case in dict.fromkeys(task.case for task in benchmark.tasks(benchmark.settings)):
        arm, _ = case.split(": ")
        missing = {"arm": arm, "seed": None, "champion": "not measured yet", "env_steps": None, "reached": None}
        rows = figures["runs"].get(case, [])
        lines += [{"arm": arm, "seed": row["seed"], **summary(row)} for row in rows] or [missing]
    return table(columns, lines)


def summary(row: Row) -> Row:
    """Return champion and environment steps at the end, and the steps when the champion reached the goal, or None."""
    pairs = zip(row["env_steps"], row["champion"], strict=True)
    reached = next((steps for steps, champion in pairs if champion is not None and champion >= GOAL), None)
    return {"champion": f"{row['champion'][-1]:.1f}", "env_steps": row["env_steps"][-1], "reached": reached}


def draw(path: Path, figures: Figures) -> None:
    """Draw the interquartile mean of every arm over environment steps with its interval, a panel for each task."""
    figure = Figure(figsize=(9, 3.5), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3)
    for axis, (env_id, published) in zip(axes, PUBLISHED.items(), strict=True):
        for arm, tasks in by_arm(figures).items():
            steps, curves = aligned(tasks[env_id])
            generator = np.random.default_rng(0)
            means = np.array([interquartile_over_seeds(values[None], generator, DRAWS) for values in curves.T])
            (line,) = axis.plot(steps, means[:, 0], label=arm)
            axis.fill_between(steps, means[:, 1], means[:, 2], color=line.get_color(), alpha=0.2, linewidth=0)
        axis.axhline(published, linestyle="--", color="#AAAAAA", label="published TD3 after a million steps")
        axis.set(title=env_id, xlabel="environment steps", ylabel="return")
        axis.grid(visible=True, color="#DDDDDD")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)


def aligned(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return environment steps, and every seed's return there, (seeds, steps): interpolated to the first seed's."""
    steps = np.array(rows[0]["env_steps"])
    return steps, np.array([np.interp(steps, row["env_steps"], row["fittest"]) for row in rows])
