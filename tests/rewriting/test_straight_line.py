"""Which methods are taken for straight-line code, by their source, and that only source which is what runs counts."""

import ast
import functools
import importlib.util
import linecache
import os
import py_compile
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fullstride.rewriting.fusion import straight_line
from fullstride.rewriting.fusion.fuse import replace

from .models import CASES
from .test_fuse import EXACT

HEADER = """
from __future__ import annotations
import math
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 2.0
seen = []

def helper(x):
    return F.relu(x)

def kept(note):
    def decorate(function):
        function.note = note
        return function
    return decorate

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.__private = nn.Linear(8, 8)
        self.act, self.scale, self.function, self.items = nn.GELU(), 0.5, F.relu, [1, 2]
        self.drop = nn.Dropout(0.5)
        self.register_buffer("mask", torch.ones(8))

"""

ALLOWED = {
    "a docstring": '"""What it does."""\nreturn F.relu(self.a(x))',
    "a name": "h = self.a(x)\nreturn F.relu(h)",
    "names by one assignment": "h = g = self.a(x)\nreturn F.relu(h)",
    "a tuple of names": "h, g = self.a(x).chunk(2, dim=-1)\nreturn F.silu(h) * g",
    "a list of names": "[h, g] = self.a(x).chunk(2, dim=-1)\nreturn F.silu(h) * g",
    "an annotation": "h: Unknown[Tensor] = self.a(x)\nreturn F.relu(h)",
    "a declaration": "h: Tensor\nh = self.a(x)\nreturn F.relu(h)",
    "an assignment in an expression": "return F.relu(h := self.a(x))",
    "a call for its effect": "x.add_(1)\nreturn F.relu(self.a(x))",
    "nothing": "pass\nreturn F.relu(self.a(x))",
    "options by name": "return F.gelu(self.a(x), approximate='tanh')",
    "attributes of a tensor": "return F.relu(self.a(x.mT.mT))",
    "arithmetic": "return (F.relu(self.a(x)) * 2 + 1 - 3) / 4 ** 2 @ x.mT // 1 % 5",
    "a minus": "return -F.relu(self.a(-x))",
    "an index": "return F.relu(self.a(x[0]))[..., 0]",
    "slices": "return F.relu(self.a(x[:, 1:2][..., :8][::2]))",
    "a tuple": "return F.relu(self.a(x)), x",
    "a list": "return torch.cat([F.relu(self.a(x)), x], dim=-1)",
    "a number of the module": "return F.relu(self.a(x)) * self.scale",
    "a buffer and a parameter": "return F.relu(self.a(x)) * self.mask.neg()",
    "a function of the module": "return self.function(self.a(x))",
    "constants of math and torch": "return F.relu(self.a(x)).mul(math.pi).add(math.e * torch.pi).to(torch.float32)",
    "a local name that hides a global": "SCALE = self.a(x)\nreturn F.relu(SCALE)",
    "a builtin's name": "sum = self.a(x)\nreturn F.relu(sum)",
}
if sys.version_info >= (3, 11):  # before, code does not tell its class, and such a method is left alone
    ALLOWED["a private name"] = "return F.relu(self.__private(x))"

BRANCHES = {
    "if": "if self.scale:\n    x = x + 1\nreturn F.relu(self.a(x))",
    "a conditional expression": "return F.relu(self.a(x)) if self.scale else x",
    "and": "return F.relu(self.a(x)) and x",
    "for": "for _ in (1, 2):\n    x = F.relu(self.a(x))\nreturn x",
    "while": "while self.scale:\n    return F.relu(self.a(x))",
    "try": "try:\n    return F.relu(self.a(x))\nfinally:\n    pass",
    "assert": "assert x is not None\nreturn F.relu(self.a(x))",
    "match": "match x:\n    case _:\n        return F.relu(self.a(x))",
    "a comprehension": "return [F.relu(self.a(y)) for y in (x, x)]",
    "a generator in a call": "return sum(F.relu(self.a(y)) for y in (x, x))",
}

