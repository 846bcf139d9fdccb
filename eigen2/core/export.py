"""Export a champion: its actor's weights, and the plain values needed to use them."""

import functools
import hashlib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_weights
from safetensors.torch import save
from torch import Tensor, nn

from eigen2.core.networks import Ensemble, Sizes, StackedNetwork, with_tied
from eigen2.core.saved_run import altered_as_user_error, require_champion, saved_part, saved_run
from eigen2.core.signatures import sign, verify
from eigen2.errors import UserError, damage_as_user_error, one_line
from eigen2.files import Folder
from eigen2.runtime.checksums import verify_checksum

FORMAT = 2
WEIGHTS, CONFIG = "champion.safetensors", "champion.json"
SIGNATURE = f"{CONFIG}.sig"
GRAPH = "actor.onnx"  # written beside them by the command line
ALIKE = {
    "workload": "a workload",
    "actor": "an actor",
    "sizes": "networks of sizes",
    "inference": "prices, columns or rules",
    "data_used": "days of prices",
}
"""Parts of the configuration in which members of an ensemble agree, and what they are."""


@dataclass(frozen=True)
class ExportedChampion:
    """Champion without its population, or an ensemble of champions."""

    config: dict[str, Any]
    """JSON values: format, workload, actor, sizes, champion, data_used, inference; `members` of an ensemble, how many,
    whose `champion` is a list."""
    weights: dict[str, Tensor]  # the actor's, float32 by name

    @property
    def sizes(self) -> Sizes:
        """Return the shapes the actor was built for."""
        sizes = self.config["sizes"]
        inputs = {name: tuple(shape) for name, shape in sizes["inputs"].items()}
        return Sizes(inputs, tuple(sizes["action"]), sizes["context"])

    def actor(self, trusted: str | None = None) -> nn.Module:
        """Build the actor with the champion's weights, `forward(inputs) -> (batch, *action)` in [-1, 1].

        The class is eigen2's own or `trusted`, as loading it runs the code of its module; any other is a UserError.
        """
        count = int(self.config.get("members", 1))
        if not 1 <= count <= max(len(self.weights), 1):
            raise UserError(f"the champion says it has {count} members, more than it has weights; export it again")
        own = str((self.config["actor"] or {}).get("class_path")).startswith("eigen2.")
        # the first allocates nothing, however large the network is said to be; code that is trusted may need numbers
        for device in ("meta", "cpu") if own else ("cpu",):
            with torch.device(device):
                actors = [build(self.config["actor"], self.sizes, trusted) for _ in range(count)]
                network = Ensemble(actors) if "members" in self.config else actors[0]
            try:
                network.load_state_dict(with_tied(network, self.weights), assign=device == "meta")
            except RuntimeError as error:
                name = type(actors[0]).__name__
                raise UserError(f"the champion's weights are not of {name}: {one_line(error)}") from error
        return network.eval().requires_grad_(False)

    def save(self, folder: str | Path, key: str | Path | None = None) -> list[Path]:
        """Write `champion.safetensors` and `champion.json`, each completely or not at all; sign them with an SSH key.

        The last line of `champion.json` is the checksum of weights and description together; the signature, in
        `champion.json.sig`, is of that file. An older signature, and the `actor.onnx` of another champion, are deleted.
        """
        weights = save({name: weight.contiguous() for name, weight in self.weights.items()})
        config = {**self.config, "checksum": _checksum(self.config, weights)}
        lines = [f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in config.items()]
        description = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
        folder = Path(folder)
        contents = {WEIGHTS: weights, CONFIG: description}
        if key is not None:
            contents[SIGNATURE] = sign(description, Path(key))
        target = Folder(folder)
        before = target.file(CONFIG)
        if not (before.is_file() and before.read_bytes() == description):
            target.delete(GRAPH)  # of another champion
        for name, content in contents.items():
            target.write(name, content)
        if key is None:
            target.delete(SIGNATURE)
        return [folder / name for name in contents]


