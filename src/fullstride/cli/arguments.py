"""Arguments that several commands take."""

import argparse
import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from ..recipes.strict import unknown


class Parser(argparse.ArgumentParser):
    """One whose errors are one line, and which `options.parser` leads back to."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.set_defaults(parser=self)

    def error(self, message: str) -> NoReturn:
        more = "" if message.endswith("?") else f"; see `{self.prog} --help`"
        self.exit(2, f"{self.prog}: {message}{more}\n")

    def refuse(self, words: list[str]) -> NoReturn:
        """What was left over."""
        if words[0].startswith("-"):
            options = [name for name in self._option_string_actions if name.startswith("--")]
            self.error(unknown(words[0], options, kind="option"))
        self.error(f"did not expect {' '.join(words)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if action.nargs == argparse.PARSER:
            raise argparse.ArgumentError(None, unknown(value, list(action.choices), kind=str(action.metavar).lower()))
        raise argparse.ArgumentError(action, f"expected one of {', '.join(action.choices)}, got {value!r}")


def positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return number


def seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2^63 - 1, got {text!r}")
    return int(text)


def number(expected: str, is_good: Callable[[float], bool]) -> Callable[[str], float]:
    """The type of an argument."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if is_good(float(text)):
                return float(text)
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")

    return parse


seconds = number("seconds above 0", lambda x: 0 < x < math.inf)


@contextlib.contextmanager
def json_file(path: Path) -> Iterator[dict[str, Any]]:
    """A dictionary that becomes the file when all went well. Whether it can be written is found out at once."""
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is not a regular file; give --json a file name")
    partial = path.with_name(path.name + ".partial")
    try:
        file = partial.open("w")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; give --json a file that can be written") from None
    content: dict[str, Any] = {}
    try:
        with file:
            yield content
            json.dump(content, file, indent=2)
            file.write("\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