NOT_PLAIN = {
    "with": ("with torch.no_grad():\n    return F.relu(self.a(x))", "With"),
    "an operation in place": ("x += 1\nreturn F.relu(self.a(x))", "AugAssign"),
    "a comparison": ("return F.relu(self.a(x)) > 0", "Compare"),
    "not": ("return not F.relu(self.a(x))", "Not"),
    "inverting": ("return ~F.relu(self.a(x))", "Invert"),
    "starred arguments": ("return F.relu(*[self.a(x)])", "Starred"),
    "starred names": ("h, *_ = self.a(x).chunk(2)\nreturn F.relu(h)", "Starred"),
    "options from a dict": ("return F.gelu(self.a(x), **{})", "keyword"),
    "a dict": ("return {'y': F.relu(self.a(x))}", "Dict"),
    "a set": ("return {F.relu(self.a(x))}", "Set"),
    "a formatted string": ("return F.gelu(self.a(x), approximate=f'{1}')", "JoinedStr"),
    "del": ("h = self.a(x)\ny = F.relu(h)\ndel h\nreturn y", "Delete"),
    "raise": ("raise ValueError(F.relu(self.a(x)))", "Raise"),
    "a lambda": ("f = lambda: 1\nreturn F.relu(self.a(x))", "Lambda"),
    "a nested function": ("def f():\n    return 1\nreturn F.relu(self.a(x))", "FunctionDef"),
    "a nested class": ("class A:\n    pass\nreturn F.relu(self.a(x))", "ClassDef"),
    "import": ("import os\nreturn F.relu(self.a(x))", "Import"),
    "global": ("global SCALE\nSCALE = 1\nreturn F.relu(self.a(x))", "Global"),
}

OTHERS = {
    "assigning to self": ("self = x\nreturn F.relu(self.a(x))", "it assigns to self"),
    "handing self on": ("return F.relu(self.a(x), self)", "it hands self on"),
    "an attribute of the module": ("self.scale = 1\nreturn F.relu(self.a(x))", "it writes to an attribute"),
    "an attribute declared": ("self.scale: int = 1\nreturn F.relu(self.a(x))", "it writes to an attribute"),
    "an item": ("x[0] = 1\nreturn F.relu(self.a(x))", "it writes to an attribute or an item"),
    "an item among names": ("h, x[0] = self.a(x).chunk(2)\nreturn F.relu(h)", "it writes to an attribute or an item"),
    "looking into a child": ("return F.relu(F.linear(x, self.a.weight))", "it looks into self.a"),
    "a global number": ("return F.relu(self.a(x)) * SCALE", "it uses the global SCALE"),
    "a switch of torch": ("return F.relu(self.a(x)) * torch.backends.cudnn.enabled", "torch.backends.cudnn.enabled"),
    "the version of torch": ("return F.relu(self.a(x)) * torch.__version__.count('.')", "__version__"),
    "a number of torch": ("return F.relu(self.a(x)) * torch.serialization.DEFAULT_PROTOCOL", "DEFAULT_PROTOCOL"),
    "a global list": ("seen.append(x)\nreturn F.relu(self.a(x))", "it uses seen.append"),
    "a builtin": ("print(x)\nreturn F.relu(self.a(x))", "it uses the global print"),
    "a helper": ("return helper(F.relu(self.a(x)))", "something that torch.fx does not record"),
    "a random tensor": ("return F.relu(self.a(x)) + torch.rand(8)", "it uses a Tensor that is neither an argument"),
    "a list of the module": ("return F.relu(self.a(x)) * self.items[0]", "it uses self.items, a list"),
    "a method of the module": ("return F.relu(self.a(x)).view(self.size())", "it uses self.size"),
    "a child under a local name": ("layer = self.a\nreturn F.relu(layer(x))", "it hands self.a on"),
    "a child called twice under one name": ("f = self.a\nreturn F.relu(f(f(x)))", "it hands self.a on"),
    "a child named where it is called": ("return F.relu((f := self.a)(x)) * f.in_features", "it hands self.a on"),
    "an option of a child": ("d = self.drop\nreturn F.dropout(d(F.relu(self.a(x))), d.p)", "it hands self.drop on"),
    "a switch of a child": ("d = self.drop\nd.train(False)\nreturn d(F.relu(self.a(x)))", "it hands self.drop on"),
    "a method of a child": ("m = self.a\nreturn F.relu(m(m._call_impl(x)))", "it hands self.a on"),
    "children in a tuple": ("ms = (self.a, self.b)\nreturn F.relu(ms[1](ms[0](x))) * ms[0].in_features", "self.a on"),
    "a function under a local name": ("f = F.relu\nreturn f(self.a(x))", "it hands F.relu on"),
    "a function of the module under a local name": ("f = self.function\nreturn f(self.a(x))", "self.function on"),
    "the class of an argument": ("return F.relu(self.a(x)) * x.__class__.__name__.__len__()", "__class__"),
    "the class of a result": ("return F.relu(self.a(x)) * (x + 1).__class__.__name__.count('P')", "__class__"),
    "super()": ("super().train()\nreturn F.relu(self.a(x))", "or super()"),
}


