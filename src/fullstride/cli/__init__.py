"""The `fullstride` command: one file a group of commands. Start reading at command.py."""

from .command import main

__all__ = ["main"]
