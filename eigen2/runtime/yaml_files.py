"""Read YAML files, within bounds on what a few lines of one can ask for, and write values as one line of YAML."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

MOST_BYTES = 1_000_000
MOST_VALUES = 100_000  # with what aliases repeat: nine lines of nine aliases each would stand for 387 million values
MOST_DEPTH = 50
MOST_LENGTH = 3000  # characters of a value: Python writes no integer of more than 4,300 digits, whatever its base was

_SPELLED = {"Infinity": ".inf", "-Infinity": "-.inf", "NaN": ".nan"}
_SPECIAL = re.compile(r'("(?:[^"\\]|\\.)*")|-?Infinity|NaN')  # texts, which may hold such words, and the words


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file, plain values only.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not text in UTF-8, is beyond the bounds, or has a value that is not of the type of its tag.
        yaml.YAMLError: it is not YAML.
    """
    with Path(path).open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES / 1e6:g} MB")
    return parse_yaml(content.decode())


def parse_yaml(text: str) -> Any:
    """Return the content of YAML, plain values only; raises ValueError and YAMLError as `read_yaml` does."""
    try:
        _check(text)
    except ReaderError as error:
        raise ValueError(f"it is no text: it has the character {chr(error.character)!r}") from error
    try:
        return yaml.safe_load(text)
    except (LookupError, AttributeError) as error:
        raise ValueError("it has a value that is not of the type of its tag, such as !!int") from error


def yaml_line(value: Any) -> str:
    """Return a plain value as one line of YAML: JSON, but for infinity and NaN, which YAML spells otherwise."""
    return _SPECIAL.sub(lambda found: found[1] or _SPELLED[found[0]], json.dumps(value, ensure_ascii=False))


def _check(text: str) -> None:
    """Raise ValueError for a text that is nested too deeply, has too long a value, or stands for too many."""
    sizes: dict[str | None, int] = {}  # values that an anchor stands for
    anchors: list[str | None] = [None]
    values = [0]  # of the lists and mappings around the place, from the outermost
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            values.append(1)
            anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size = sizes[anchors.pop()] = values.pop()
            values[-1] += size
        elif isinstance(event, yaml.AliasEvent):
            values[-1] += sizes.get(event.anchor, MOST_VALUES)  # without a size it stands within itself
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > MOST_LENGTH:
                raise ValueError(f"it has a value of more than {MOST_LENGTH:,} characters")
            values[-1] += 1
            sizes[event.anchor] = 1
        if len(values) > MOST_DEPTH:
            raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
        if values[-1] > MOST_VALUES:
            raise ValueError(f"it has, aliases written out, more than {MOST_VALUES:,} values")
