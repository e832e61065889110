"""Configs as YAML and as nested dictionaries, strictly: no unknown name, no wrong type, no silent loss.

A file names its recipe, whose defaults stand for what the file leaves out:

    recipe: mlp
    steps: 200
    optimizer:
      lr: 0.001

The file in a run folder leaves nothing out. One written by an older version lacks the fields that came since: they take
today's default, and a line of the log says which. One that has fields of which this version knows nothing is refused.
"""

import dataclasses
import difflib
import logging
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from .config import Config

logger = logging.getLogger(__name__)
T = TypeVar("T")
C = TypeVar("C", bound=Config)


def to_yaml(config: Config) -> str:
    """Every field, in the order of the class: reading it gives an equal config."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(list, lambda dumper, x: dumper.represent_sequence("tag:yaml.org,2002:seq", x, True))
    return str(yaml.dump(as_mapping(config), Dumper=Dumper, sort_keys=False, width=120))


def from_yaml(text: str, source: str = "config", base: Config | None = None) -> Config:
    """`source` is what an error calls it: a file name. `base` is what its recipe returns, if that is not ours."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            """A name that stands twice would be a value lost in silence."""
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"found {key.value!r} twice", problem_mark=key.start_mark)
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
            return super().construct_mapping(node, deep)

    try:
        mapping = yaml.load(text, Loader)  # a SafeLoader: it makes plain values only
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f"{source}, line {mark.line + 1}" if mark else source
        raise ValueError(f"{place}: expected YAML, but {problem or ' '.join(str(error).split())}") from None
    if not isinstance(mapping, dict):
        found = {type(None): "an empty file", list: "a list"}.get(type(mapping), repr(mapping))
        raise ValueError(f"{source}: expected lines like 'recipe: mlp' and 'steps: 200', got {found}")
    if not isinstance(mapping.get("recipe"), str):
        found = repr(mapping["recipe"]) if "recipe" in mapping else "none"
        raise ValueError(f"{source}: expected a line like 'recipe: mlp', got {found}; `fullstride recipes` lists them")
    from .. import recipes  # the recipes know this file

    try:
        config = overlay(base or recipes.get(mapping["recipe"])(), mapping)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return config


def read(path: Path) -> Config:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: expected YAML, got a file that is not text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; give a YAML file with a line 'recipe: ...'") from None
    return from_yaml(text, str(path))


def missing(config: Config, text: str) -> list[str]:
    """The fields that a file's text leaves to the defaults."""
    import yaml

    given = set(_flat(yaml.safe_load(text)))
    return [name for name in _flat(as_mapping(config)) if name not in given]


def checked(config: C) -> C:
    """The same config as a file of it would be read: in Python nothing keeps anybody from steps=1e3."""
    return overlay(config, as_mapping(config))


def as_mapping(config: object) -> dict[str, Any]:
    """Plain dictionaries, lists, numbers and strings."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}  # type: ignore[arg-type]


def overlay(base: T, changes: Mapping[str, Any], where: str = "") -> T:
    """`base` with the given fields changed; nested mappings change nested fields."""
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
        raise ValueError(f"{where}: expected {describe(hint)}, got {value!r}")
    if origin is Literal:
        if any(value == allowed and type(value) is type(allowed) for allowed in arguments):
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple):
            kinds = [arguments[0]] * len(value) if arguments[1:] == (...,) else list(arguments)
            if len(kinds) == len(value):
                pairs = enumerate(zip(value, kinds, strict=True))
                return tuple(convert(item, kind, f"{where}[{i}]") for i, (item, kind) in pairs)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str):  # YAML reads 1e-4, without a point, as text
            try:
                return float(value)
            except ValueError:
                pass
    elif hint is type(None):
        if value is None:
            return None
    elif type(value) is hint:
        return value
    raise ValueError(f"{where}: expected {describe(hint)}, got {value!r}")


def describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
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


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in mapping.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _example(config: Any) -> str:
    name = dataclasses.fields(config)[0].name
    return f"'{name}: {getattr(config, name)}'"
