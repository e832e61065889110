"""Without the packages: fullstride does not need them, and a helper says which one it misses."""

import subprocess
import sys

import pytest

PACKAGES = ("accelerate", "lightning", "timm", "transformers")


def output(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_preparing_a_model_imports_none_of_them():
    code = (
        "import sys, torch, fullstride, fullstride.integrations;"
        " layer = torch.nn.Linear(4, 4);"
        " fullstride.prepare(layer, torch.optim.SGD(layer.parameters()), precision='bf16', threads=1);"
        f" print(type(layer).__module__, [name for name in {PACKAGES} if name in sys.modules])"
    )
    done = output(code)
    assert done.stdout == "fullstride.nn.linear []\n", done.stderr


@pytest.mark.parametrize(
    ("helper", "missing", "advice"),
    [
        ("transformers", "transformers", "pip install transformers accelerate"),
        ("transformers", "accelerate", "pip install transformers accelerate"),
        ("lightning", "lightning", "pip install lightning"),
    ],
)
def test_a_helper_names_the_package_that_it_misses(helper, missing, advice):
    code = f"import sys; sys.modules[{missing!r}] = None; import fullstride.integrations.{helper}"
    last = output(code).stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: fullstride.integrations.{helper}: expected ")
    assert missing in last.split("got: ")[1]
    assert last.endswith(advice)
