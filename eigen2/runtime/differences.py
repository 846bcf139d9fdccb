"""Settings that differ between two runs, in words."""

from collections.abc import Mapping
from typing import Any

_CHARACTERS = 40


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Each setting that differs, by its full key, in words with both values.

    Args:
        before: settings by full key.
        now: the same, to compare.
        prefix: of the keys that count.
    """
    keys = [key for key in sorted({*before, *now}) if key.startswith(prefix) and before.get(key) != now.get(key)]
    return {key: f"{key} {_word(before.get(key))}, now {_word(now.get(key))}" for key in keys}


def _word(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}..."
