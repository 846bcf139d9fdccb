"""The phases of a generation: timed here, announced to every callback that listens."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch import LightningModule, Trainer

PHASES = ("evaluate", "train", "evolve", "validate")
"""In the order they happen."""


def announce(trainer: Trainer, module: LightningModule, phase: str) -> None:
    """Call `on_phase_end(trainer, module, phase)` of every callback that has it, in the trainer's order."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        hook = getattr(callback, "on_phase_end", None)
        if hook is not None:
            hook(trainer, module, phase)


class PhaseClock:
    """Seconds spent in each phase of the generation in progress.

    Args:
        module: whose trainer's callbacks hear of the phases.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._begun: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def new_generation(self) -> None:
        """Forget the last generation and start counting this one."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
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
        announce(self._module.trainer, self._module, phase)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside; nothing is announced if it fails."""
        self.begin(name)
        yield
        self.end(name)
