"""Tables and the picture of MuJoCo tasks in docs/control.md."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import Figures, Row
from benchmarks.learning.intervals import interquartile_over_seeds, interquartile_ratio, mean_ratio
from benchmarks.pages import spread, table
from eigen2.market.intervals import Interval

PUBLISHED = {"HalfCheetah-v5": 10_201.0, "Hopper-v5": 3_472.0, "Walker2d-v5": 3_982.0, "Ant-v5": 5_116.0}
"""Returns of TD3 after a million steps on older versions of the tasks: tianshou f240205, ten seeds."""
PARITY = {"HalfCheetah-v5": (9_600, 10_200), "Hopper-v5": (3_100, 3_600), "Walker2d-v5": (3_900, 4_700)}
"""Where those of its paper, CleanRL, tianshou and the RL Baselines3 Zoo lie, rounded."""
SEEDS = 3  # of every arm on a task, and of parity
PARITY_TASKS = 2  # tasks that suffice on which TD3 is not below them
GOAL = 300.0  # validation fitness on Swimmer
DRAWS = 1000  # bootstrap samples of a point of the picture
RATIO = "mean over tasks of the ratio of mean returns to {}'s"
PICTURE = "![Returns over environment steps](images/control-{}.png)\n\n"

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


def compared(figures: Figures) -> Runs:
    """Return the rows by arm and task, of the seeds that all arms have on all tasks that have `SEEDS` of these.

    If no task has so many, those with the most are compared.
    """
    runs = by_arm(figures)
    arms = [*runs.values()]
    common = {
        env_id: set.intersection(*({row["seed"] for row in tasks.get(env_id, ())} for tasks in arms))
        for env_id in arms[0]
    }
    least = min(SEEDS, max(map(len, common.values())))
    complete = [env_id for env_id, seeds in common.items() if len(seeds) >= least]
    seeds = set.intersection(*(common[env_id] for env_id in complete))
    return {
        arm: {env_id: [row for row in tasks[env_id] if row["seed"] in seeds] for env_id in complete}
        for arm, tasks in runs.items()
    }


def mujoco_table(figures: Figures) -> str:
    """Return interquartile means of the last returns of every task, and of all in units of published ones."""
    runs = compared(figures)
    first, *others = runs
    columns = {"": "{task}", **{arm: f"{{found[{arm}]}}" for arm in runs}}
    returns = {arm: np.array([last_returns(rows) for rows in tasks.values()]) for arm, tasks in runs.items()}
    published = np.array([PUBLISHED[env_id] for env_id in runs[first]])[:, None]
    seeds = returns[first].shape[1]
    lines = []
    for place, env_id in enumerate(runs[first]):
        found = {arm: shown(interquartile(each[[place]]), ",.0f", seeds) for arm, each in returns.items()}
        lines.append({"task": env_id, "found": found})
    found = {arm: shown(interquartile(each / published), ".2f", seeds) for arm, each in returns.items()}
    lines.append({"task": "all, of published TD3 after a million steps", "found": found})
    statistics = {f"the same over that of {first}": interquartile_ratio, RATIO.format(first): mean_ratio}
    for title, ratio in statistics.items():
        of_published = {arm: each / published for arm, each in returns.items()}
        if ratio is mean_ratio and (returns[first] <= 0).any():
            continue  # of a mean near or below 0 a ratio means nothing
        ratios = {arm: ratio(of_published[arm], of_published[first], np.random.default_rng(0)) for arm in others}
        found = {first: "1", **{arm: shown(each, ".2f", seeds) for arm, each in ratios.items()}}
        lines.append({"task": title, "found": found})
    text = f"{amount_text(runs)}.{incomplete_text(by_arm(figures), [*runs[first]])}"
    return f"{PICTURE.format('mujoco')}{table(columns, lines)}\n\n{text}"


def incomplete_text(runs: Runs, complete: Sequence[str]) -> str:
    """Return the last returns of every seed on tasks that are not complete yet."""
    text = ""
    for env_id in next(iter(runs.values())):
        if env_id not in complete:
            found = [f"{arm} {spread(last_returns(tasks.get(env_id, [])), ',.0f')}" for arm, tasks in runs.items()]
            text += f" {env_id} is not complete: {'; '.join(found)}."
    return text


def parity_table(figures: Figures) -> str:
    """Return TD3's last return on every task beside the published ones, and whether it is on a par with them.

    `highest` is each seed's highest return in training.
    """
    columns = {"": "{task}", "eigen2's TD3": "{found}", "each seed": "{each}", "highest": "{highest}"}
    columns |= {
        "published, ten seeds": "{published:,.0f}",
        "four implementations": "{parity}",
        "against them": "{verdict}",
    }
    (tasks,) = by_arm(figures).values()
    lines, reached, judged = [], 0, 0
    for env_id, rows in tasks.items():
        returns, (low, high) = last_returns(rows), PARITY[env_id]
        mean = interquartile(returns[None])
        reached += len(rows) >= SEEDS and mean.mean >= low
        judged += len(rows) >= SEEDS
        verdict = "below" if mean.mean < low else "above" if mean.mean > high else "within"
        verdict = "" if len(rows) < SEEDS else verdict
        found = {"found": shown(mean, ",.0f", len(rows)), "each": spread(returns.tolist(), ",.0f"), "verdict": verdict}
        found["highest"] = spread([max(row["fittest"]) for row in rows], ",.0f")
        lines.append({"task": env_id, **found, "published": PUBLISHED[env_id], "parity": f"{low:,} to {high:,}"})
    verdict = f"on a par on {reached} of {len(tasks)} tasks, {'parity' if reached >= PARITY_TASKS else 'no parity yet'}"
    if judged < PARITY_TASKS:
        verdict = f"no verdict below {SEEDS} seeds"
    text = f"{amount_text(by_arm(figures))}: {verdict}."
    return f"{PICTURE.format('parity')}{table(columns, lines)}\n\n{text}"


def amount_text(runs: Runs) -> str:
    """Return after how many environment steps rows were measured, and with how many seeds."""
    cases = [rows for tasks in runs.values() for rows in tasks.values()]
    steps, counts = min(row["env_steps"][-1] for rows in cases for row in rows), [len(rows) for rows in cases]
    fewest, most = min(counts), max(counts)
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"After {steps:,} environment steps, {seeds} seed{'s' * (most > 1)}"


def shown(interval: Interval, form: str, seeds: int) -> str:
    """Return a mean with its interval; the mean alone of a single seed, which has none."""
    mean, low, high = (format(value, form) for value in interval)
    return f"{mean} ({low} to {high})" if seeds > 1 else mean


def swimmer_table(figures: Figures) -> str:
    """Return each seed's last returns, and the environment steps until its fittest agent reached the goal."""
    columns = {"": "{arm}", "seed": "{seed}", "the fittest at the end": "{fittest}", "the champion": "{champion}"}
    columns |= {"environment steps": "{env_steps:,.0f}", f"the fittest at {GOAL:.0f} after": "{reached:,.0f}"}
    lines = []
    for case, rows in figures["runs"].items():
        arm, _ = case.split(": ")
        lines += [{"arm": arm, "seed": row["seed"], **summary(row)} for row in rows]
    return table(columns, lines)


