"""Values of a config, strictly: no unknown name, no wrong type, and the same words for it wherever a value comes from.

A file, the command line and Python all go through overlay(): what is refused in one is refused in all.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")


def checked(config: T) -> T:
    """The same config as a file of it would be read: in Python nothing keeps anybody from steps=1e3."""
    return overlay(config, as_mapping(config))


def as_mapping(config: object) -> dict[str, Any]:
    """Plain dictionaries, lists, numbers and strings."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}  # type: ignore[arg-type]


def overlay(base: T, changes: Mapping[str, Any], where: str = "") -> T:
    """`base` with the given fields changed; nested mappings change nested fields.

    A class may have a method implied(changes): the values that other fields take with them, if they are not given.
    """
    hints = typing.get_type_hints(type(base))
    names = [f.name for f in dataclasses.fields(base)]  # type: ignore[arg-type]
    values = {}
    for name, value in changes.items():
        if name not in names:
            raise ValueError(unknown(str(name), names, where))
        old = getattr(base, name)
        if dataclasses.is_dataclass(old):
            if type(value) is type(old):
                values[name] = value
                continue
            if not isinstance(value, Mapping):
                raise ValueError(f"{where}{name}: expected its fields, such as {_example(old)}, got {value!r}")
            values[name] = overlay(old, value, f"{where}{name}.")
        else:
            values[name] = convert(value, hints[name], f"{where}{name}")
    if hasattr(base, "implied"):
        values = base.implied(values) | values
    return dataclasses.replace(base, **values)  # type: ignore[type-var]


def unknown(name: str, known: list[str], where: str = "", kind: str = "field") -> str:
    """The line for a name that is not there. `where`: what stands before this one and the known ones."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {where + near[0]!r}?" if near else f"there are {', '.join(where + each for each in known)}"
    return f"unknown {kind} {where + name!r}; {hint}"


def convert(value: Any, hint: Any, where: str) -> Any:
    """The value as the annotation wants it, or a ValueError. A whole number serves as a float, a list as a tuple."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return convert(value, option, where)
            except ValueError:
                continue
    elif origin is tuple and isinstance(value, list | tuple):
        kinds = [arguments[0]] * len(value) if arguments[1:] == (...,) else list(arguments)
        if len(kinds) == len(value):
            pairs = enumerate(zip(value, kinds, strict=True))
            return tuple(convert(item, kind, f"{where}[{i}]") for i, (item, kind) in pairs)
    elif hint is float:
        number = _as_float(value)
        if number is not None:
            return number
    elif type(value) is hint or (origin is Literal and _is_among(value, arguments)):
        return value
    raise ValueError(f"{where}: expected {describe(hint)}, got {value!r}")


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)  # of text, too: YAML reads 1e-4, without a point, as text
    except ValueError:
        return None


def _is_among(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(value == other and type(value) is type(other) for other in allowed)


def describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if {int, float} <= {*arguments}:
            arguments = tuple(option for option in arguments if option is not int)
        return " or ".join(describe(option) for option in arguments)
    if origin is Literal:
        return ", ".join(map(repr, arguments)) if len(arguments) == 1 else f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        items = "values" if arguments[1:] == (...,) else f"{len(arguments)} values"
        return f"a list of {items}, each {describe(arguments[0])}"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return plain.get(hint, str(hint))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return as_mapping(value)
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _example(config: Any) -> str:
    name = dataclasses.fields(config)[0].name
    return f"'{name}: {getattr(config, name)}'"
