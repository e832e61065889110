"""Which modules are swapped, and that nobody notices but the clock."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fullstride.nn.embedding import Embedding
from fullstride.rewriting import put_back, rewrite
from fullstride.rewriting.probes import rms_norm


def pair(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The module, and a twin that is swapped."""
    twin = nn.Sequential(copy.deepcopy(module))
    rewrite(twin)
    return module, twin[0]


MODULES = {
    "Linear": (lambda: nn.Linear(7, 5), (3, 7)),
    "Linear without bias": (lambda: nn.Linear(7, 5, bias=False), (2, 3, 7)),
    "Conv1d": (lambda: nn.Conv1d(7, 5, 3, padding=1), (3, 7, 9)),
    "Conv1d that pays": (lambda: nn.Conv1d(64, 96, 5, padding="same"), (3, 14, 64)),
    "Conv1d without bias": (lambda: nn.Conv1d(64, 96, 5, padding="valid", bias=False), (3, 16, 64)),
    "Conv2d": (lambda: nn.Conv2d(3, 128, 16, stride=16), (1, 3, 33, 40)),
    "Conv2d that pays": (lambda: nn.Conv2d(3, 128, (16, 8), stride=(16, 8), padding="valid"), (5, 3, 33, 40)),
    "Conv2d without bias": (lambda: nn.Conv2d(384, 130, 2, stride=2, bias=False), (5, 384, 5, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(7), (3, 7)),
    "LayerNorm without weights": (lambda: nn.LayerNorm(7, elementwise_affine=False), (3, 7)),
    "RMSNorm": (lambda: nn.RMSNorm(7), (3, 7)),
    "GELU": (lambda: nn.GELU(), (3, 7)),
    "GELU tanh": (lambda: nn.GELU("tanh"), (3, 7)),
    "SiLU": (lambda: nn.SiLU(), (3, 7)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_swapped_module_computes_the_same_forward_and_backward(name):
    make, shape = MODULES[name]
    ordinary, fast = pair(make())
    assert type(fast) is not type(ordinary)
    assert isinstance(fast, type(ordinary))
    x = torch.randn(shape)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    if shape[-1] == 64:  # of a convolution, as Transformers call it
        y, z = ordinary(a.transpose(1, 2)), fast(b.transpose(1, 2))
        assert z.grad_fn.name() == "Conv1dFunctionBackward"
    else:
        y, z = ordinary(a), fast(b)
    torch.testing.assert_close(z, y, rtol=2e-5, atol=2e-6)
    y.square().sum().backward()
    z.square().sum().backward()
    torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)
    for p, q in zip(ordinary.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5)


def test_a_swapped_embedding_computes_the_same():
    ordinary, fast = pair(nn.Embedding(9, 4, padding_idx=2))
    assert type(fast) is Embedding
    index = torch.tensor([[1, 2, 8], [0, 1, 1]])
    assert torch.equal(fast(index), ordinary(index))
    for module in (ordinary, fast):
        module(index).square().sum().backward()
    torch.testing.assert_close(fast.weight.grad, ordinary.weight.grad)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)], ids=["rows", "with positions"])
def test_a_swapped_cross_entropy_computes_the_same(reduction, shape):
    ordinary, fast = pair(nn.CrossEntropyLoss(reduction=reduction, label_smoothing=0.1))
    logits, target = torch.randn(shape), torch.randint(0, 5, (shape[0], *shape[2:]))
    torch.testing.assert_close(fast(logits, target), ordinary(logits, target))


def test_cross_entropy_with_probabilities_is_left_to_torch():
    _, fast = pair(nn.CrossEntropyLoss())
    logits, target = torch.randn(4, 5), torch.rand(4, 5)
    torch.testing.assert_close(fast(logits, target), F.cross_entropy(logits, target))


def test_dropout_keeps_the_distribution_and_is_off_in_eval():
    _, fast = pair(nn.Dropout(0.25))
    x = torch.ones(100_000)
    torch.manual_seed(0)
    y = fast(x)
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs(y.mean().item() - 1) < 0.01
    torch.manual_seed(0)
    assert torch.equal(fast(x), y)
    assert torch.equal(fast.eval()(x), x)


