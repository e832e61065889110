"""Files written whole or not at all."""

import contextlib
import os
from pathlib import Path

from .. import durable


def write(path: Path, content: bytes) -> Path:
    """In place of what is there, lasting."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with durable.naming(path):
        partial.unlink(missing_ok=True)  # of a process that had this number before
        try:
            durable.write(partial, [content])
            os.replace(partial, path)
            durable.sync_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
    return path
