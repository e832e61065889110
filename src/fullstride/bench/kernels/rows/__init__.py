"""The lines of the kernel benchmark: one file an op, each with rows(). This one stays free of torch, for the CLI."""

import pkgutil
from collections.abc import Collection


def ops() -> list[str]:
    """The ops that have rows, by the names of their files."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def check_names(only: Collection[str]) -> None:
    unknown = sorted(set(only) - set(ops()))
    if unknown:
        raise ValueError(f"no kernel rows named {', '.join(unknown)}; there are: {', '.join(ops())}")
