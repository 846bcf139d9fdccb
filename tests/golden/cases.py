"""Short runs that together take every path of the algorithm; the words of each command line."""

SMALL = ("fit", "--config", "tests/small.yaml")
CONTROL = ("fit", "--config", "tests/control/small.yaml")
FIRE = ("fit", "--config", "tests/fire/small.yaml")


def evolution(*operators: str) -> tuple[str, str]:
    """Return the words that set the operators, each a class with arguments: `MagnitudeMutation(fraction: 0.5)`."""
    parts = [operator.rstrip(")").partition("(") for operator in operators]
    classes = [f"{{class_path: eigen2.erl.evolution.{name}, init_args: {{{args}}}}}" for name, _, args in parts]
    return "--model.evolution", f"[{', '.join(classes)}]"


TD3 = ("--model.learner", "eigen2.erl.learners.TD3")
FITS: dict[str, tuple[str, ...]] = {
    "market": SMALL,
    "defaults": (
        *("fit", "--config", "configs/erl.yaml", "--trainer.max_epochs", "3", "--trainer.accelerator", "cpu"),
        *("--data.replay_min_size", "4000", "--model.gradient_steps", "6", "--report", "false"),
    ),
    "windows": (*SMALL, "--data.encoding", "windows"),
    "crossover": (
        *SMALL,
        *evolution("Elitism", "TournamentCrossover(share: 0.2)", "MagnitudeMutation"),
    ),
    "td3": (*SMALL, *TD3),
    "injection": (
        *(*SMALL, "--model.learners", "1", *TD3, "--model.random_warmup", "true"),
        *evolution("Elitism", "Injection", "TournamentCrossover", "MagnitudeMutation"),
    ),
    "gradients": (*SMALL, "--model.evolution", "null"),
    "evolution": (
        *(*SMALL, "--model.gradient_steps", "0"),
        *evolution("Elitism", "TournamentCrossover", "MagnitudeMutation(fraction: 0.5)"),
    ),
    "control": CONTROL,
    "fire": FIRE,
    "fire_without_prior": (*FIRE, "--model.prior", "false"),
    "processes": (*SMALL, "--trainer.devices", "2"),
    "processes_injection": (
        *(*SMALL, "--model.learners", "1", "--trainer.devices", "2"),
        *evolution("Elitism", "Injection", "TournamentCrossover", "MagnitudeMutation"),
    ),
}
"""Fits by name."""

CHAMPION: dict[str, tuple[str, ...]] = {
    "test": ("test", "--config", "tests/small.yaml"),
    "control_test": ("test", "--config", "tests/control/small.yaml"),
    "fire_test": ("test", "--config", "tests/fire/small.yaml"),
}
"""Commands on the champion of the fit named by what stands before `_test`; `test` takes that of `market`."""

RENAMED: dict[str, str] = {}
"""Names of today's metrics and tensors, to those they had in the first recording."""

REPLACED = (
    "/weights/population.kind",
    "/weights/population.origin",
    "metrics/operators/injected_",
    "/weights/population.validations_since_champion",
)
"""Prefixes of digests that one side alone has: the place in another list of how an agent was made, which the
metrics of operators show too; metrics, not a number throughout, of operators that a run does not list; and a counter
that only operators without a measured gain read."""

REMOVED = ("hyperparameters", "proximal", "plateau")  # cases of earlier revisions whose feature is gone
CHANGED = ("scores.json",)
"""Digests that differ: the file holds the run's settings, some of which are gone; its scores are printed too."""
