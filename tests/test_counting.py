"""FLOPs of a model, against torch.utils.flop_counter."""

import random
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import fullstride
from fullstride.counting import Flops, flops
from fullstride.models import llama


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def by_torch(model, *inputs, **named):
    """(forward, backward) as torch counts them with its plain attention; its kernels for the CPU count as nothing."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # its LSTM counts as nothing, too
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            output = model(*inputs, **named)
            forward = counter.get_total_flops()
            output = output[0] if isinstance(output, tuple) else getattr(output, "loss", output)
            output.sum().backward()
    finally:
        torch._C._set_mkldnn_enabled(enabled)
    return forward, counter.get_total_flops() - forward


class Written(nn.Module):
    """Products as functions, and a weight that is used twice."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        x = torch.einsum("bti,ij->btj", x @ self.weight, self.weight)
        return torch.bmm(x, x.transpose(1, 2)).matmul(x)


def small_llama(**changes):
    shape = {"vocabulary": 32, "width": 16, "layers": 3, "heads": 4, "kv_heads": 2, "hidden": 24, "context": 8}
    return llama.build(**shape | changes)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), lambda: torch.randn(4, 5)),
    "no batch": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), lambda: torch.randn(1, 5)),
    "functions": (Written, lambda: torch.randn(2, 3, 6)),
    "convolutions, strided, dilated": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, dilation=2), nn.Flatten(),
            nn.Linear(64, 3),
        ),
        lambda: torch.randn(2, 3, 16, 16),
    ),
    "convolutions in 1 and transposed": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 5), nn.ConvTranspose1d(4, 6, 3, stride=2), nn.Conv1d(6, 1, 1)),
        lambda: torch.randn(2, 3, 9),
    ),
    "convolutions in 3": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.ConvTranspose3d(4, 3, (1, 2, 3), stride=(1, 2, 1))),
        lambda: torch.randn(2, 2, 5, 6, 7),
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
        lambda: torch.randn(2, 6, 16),
    ),
    "lstm": (lambda: nn.LSTM(5, 7, 2, batch_first=True), lambda: torch.randn(3, 4, 5)),
    "gru": (lambda: nn.GRU(5, 7, bidirectional=True), lambda: torch.randn(3, 4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward_are_what_torch_counts(name):
    make, inputs = MODELS[name]
    model, x = make(), inputs()
    counted = flops(model, x)
    assert (counted.forward, counted.backward) == by_torch(model, x)
    assert counted.masked == counted.embeddings == 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_is_what_torch_counts_but_the_masked_half_and_the_embedding(tied):
    model, tokens = small_llama(tied=tied), torch.randint(32, (2, 8))
    counted = flops(model, tokens)
    assert counted.embeddings == 2 * 8 * 16
    assert counted.masked == counted.attention == 3 * 6 * 2 * 8 * 8 * 16
    assert counted.total - counted.embeddings + counted.masked == sum(by_torch(model, tokens))


@pytest.mark.parametrize(("model", "heads"), [("bert", "BertForMaskedLM"), ("gpt2", "GPT2LMHeadModel")])
def test_models_of_transformers_are_what_torch_counts(model, heads):
    transformers = pytest.importorskip("transformers")
    if model == "bert":
        config = transformers.BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
    else:
        config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=8, attn_pdrop=0.1)
    built = getattr(transformers, heads)(config).train()
    tokens = torch.randint(50, (2, 8))
    counted = flops(built, input_ids=tokens, labels=tokens)
    assert counted.attention > 0
    torch_says = sum(by_torch(built, input_ids=tokens, labels=tokens))
    assert counted.total - counted.embeddings + counted.masked == torch_says


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_causal_attention_is_half_of_the_square_with_dropout_or_without(dropout):
    class Causal(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, None, dropout, True)

    q, k, v = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))
    square = 2 * 2 * 3 * 8 * 8 * 4
    assert flops(Causal(), q, k, v) == Flops(square, 2 * square, 0, 0, 3 * square, 0, 3 * square)


def test_groups_divide_the_gradient_of_the_weight_as_well_which_torch_does_not():
    model, x = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=4)), torch.randn(2, 4, 9, 9)
    counted, (forward, backward) = flops(model, x), by_torch(model, x)
    grouped = 2 * (2 * 8 * 7 * 7) * (2 * 3 * 3)
    assert counted.forward == forward
    assert counted.backward == backward - (4 - 1) * grouped == 2 * (2 * 8 * 9 * 9) * (4 * 3 * 3) + 2 * grouped


def test_frozen_weights_have_no_gradient_and_neither_has_what_lies_before_them():
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(3, 2)), torch.randn(4, 5)
    model[1].weight.requires_grad_(False)
    assert flops(model, x).backward == by_torch(model, x)[1] == 2 * 4 * (35 + 21 + 2 * 6)
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    assert flops(model, x).backward == 2 * 4 * 6
    model.requires_grad_(False)
    assert flops(model, x).backward == 0


