"""Configs as YAML, strictly (strict.py): no unknown name, no wrong type, no silent loss.

A file names its recipe, whose defaults stand for what the file leaves out:

    recipe: mlp
    steps: 200
    optimizer:
      lr: 0.001

The file in a run folder leaves nothing out. One written by an older version lacks the fields that came since: they take
today's default, and a line of the log says which. One that has fields of which this version knows nothing is refused.
"""

from pathlib import Path
from typing import Any

from ..run_folder.flat import flat
from . import catalogue
from .config import Config
from .strict import as_mapping, overlay


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
    try:
        config = overlay(base or catalogue.get(mapping["recipe"])(), mapping)
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

    given = set(flat(yaml.safe_load(text)))
    return [name for name in flat(as_mapping(config)) if name not in given]
