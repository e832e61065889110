"""timm's average of weights, from timm itself, whether or not all of timm can be imported here.

timm asks for torchvision, whose wheels are built for torch with CUDA: beside a CPU-only torch their import fails, and
that of transformers with it. So the development environment has timm without torchvision, and `timm.utils.model_ema`,
which needs torch alone, is imported without running the __init__ files around it.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest


def import_model_ema(patch: pytest.MonkeyPatch) -> Any:
    """The module timm.utils.model_ema. The test is skipped where timm is not installed."""
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("timm is not installed: `make setup` does, or pip install --no-deps timm")
    folder = spec.submodule_search_locations[0]
    for name, path in (("timm", folder), ("timm.utils", f"{folder}/utils")):
        package = ModuleType(name)
        package.__path__ = [path]
        patch.setitem(sys.modules, name, package)
    patch.delitem(sys.modules, "timm.utils.model_ema", raising=False)
    module = importlib.import_module("timm.utils.model_ema")
    patch.setitem(sys.modules, "timm.utils.model_ema", module)  # so that it goes with the packages
    return module
