import shutil

import pytest

from .made_up import Repository


@pytest.fixture
def repository(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("no git")
    return Repository(tmp_path)