def load(path: str | Path, signers: str | Path | None = None) -> ExportedChampion:
    """Load the champion of an exported folder, or of a checkpoint.

    With `signers`, a file of allowed signers (see `signatures.verify`), one of them must have signed it.

    Raises:
        UserError: there is none to be read, its weights are not finite, or it was not signed as it is.
    """
    path = Path(path)
    if signers is not None and not path.is_dir():
        raise UserError(f"{path} is a checkpoint, which has no signature; give a folder written by export --sign")
    with altered_as_user_error(str(path)):
        champion = _from_folder(path, signers) if path.is_dir() else _from_checkpoint(path)
        json.dumps(champion.config, allow_nan=False)  # plain values, finite as the weights
    for name, weight in champion.weights.items():
        if not bool(weight.isfinite().all()):
            raise UserError(f"the champion in {path} has weights that are not finite ({name}); give another one")
    return champion


def combine(champions: Sequence[ExportedChampion]) -> ExportedChampion:
    """Return the ensemble of champions whose trainings differ in their seeds; raise a UserError if in more."""
    first = champions[0]
    for other in champions[1:]:
        for part, what in ALIKE.items():
            if not _alike(other.config[part], first.config[part]):
                raise UserError(
                    f"the champion of a training with another seed has {what} other than the run's own: train it with "
                    "the run's settings and prices, which test --seeds does"
                )
    weights = {
        f"members.{place}.{name}": weight
        for place, champion in enumerate(champions)
        for name, weight in champion.weights.items()
    }
    each = [champion.config["champion"] for champion in champions]
    return ExportedChampion({**first.config, "members": len(champions), "champion": each}, weights)


def _alike(one: Any, other: Any) -> bool:
    """Return whether JSON values are equal; numbers up to what other processors round otherwise."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(one == other)


def _from_folder(folder: Path, signers: str | Path | None) -> ExportedChampion:
    try:
        description, weights = (folder / CONFIG).read_bytes(), (folder / WEIGHTS).read_bytes()
        config = json.loads(description)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"there is no exported champion in {folder} ({one_line(error)}); export writes one") from error
    version = config.get("format") if isinstance(config, dict) else None
    if version != FORMAT:
        raise UserError(f"{folder / CONFIG} has format {version}, eigen2 reads {FORMAT}; export the champion again")
    if signers is not None:
        verify(description, folder / SIGNATURE, Path(signers))
    if config.pop("checksum", None) != _checksum(config, weights):
        raise UserError(f"{folder / WEIGHTS} and {CONFIG} are not as export wrote them; export the champion again")
    try:
        return ExportedChampion(config, load_weights(weights))
    except SafetensorError as error:
        raise UserError(f"{folder / WEIGHTS} cannot be read ({one_line(error)}); export the champion again") from error


def _checksum(config: Mapping[str, Any], weights: bytes) -> str:
    """Return the BLAKE2b-256 (RFC 7693) of a description and the bytes of the weights, in hexadecimal."""
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=32)
    digest.update(weights)
    return digest.hexdigest()


def read_checkpoint(file: Path) -> dict[str, Any]:
    """Return tensors and plain values of a checkpoint; raise a UserError if it is damaged or not eigen2's."""
    with damage_as_user_error(f"checkpoint {file} cannot be read", "is it damaged? give another one"):
        verify_checksum(file)
        # mapped, so that the replay buffer beside the weights is not read
        checkpoint: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return checkpoint


