"""The fields of a config as options of the command line: --steps 200, --optimizer.lr 1e-3, --data.no-augment.

tyro turns words into values and prints the help; it sees a plain copy of the config's classes, which checks nothing.
The values then go through strict.overlay, as those of a file do, so an error reads the same wherever it is made.
What tyro refuses is explained here in one line.
"""

import ast
import contextlib
import dataclasses
import difflib
import inspect
import io
import textwrap
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from ..recipes import strict
from ..recipes.config import Config

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Field:
    name: str  # as in a file: optimizer.weight_decay
    hint: Any
    default: Any
    help: str

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def options(self) -> list[str]:
        """All spellings: a yes-or-no field has one for each."""
        section, _, name = self.option[2:].rpartition(".")
        off = f"--{section}.no-{name}" if section else f"--no-{name}"
        return [self.option, off] if self.hint is bool else [self.option]

    @property
    def choices(self) -> list[str]:
        """The words this field takes, as far as they can be listed."""
        kinds = [self.hint, *typing.get_args(self.hint)]
        words = [str(word) for kind in kinds if typing.get_origin(kind) is Literal for word in typing.get_args(kind)]
        return words + ["None"] * (type(None) in kinds)


def fields(config: Any, prefix: str = "") -> list[Field]:
    """Every field that can be set, in the order of the class. The recipe is chosen, not set."""
    hints, found = typing.get_type_hints(type(config)), []
    for name, doc in _docs(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            found += fields(value, f"{prefix}{name}.")
        elif prefix + name != "recipe":
            found.append(Field(prefix + name, hints[name], value, doc))
    return found


def apply(base: C, words: list[str], prog: str, others: Sequence[str] = ()) -> C:
    """The config with the options in these words. ValueError in one line; `others` may be what was meant."""
    options = _options(base, words, prog, others)
    try:
        changed = _run_tyro(base, [word for option in options for word in option], prog)
    except SystemExit:
        raise ValueError(_explain(base, options, prog)) from None
    known = {spelling: field.name for field in fields(base) for spelling in field.options}
    return strict.overlay(base, _only(strict.as_mapping(changed), {known[name] for name, *_ in options}))


def _only(values: dict[str, Any], names: set[str], prefix: str = "") -> dict[str, Any]:
    """Those that were given: a value that is there by default must not count as chosen."""
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        nested = _only(value, names, f"{prefix}{name}.") if isinstance(value, dict) else None
        if nested or prefix + name in names:
            chosen[name] = nested or value
    return chosen


def print_help(base: Config, prog: str, description: str) -> None:
    import tyro

    with contextlib.suppress(SystemExit):
        tyro.cli(_plain_copy(base, prog), args=["--help"], prog=prog, description=description)


def _options(base: Config, words: list[str], prog: str, others: Sequence[str]) -> list[list[str]]:
    """Each option with its values. Names are checked, --a.b true becomes --a.b, and false --a.no-b."""
    known = {spelling: field for field in fields(base) for spelling in field.options}
    options: list[list[str]] = []
    for word in words:
        if not word.startswith("--"):
            if not options:
                raise ValueError(f"expected options such as --steps 200, got {word!r}")
            options[-1].append(word)
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name not in known:
            near = _nearest(name, [*known, *others])
            raise ValueError(f"unknown option {name}; {near or f'`{prog} --help` lists them'}")
        options.append([name, value] if equals else [name])
    for option in options:
        field = known[option[0]]
        if field.hint is bool and len(option) == 2 and option[1].lower() in ("true", "false"):
            spellings = field.options if option[0] == field.option else field.options[::-1]
            option[:] = [spellings[option[1].lower() == "false"]]
        if field.hint == int | str and len(option) > 2:  # --evaluation.every 5 epochs, without quotes
            option[1:] = [" ".join(option[1:])]
        if field.hint is not bool and len(option) == 1:  # an empty list, tyro would say: a variable that was not set
            raise ValueError(f"{option[0]}: expected {_expected(field)}, got nothing")
    return options


def _nearest(name: str, known: list[str]) -> str:
    """--lr is taken for --optimizer.lr, and so is --optimizer.lrr; --batch-size for --micro-batch among others."""
    section = [option for option in known if option.startswith(f"{name}.")]
    first = [option for option in section if option.endswith(".name")] or section[:1]
    slip, guess = (difflib.get_close_matches(name, known, n=1, cutoff=cutoff) for cutoff in (0.85, 0.6))
    near = first or slip or _with_its_words(name, known) or guess
    return f"did you mean {' or '.join(near)}?" if near else ""


def _with_its_words(name: str, known: list[str]) -> list[str]:
    """The options with the most words of a name, if they are half of it or more; a few or none."""
    words = _words(name)
    shared = {option: len(words & _words(option)) for option in known}
    most = max(shared.values())
    near = [option for option, number in shared.items() if number == most]
    near = [option for option in near if "no" in words or "no" not in _words(option)]
    return near if 2 * most >= len(words) and len(near) <= 4 else []


def _words(option: str) -> set[str]:
    return set(option.rpartition(".")[2].removeprefix("--").split("-"))


def _explain(base: Config, options: list[list[str]], prog: str) -> str:
    """Which option tyro did not take, found by trying each alone."""
    known = {spelling: field for field in fields(base) for spelling in field.options}
    for name, *values in options:
        try:
            _run_tyro(base, [name, *values], prog)
        except SystemExit:
            field = known[name]
            expected = _expected(field)
            if field.hint is bool:
                expected = f"no value, or true or false (its opposite is {field.options[name == field.option]})"
            return f"{name}: expected {expected}, got {' '.join(values) or 'nothing'}"
    return f"cannot read {' '.join(word for option in options for word in option)}; `{prog} --help` shows the options"


def _expected(field: Field) -> str:
    return strict.describe(field.hint).replace("null", "None")


def _run_tyro(base: Config, words: list[str], prog: str) -> Any:
    import tyro

    with contextlib.redirect_stderr(io.StringIO()):  # its errors are boxes of many lines
        return tyro.cli(_plain_copy(base, prog), args=words, prog=prog, console_outputs=False)


def _plain_copy(config: Any, name: str) -> type:
    """A dataclass with the same fields, help and these values as defaults, and no checks of its own."""
    import tyro

    hints = typing.get_type_hints(type(config))
    members: list[tuple[str, Any, Any]] = []
    for field, doc in _docs(type(config)).items():
        value = getattr(config, field)
        if dataclasses.is_dataclass(value):
            nested = _plain_copy(value, field)
            members.append((field, nested, dataclasses.field(default_factory=nested)))
        elif field != "recipe":
            members.append((field, Annotated[hints[field], tyro.conf.arg(help=doc or None)], value))
    copy = dataclasses.make_dataclass(name, members, frozen=True)
    doc = type(config).__doc__ or ""
    copy.__doc__ = "" if doc.startswith(f"{type(config).__name__}(") else doc  # which dataclass() wrote
    return copy


def _docs(cls: type) -> dict[str, str]:
    """The fields of a dataclass and the string below each, its help."""
    docs = {f.name: "" for f in dataclasses.fields(cls)}
    for base in cls.__mro__:
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for member, after in zip(tree.body, tree.body[1:], strict=False):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and isinstance(text, str):
                docs[member.target.id] = docs[member.target.id] or inspect.cleandoc(text)
    return docs
