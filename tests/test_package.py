"""What `import fullstride` offers, and what it does not wait for."""

import subprocess
import sys

import pytest

import fullstride


@pytest.mark.parametrize("name", fullstride.__all__)
def test_every_public_name_is_there(name):
    assert getattr(fullstride, name) is not None


def test_tab_shows_the_public_names_whether_loaded_or_not():
    code = "import fullstride; print(dir(fullstride))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert shown == f"{sorted([*fullstride.__all__, '__version__'])}\n"


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fullstride.nonsense


def test_import_does_not_wait_for_torch():
    code = "import sys, fullstride; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


def test_configs_and_hooks_do_not_wait_for_torch():
    code = "import sys, fullstride; fullstride.recipes.mlp(); fullstride.Hook; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
