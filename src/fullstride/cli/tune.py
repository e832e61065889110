"""fullstride tune."""

from typing import Any


def add(commands: Any) -> None:
    """To be written."""
