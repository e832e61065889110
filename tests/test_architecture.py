"""Which folder may import which: docs/architecture.md says it, and every import in the package is held against that."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fullstride"
DOCUMENT = ROOT / "docs" / "architecture.md"
SECTION = "## Which folder may import which"
DOORS = {"__init__", "__main__"}  # of the package: they may import all of it
SCRIPTS = {"bench/step/side.py"}  # imports the package from outside, as a user's script does


def read_ranks(document: str) -> dict[str, int]:
    """Folder -> rank, from the first column of the section's table; folders of one row have the same."""
    assert SECTION in document, f"{DOCUMENT.name} has no section {SECTION!r}"
    section = document.split(SECTION, 1)[1].split("\n## ", 1)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    rows = [names for names in (re.findall(r"`(\w+)`", cell) for cell in cells) if names]
    ranks = {name: rank for rank, names in enumerate(rows) for name in names}
    assert len(ranks) == sum(map(len, rows)), "a folder stands twice in the table"
    return ranks


def folder_of(file: Path, package: Path) -> str:
    """The top folder of a file; a file that lies in none is a folder of one."""
    return file.relative_to(package).with_suffix("").parts[0]


def imports(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, what is imported of the package, from its top: "data.order"), wherever in the file that stands."""
    name = package.name
    place = (name, *file.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(file.read_text())):
        found: list[tuple[str, ...]]
        if isinstance(node, ast.Import):
            found = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = place[: len(place) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            found = [(*base, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            found = [tuple(str(text).split(".")) for text in texts]
        else:
            continue
        for target in found:
            if target[0] == name:
                yield node.lineno, ".".join(target[1:])


def offenders(package: Path, ranks: dict[str, int]) -> list[str]:
    """A line for each import that does not go down."""
    found = []
    for file in sorted(package.rglob("*.py")):
        own, path = folder_of(file, package), file.relative_to(package).as_posix()
        if own in DOORS:
            continue
        for line, target in imports(file, package):
            other = target.split(".")[0]
            if other in (own, "__version__") or (not other and path in SCRIPTS):
                continue
            if other not in ranks:
                found.append(f"{path}:{line}: imports {target or 'the package itself'}, which is no folder of the list")
            elif ranks[other] >= ranks.get(own, -1):
                found.append(f"{path}:{line}: imports {target}, but {own} stands below {other} or beside it")
    return found


def test_every_import_goes_down():
    found = offenders(PACKAGE, read_ranks(DOCUMENT.read_text()))
    assert not found, f"imports that {DOCUMENT.name} forbids:\n" + "\n".join(found)


def test_the_list_has_every_folder_and_no_other():
    there = {folder_of(file, PACKAGE) for file in PACKAGE.rglob("*.py")} - DOORS
    assert set(read_ranks(DOCUMENT.read_text())) == there


def test_models_are_plain_pytorch():
    """The stock side of a comparison loads them by their paths."""
    found = [(file.name, *line) for file in (PACKAGE / "models").glob("*.py") for line in imports(file, PACKAGE)]
    assert not found


LIST = f"""{SECTION}

| folder | what it is |
|---|---|
| `low`, `beside` | `none` |
| `high` | |

## Another
| `not` | |
"""


def test_the_list_is_read_from_its_section():
    assert read_ranks(f"# A\n| `before` | |\n{LIST}") == {"low": 0, "beside": 0, "high": 1}


def test_a_document_without_the_section_is_no_rule():
    with pytest.raises(AssertionError, match="has no section"):
        read_ranks("# Architecture\n")


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        ("low/a.py", "from ..high import b", "imports high.b, but low stands below high or beside it"),
        ("low/a.py", "from .. import high", "imports high, but low"),
        ("low/a.py", "import pkg.high.b", "imports high.b, but low"),
        ("low/a.py", "from pkg.high.b import c", "imports high.b.c, but low"),
        ("low/deep/a.py", "from ...high import b", "imports high.b, but low"),
        ("low/a.py", "def f():\n    from ..high import b", "low/a.py:2: imports high.b"),
        ("low/a.py", "if TYPE_CHECKING:\n    from ..high import b", "low/a.py:2: imports high.b"),
        ("low/a.py", "importlib.import_module('pkg.high.b')", "imports high.b, but low"),
        ("low/a.py", "from .. import beside", "low stands below beside or beside it"),
        ("low.py", "from .high import b", "low.py:1: imports high.b"),
        ("high/a.py", "from .. import prepare", "imports prepare, which is no folder of the list"),
        ("high/a.py", "import pkg", "imports the package itself"),
        ("unlisted/a.py", "from ..low import b", "unlisted stands below low"),
    ],
)
def test_an_import_that_does_not_go_down_is_found(file, code, expected, tmp_path):
    found = offenders(made(tmp_path, file, code), read_ranks(LIST))
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("high/a.py", "from ..low.b import c\nfrom .. import beside\nimport pkg.low\nfrom .. import __version__"),
        ("low/a.py", "from . import b\nfrom .b import c\nimport pkg.low.b"),
        ("low/deep/a.py", "from .. import b\nfrom . import c"),
        ("low/a.py", "import high, torch\nfrom high.b import c"),
        ("__init__.py", "from .high import b\nfrom .low import c"),
    ],
)
def test_an_import_that_goes_down_or_stays_is_fine(file, code, tmp_path):
    assert not offenders(made(tmp_path, file, code), read_ranks(LIST))


def made(tmp_path, file, code):
    package = tmp_path / "pkg"
    (package / file).parent.mkdir(parents=True)
    (package / file).write_text(code)
    return package
