"""The phases of a generation: timed here, announced to every callback that listens."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from lightning.pytorch import LightningModule, Trainer

PHASES = ("evaluate", "train", "evolve", "validate")
"""Of a population's generation, in the order they happen."""


def announce(hook: str, trainer: Trainer, module: LightningModule, *what: str) -> None:
    """Call `hook(trainer, module, *what)` of every callback that has it, in the trainer's order.

    Lightning knows nothing of `on_phase_end(trainer, module, phase)` and `on_environment_step(trainer, module)`.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        method = getattr(callback, hook, None)
        if method is not None:
            method(trainer, module, *what)


class PhaseClock:
    """Seconds spent in each phase of the generation in progress.

    Args:
        module: whose trainer's callbacks hear of the phases.
        phases: their names, in the order they happen.
    """

    def __init__(self, module: LightningModule, phases: Sequence[str] = PHASES) -> None:
        self._module = module
        self.phases = tuple(phases)
        self._begun: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def new_generation(self) -> None:
        """Forget the last generation and start counting this one."""
        self.seconds = dict.fromkeys(self.phases, 0.0)
        self.begin("generation")

    def begin(self, phase: str) -> None:
        """Start counting a phase."""
        self._begun[phase] = time.perf_counter()

    def elapsed(self, phase: str) -> float:
        """Seconds since the phase began."""
        return time.perf_counter() - self._begun[phase]

    def end(self, phase: str) -> None:
        """Stop counting and tell the callbacks; work queued on a GPU is waited for and counts here."""
        device = self._module.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds[phase] = self.elapsed(phase)
        announce("on_phase_end", self._module.trainer, self._module, phase)

    def environment_step(self) -> None:
        """Tell the callbacks that the environment made a step."""
        announce("on_environment_step", self._module.trainer, self._module)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside; nothing is announced if it fails."""
        self.begin(name)
        yield
        self.end(name)
