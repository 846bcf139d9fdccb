"""The phases of a generation, which are timed and announced to callbacks."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule

PHASES = ("evaluate", "train", "evolve", "validate")  # phases of a population's generation, in order


class PhaseClock:
    """Measures the seconds of each phase of the generation in progress, and notifies the trainer's callbacks.

    Those that have `on_phase_end(trainer, module, phase)` are called at the end of a phase, those that have
    `on_environment_step(trainer, module)` after every step of the evaluation's environment.
    """

    def __init__(self, module: LightningModule, phases: Sequence[str] = PHASES) -> None:
        self._module = module
        self.phases = tuple(phases)
        self._begun: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self._step_listeners: list[Any] = []

    def new_generation(self) -> None:
        """Reset all seconds, start timing the generation and find the callbacks that listen to its steps."""
        self.seconds = dict.fromkeys(self.phases, 0.0)
        self.begin("generation")
        callbacks = self._module.trainer.callbacks  # type: ignore[attr-defined]
        self._step_listeners = [callback for callback in callbacks if hasattr(callback, "on_environment_step")]

    def begin(self, phase: str) -> None:
        """Start timing a phase."""
        self._begun[phase] = time.perf_counter()

    def elapsed(self, phase: str) -> float:
        """Return seconds since the phase began."""
        return time.perf_counter() - self._begun[phase]

    def end(self, phase: str) -> None:
        """Stop timing a phase and announce its end; work queued on a GPU is waited for and counts for this phase."""
        device, trainer = self._module.device, self._module.trainer
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds[phase] = self.elapsed(phase)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if hasattr(callback, "on_phase_end"):
                callback.on_phase_end(trainer, self._module, phase)

    def environment_step(self) -> None:
        """Announce a step of the environment."""
        for callback in self._step_listeners:
            callback.on_environment_step(self._module.trainer, self._module)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase; nothing is announced if it fails."""
        self.begin(name)
        yield
        self.end(name)
