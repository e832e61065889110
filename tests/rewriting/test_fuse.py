"""Fused modules compute what they computed before, keep their hooks, and let everything alone that might differ."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from fullstride.rewriting import rewrite
from fullstride.rewriting.fusion import residual_norm, rewriter
from fullstride.rewriting.fusion.fuse import Sequential, put_back, replace

SCALE = 2.0


def helper(x):
    return F.relu(x)


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 8)
        self.act = nn.GELU()


class ModuleActivation(TwoLayers):
    def forward(self, x):
        return self.b(self.act(self.a(x)))


class Functions(TwoLayers):
    def forward(self, x):
        h = torch.relu(self.a(x))
        return F.silu(self.b(h))


class Methods(TwoLayers):
    def forward(self, x):
        return self.b(self.a(x).relu()).relu_()


class TanhGelu(TwoLayers):
    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.b(F.gelu(self.a(x), approximate="tanh"))


class Gated(TwoLayers):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 12, bias=False)

    def forward(self, x):
        return self.b(F.silu(self.a(x)) * self.up(x))


class Halves(TwoLayers):
    def forward(self, x):
        gate, up = self.a(x).chunk(2, dim=-1)
        return up * self.act(gate)


class WithDropout(TwoLayers):
    p = 0.5

    def __init__(self):
        super().__init__()
        self.p = 0.5

    def forward(self, x):
        return self.b(F.dropout(F.relu(self.a(x)), self.p, self.training))


class Norms(nn.Module):
    def __init__(self, norm=nn.RMSNorm):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = norm(8), norm(8)
        self.mix = nn.Linear(8, 8)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))


class Residual(Norms):
    """Both sums are used again."""

    def forward(self, x):
        x = x + self.mix(x)
        x = torch.add(x, self.mix(self.first(x)))
        return x, self.second(x)


class ResidualThenNorm(Norms):
    """As in BERT: the sum is used by its norm alone."""

    def forward(self, x):
        x = self.first(x + self.mix(x))
        return self.second(self.mix(x).add(x))


class LayerNormResidual(Residual):
    def __init__(self):
        super().__init__(nn.LayerNorm)


class LayerNormThen(ResidualThenNorm):
    def __init__(self):
        super().__init__(nn.LayerNorm)


class EpsOfDtype(Residual):
    def __init__(self):
        super().__init__(lambda width: nn.RMSNorm(width, eps=None))


class WithoutWeights(Residual):
    def __init__(self):
        super().__init__(lambda width: nn.LayerNorm(width, elementwise_affine=False))


class InMethod(Norms):
    """forward branches and leaves what can be fused to a method."""

    def forward(self, x):
        return self.normed(x, self.mix(x)) if x.dim() else x

    def normed(self, x, update):
        return self.first(x + update)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv1d(8, 12, 3, padding=1), nn.Conv1d(12, 8, 1)

    def forward(self, x):
        return self.b(F.relu(self.a(x.transpose(1, 2)))).transpose(1, 2)


EXACT = {
    Convolutions: "Conv1d + ReLU",
    ModuleActivation: "Linear + GELU",
    Functions: "Linear + ReLU, Linear + SiLU",
    Methods: "2 x Linear + ReLU",
    TanhGelu: "Linear + GELU (tanh)",
    Gated: "SwiGLU",
    Halves: "GEGLU",
    WithDropout: "Linear + ReLU",
    Residual: "2 x residual + RMSNorm",
    ResidualThenNorm: "2 x residual + RMSNorm",
    LayerNormResidual: "2 x residual + LayerNorm",
    LayerNormThen: "2 x residual + LayerNorm",
    EpsOfDtype: "2 x residual + RMSNorm",
    WithoutWeights: "2 x residual + LayerNorm",
    InMethod: "residual + RMSNorm",
}


class Branches(TwoLayers):
    def forward(self, x):
        if x.dim() > 1:
            return self.b(F.relu(self.a(x)))
        return x


class Loops(TwoLayers):
    def forward(self, x):
        for _ in range(2):
            x = self.b(F.relu(self.a(x)))
        return x


class Writes(TwoLayers):
    def forward(self, x):
        self.last = self.b(F.relu(self.a(x)))
        return self.last


class ChangesItsInput(TwoLayers):
    def forward(self, x):
        x *= 2
        return self.b(F.relu(self.a(x)))


class CallsHelper(TwoLayers):
    def forward(self, x):
        return self.b(helper(self.a(x)))


class ReadsGlobal(TwoLayers):
    def forward(self, x):
        return self.b(F.relu(self.a(x)) * SCALE)


class MakesNoise(TwoLayers):
    def forward(self, x):
        return self.b(F.relu(self.a(x)) + torch.rand(12))


class HasDefault(TwoLayers):
    def forward(self, x, scale=1.0):
        return self.b(F.relu(self.a(x))) * scale


class Prints(TwoLayers):
    def forward(self, x):
        print("forward")
        return self.b(F.relu(self.a(x)))


class OwnMethod(TwoLayers):
    def activate(self, x):
        return F.relu(x)

    def forward(self, x):
        return self.b(self.activate(F.relu(self.a(x))))


class LooksIntoChild(TwoLayers):
    def forward(self, x):
        return F.linear(F.relu(self.a(x)), self.b.weight)


class UsesResultTwice(TwoLayers):
    def forward(self, x):
        h = self.a(x)
        return self.b(F.relu(h)) + self.b(h)


INEXACT = [
    Branches, Loops, Writes, ChangesItsInput, CallsHelper, ReadsGlobal, MakesNoise, HasDefault, Prints, OwnMethod,
    LooksIntoChild, UsesResultTwice,
]  # fmt: skip


def outcome(model, x, rng=0):
    """The result with all gradients."""
    torch.manual_seed(rng)
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    results = y if isinstance(y, tuple) else (y,)
    sum(result.square().sum() for result in results).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*(result.detach() for result in results), x.grad, *gradients]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)


@pytest.fixture
def calls(monkeypatch):
    """The names of the fused functions that have run."""
    seen = []
    for module, name in (
        (rewriter, "linear"), (rewriter, "convolve"), (rewriter, "glu"), (rewriter, "bias_act"),
        (residual_norm, "rms_norm"), (residual_norm, "layer_norm"),
    ):  # fmt: skip
        original = getattr(module, name)

        def record(*args, _name=name, _original=original, **kwargs):
            seen.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(module, name, record)
    return seen


@pytest.fixture
def x():
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.__name__)
def test_fused_code_computes_the_same(kind, x, calls):
    model = kind()
    expected = outcome(model, x)
    assert replace(model)[:2] == (EXACT[kind], "")
    assert_same(outcome(model, x), expected)
    assert calls


@pytest.mark.parametrize("kind", INEXACT, ids=lambda kind: kind.__name__)
def test_code_that_a_trace_cannot_hold_is_left_alone(kind):
    model = kind()
    done, left, _ = replace(model)
    assert left
    assert not done
    assert "forward" not in model.__dict__


def test_a_model_without_activation_needs_no_reason():
    assert replace(nn.LayerNorm(4))[:2] == ("", "")
    assert replace(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))[:2] == ("", "")


def test_the_gate_reads_its_input_before_another_module_can_write_to_it():
    class Doubles(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.doubles, self.act = Doubles(), nn.SiLU()

        def forward(self, x):
            return self.act(x) * self.doubles(x)

    x, model = torch.randn(4, 8), Model()
    expected = F.silu(x) * (2 * x)
    replace(model)
    torch.testing.assert_close(model(x), expected)


def test_the_activation_moves_up_to_the_layer_and_not_the_layer_down(x):
    class Model(TwoLayers):
        def forward(self, x):
            h = self.a(x)
            x.add_(1)
            return F.relu(h)

    model = Model()
    expected = F.relu(model.a(x)).detach()
    assert replace(model)[:2] == ("Linear + ReLU", "")
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected)


def test_a_gate_may_broadcast(x):
    model = Gated()
    model.up = nn.Linear(8, 1)
    expected = outcome(model, x)
    assert replace(model)[:2] == ("SwiGLU", "")
    assert_same(outcome(model, x), expected)


HOOKS = {
    "forward": lambda model, hook: model.a.register_forward_hook(hook),
    "forward pre": lambda model, hook: model.a.register_forward_pre_hook(hook),
    "backward": lambda model, hook: model.act.register_full_backward_hook(hook),
    "backward pre": lambda model, hook: model.act.register_full_backward_pre_hook(hook),
    "everything": lambda model, hook: nn.modules.module.register_module_forward_hook(hook),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("kind", ["own code", "sequence"])
def test_hooks_added_later_are_called(kind, hook, x, calls):
    layers = ModuleActivation()
    model = layers if kind == "own code" else nn.Sequential(layers.a, layers.act)
    assert replace(model)[0]
    seen = []
    handle = HOOKS[hook](layers, lambda *_: seen.append(hook))
    outcome(model, x)
    assert seen
    assert not calls
    handle.remove()
    outcome(model, x)
    assert calls


def replace_layer(model):
    model.a = nn.Linear(8, 12)


def replace_activation(model):
    model.act = nn.Tanh()


def prune_layer(model):
    prune.l1_unstructured(model.a, "weight", amount=0.5)


def parametrize(model):
    parametrizations.weight_norm(model.a)


def change_option(model):
    model.act.approximate = "tanh"


def own_forward(model):
    model.a.forward = lambda x: F.linear(x, 2 * model.a.weight)


@pytest.mark.parametrize(
    "change", [replace_layer, replace_activation, prune_layer, parametrize, change_option, own_forward],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_changes_after_fusing_are_respected(change, x):
    model = ModuleActivation()
    replace(model)
    change(model)
    torch.testing.assert_close(model(x), type(model).forward(model, x))


def test_an_attribute_that_the_code_reads_may_change(x, calls):
    model = WithDropout()
    replace(model)
    model.eval()
    torch.testing.assert_close(model(x), type(model).forward(model, x))
    assert not calls
    model.train()
    model(x)
    assert calls == ["linear"]


@pytest.mark.parametrize("change", [prune_layer, parametrize])
def test_a_linear_layer_whose_weight_is_computed_is_left_alone(change, x):
    model = ModuleActivation()
    change(model)
    sequence = nn.Sequential(model.a, model.act)
    assert not replace(sequence)[0]
    expected = model(x)
    replace(model)  # the activation alone, perhaps
    torch.testing.assert_close(model(x), expected)


def test_a_subclass_of_linear_is_left_alone():
    class Doubled(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    assert not replace(nn.Sequential(Doubled(2, 2), nn.ReLU()))[0]


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.ReLU(inplace=True), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.SiLU(inplace=True)],
    ids=repr,
)  # fmt: skip
def test_a_sequence_computes_the_same(activation, x, calls):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), activation, nn.Dropout(0.0), nn.Linear(12, 4), activation, nn.Linear(4, 4))
    expected = outcome(model, x)
    assert replace(model)[0]
    assert_same(outcome(model, x), expected)
    assert calls == ["linear", "linear"]


def test_a_sequence_of_convolutions_computes_the_same(x, calls):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 12, 3), nn.SiLU(), nn.Conv1d(12, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
    expected = outcome(model, x)
    assert replace(model)[:2] == ("Conv1d + SiLU", "")
    assert_same(outcome(model, x), expected)
    assert calls == ["convolve"]


def test_a_convolution_that_was_changed_is_called_as_ever(x, calls):
    model = Convolutions()
    replace(model)
    model.a.stride = (2,)
    assert model(x).shape == (2, 2, 8)
    assert not calls


def test_a_sequence_is_still_a_sequence(x):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    keys = list(model.state_dict())
    replace(model)
    assert isinstance(model, nn.Sequential)
    assert list(model.state_dict()) == keys
    assert isinstance(model[1], nn.ReLU)
    torch.testing.assert_close(model[:2](x), F.relu(model[0](x)))
    model.append(nn.ReLU())
    torch.testing.assert_close(model(x), F.relu(model[2](F.relu(model[0](x)))))


def test_only_the_very_class_sequential_is_known():
    class Own(nn.Sequential):
        def forward(self, x):
            return -super().forward(x)

    model = Own(nn.Linear(2, 2), nn.ReLU())
    assert not replace(model)[0]
    assert type(model) is Own


@pytest.mark.parametrize("kind", [ModuleActivation, Gated], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies_are_fused_and_their_own(kind, way, x, calls):
    model = kind()
    replace(model)
    if way == "deepcopy":
        twin = copy.deepcopy(model)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    with torch.no_grad():
        twin.a.weight.zero_()
    expected = type(twin).forward(twin, x)
    calls.clear()
    torch.testing.assert_close(twin(x), expected)
    assert calls
    assert not torch.equal(model(x), expected)


def test_put_back_gives_the_code_back(x):
    model, sequence = Gated(), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    keys = set(model.__dict__)
    for module in (model, sequence):
        assert replace(module)[0]
        put_back(module)
    assert set(model.__dict__) == keys
    assert type(sequence) is nn.Sequential


def test_a_forward_of_somebody_else_stays():
    model = Gated()
    forward = model.__dict__["forward"] = lambda x: x
    assert not replace(model)[0]
    put_back(model)
    assert model.forward is forward


@pytest.mark.parametrize("kind", [Gated, Functions], ids=lambda kind: kind.__name__)
def test_torch_compile_sees_the_original(kind, x, calls):
    model = kind()
    expected = outcome(model, x)
    replace(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_same(outcome(compiled, x), expected)
    assert not calls


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile looks at it
def test_torch_compile_may_break_its_graph_in_a_submodule(x):
    class Breaks(nn.Linear):
        def forward(self, input):
            torch._dynamo.graph_break()
            return F.linear(input, self.weight, self.bias)

    model = ModuleActivation()
    model.b = Breaks(12, 8)
    expected = outcome(model, x)
    assert replace(model)[:2] == ("Linear + GELU", "")
    assert_same(outcome(torch.compile(model, backend="eager"), x), expected)


def test_torch_compile_sees_an_ordinary_sequence(x, calls):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    expected = outcome(model, x)
    replace(model)
    assert_same(outcome(torch.compile(model, backend="eager", fullgraph=True), x), expected)
    assert not calls


def test_a_trace_by_the_user_sees_the_original(x):
    model = Gated()
    replace(model)
    traced = torch.fx.symbolic_trace(model)
    assert any(node.target is F.silu for node in traced.graph.nodes)
    torch.testing.assert_close(traced(x), model(x))


def test_arguments_by_name_and_other_dtypes_work(x):
    model = Gated()
    replace(model)
    torch.testing.assert_close(model(x=x), model(x))
    model.double()
    torch.testing.assert_close(model(x.double()), type(model).forward(model, x.double()))
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        model()


@pytest.mark.parametrize("kind", [ModuleActivation, Gated, Halves], ids=lambda kind: kind.__name__)
def test_autocast_gives_the_same_to_the_rounding_of_bf16(kind, x):
    model = kind()
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        replace(model)
        y = model(x)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_feed_forward_part_of_a_transformer_layer_is_fused(activation, x, calls):
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=activation, batch_first=True)
    expected = outcome(model, x)
    assert replace(model)[0]
    assert_same(outcome(model, x), expected)
    assert calls == ["linear"]
    twin = copy.deepcopy(model)
    assert twin.__dict__["_ff_block"].module is twin
    put_back(model)
    assert "_ff_block" not in model.__dict__


def test_a_trace_lets_no_module_see_a_stand_in():
    """Submodules are leaves: their code does not run while their parent is traced."""

    class Counts(nn.Linear):
        runs = 0

        def forward(self, input):
            Counts.runs += 1
            return super().forward(input)

    model = ModuleActivation()
    model.b = Counts(12, 8)
    assert replace(model)[:2] == ("Linear + GELU", "")
    assert Counts.runs == 0


def test_a_class_changed_since_saving_runs_as_it_is_now(x, monkeypatch):
    model = ModuleActivation()
    replace(model)
    saved = pickle.dumps(model)
    monkeypatch.setattr(ModuleActivation, "forward", Branches.forward)
    twin = pickle.loads(saved)
    torch.testing.assert_close(twin(x), Branches.forward(twin, x))
    assert twin.__dict__["forward"].plan is None


def test_the_fused_sequence_pickles():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    replace(model)
    assert type(pickle.loads(pickle.dumps(model))) is Sequential


# ---- a sum and the norm behind it ----------------------------------------------------------------------------


def test_the_norm_reads_the_sum_before_somebody_writes_to_it(x):
    class Model(Norms):
        def forward(self, x):
            s = x + self.mix(x)
            s.mul_(2)
            return self.first(s)

    model = Model()
    assert replace(model)[1]
    assert "forward" not in model.__dict__


def test_a_scaled_sum_and_a_sum_with_a_number_are_left_alone(x):
    class Model(Norms):
        def forward(self, x):
            return self.first(torch.add(x, self.mix(x), alpha=2)) + self.second(x + 1)

    assert not replace(Model())[0]


def test_a_norm_over_two_dimensions_is_left_alone():
    model = Residual()
    model.first = nn.RMSNorm((3, 8))
    assert replace(model)[:2] == ("residual + RMSNorm", "")


def test_a_sum_may_broadcast(x, calls):
    model = Residual()
    model.mix = nn.Linear(8, 1)
    expected = outcome(model, x)
    assert replace(model)[0]
    assert_same(outcome(model, x), expected)
    assert not calls


def hook_norm(model):
    model.first.register_forward_hook(lambda module, args, y: 2 * y)


def replace_norm(model):
    model.first = nn.LayerNorm(8)


def prune_norm(model):
    prune.l1_unstructured(model.first, "weight", amount=0.5)


def change_eps(model):
    model.first.eps = 1.0


def freeze_norm(model):
    model.first.requires_grad_(False)


def own_norm(model):
    model.first.forward = lambda x: -x


@pytest.mark.parametrize(
    "change", [hook_norm, replace_norm, prune_norm, change_eps, freeze_norm, own_norm],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_changes_of_a_norm_after_fusing_are_respected(change, x):
    model, plain = Residual(), Residual()
    assert replace(model)[0]
    change(model)
    change(plain)
    assert_same(outcome(model, x), outcome(plain, x))


@pytest.mark.parametrize("model", [Residual(), LayerNormThen()], ids=lambda model: type(model).__name__)
def test_a_bf16_update_is_added_to_an_fp32_stream_as_torch_does(model, x, calls):
    with torch.autocast("cpu", torch.bfloat16):
        expected = outcome(model, x)
        replace(model)
        ours = outcome(model, x)
    assert [a.dtype for a in ours] == [b.dtype for b in expected]
    for a, b in zip(ours, expected, strict=True):
        assert (a.float() - b.float()).norm() <= 2**-6 * b.float().norm()
    assert len(calls) == 2


def test_no_gradient_at_all_is_fine(x, calls):
    model = Residual()
    replace(model)
    with torch.no_grad():
        assert_same(model(x), Residual.forward(model, x))
    assert calls


def test_the_norm_of_another_class_is_fused_once_it_is_known(x, calls):
    class MyRMSNorm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    model = Residual(MyRMSNorm)
    expected = outcome(model, x)
    outcomes = rewrite(model)
    assert "2 x residual + RMSNorm" in [o.done for o in outcomes]
    assert_same(outcome(model, x), expected)
    assert calls == ["rms_norm", "rms_norm"]


def test_checkpointing_a_layer_gives_the_same_bits(x):
    model = Residual()
    replace(model)
    expected = outcome(model, x)

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return checkpoint(self.model, x, use_reentrant=False)

    for ours, theirs in zip(outcome(Again(), x), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_methods_that_forward_calls_copy_with_their_module(x, calls):
    model = InMethod()
    replace(model)
    twin = copy.deepcopy(model)
    assert twin.__dict__["normed"].module is twin
    twin(x)
    assert calls == ["rms_norm"]
    put_back(twin)
    assert "normed" not in twin.__dict__
