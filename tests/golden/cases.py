"""Short runs that together take every path of the algorithm; the words of each command line."""

SMALL = ("fit", "--config", "tests/small.yaml")
CONTROL = ("fit", "--config", "tests/control/small.yaml")
FIRE = ("fit", "--config", "tests/fire/small.yaml")

FITS: dict[str, tuple[str, ...]] = {
    "market": SMALL,
    "defaults": (
        *("fit", "--config", "configs/erl.yaml", "--trainer.max_epochs", "3", "--trainer.accelerator", "cpu"),
        *("--data.replay_min_size", "4000", "--model.gradient_steps", "6", "--report", "false"),
    ),
    "windows": (*SMALL, "--data.encoding", "windows"),
    "close": (*SMALL, "--data.credit", "close", "--model.evolution.crossover_fraction", "0.2"),
    "td3": (*SMALL, "--model.td3", "{}"),
    "injection": (*SMALL, "--model.learners", "2", "--model.td3", "{}", "--model.random_warmup", "true"),
    "proximal": (*SMALL, "--model.population_size", "6", "--model.evolution.proximal", "{}"),
    "plateau": (
        *SMALL,
        *("--trainer.max_epochs", "6", "--model.evolution.adaptive_mutation", "{patience: 1}"),
        *("--model.evolution.reinject_after", "1"),
    ),
    "hyperparameters": (*SMALL, "--model.population_size", "6", "--model.evolution.hyperparameters", "{}"),
    "gradients": (*SMALL, "--model.evolution", "null"),
    "evolution": (*SMALL, "--model.gradient_steps", "0", "--model.evolution.mutation_fraction", "0.5"),
    "control": CONTROL,
    "fire": FIRE,
    "fire_steps": (
        *(*FIRE, "--model.n_steps", "3", "--model.dueling", "false", "--model.prior", "false"),
        *("--data.relative_rewards", "false", "--data.warmup", "14"),
    ),
    "processes": (*SMALL, "--trainer.devices", "2"),
    "processes_injection": (*SMALL, "--model.learners", "3", "--trainer.devices", "2"),
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