LEFT = {
    "a subclass": lambda: type("Mine", (nn.Linear,), {})(3, 3),
    "a parametrized weight": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    "a strided convolution": lambda: nn.Conv1d(3, 3, 3, stride=2),
    "a dilated convolution": lambda: nn.Conv1d(3, 3, 3, dilation=2),
    "a convolution of groups": lambda: nn.Conv1d(4, 4, 3, groups=2),
    "a reflecting convolution": lambda: nn.Conv1d(3, 3, 3, padding=1, padding_mode="reflect"),
    "an overlapping convolution": lambda: nn.Conv2d(3, 128, 16, stride=8),
    "padded patches": lambda: nn.Conv2d(3, 128, 16, stride=16, padding=1),
    "dilated patches": lambda: nn.Conv2d(3, 128, 4, stride=4, dilation=2),
    "patches of groups": lambda: nn.Conv2d(4, 128, 4, stride=4, groups=2),
    "patches of one": lambda: nn.Conv2d(384, 128, 1),
    "few patches": lambda: nn.Conv2d(3, 96, 4, stride=4),
    "a norm over two dimensions": lambda: nn.LayerNorm((2, 3)),
    "a sparse embedding": lambda: nn.Embedding(3, 3, sparse=True),
    "an embedding with a norm": lambda: nn.Embedding(3, 3, max_norm=1.0),
    "weighted classes": lambda: nn.CrossEntropyLoss(weight=torch.ones(3)),
    "dropout in place": lambda: nn.Dropout(inplace=True),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_known_is_left_alone_with_a_reason(name):
    module = LEFT[name]()
    kind = type(module)
    outcomes = rewrite(nn.Sequential(module))
    assert type(module) is kind
    assert [bool(o.left) for o in outcomes if o.name == "0"] == [True]


def test_the_reason_names_the_argument_of_a_convolution():
    outcomes = rewrite(nn.Sequential(nn.Conv1d(4, 4, 3, groups=2), nn.Conv1d(4, 4, 3, dilation=4)))
    assert [o.left for o in outcomes] == ["groups is 2; the kernel takes 1", "dilation is 4; the kernel takes 1"]


def test_the_reason_names_the_argument_of_patches():
    convolutions = [
        nn.Conv2d(3, 128, 16, stride=8), nn.Conv2d(4, 128, 4, stride=4, groups=2), nn.Conv2d(3, 96, 4, stride=4)
    ]  # fmt: skip
    assert [o.left for o in rewrite(nn.Sequential(*convolutions))] == [
        "stride is (8, 8); a product takes that of its kernel, (16, 16)",
        "groups is 2; patches have 1",
        "torch is as fast with 96 filters of 3 x 4 x 4",
    ]


def test_keys_hooks_parameters_and_identity_survive():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    modules, parameters, keys = list(model.modules()), list(model.parameters()), list(model.state_dict())
    seen = []
    model[0].register_forward_hook(lambda m, args, y: seen.append(y.shape))
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    rewrite(model)
    model(torch.randn(2, 3, requires_grad=True)).sum().backward()
    assert seen == [(2, 4), "backward"]
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys


def test_unswap_gives_the_ordinary_classes_back():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4)), Mine(4))
    kinds = [type(m) for m in model.modules()]
    rewrite(model)
    assert [type(m) for m in model.modules()] != kinds
    put_back(model)
    assert [type(m) for m in model.modules()] == kinds
    assert not any("forward" in m.__dict__ for m in model.modules())


class MyRMSNorm(nn.Module):
    def __init__(self, width: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.offset = 1e-5, offset

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (self.offset + self.weight)


class Mine(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = MyRMSNorm(width)

    def forward(self, x):
        return self.norm(x)


def test_an_rms_norm_of_another_class_is_known_by_what_it_computes():
    assert rms_norm.looks_like(MyRMSNorm(8))
    assert rms_norm.computes_rms_norm(MyRMSNorm(8))
    ordinary, fast = pair(MyRMSNorm(8))
    assert isinstance(fast.forward, rms_norm.NormForward)
    x = torch.randn(3, 8)
    torch.testing.assert_close(fast(x), ordinary(x))


def test_an_rms_norm_that_computes_something_else_is_left_alone():
    ordinary, fast = pair(MyRMSNorm(8, offset=1.0))
    assert "forward" not in fast.__dict__
    assert torch.equal(fast.weight, ordinary.weight)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", ["none", "causal", "bool", "float", "padding", "both", "per head"])
def test_multihead_attention_computes_the_same(masks, batch_first):
    torch.manual_seed(0)
    ordinary, fast = pair(nn.MultiheadAttention(12, 3, batch_first=batch_first))
    x = torch.randn(2, 5, 12) if batch_first else torch.randn(5, 2, 12)
    hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    kwargs = {
        "none": {},
        "causal": {"attn_mask": hidden, "is_causal": True},
        "bool": {"attn_mask": hidden},
        "float": {"attn_mask": torch.randn(5, 5)},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": hidden, "key_padding_mask": padding},
        "per head": {"attn_mask": torch.randn(6, 5, 5)},
    }[masks]
    results = []
    for module in (ordinary, fast):
        leaf = x.clone().requires_grad_()
        y, weights = module(leaf, leaf, leaf, need_weights=False, **kwargs)
        assert weights is None
        y.square().sum().backward()
        results.append((y, leaf.grad, module.in_proj_weight.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


def test_multihead_attention_across_sequences_and_with_weights_computes_the_same():
    ordinary, fast = pair(nn.MultiheadAttention(12, 3, batch_first=True).eval())
    q, k = torch.randn(2, 4, 12), torch.randn(2, 7, 12)
    torch.testing.assert_close(fast(q, k, k, need_weights=False)[0], ordinary(q, k, k, need_weights=False)[0])
    for a, b in zip(fast(q, k, k), ordinary(q, k, k), strict=True):
        torch.testing.assert_close(a, b)
