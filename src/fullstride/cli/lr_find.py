"""fullstride lr-find."""

from typing import Any


def add(commands: Any) -> None:
    """To be written."""
