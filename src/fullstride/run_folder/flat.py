"""The fields of a config by dotted names."""

from collections.abc import Mapping
from typing import Any


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"optimizer": {"lr": 1}} as {"optimizer.lr": 1}."""
    found: dict[str, Any] = {}
    for name, value in mapping.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