def write_module(folder, body, *, before=""):
    """A real file with a class of that forward, imported as a user's is."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    file = folder / f"written_{len(list(folder.iterdir()))}.py"
    file.write_text(f"{HEADER}    {before}def forward(self, x):\n{lines}")
    return load(file), file


def load(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ALLOWED)
def test_plain_constructs_are_fused(name, tmp_path):
    torch.manual_seed(0)
    module, _ = write_module(tmp_path, ALLOWED[name])
    model, x = module.Model(), torch.randn(2, 4, 8)
    with torch.no_grad():
        expected = model(x.clone())
        done, left, _ = replace(model)
        assert done, left
        torch.testing.assert_close(model(x.clone()), expected)


def assert_left(model, reason):
    x = torch.randn(2, 4, 8)
    done, left, _ = replace(model)
    assert not done
    assert reason in left
    assert "forward" not in model.__dict__
    return x


@pytest.mark.parametrize("name", BRANCHES)
def test_code_that_branches_or_loops_is_left_alone(name, tmp_path):
    assert_left(write_module(tmp_path, BRANCHES[name])[0].Model(), "its code branches or loops")


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_other_constructs_are_left_alone_and_named(name, tmp_path):
    body, construct = NOT_PLAIN[name]
    assert_left(write_module(tmp_path, body)[0].Model(), f"its code is not plain: {construct}")


@pytest.mark.parametrize("name", OTHERS)
def test_plain_code_that_reaches_for_something_else_is_left_alone(name, tmp_path):
    body, reason = OTHERS[name]
    assert_left(write_module(tmp_path, body)[0].Model(), reason)


def test_a_switch_that_is_read_from_a_child_is_not_frozen(tmp_path):
    body = "d = self.drop\nh = d(F.relu(self.a(x)))\nreturn F.dropout(h, d.p, d.training)"
    model, x = write_module(tmp_path, body)[0].Model(), torch.randn(2, 4, 8)
    replace(model)
    model.eval()
    torch.testing.assert_close(model(x), F.relu(model.a(x)))


def test_assigning_to_self_under_a_private_name_is_refused(tmp_path):
    _, file = write_module(tmp_path, "y = F.relu(__self.a(x))\n__self = x\nreturn y")
    file.write_text(file.read_text().replace("forward(self, x)", "forward(__self, x)"))
    linecache.clearcache()
    assert_left(load(file).Model(), "self")


@pytest.mark.parametrize("name", ["act", "mask", "scale"])
def test_what_a_property_of_the_class_hides_is_refused(name, tmp_path):
    """A child, a buffer and a plain value."""
    module, _ = write_module(tmp_path, "return self.act(self.a(x)) * self.mask * self.scale")
    model = module.Model()
    setattr(module.Model, name, property(lambda self: F.relu))
    assert_left(model, f"it uses self.{name}")


@pytest.mark.parametrize("name", ["act", "mask"])
def test_what_a_value_of_the_class_hides_is_refused(name, tmp_path):
    """A child and a buffer: modules look for those only where Python has found nothing."""
    module, _ = write_module(tmp_path, "return self.act(self.a(x)) * self.mask")
    model = module.Model()
    setattr(module.Model, name, F.relu)
    assert_left(model, f"it uses self.{name}")


def test_variables_of_an_enclosing_function_are_refused():
    factor = 2.0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x):
            return F.relu(self.a(x)) * factor

    assert_left(Model(), "it uses variables of another function")


# ---- source that is not what runs ------------------------------------------------------------------------------------

RELU = "return F.relu(self.a(x))"
NOT_WHAT_RUNS = "its source is not to be had or is not what runs"


@pytest.mark.parametrize(
    "edited",
    ["return F.silu(self.a(x))", "return F.relu(self.b(x))", "return F.relu(self.a(x)) * 1.0", "return F.relu("],
    ids=["function", "child", "constant", "unfinished"],
)
def test_a_file_edited_after_import_is_refused(edited, tmp_path):
    module, file = write_module(tmp_path, "return F.relu(self.a(x)) * 1" if "1.0" in edited else RELU)
    file.write_text(file.read_text().replace(file.read_text().splitlines()[-1].strip(), edited))
    linecache.clearcache()
    x = assert_left(module.Model(), NOT_WHAT_RUNS)
    model = module.Model()
    torch.testing.assert_close(model(x), F.relu(model.a(x)))


def test_a_file_that_has_lines_before_it_since_import_is_refused(tmp_path):
    module, file = write_module(tmp_path, RELU)
    file.write_text("\n\n" + file.read_text())
    linecache.clearcache()
    assert_left(module.Model(), NOT_WHAT_RUNS)


def test_a_file_that_has_gone_is_refused(tmp_path):
    module, file = write_module(tmp_path, RELU)
    file.unlink()
    linecache.clearcache()
    assert_left(module.Model(), NOT_WHAT_RUNS)


def test_code_of_a_stale_pyc_is_refused(tmp_path):
    """Python trusts time and size: after an edit that keeps both it runs the old code."""
    module, file = write_module(tmp_path, RELU)
    py_compile.compile(str(file))
    times = file.stat()
    file.write_text(file.read_text().replace("F.relu(self.a(x))", "F.silu(self.a(x))"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    linecache.clearcache()
    again = load(file)
    assert again.Model.forward.__code__ == module.Model.forward.__code__  # or nothing is tested here
    assert_left(again.Model(), NOT_WHAT_RUNS)


def test_a_class_without_source_is_left_alone_and_computes():
    names: dict = {}
    exec(f"{HEADER}    def forward(self, x):\n        {RELU}\n", names)
    model = names["Model"]()
    x = assert_left(model, NOT_WHAT_RUNS)
    torch.testing.assert_close(model(x), F.relu(model.a(x)))


def test_a_sum_before_a_norm_without_source_gives_the_reason():
    names: dict = {"nn": nn}
    exec("class Sum(nn.RMSNorm.__mro__[1]):\n    def forward(self, x):\n        return self.norm(x + x)\n", names)
    model = names["Sum"]()
    model.norm = nn.RMSNorm(8)
    assert_left(model, NOT_WHAT_RUNS)


def test_a_decorator_that_wraps_is_refused():
    def loud(function):
        @functools.wraps(function)
        def wrapper(self, x):
            return function(self, x)

        return wrapper

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Linear(8, 8), nn.ReLU()

        @loud
        def forward(self, x):
            return self.act(self.a(x))

    assert_left(Model(), "its forward is not a plain method")


def test_a_decorator_that_gives_the_function_back_is_no_matter(tmp_path):
    module, _ = write_module(tmp_path, RELU, before="@kept(1)\n    ")
    assert replace(module.Model())[:2] == ("Linear + ReLU", "")


def test_what_stands_on_the_same_line_is_not_taken_for_the_method(tmp_path):
    """A lambda beside a function: its own code is not read as that of the function."""
    module, _ = write_module(tmp_path, RELU, before="@kept(lambda self, x: F.silu(self.a(x)) + SCALE)\n    ")
    model = module.Model()
    module.Model.forward = module.Model.forward.note
    assert_left(model, NOT_WHAT_RUNS)


def test_a_file_that_makes_the_compiler_warn_is_read_in_silence(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, _ = write_module(tmp_path, f"'\\d'\n{RELU}")
    assert replace(module.Model())[:2] == ("Linear + ReLU", "")


def test_a_function_put_into_a_class_later_is_read_where_it_stands(tmp_path):
    module, _ = write_module(tmp_path, RELU)
    module.Model.forward = free_forward
    assert replace(module.Model())[:2] == ("Linear + SiLU", "")


def free_forward(self, x):
    return F.silu(self.a(x))


# ---- this Python -----------------------------------------------------------------------------------------------------


def test_this_python_has_the_constructs_with_the_fields_that_are_known():
    """If this fails, a new Python changed a construct. Look whether the field matters, then add it to _PLAIN."""
    for known in straight_line._PLAIN:
        name = known.partition("(")[0]
        assert known == f"{name}({','.join(getattr(ast, name)._fields)})"


def known_forwards():
    """(module, what was fused in it) for forwards that every supported Python must fuse."""
    llama = CASES["llama"].make_model().model.layers[0]
    yield "Llama's MLP in transformers", llama.mlp, "SwiGLU"
    bert = CASES["bert"].make_model().bert.encoder.layer[0]
    yield "BERT's sum and norm", bert.output, "residual + LayerNorm"
    yield "torch's encoder layer", nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), "Linear + ReLU"
    yield "a sequence", CASES["tied weights"].make_model().body, "Linear + GELU"
    for kind, what in EXACT.items():
        yield kind.__name__, kind(), what


def test_every_known_forward_is_fused_on_this_python():
    """Loud where another Python makes fusion stop: elsewhere it would only be slower."""
    found = {name: (replace(module)[:2], what) for name, module, what in known_forwards()}
    wrong = {name: result for name, (result, what) in found.items() if result != (what, "")}
    assert not wrong, f"CPython {sys.version}: {wrong}"