def summary(row: Row) -> Row:
    """Return champion, fittest agent and steps at the end, and the steps after which the fittest reached the goal."""
    pairs = zip(row["env_steps"], row["fittest"], strict=True)
    reached = next((steps for steps, fittest in pairs if fittest >= GOAL), None)
    last = {name: f"{row[name][-1]:.1f}" for name in ("champion", "fittest")}
    return {**last, "env_steps": row["env_steps"][-1], "reached": reached}


def draw(path: Path, figures: Figures) -> None:
    """Draw the interquartile mean of every arm over environment steps with its interval, a panel for each task."""
    runs = by_arm(figures)
    runs = compared(figures) if len(runs) > 1 else runs
    env_ids = [*next(iter(runs.values()))]
    figure = Figure(figsize=(9, 3.5), facecolor="white", layout="constrained")
    (axes,) = figure.subplots(1, len(env_ids), squeeze=False)
    for axis, env_id in zip(axes, env_ids, strict=True):
        for arm, tasks in runs.items():
            steps, curves = aligned(tasks[env_id])
            generator = np.random.default_rng(0)
            means = np.array([interquartile_over_seeds(values[None], generator, DRAWS) for values in curves.T])
            (line,) = axis.plot(steps, means[:, 0], label=arm)
            axis.fill_between(steps, means[:, 1], means[:, 2], color=line.get_color(), alpha=0.2, linewidth=0)
        axis.axhline(PUBLISHED[env_id], linestyle="--", color="#AAAAAA", label="published TD3 after a million steps")
        axis.set(title=env_id, xlabel="environment steps", ylabel="return")
        axis.locator_params(axis="x", nbins=4)
        axis.grid(visible=True, color="#DDDDDD")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)


def aligned(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return environment steps, and every seed's return there, (seeds, steps): interpolated to the first seed's."""
    steps = np.array(rows[0]["env_steps"])
    return steps, np.array([np.interp(steps, row["env_steps"], row["fittest"]) for row in rows])