def _from_checkpoint(file: Path) -> ExportedChampion:
    checkpoint = read_checkpoint(file)
    saved, state = saved_run(checkpoint), checkpoint["state_dict"]
    spec = saved_part(saved, "inference")
    if "actor" not in spec:
        workload = f"{spec['workload']}, whose champion only validate, test and fire place use"
        raise UserError(f"checkpoint {file} is of the workload {workload}; give one of another workload")
    generation, fitness = (state[f"population.champion_{name}"].item() for name in ("generation", "fitness"))
    require_champion(generation, f"checkpoint {file}")
    config = {
        "format": FORMAT,
        **{name: spec[name] for name in ("workload", "actor", "sizes")},
        "champion": {"generation": generation, "validation_fitness": fitness if math.isfinite(fitness) else None},
        "data_used": saved["data_used"],
        "inference": spec["data"],
    }
    shapes = {name: tuple(shape) for name, shape in spec["weights"].items()}
    row = state["population.champion_actor"][0].float()
    pieces = zip(shapes.items(), row.split([math.prod(shape) for shape in shapes.values()]), strict=True)
    return ExportedChampion(config, {name: piece.reshape(shape).clone() for (name, shape), piece in pieces})


def describe(network: StackedNetwork, factory: object | None, sizes: Sizes) -> dict[str, Any]:
    """Return what `ExportedChampion` needs to know of an actor; a factory of None is the workload's default."""
    return {
        "actor": call_of(type(network.network) if factory is None else factory),
        "sizes": {
            "inputs": {name: list(shape) for name, shape in sizes.inputs.items()},
            "action": list(sizes.action),
            "context": sizes.context,
        },
        "weights": {name: list(shape) for name, shape in network.shapes.items()},
    }


def call_of(factory: object) -> dict[str, Any] | None:
    """Return class and arguments of a network factory that is a class or a `functools.partial` of one; else None.

    Arguments must have names: JSON holds nothing of positional ones. Defaults are among them, which the command line
    gives, too.
    """
    partial = factory if isinstance(factory, functools.partial) else None
    # jsonargparse's partials are of functions, to which the class is the last argument
    *before, cls = [factory] if partial is None else [partial.func, *partial.args]
    if any(map(inspect.isclass, before)) or not (inspect.isclass(cls) and issubclass(cls, nn.Module)):
        return None
    named: Mapping[str, Any] = {} if partial is None else partial.keywords
    if not all(map(_is_plain, named.values())):
        return None
    parameters = inspect.signature(cls).parameters.items()
    defaults = {name: each.default for name, each in parameters if _is_plain(each.default)}
    arguments = json.loads(json.dumps({**defaults, **named}))
    return {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": arguments}


def _is_plain(value: object) -> bool:
    """Return whether JSON holds a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def format_factory(factory: object | None) -> str | None:
    """Format what builds a user's networks, by name and arguments; None for the workload's default."""
    if factory is None:
        return None
    call = call_of(factory)
    if call is None:
        return str(getattr(factory, "__qualname__", type(factory).__qualname__))
    arguments = ", ".join(f"{name}={value!r}" for name, value in sorted(call["init_args"].items()))
    return f"{call['class_path']}({arguments})"


def build(call: Mapping[str, Any] | None, sizes: Sizes, trusted: str | None = None) -> nn.Module:
    """Build the network that `call_of` described; raise a UserError if it is not trusted, or cannot be built."""
    if call is None:
        raise UserError(
            "the champion's actor was made by a function, or with arguments that JSON cannot hold; give model.actor a "
            "class, or a partial of one with plain arguments"
        )
    path = str(call["class_path"])
    module, _, name = path.rpartition(".")
    if not path.startswith("eigen2.") and path != trusted:
        raise UserError(
            f"the champion's actor is {path}, which is not eigen2's own, and loading it would run the code of "
            f"{module}; if you trust that, give --actor {path}, or trusted={path!r}"
        )
    try:
        cls = getattr(import_module(module), name)
        if not (inspect.isclass(cls) and issubclass(cls, nn.Module)):
            raise TypeError("it is not a network")
        network: nn.Module = cls(sizes, **call["init_args"])
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the champion's actor {path} cannot be built: {one_line(error)}") from error
    return network
