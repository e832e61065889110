import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fullstride import __version__, _source

PACKAGE = Path(_source.__file__).parent


def commit_of(folder: Path) -> str:
    """What a copy of the package in this folder says it is."""
    (folder / "fullstride").mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "_source.py"):
        shutil.copy(PACKAGE / name, folder / "fullstride" / name)
    shutil.copytree(PACKAGE / "machine", folder / "fullstride" / "machine", dirs_exist_ok=True)  # for keep_heap()
    code = "from fullstride import _source; print(_source.commit())"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    command = [sys.executable, "-S", "-c", code]  # -S: without the finder of an editable install, which would win
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("no git")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(git + arguments, check=True)
    return tmp_path


def test_checkout_is_named_by_its_commit(repository):
    assert re.fullmatch(r"[0-9a-f]{12}", commit_of(repository / "src"))


def test_changed_files_are_not_hidden(repository):
    (repository / "file").write_text("x")
    assert "changed" not in commit_of(repository / "src")  # a file that git does not know
    subprocess.run(["git", "-C", str(repository), "add", "file"], check=True)
    assert commit_of(repository / "src").endswith("-changed")


def test_installed_package_does_not_take_the_commit_of_what_lies_around_it(repository):
    assert commit_of(repository / ".venv" / "site-packages") == f"version {__version__}"


def test_without_a_repository_the_version_serves(tmp_path):
    assert commit_of(tmp_path) == f"version {__version__}"
