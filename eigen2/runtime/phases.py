"""The phases of a generation: timed here, and announced to the callbacks that listen."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from lightning.pytorch import LightningModule, Trainer

PHASES = ("evaluate", "train", "evolve", "validate")  # phases of a population's generation, in order


@runtime_checkable
class PhaseListener(Protocol):
    """A callback that wants to know when a phase ends."""

    def on_phase_end(self, trainer: Trainer, pl_module: LightningModule, phase: str) -> None:
        """Called when a phase has ended."""


@runtime_checkable
class StepListener(Protocol):
    """A callback that wants to know of every step of the evaluation's environment."""

    def on_environment_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after a step."""


class PhaseClock:
    """Seconds spent in each phase of the generation in progress; the callbacks of the module's trainer hear of them."""

    def __init__(self, module: LightningModule, phases: Sequence[str] = PHASES) -> None:
        self._module = module
        self.phases = tuple(phases)
        self._begun: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self._step_listeners: list[StepListener] = []

    def new_generation(self) -> None:
        """Set all seconds to 0, start counting the generation's and find who listens to its steps."""
        self.seconds = dict.fromkeys(self.phases, 0.0)
        self.begin("generation")
        callbacks = self._module.trainer.callbacks  # type: ignore[attr-defined]
        self._step_listeners = [callback for callback in callbacks if isinstance(callback, StepListener)]

    def begin(self, phase: str) -> None:
        """Start counting a phase."""
        self._begun[phase] = time.perf_counter()

    def elapsed(self, phase: str) -> float:
        """Return seconds since the phase began."""
        return time.perf_counter() - self._begun[phase]

    def end(self, phase: str) -> None:
        """Stop counting and announce the end; work queued on a GPU is waited for and counts here."""
        device, trainer = self._module.device, self._module.trainer
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self.seconds[phase] = self.elapsed(phase)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, PhaseListener):
                callback.on_phase_end(trainer, self._module, phase)

    def environment_step(self) -> None:
        """Announce a step of the environment."""
        for callback in self._step_listeners:
            callback.on_environment_step(self._module.trainer, self._module)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside; nothing is announced if it fails."""
        self.begin(name)
        yield
        self.end(name)