def test_inputs_that_need_a_gradient_count():
    model, x = nn.Linear(5, 7), torch.randn(4, 5, requires_grad=True)
    assert flops(model, x).backward == 2 * 2 * 4 * 35
    assert x.grad is None


def test_a_bag_of_embeddings_adds_forward_and_backward():
    assert flops(nn.EmbeddingBag(9, 4), torch.randint(9, (3, 5))).embeddings == 2 * 3 * 5 * 4


def test_a_look_up_is_nothing_and_its_backward_an_addition_an_element():
    counted = flops(nn.Embedding(9, 4), torch.randint(9, (3, 5)))
    assert (counted.forward, counted.backward) == (0, 3 * 5 * 4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_counts(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 5), nn.Sigmoid())

        def forward(self, x):
            return checkpoint(self.second, self.first(x), use_reentrant=reentrant)

    assert flops(Checkpointed(), torch.randn(4, 5)).total == 2 * 4 * 25 * (2 + 4)


# ---- models that nobody knows


class Looks(nn.Module):
    """At values."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.sum().item())
        for _ in range(2 if x[0, 0].item() > 0 else 1):
            x = self.layer(self.norm(x))
        return x


@pytest.mark.parametrize(("value", "times"), [(1.0, 2), (-1.0, 1)])
def test_a_model_that_looks_at_values_is_counted_with_them(value, times):
    model = Looks()
    assert flops(model, torch.full((3, 4), value)).forward == times * 2 * 3 * 16
    assert model.seen == []
    assert model.norm.num_batches_tracked == 0


class Careless(nn.Module):
    """Does to itself whatever a forward pass can do."""

    count: torch.Tensor

    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.norm, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))
        self.cache = {}

    def forward(self, tokens):
        self.count += 1
        random.random(), np.random.rand()  # noqa: NPY002
        x = self.dropout(self.norm(self.layer(self.embedding(tokens).mean(1))))
        self.cache["last"] = self.last = x
        return x


def test_nothing_is_left_behind():
    model, tokens = Careless(), torch.randint(9, (3, 5))
    model.layer.weight.grad = torch.ones(6, 6)
    seen = []
    model.layer.register_forward_hook(lambda *_: seen.append("hook"))
    model.layer.weight.register_post_accumulate_grad_hook(lambda _: seen.append("gradient"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grad, states = model.layer.weight.grad, (torch.get_rng_state(), random.getstate(), np.random.get_state())  # noqa: NPY002
    mkldnn, fast_path = torch._C._get_mkldnn_enabled(), torch.backends.mha.get_fastpath_enabled()
    assert flops(model, tokens).products == 2 * 3 * 36 * 3
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.layer.weight.grad is grad
    assert torch.equal(grad, torch.ones(6, 6))
    assert all(p.grad is None for p in model.parameters() if p is not model.layer.weight)
    assert seen == []
    assert (model.cache, hasattr(model, "last"), model.training) == ({}, False, True)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert np.array_equal(states[2][1], np.random.get_state()[1])  # noqa: NPY002
    assert (mkldnn, fast_path) == (torch._C._get_mkldnn_enabled(), torch.backends.mha.get_fastpath_enabled())


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm])
def test_weights_that_torch_makes_before_a_forward_are_made(norm):
    model, x = nn.Sequential(nn.Linear(5, 5), norm(nn.Linear(5, 3))), torch.randn(4, 5)
    model(x)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert flops(model, x).products >= 2 * 4 * (2 * 25 + 3 * 15)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_a_model_on_the_meta_device_is_counted():
    with torch.device("meta"):
        model = small_llama()
    assert flops(model, torch.randint(32, (2, 8))) == flops(small_llama(), torch.randint(32, (2, 8)))


def test_an_output_with_a_loss_is_the_loss_alone():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return OrderedDict(loss=self.first(x).sum(), other=self.second(x))

    assert flops(Two(), torch.randn(3, 4)).backward == 2 * 3 * 16


def test_a_prepared_model_is_refused():
    model, _ = fullstride.prepare(nn.Sequential(nn.Linear(4, 4)), precision="fp32")
    try:
        with pytest.raises(ValueError, match=r"expected a plain model, got a prepared one; count before prepare\(\)"):
            flops(model, torch.randn(2, 4))
    finally:
        fullstride.restore(model)


def test_a_batch_that_does_not_fit_is_one_line():
    with pytest.raises(ValueError, match=r"^flops: the batch does not go through the model: RuntimeError: .*shapes"):
        flops(nn.Linear(4, 4), torch.randn(2, 3))
    with pytest.raises(TypeError, match=r"model: expected an nn\.Module, got function"):
        flops(lambda x: x, torch.randn(2, 3))
