"""A champion apart from the run it came from: its actor's weights, and in plain values what it takes to use them."""

import functools
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from eigen2.core.networks import Sizes, StackedNetwork
from eigen2.errors import UserError
from eigen2.runtime.checksums import DamagedFile, verify_checksum
from eigen2.runtime.files import move_into_place

FORMAT = 1
WEIGHTS, CONFIG = "champion.safetensors", "champion.json"


@dataclass(frozen=True)
class Exported:
    """A champion.

    Attributes:
        config: as JSON holds it: `format`; `workload`; `actor`, its class and arguments; `sizes` that it was built for;
            `champion`, its generation and validation fitness; `seen`, what its fit looked at; `acting`, what its
            workload needs to make the actor's inputs.
        weights: of the actor, float32 by name.
    """

    config: dict[str, Any]
    weights: dict[str, Tensor]

    @property
    def sizes(self) -> Sizes:
        """What the actor was built for."""
        sizes = self.config["sizes"]
        inputs = {name: tuple(shape) for name, shape in sizes["inputs"].items()}
        return Sizes(inputs, tuple(sizes["action"]), sizes["context"])

    def actor(self, trusted: str | None = None) -> nn.Module:
        """The actor with the champion's weights, `forward(inputs) -> (batch, *action)` in [-1, 1].

        Args:
            trusted: class that may be loaded beside eigen2's own, which runs the code of its module.

        Raises:
            UserError: the actor's class is another, cannot be built, or does not take the weights.
        """
        network = build(self.config["actor"], self.sizes, trusted)
        try:
            network.load_state_dict(self.weights)
        except RuntimeError as error:
            raise UserError(f"the champion's weights are not of {type(network).__name__}: {_line(error)}") from error
        return network.eval().requires_grad_(False)

    def save(self, folder: Path) -> list[Path]:
        """Write `champion.safetensors` and `champion.json`, each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        drafts = {name: folder / f".{name}" for name in (WEIGHTS, CONFIG)}
        drafts[WEIGHTS].write_bytes(save({name: weight.contiguous() for name, weight in self.weights.items()}))
        lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in self.config.items()]
        drafts[CONFIG].write_text("{\n" + ",\n".join(lines) + "\n}\n")
        for name, draft in drafts.items():
            move_into_place(draft, folder / name)
        return [folder / name for name in drafts]


def load(path: str | Path) -> Exported:
    """The champion of an exported folder, or of a checkpoint.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    path = Path(path)
    return _from_folder(path) if path.is_dir() else _from_checkpoint(path)


def _from_folder(folder: Path) -> Exported:
    try:
        config = json.loads((folder / CONFIG).read_text())
        weights = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"there is no exported champion in {folder} ({_line(error)}); export writes one") from error
    known = config.get("format") if isinstance(config, dict) else None
    if known != FORMAT:
        raise UserError(f"{folder / CONFIG} has format {known}, this eigen2 reads {FORMAT}; export the champion again")
    return Exported(config, weights)


def _from_checkpoint(file: Path) -> Exported:
    try:
        verify_checksum(file)
        # mapped, so that the replay buffer beside the weights is not read
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, DamagedFile) as error:
        raise UserError(f"checkpoint {file} cannot be read ({_line(error)}); give another one") from error
    own = found.get("eigen2", {})
    acting, state = own.get("acting"), found["state_dict"]
    if acting is None:
        raise UserError(f"checkpoint {file} is of an earlier version, which did not note how to act; fit again")
    if "actor" not in acting:
        raise UserError(
            f"checkpoint {file} is of the workload {acting['workload']}, whose champion no command but validate and "
            "test can use; give one of another workload"
        )
    generation = int(state["population.champion_generation"])
    if generation < 0:
        raise UserError(f"checkpoint {file} has no champion: none was validated before it was written")
    fitness = float(state["population.champion_fitness"])
    config = {
        "format": FORMAT,
        **{name: acting[name] for name in ("workload", "actor", "sizes")},
        "champion": {"generation": generation, "validation_fitness": fitness if math.isfinite(fitness) else None},
        "seen": own["seen"],
        "acting": acting["data"],
    }
    rows = state["population.champion_actor"].float()
    shapes = {name: tuple(shape) for name, shape in acting["weights"].items()}
    pieces = torch.split(rows[0], [math.prod(shape) for shape in shapes.values()])
    weights = {name: piece.reshape(shape).clone() for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
    return Exported(config, weights)


def describe(network: StackedNetwork, factory: object | None, sizes: Sizes) -> dict[str, Any]:
    """What `Exported` needs to know of an actor, as plain values.

    Args:
        network: that holds it.
        factory: that made it; None for a workload's own, which takes nothing but sizes.
        sizes: that it was made for.
    """
    own = {"class_path": _path(type(network.network)), "init_args": {}}
    return {
        "actor": own if factory is None else call_of(factory),
        "sizes": {
            "inputs": {name: list(shape) for name, shape in sizes.inputs.items()},
            "action": list(sizes.action),
            "context": sizes.context,
        },
        "weights": {name: list(shape) for name, shape in network.shapes.items()},
    }


def call_of(factory: object) -> dict[str, Any] | None:
    """Class and arguments of what builds a network: a class, or `functools.partial` of one; None for anything else."""
    parts = [factory.func, *factory.args] if isinstance(factory, functools.partial) else [factory]
    classes = [part for part in parts if inspect.isclass(part) and issubclass(part, nn.Module)]
    if not classes:
        return None
    arguments = dict(factory.keywords) if isinstance(factory, functools.partial) else {}
    try:
        arguments = json.loads(json.dumps(arguments, allow_nan=False))
    except (TypeError, ValueError):
        return None
    return {"class_path": _path(classes[0]), "init_args": arguments}


def build(call: Mapping[str, Any] | None, sizes: Sizes, trusted: str | None = None) -> nn.Module:
    """The network that `call_of` named, with beginner's weights.

    Raises:
        UserError: it has no name, is not to be trusted, or cannot be built.
    """
    if call is None:
        raise UserError("the champion's actor was made by a function; give model.actor a class, or a partial of one")
    path = str(call["class_path"])
    module, _, name = path.rpartition(".")
    if not path.startswith("eigen2.") and path != trusted:
        raise UserError(
            f"the champion's actor is {path}, which is not eigen2's own: to load it is to run the code of {module}; "
            f"if you trust that, say --actor {path}"
        )
    try:
        found = getattr(import_module(module), name)
        if not (inspect.isclass(found) and issubclass(found, nn.Module)):
            raise TypeError("it is no network")
        network: nn.Module = found(sizes, **call["init_args"])
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"the champion's actor {path} cannot be built: {_line(error)}") from error
    return network


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
